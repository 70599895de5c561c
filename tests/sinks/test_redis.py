"""Rows as keys of Redis: they belong to one edition, also after kills, swaps and restarts."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lake.config import Settings
from lake.connect.redis import staged_swap
from lake.errors import DeclarationError, LakeError, StartOver, Unavailable
from lake.sinks.deliver import deliver
from lake.sinks.verify import repair, verify_sink
from tests.processes import until
from tests.servers.redis import Redis
from tests.sinks.walks import edition, every_type, identical, lake, sink

URL = 'kind = "redis"\nurl = "env:CACHE_URL"\n'


@pytest.fixture(autouse=True)
def url(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_URL", redis.url)


@contextmanager
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> Iterator[Redis]:
    """Start a server for one test, the target of its sinks."""
    server = Redis(tmp_path / "redis", settings)
    server.start()
    monkeypatch.setenv("CACHE_URL", server.url)
    try:
        yield server
    finally:
        server.stop()


def test_row_is_a_json_text_or_a_hash_under_its_key(project: Settings, redis: Redis) -> None:
    client = redis.client()
    edition(project, 1, "id", one=every_type(40), two="SELECT 1 AS id, 'b' AS word")
    upsert = f'{URL}[tables.one]\nform = "hash"\n[tables.two]\nmode = "upsert"\n'
    deliver(project, sink(project, "cache", upsert))
    assert client.hget("cache:one:0", "long") == "-9223372036854775808"
    assert client.get("cache:two:1") == '{"id": 1, "word": "b"}'
    assert json.loads(str(client.get("cache:position")))["edition"] == 1
    edition(project, 2, "id", one=every_type(40), two="SELECT 1 AS id, 'c' AS word")
    cache = sink(project, "cache", f'{upsert}form = "hash"\n')
    with pytest.raises(StartOver, match="must begin anew with two"):
        deliver(project, cache)
    deliver(project, cache, resync=True)
    assert client.hgetall("cache:two:1") == {"id": "1", "word": "c"}
    assert identical(project, cache) == 2


def test_key_is_the_prefix_the_table_and_the_escaped_identity(project: Settings, redis: Redis) -> None:
    edition(project, 1, "a", "b", one="SELECT * FROM (VALUES ('a:b', NULL), ('a', 'b')) t(a, b)")
    cache = sink(project, "cache", f'{URL}prefix = "[p]*:"\n[tables.one]\n')
    deliver(project, cache)
    assert identical(project, cache) == 1
    assert {*redis.client().scan_iter()} == {"[p]*:position", "[p]*:one:a%3Ab:%null", "[p]*:one:a:b"}


def test_readers_see_one_edition_whole_while_it_is_delivered_in_one_step(project: Settings, redis: Redis) -> None:
    cache = sink(project, "cache", f"{URL}[tables.one]\n[tables.two]\n")
    query = "SELECT range AS id, {} AS said FROM range(2000)"
    seen, end = set[tuple[int, ...]](), threading.Event()

    def look() -> None:
        client = redis.client()
        while not end.is_set():
            with client.pipeline() as pipe:
                pipe.get("cache:one:0").get("cache:one:1999").get("cache:two:7").get("cache:position")
                first, last, other, position = pipe.execute()
            if position is not None:
                seen.add((*(json.loads(row)["said"] for row in (first, last, other)), json.loads(position)["edition"]))

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(1, 6):
        edition(project, number, "id", one=query.format(number), two=query.format(number))
        deliver(project, cache)
        until(lambda number=number: (number,) * 4 in seen)  # type: ignore[misc]
    end.set()
    looking.join()
    assert seen == {(n, n, n, n) for n in range(1, 6)}


def test_stepwise_swap_shows_both_editions_and_the_old_position_until_its_end(
    project: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_swap, "STEP", 10)
    cache = sink(project, "cache", f"{URL}at_once = 5\n[tables.one]\n")
    edition(project, 1, "id", one="SELECT range AS id, 1 AS said FROM range(100)")
    deliver(project, cache)
    edition(project, 2, "id", one="SELECT range AS id, 2 AS said FROM range(50, 150)")
    seen: list[tuple[list[int], int, int]] = []
    run: Any = staged_swap._run
    client = redis.client()

    def looked(*args: Any) -> None:
        for pair in args[4]:
            run(*args[:4], [pair])
            values = client.mget([f"cache:one:{n}" for n in range(150)])
            rows = [json.loads(str(value))["said"] for value in values if value is not None]
            seen.append((sorted(set(rows)), len(rows), json.loads(str(client.get("cache:position")))["edition"]))

    monkeypatch.setattr(staged_swap, "_run", looked)
    deliver(project, cache)
    assert {position for _, _, position in seen} == {1}
    assert [1, 2] in [said for said, _, _ in seen]
    assert min(count for _, count, _ in seen) == 50, "rows that stay are there all the time"
    assert identical(project, cache) == 2


@pytest.mark.parametrize("at_once", [10, 10_000])
def test_server_killed_during_a_delivery_has_one_edition_after_the_next(
    project: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    with another(tmp_path, monkeypatch) as server:
        cache = sink(project, "cache", f"{URL}at_once = {at_once}\nseconds = 5\n[tables.one]\n")
        words = "SELECT range AS id, 'w' || range * {} AS word FROM range({})"
        edition(project, 1, "id", one=words.format(1, 200))
        deliver(project, cache)
        for number in range(2, 8):
            edition(project, number, "id", one=words.format(number, 200 + number))
            nth = number // 2 if at_once == 10 else 1  # of some 20 calls, or of one
            dying = partial(put_and_kill_at, staged_swap.set_rows, count(1), nth, server)
            with monkeypatch.context() as patch:
                patch.setattr(staged_swap, "set_rows", dying)
                patch.setattr("lake.connect.redis.set_rows", dying)
                with pytest.raises(Unavailable, match="does not answer"):
                    deliver(project, cache)
            server.start()
            deliver(project, cache)
            assert identical(project, cache) == number


def put_and_kill_at(put: Callable[..., None], trips: Iterator[int], nth: int, server: Redis, *args: Any) -> None:
    """Put rows, and kill the server after the `nth` call."""
    put(*args)
    if next(trips) == nth:
        server.stop()


@pytest.mark.parametrize("value", ["no JSON", '{"id": 8}', "[1]", "{}"])
def test_verify_names_a_key_with_wrong_content_and_repair_restores_a_deleted_one(
    project: Settings, redis: Redis, value: str
) -> None:
    edition(project, 1, "id", one=every_type(5))
    cache = sink(project, "cache", f"{URL}[tables.one]\n")
    deliver(project, cache)
    redis.client().set("cache:one:4", value)
    with pytest.raises(LakeError, match="cache:one:4 is not the row of one with that key"):
        verify_sink(project, cache)
    redis.client().delete("cache:one:4")
    repair(project, cache)
    assert identical(project, cache) == 1
    redis.client().lpush("cache:one:11", "a")
    with pytest.raises(LakeError, match="cache:one:11 does not hold the row"):
        verify_sink(project, cache)


def test_row_without_a_value_is_rejected_as_a_hash(project: Settings, redis: Redis) -> None:
    edition(project, 1, "id", one="SELECT * FROM (VALUES (1, 'a'), (NULL, NULL)) t(id, word)")
    cache = sink(project, "cache", f'{URL}[tables.one]\nform = "hash"\n')
    assert deliver(project, cache).rejected == 1
    [verdict] = verify_sink(project, cache)[1]
    assert verdict.why == "the target cannot take 1 of them: lake status"
    edition(project, 2, "id", one="SELECT * FROM (VALUES (1, 'a'), (NULL, 'b')) t(id, word)")
    assert deliver(project, cache).rejected == 0
    assert identical(project, cache) == 2


@pytest.mark.parametrize(
    "case",
    [
        (["--requirepass", "good"], "redis://127.0.0.1:{port}/0", "password = .env:NAME", 2),
        (["--requirepass", "good"], "redis://:secret123@127.0.0.1:{port}/0", "look at username and password", 2),
        (["--maxmemory", "1mb"], "redis://127.0.0.1:{port}/0", "maxmemory", 75),
        (["--replicaof", "127.0.0.1 1"], "redis://127.0.0.1:{port}/0", "name the primary|MASTERDOWN|refuses", 75),
        (["--cluster-enabled", "yes"], "redis://127.0.0.1:{port}/0", "Hash slot not served", 75),
        ([], "redis://:secret123@127.0.0.1:1/0", "does not answer", 75),
        ([], "redis://127.0.0.1:{port}/99", "DB index", 1),
    ],
)
def test_error_of_the_server_is_quoted_and_no_password_is_printed(
    project: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[list[str], str, str, int]
) -> None:
    settings, environment, said, code = case
    with another(tmp_path, monkeypatch, *settings) as server:
        edition(project, 1, "id", one="SELECT range AS id, repeat('x', 1000) AS word FROM range(3000)")
        sink(project, "cache", f"{URL}[tables.one]\n")
        done = lake(project, ["deliver", "cache"], CACHE_URL=environment.format(port=server.port))
        assert (done.returncode, re.search(said, done.stderr) is not None) == (code, True), done.stderr
        assert "secret123" not in done.stdout + done.stderr
        assert "xxx" not in done.stderr, "no row is printed"


def test_cluster_is_refused(project: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with another(tmp_path, monkeypatch, "--cluster-enabled", "yes") as server:
        server.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        edition(project, 1, "id", one=every_type(20))
        until(lambda: bool(re.search(r"state\W+ok", str(server.client().execute_command("CLUSTER INFO")))))
        cache = sink(project, "cache", f"{URL}[tables.one]\n")
        with pytest.raises(DeclarationError, match="same slot") as refused:
            deliver(project, cache)
        assert "name a server that is no cluster" in refused.value.fix
        assert server.client().dbsize() == 0
