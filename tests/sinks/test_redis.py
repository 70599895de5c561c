"""Rows as keys of Redis: whatever happens to editions, deliverers and the server, they are those of one edition."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from shutil import which
from typing import Any, cast

import pytest

from lake.config import Settings
from lake.connect.redis import staged_swap
from lake.connect.redis.target import RedisTarget as Target
from lake.errors import DeclarationError, LakeError, StartOver, Unavailable
from lake.read.sql import reader
from lake.sinks.deliver import deliver
from lake.sinks.plan import DeliveryPlan
from lake.sinks.verify import repair, verify_sink
from lake.store.ledger import editions
from lake.testing import Commands
from tests.docs.sessions import SHOP, play
from tests.processes import until
from tests.read.things import NAME
from tests.servers import needed
from tests.servers.redis import Redis
from tests.sinks.followed import (
    each_point_kills,
    each_trip_dies,
    identical,
    of_two_one_is_refused,
    overtaken,
    whatever_happens,
)
from tests.sinks.killed import POINTS
from tests.sinks.trips import Moment
from tests.sinks.walks import command, edition, every_type, lake, sink

URL = 'kind = "redis"\nurl = "env:CACHE_URL"\n'
FORMS = ("json", "hash")


@pytest.fixture(autouse=True)
def url(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_URL", redis.url)


@contextmanager
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *settings: str) -> Iterator[Redis]:
    """A server of a test's own, which its sinks fill."""
    server = Redis(tmp_path / "redis", settings)
    server.start()
    monkeypatch.setenv("CACHE_URL", server.url)
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.smoke
def test_an_edition_is_delivered_changed_and_proven(project: Settings, redis: Redis) -> None:
    edition(project, 1, "id", one=every_type(40), two="SELECT 1 AS id, 'a' AS word")
    sink(project, "cache", f'{URL}[tables.one]\nform = "hash"\n[tables.two]\nname = "second"\n')
    first = command(project, "deliver")
    assert [(t["table"], t["whole"], t["inserted"]) for t in first["sinks"][0]["tables"]] == [
        ("one", True, 40),
        ("two", True, 1),
    ]
    assert {row["verdict"] for row in command(project, "verify", "--sink", "cache")["tables"]} == {"identical"}
    edition(project, 2, "id", one=every_type(45, shift=3), two="SELECT 1 AS id, 'b' AS word")
    second = command(project, "deliver", "cache")
    assert [(t["inserted"], t["updated"], t["deleted"]) for t in second["sinks"][0]["tables"]] == [
        (5, 32, 0),
        (0, 1, 0),
    ]
    assert {row["verdict"] for row in command(project, "verify", "--sink", "cache")["tables"]} == {"identical"}
    client = redis.client()
    assert client.get("cache:second:1") == '{"id": 1, "word": "b"}'
    assert client.hget("cache:one:0", "long") == "-9223372036854775808"
    assert json.loads(str(client.get("cache:position")))["edition"] == 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("at_once", [1, 4, 10_000])
def test_whatever_happens_to_editions_the_keys_are_those_of_one(project: Settings, seed: int, at_once: int) -> None:
    cache = sink(project, "cache", f'{URL}at_once = {at_once}\n[tables.{NAME}]\nform = "{FORMS[seed % 2]}"\n')
    whatever_happens(project, cache, seed, steps=15)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at_once", [9, 10_000])
def test_a_deliverer_that_dies_at_any_trip_leaves_what_the_next_puts_right(
    project: Settings, redis: Redis, moment: Moment, at_once: int
) -> None:
    cache = sink(project, "cache", f'{URL}at_once = {at_once}\n[tables.one]\n[tables.two]\nform = "hash"\n')
    died = each_trip_dies(project, cache, moment)
    assert died >= (25 if at_once == 9 else 10)
    assert [
        key for key in redis.client().scan_iter("cache:*") if ":~" in key or key.endswith(("switch", "staging"))
    ] == []


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("at_once", [9, 10_000])
def test_a_deliverer_that_is_killed_leaves_an_edition_and_the_next_goes_on(
    project: Settings, point: str, at_once: int
) -> None:
    cache = sink(project, "cache", f"{URL}at_once = {at_once}\n[tables.one]\n[tables.two]\n")
    each_point_kills(project, cache, point)


def test_of_two_who_deliver_at_once_one_is_refused(project: Settings) -> None:
    of_two_one_is_refused(project, sink(project, "cache", f"{URL}[tables.one]\n"))


@pytest.mark.parametrize("at_once", [3, 10_000])
def test_of_two_with_leases_of_their_own_the_slower_is_refused_wherever_it_is(
    project: Settings, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = sink(project, "cache", f"{URL}at_once = {at_once}\n[tables.one]\n")
    edition(project, 1, "id", one=every_type(10))
    deliver(project, cache)
    refused = 0
    for number in range(1, 9):
        edition(project, 2 * number, "id", one=every_type(12, shift=number))
        with closing(cast(Target, cache.open())) as slow, monkeypatch.context() as patch:
            late = DeliveryPlan(project, cache, slow.position(), reader(project).edition).delivery()
            edition(project, 2 * number + 1, "id", one=every_type(14, shift=2 * number))
            send = partial(overtaken, slow.client.execute_command, count(1), number, lambda: deliver(project, cache))
            patch.setattr(slow.client, "execute_command", send)
            try:
                slow.deliver(late)
            except Unavailable:
                refused += 1
        deliver(project, cache)
        assert identical(project, cache) == reader(project).edition.number
    assert refused >= 2


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


def test_a_switch_in_steps_shows_rows_of_both_editions_and_the_old_position_until_its_end(
    project: Settings, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_swap, "STEP", 10)
    cache = sink(project, "cache", f"{URL}at_once = 5\n[tables.one]\n")
    edition(project, 1, "id", one="SELECT range AS id, 1 AS said FROM range(100)")
    deliver(project, cache)
    edition(project, 2, "id", one="SELECT range AS id, 2 AS said FROM range(50, 150)")
    seen: list[tuple[list[int], int, int]] = []
    each: Any = staged_swap._each
    client = redis.client()

    def looked(*args: Any) -> None:
        for pair in args[4]:
            each(*args[:4], [pair])
            values = client.mget([f"cache:one:{n}" for n in range(150)])
            rows = [json.loads(str(value))["said"] for value in values if value is not None]
            seen.append((sorted(set(rows)), len(rows), json.loads(str(client.get("cache:position")))["edition"]))

    monkeypatch.setattr(staged_swap, "_each", looked)
    deliver(project, cache)
    assert {position for _, _, position in seen} == {1}
    assert [1, 2] in [said for said, _, _ in seen]
    assert min(count for _, count, _ in seen) == 50, "rows that stay are there all the time"
    assert identical(project, cache) == 2


@pytest.mark.parametrize("at_once", [10, 10_000])
def test_a_server_that_is_killed_and_comes_back_has_one_edition(
    project: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    with another(tmp_path, monkeypatch) as server:
        cache = sink(project, "cache", f"{URL}at_once = {at_once}\nseconds = 5\n[tables.one]\n")
        words = "SELECT range AS id, 'w' || range * {} AS word FROM range({})"
        edition(project, 1, "id", one=words.format(1, 200))
        deliver(project, cache)
        for number in range(2, 8):
            edition(project, number, "id", one=words.format(number, 200 + number))
            dying = partial(put_and_die, staged_swap.set_rows, count(1), number // 2, server)
            with monkeypatch.context() as patch:
                patch.setattr(staged_swap, "set_rows", dying)
                patch.setattr("lake.connect.redis.target.set_rows", dying)
                with pytest.raises(Unavailable, match="does not answer"):
                    deliver(project, cache)
            server.start()
            deliver(project, cache)
            assert identical(project, cache) == number


def put_and_die(put: Callable[..., None], trips: Iterator[int], nth: int, server: Redis, *args: Any) -> None:
    """Has rows put, and kills the server where it is the nth time, or at the first of a step."""
    put(*args)
    if next(trips) >= nth or nth > 1:
        server.stop()


TAMPERED = {
    'set cache:one:7 {"id":7,"word":"forged"}': [(7, "differs")],
    "del cache:one:0 cache:one:3": [(0, "missing"), (3, "missing")],
    'set cache:one:99 {"id":99}': [(99, "extra")],
}


@pytest.mark.parametrize("forgery", TAMPERED)
def test_a_row_that_was_tampered_with_is_named_and_put_right(project: Settings, redis: Redis, forgery: str) -> None:
    edition(project, 1, "id", one=every_type(30), two=every_type(3))
    cache = sink(project, "cache", f"{URL}[tables.one]\n[tables.two]\n")
    deliver(project, cache)
    redis.client().execute_command(*forgery.split())
    said = command(project, "verify", "--sink", "cache", code=1)
    one, two = said["tables"]
    assert sorted((row["id"], row["change"]) for row in one["differences"]) == TAMPERED[forgery]
    assert (one["verdict"], two["verdict"]) == ("differs", "identical")
    command(project, "deliver", "cache", "--repair")
    assert identical(project, cache) == 1


@pytest.mark.parametrize("value", ["no JSON", '{"id": 8}', "[1]", "{}"])
def test_a_key_that_holds_another_row_or_none_is_named(project: Settings, redis: Redis, value: str) -> None:
    edition(project, 1, "id", one=every_type(5))
    cache = sink(project, "cache", f"{URL}[tables.one]\n")
    deliver(project, cache)
    redis.client().set("cache:one:4", value)
    with pytest.raises(LakeError, match="cache:one:4 does not hold the row of one that it says"):
        verify_sink(project, cache)
    redis.client().delete("cache:one:4")
    repair(project, cache)
    assert identical(project, cache) == 1
    redis.client().lpush("cache:one:11", "a")
    with pytest.raises(LakeError, match="cache:one:11 does not hold the row"):
        verify_sink(project, cache)


def test_what_is_there_by_another_hand_is_replaced_only_when_asked(project: Settings, redis: Redis) -> None:
    redis.client().lpush("cache:one:theirs", "a")
    redis.client().set("cache:another:1", "theirs")
    edition(project, 1, "id", one=every_type(3))
    cache = sink(project, "cache", f"{URL}[tables.one]\n")
    with pytest.raises(DeclarationError, match="there are keys such as 'cache:one:theirs' already, and not of this"):
        deliver(project, cache)
    deliver(project, cache, resync=True)
    assert identical(project, cache) == 1
    assert redis.client().get("cache:another:1") == "theirs"


def test_modes_forms_columns_and_tables_that_come_and_go(project: Settings, redis: Redis) -> None:
    client = redis.client()
    first = f'{URL}[tables.one]\nmode = "upsert"\ncolumns = ["id", "word"]\n'

    def publish(cut: int, text: str, **words: str) -> None:
        listed = ", ".join(f"({n[1:]}, '{word}', {cut})" for n, word in words.items())
        rows = f"SELECT * FROM (VALUES {listed}) t(id, word, other)"
        edition(project, cut, "id", one=rows, two=rows)
        deliver(project, sink(project, "cache", text))

    publish(1, first, _1="a", _2="b")
    publish(2, first, _1="z", _3="c")
    assert [client.get(f"cache:one:{n}") for n in (1, 2, 3)] == [
        '{"id": 1, "word": "z"}',
        '{"id": 2, "word": "b"}',
        '{"id": 3, "word": "c"}',
    ]
    publish(3, f"{first}[tables.two]\n", _1="z")
    assert client.get("cache:two:1") == '{"id": 1, "word": "z", "other": 3}'
    with pytest.raises(StartOver, match="must begin anew with one"):
        publish(4, f'{first}form = "hash"\n[tables.two]\n', _1="z")
    deliver(project, sink(project, "cache", f'{first}form = "hash"\n[tables.two]\nform = "hash"\n'), resync=True)
    assert sorted(client.scan_iter("cache:one:*")) == ["cache:one:1"]
    assert client.hgetall("cache:two:1") == {"id": "1", "word": "z", "other": "4"}
    publish(5, first.replace("upsert", "mirror") + 'form = "hash"\n', _2="q")
    assert sorted(client.scan_iter("cache:one:*")) == ["cache:one:2"]
    editions.expire_editions(project, [5])
    publish(6, first.replace("upsert", "mirror"), _2="q", _4="r")
    assert client.get("cache:one:4") == '{"id": 4, "word": "r"}'


def test_names_of_rows_tell_any_identities_apart(project: Settings, redis: Redis) -> None:
    words = ["a", "b", "a:b", "", "%null", "%", "%3A", "a%3Ab", "ä🙂", "[x]*?", "x y\\n"]
    listed = ", ".join(f"({'NULL' if w is None else repr(w)})" for w in [*words, None])
    query = f"SELECT a.w AS a, b.w AS b, 1 AS n FROM (VALUES {listed}) a(w), (VALUES {listed}) b(w)"
    edition(project, 1, "a", "b", one=query)
    cache = sink(project, "cache", f'{URL}prefix = "[p]*:"\nat_once = 20\n[tables.one]\n')
    deliver(project, cache)
    assert identical(project, cache) == 1
    assert redis.client().dbsize() == (len(words) + 1) ** 2 + 1
    assert redis.client().get("[p]*:one:a%3Ab:%null") is not None


def test_a_row_without_a_value_is_no_hash_and_is_told(project: Settings, redis: Redis) -> None:
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
        (["--requirepass", "good"], "redis://:secret123@127.0.0.1:{port}/0", "refuses: .*invalid", 2),
        (["--maxmemory", "1mb"], "redis://127.0.0.1:{port}/0", "maxmemory", 75),
        (["--replicaof", "127.0.0.1 1"], "redis://127.0.0.1:{port}/0", "name the primary|MASTERDOWN|refuses", 75),
        (["--cluster-enabled", "yes"], "redis://127.0.0.1:{port}/0", "Hash slot not served", 75),
        ([], "redis://:secret123@127.0.0.1:1/0", "does not answer", 75),
        ([], "redis://127.0.0.1:{port}/99", "DB index", 1),
    ],
)
def test_a_server_that_refuses_is_quoted_and_a_password_is_never_told(
    project: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[list[str], str, str, int]
) -> None:
    settings, environment, said, code = case
    with another(tmp_path, monkeypatch, *settings) as server:
        edition(project, 1, "id", one="SELECT range AS id, repeat('x', 1000) AS word FROM range(3000)")
        sink(project, "cache", f"{URL}[tables.one]\n")
        done = lake(project, ["deliver", "cache"], CACHE_URL=environment.format(port=server.port))
        assert (done.returncode, re.search(said, done.stderr) is not None) == (code, True), done.stderr
        assert "secret123" not in done.stdout + done.stderr
        assert "xxx" not in done.stderr, "no row is told"


def test_a_cluster_is_refused(project: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with another(tmp_path, monkeypatch, "--cluster-enabled", "yes") as server:
        server.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        edition(project, 1, "id", one=every_type(20))
        until(lambda: bool(re.search(r"state\W+ok", str(server.client().execute_command("CLUSTER INFO")))))
        cache = sink(project, "cache", f"{URL}[tables.one]\n")
        with pytest.raises(DeclarationError, match="same slot") as refused:
            deliver(project, cache)
        assert "deliver to a server that is no cluster" in refused.value.fix
        assert server.client().dbsize() == 0


def test_the_page_prints_what_it_shows(tmp_path: Path, commands: Commands, redis: Redis) -> None:
    needed(which("redis-cli"), "redis-cli is missing: apt install redis-tools")
    play([SHOP, "docs/how-to/sink-redis.md"], tmp_path, {**commands.environment, "CACHE_URL": redis.url})
