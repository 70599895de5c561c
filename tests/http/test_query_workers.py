"""Queries of `lake serve http` in worker processes: a query over its limits ends alone."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests import intake
from tests.http.test_reading import kind
from tests.processes import PATIENCE, until
from tests.reading import Served, append, served, small
from tests.servers.http import installed

pytestmark = pytest.mark.http
MEMORY = 512 << 20
LIMITED = f"[tool.lake.serve]\nquery_memory = {MEMORY}\nquery_seconds = 3\nqueries_at_once = 4\n"
ENDLESS = "select levenshtein(repeat('a', 400000), repeat('b', 400000))"
LARGE = {
    "damerau": "select damerau_levenshtein(repeat('a', 30000), repeat('b', 30000))",
    "list_transform": "select len(list_transform(range(3000000), lambda x: repeat('a', 1000)))",
    "repeat": "select length(repeat('a', 4000000000))",
}
"""Each needs gigabytes."""
BOMBS = {
    "damerau_max": "select max(damerau_levenshtein(repeat('a', 6000), repeat('b', 6000 + i::int))) from range(99) t(i)",
    "repeat_many": "select max(length(repeat('x' || i, 50000000))) from range(100) t(i)",
    "repeat_nested": "select repeat(repeat('x', 1000000), 3000)",
    "list_transform_text": "select length(list_transform(range(100000000), lambda x: repeat('a', 1000))::varchar)",
    "list_nested": "select len([[repeat('a', 1000) for x in range(10000)] for y in range(1000)])",
    "string_agg": "select length(string_agg(repeat('x', 1000000), '')) from range(10000)",
    "list": "select len(list(range(1000000))) from range(10000)",
    "lpad": "select length(lpad('x', 2000000000, 'y'))",
    "printf": "select length(printf('%2000000000d', 1))",
    "format": "select length(format('{:>2000000000}', 'x'))",
    "recurse": "with recursive r as (select 1 n, repeat('x', 999) s union all select n + 1, s from r) select n from r",
    "json": "select length(to_json(range(100000000))::varchar)",
    "brackets": f"select {'(' * 100000}1{')' * 100000}",
    "terms": f"select 1 in ({','.join(['1'] * 100000)})",
    "rows": "select count(*) from range(100000000000) t(i) where hash(i) = 1",
    "sort": "select max(x) from (select row_number() over (order by hash(i)) as x from range(1500000000) t(i))",
    "resize": "select len(list_resize([1], 1000000000, 2))",
    "distinct": "select count(distinct a.i * b.i) from range(1000000) a(i), range(1000000) b(i)",
    "regex": f"select regexp_replace(repeat('a', 10000000), 'a', '{'b' * 10000}', 'g')",
    "aggregates": "select histogram(i), list(i), mode(i) from range(1000000000) t(i)",
    "map": "select cardinality(map(range(100000000), range(100000000)))",
    "split": "select len(string_split(repeat('a,', 50000000), ','))",
    "replace": "select length(replace(repeat('a', 10000000), 'a', repeat('b', 10000)))",
    "unhex": "select octet_length(unhex(repeat('00', 1000000000)))",
    "reduce": "select length(list_reduce(list_transform(range(40), lambda x: 'aaa'), lambda a, b: a || a || b))",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Server with short limits for queries."""
    installed()
    with served(tmp_path_factory.mktemp("workers") / "shop", LIMITED) as site:
        yield site


@pytest.fixture(scope="module")
def patient_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Server on which queries end by their memory, however slow the machine is."""
    installed()
    limits = LIMITED.replace("query_seconds = 3", f"query_seconds = {round(PATIENCE)}")
    with served(tmp_path_factory.mktemp("patient") / "shop", limits) as site:
        yield site


def workers(server: int) -> list[int]:
    """Return the running child processes of a server."""
    found = list[int]()
    for task in Path(f"/proc/{server}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def seconds(process: int) -> float:
    """Return the processor time of a process."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().split()[13]) / os.sysconf("SC_CLK_TCK")
    return 0


@contextmanager
def peaks(server: int) -> Iterator[dict[int, int]]:
    """Sample the peak resident bytes of each worker while the block runs."""
    found, ended = dict[int, int](), threading.Event()

    def look() -> None:
        while not ended.wait(0.005):
            for worker in workers(server):
                with suppress(OSError, StopIteration):
                    lines = Path(f"/proc/{worker}/status").read_text().splitlines()
                    most = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
                    found[worker] = max(most, found.get(worker, 0))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()


def run_queries(site: Served, queries: Sequence[str], by: str = "all") -> list[httpx.Response]:
    """Return the answers to queries sent at once."""
    site.reader(by)
    with ThreadPoolExecutor(len(queries)) as threads:
        return list(threads.map(lambda query: site.sql(query, by=by), queries))


def test_endless_queries_release_their_slots_at_the_time_limit(site: Served) -> None:
    site.reader("slow")
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(run_queries, site, [ENDLESS] * 4, "slow")
        until(lambda: len(workers(site.serving.pid)) >= 4 or slow.done())
        assert site.get("/tables").status_code == 200
        assert site.sql("select 1 as one").json() == [{"one": 1}]
        answers = slow.result()
    assert [(kind(answer), answer.json()["detail"]) for answer in answers] == [
        ("too-slow-query", "more than 3 seconds")
    ] * 4
    assert site.reads("outcome", by="slow") == [("time",)] * 4
    assert len(workers(site.serving.pid)) <= 4


@pytest.mark.parametrize("bomb", LARGE)
def test_query_over_the_memory_limit_is_rejected_before_it_uses_twice_that(patient_site: Served, bomb: str) -> None:
    with peaks(patient_site.serving.pid) as found:
        answer = patient_site.sql(LARGE[bomb], by=bomb)
    assert (kind(answer), answer.status_code) == ("too-much", 422)
    assert "query_memory" in answer.json()["detail"]
    assert max(found.values()) <= 2 * MEMORY
    assert patient_site.reads("outcome", by=bomb) == [("refused",)]
    assert patient_site.sql("select 1 as one").json() == [{"one": 1}]


@pytest.mark.parametrize("bomb", BOMBS)
def test_bomb_is_rejected_and_the_server_continues(site: Served, bomb: str) -> None:
    with peaks(site.serving.pid) as found:
        answer = site.sql(BOMBS[bomb])
    assert kind(answer) in {"bad-query", "too-much", "too-slow-query"}
    assert max(found.values()) <= 2 * MEMORY
    assert site.sql("select 1 as one").json() == [{"one": 1}]


def test_bombs_of_all_slots_stay_within_the_limit_together(site: Served) -> None:
    with peaks(site.serving.pid) as found:
        answers = run_queries(site, [*LARGE.values(), BOMBS["list_nested"]] * 3)
    assert {kind(answer) for answer in answers} <= {"too-much", "too-slow-query"}
    assert max(found.values()) <= 2 * MEMORY


def test_query_is_rejected_when_its_process_is_killed_and_the_next_succeeds(site: Served) -> None:
    assert site.sql("select 1 as one").status_code == 200
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(site.sql, ENDLESS)
        until(lambda: answer.done() or any(seconds(worker) > 1 for worker in workers(site.serving.pid)))
        for worker in workers(site.serving.pid):
            os.kill(worker, signal.SIGKILL)
        assert kind(answer.result()) == "too-much"
    assert site.sql("select 1 as one").json() == [{"one": 1}]


def test_download_is_cut_off_when_its_process_is_killed(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        append(site.settings, 1000, 2_000_000)
        until(lambda: site.get("/tables").headers["lake-edition"] == "2")
        headers = {"authorization": f"Bearer {site.reader('all')}"}
        with httpx.stream("GET", f"{site.serving.url}/tables/numbers.csv", headers=headers) as answer:
            assert answer.status_code == 200
            for worker in workers(site.serving.pid):
                os.kill(worker, signal.SIGKILL)
            with pytest.raises(httpx.RemoteProtocolError):
                answer.read()
        until(lambda: ("failed",) in site.reads("outcome"))


def test_query_ends_when_its_client_hangs_up(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", "[tool.lake.serve]\nqueries_at_once = 1\nquery_seconds = 3600\n") as site:
        with _send_query(site, ENDLESS):
            until(lambda: any(seconds(worker) > 0.5 for worker in workers(site.serving.pid)))
        assert site.sql("select 1 as one").json() == [{"one": 1}]
        until(lambda: ("gone",) in site.reads("outcome"))


def test_workers_end_with_a_killed_server(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop")
    with intake.start(project.project) as process:
        site = Served(project, intake.ready(process))
        with _send_query(site, ENDLESS):
            until(lambda: bool(workers(site.serving.pid)) or process.poll() is not None)
            there = workers(site.serving.pid)
            process.kill()
            process.wait()
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in there))


def test_server_ends_by_sigterm_while_bombs_run(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop", "[tool.lake.serve]\nquery_seconds = 3600\n")
    with intake.start(project.project) as process:
        site = Served(project, intake.ready(process))
        bombs = [_send_query(site, ENDLESS) for _ in range(6)]
        until(lambda: len(workers(site.serving.pid)) == 4)
        there = workers(site.serving.pid)
        os.kill(site.serving.pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        for bomb in bombs:
            bomb.close()
    assert not any(Path(f"/proc/{worker}").exists() for worker in there)
    assert {outcome for (outcome,) in site.reads("outcome")} == {"stopping"}


def test_worker_stays_while_readers_of_different_tables_take_turns(tmp_path: Path) -> None:
    installed()
    lines = "[tool.lake.serve]\nquery_memory = 67108864\nqueries_at_once = 1\n"
    with served(tmp_path / "shop", lines) as site:
        names = ("types", "numbers", "local", "nothing")
        readers = [(f"r{i}", [name for nth, name in enumerate(names) if i >> nth & 1]) for i in range(1, 16)]
        for name, tables in readers:
            site.reader(name, *tables)
        site.sql("select 1 as one", by="r15")
        first = workers(site.serving.pid)
        for name, tables in readers * 2:
            counts = ", ".join(f"(select count(*) from {table}) as {table}" for table in tables)
            every = {"types": 4, "numbers": 1000, "local": 1, "nothing": 0}
            assert site.sql(f"select {counts}", by=name).json() == [{table: every[table] for table in tables}]
            for table in every.keys() - {*tables}:
                assert kind(site.sql(f"from {table}", by=name)) == "bad-query"
        assert workers(site.serving.pid) == first


def test_spilled_files_are_deleted_when_their_query_is_killed(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", "[tool.lake.serve]\nquery_memory = 67108864\nquery_seconds = 5\n") as site:
        spilled = site.settings.path(".lake/sql")
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(site.sql, BOMBS["sort"])
            until(lambda: spilled.is_dir() and any(spilled.iterdir()))
            assert kind(answer.result()) in {"too-slow-query", "too-much"}
        until(lambda: not any(spilled.iterdir()))


def _send_query(site: Served, query: str) -> socket.socket:
    """Send a query without reading its answer."""
    head = f"POST /sql HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.reader('all')}\r\n"
    client = socket.create_connection(("127.0.0.1", site.serving.port))
    client.sendall(f"{head}content-length: {len(query)}\r\n\r\n{query}".encode())
    return client
