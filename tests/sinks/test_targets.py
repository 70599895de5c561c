"""Contract of all targets of sinks: one edition each, also after kills and rollbacks."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from shutil import which
from typing import Any, Final

import pytest

from lake.config import Settings
from lake.connect.webhook import receiver as receivers
from lake.errors import DeclarationError, LakeError, StartOver, Unavailable
from lake.read.sql import reader
from lake.sinks.deliver import deliver, preview
from lake.sinks.plan import DeliveryPlan
from lake.sinks.verify import verify_sink
from lake.store.ledger import editions
from lake.testing import Commands
from tests.docs.sessions import SHOP, play
from tests.kills import COMMITTED, DELIVERY, killed
from tests.read.things import NAME as THING
from tests.read.things import Things
from tests.servers import needed
from tests.sinks.targets import DROPPED_KEY, NAME, TARGETS, URL, AnyTarget, bring
from tests.sinks.walks import CALL, command, edition, every_type, lake

PROVEN: Final = ("postgres", "redis", "opensearch")
"""Targets whose rows are read back by `lake verify --sink`."""
STATES: Final = (*PROVEN, "kafka")
"""Targets whose readers see rows of one edition."""


def over(*names: str, smoke: Collection[str] = ()) -> pytest.MarkDecorator:
    """Run a test over targets; `redis:9` sends at most 9 rows at once. It is the smoke test of some."""
    cases = []
    for name in names:
        kind, _, at_once = name.partition(":")
        marks = [getattr(pytest.mark, kind), *([pytest.mark.smoke] if name in smoke else [])]
        cases.append(pytest.param((kind, int(at_once or 0)), marks=marks, id=name))
    return pytest.mark.parametrize("target", cases, indirect=True)


@pytest.fixture
def target(request: pytest.FixtureRequest, project: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnyTarget]:
    kind, at_once = request.param
    made = TARGETS[kind](project, request.getfixturevalue(kind), at_once)
    monkeypatch.setenv(URL, made.url)
    monkeypatch.setattr(receivers, "FIRST_PAUSE", 0.01)
    yield made
    made.close()


def words(rows: int, number: int = 1) -> str:
    """SQL of a table of words."""
    return f"SELECT range AS id, 'w' || range * {number} AS word FROM range({rows})"


@over(*TARGETS, smoke={"postgres", "redis", "opensearch"})
def test_edition_is_delivered_changed_and_proven(target: AnyTarget) -> None:
    far, settings = target.declare("one", "two"), target.settings
    edition(settings, 1, "id", one=target.every_type(20), two="SELECT 1 AS id, 'a' AS word")
    [first] = command(settings, "deliver")["sinks"]
    assert [(one["table"], one["whole"], one["inserted"]) for one in first["tables"]] == [
        ("one", True, 20),
        ("two", True, 1),
    ]
    assert target.check(far) == 1
    edition(settings, 2, "id", one=target.every_type(22, shift=3), two="SELECT 1 AS id, 'b' AS word")
    [second] = command(settings, "deliver", NAME)["sinks"]
    one, two = ((sent["inserted"], sent["updated"], sent["deleted"]) for sent in second["tables"])
    assert one == (2, len(updated(target, 20, 3)), 0)
    assert two == (0, 1, 0)
    assert target.check(far) == 2
    assert target.read("two")[1]["word"] == "b"
    if target.proven:
        assert {row["verdict"] for row in command(settings, "verify", "--sink", NAME)["tables"]} == {"identical"}
    assert not deliver(settings, far).changed
    edition(settings, 3, "id", one=target.every_type(22, shift=3), two="SELECT 1 AS id, 'b' AS word")
    assert [(one.inserted, one.updated, one.deleted) for one in deliver(settings, far).tables] in ([], [(0, 0, 0)] * 2)
    assert target.check(far) == 3


def updated(target: AnyTarget, rows: int, shift: int) -> set[int]:
    """The ids of rows that differ between two editions of `every_type`."""
    read = [reader(target.settings, number) for number in (1, 2)]
    old, new = ({row["id"]: repr(row) for row in one.relation("from one").to_arrow_table().to_pylist()} for one in read)
    return {id for id in old if old[id] != new[id]}


@pytest.mark.parametrize("text", ["garbage", "[]", '{"edition":1}', '{"tables":[],"rejected":[]}'])
@over("postgres", "redis")
def test_position_that_cannot_be_read_names_the_sink_and_is_replaced_by_a_resync(target: AnyTarget, text: str) -> None:
    far, settings = target.declare("one"), target.settings
    edition(settings, 1, "id", one=words(20))
    deliver(settings, far)
    edition(settings, 2, "id", one=words(10))
    target.forge(target.new_position.replace("{}", text))
    for use in (deliver, preview, verify_sink):
        with pytest.raises(LakeError, match="the position in the target cannot be read") as unreadable:
            use(settings, far)
        assert unreadable.value.where == far.where
        assert unreadable.value.fix.startswith(f"lake deliver {NAME} --resync")
    assert preview(settings, far, resync=True).tables[0].inserted == 10
    assert deliver(settings, far, resync=True).tables[0].inserted == 10
    assert target.check(far) == 2


@pytest.mark.parametrize("seed", range(6))
@over("postgres", "redis", "redis:1", "redis:4", "opensearch", "kafka")
def test_target_has_the_published_edition_after_random_steps(target: AnyTarget, seed: int) -> None:
    chance, things = random.Random(seed), Things(target.settings)
    far, settings = target.declare(THING, table=target.table_options(seed)), target.settings
    things.change({1: 1, 2: 2, None: 3})
    for _ in range(14):
        things.step(chance)
        resync = chance.random() < 0.1
        if THING not in reader(settings).edition.tables:
            with pytest.raises(DeclarationError, match="no table 'thing' in edition"):
                deliver(settings, far)
        elif chance.random() < 0.7:
            expected = preview(settings, far)
            done = deliver(settings, far, resync=resync)
            assert resync or counts(expected) == counts(done)
            assert target.check(far) == done.edition == reader(settings).edition.number
            assert not deliver(settings, far).changed


def counts(done: Any) -> list[tuple[int, int, int]]:
    return [(one.inserted, one.updated, one.deleted) for one in done.tables]


@pytest.mark.parametrize("point", DELIVERY)
@over(*TARGETS, "redis:9")
def test_next_delivery_completes_after_a_kill_at_any_point(target: AnyTarget, kills: Commands, point: str) -> None:
    far, settings = target.declare("one", "two"), target.settings
    for number in range(1, target.editions + 1):
        one = target.every_type(30 + 5 * number, shift=number)
        edition(settings, number, "id", one=one, two=words(30 + 3 * number, number))
        assert killed(kills, settings, f"deliver {NAME}", point)
        has = number if point in COMMITTED else number - 1
        if has and (target.atomic or point in COMMITTED):
            assert target.check(far) == has
        assert bring(target, far) == number


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("first", range(1, 4))
@over("redis", "redis:9", "opensearch")
def test_target_keeps_no_leftovers_of_a_delivery_killed_at_any_request(
    target: AnyTarget, kills: Commands, first: int, moment: str
) -> None:
    """The edition that the next delivery brings may be a later one. Each request is the last of one delivery."""
    far, settings = target.declare("one", "two"), target.settings
    for number, nth in enumerate(count(first, 3)):
        for shift in (1, 2):
            one = every_type(30 + number % 7, shift=shift + number)
            edition(settings, 3 * number + shift, "id", one=one, two=words(20 + number, shift))
            if shift == 1 and number:
                deliver(settings, far)
        if not killed(kills, settings, f"deliver {NAME}", f"request.{moment}", nth):
            break
        if number % 2:
            one = every_type(30 + number % 7, shift=1 + number)
            edition(settings, 3 * number + 3, "id", one=one, two=words(20 + number))
        bring(target, far)
    assert number >= (3 if target.kind == "redis" and not target.more else 8)
    assert target.left() == []


@over(*STATES)
def test_later_of_two_deliveries_is_refused(target: AnyTarget) -> None:
    """By our lease it waits; by the target's position, if it has the lease of another warehouse."""
    far, settings = target.declare("one"), target.settings
    edition(settings, 1, "id", one=target.every_type(10))
    deliver(settings, far)
    edition(settings, 2, "id", one=target.every_type(12))
    with closing(far.open()) as slow:
        late = DeliveryPlan(settings, far, slow.position(), reader(settings).edition).delivery()
        edition(settings, 3, "id", one=target.every_type(14))
        assert bring(target, far) == 3
        with pytest.raises(Unavailable, match="brought to another position meanwhile: it has edition 3"):
            slow.deliver(late)
    assert target.check(far) == 3
    edition(settings, 4, "id", one=target.every_type(16))
    call = [*CALL, "deliver", NAME, "--project", str(settings.project)]
    processes = [subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert target.check(far) == 4


@over("redis", "redis:3", "opensearch")
def test_slower_of_two_deliveries_is_refused_wherever_it_is(target: AnyTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a lease of its own. The faster begins and ends before each request of the slower."""
    far, settings = target.declare("one"), target.settings
    edition(settings, 1, "id", one=every_type(10))
    deliver(settings, far)
    refused = 0
    for number in range(1, 9) if target.kind == "redis" else range(1, 22, 2):
        edition(settings, 2 * number, "id", one=every_type(12, shift=number))
        with closing(far.open()) as slow, monkeypatch.context() as patch:
            late = DeliveryPlan(settings, far, slow.position(), reader(settings).edition).delivery()
            edition(settings, 2 * number + 1, "id", one=every_type(14, shift=2 * number))
            owner, name = target.requests(slow)
            patch.setattr(owner, name, overtaken(getattr(owner, name), number, lambda: deliver(settings, far)))
            try:
                slow.deliver(late)
            except Unavailable:
                refused += 1
            except LakeError:
                if target.kind != "opensearch":
                    raise
        bring(target, far)
    assert refused >= (2 if target.kind == "redis" else 5)


def overtaken(send: Callable[..., Any], nth: int, other: Callable[[], Any]) -> Callable[..., Any]:
    """Send, but the `nth` time only after `other` has delivered."""
    requests = count(1)

    def sent(*args: Any, **options: Any) -> Any:
        if next(requests) == nth:
            other()
        return send(*args, **options)

    return sent


FORGED: Final[list[tuple[str, Any, list[tuple[int, str]]]]] = [
    ("postgres", "UPDATE lake.one SET word = 'forged' WHERE id = 7", [(7, "differs")]),
    ("postgres", "UPDATE lake.one SET exact = NULL WHERE id IN (0, 3)", [(0, "differs"), (3, "differs")]),
    ("postgres", "UPDATE lake.one SET double = double + 1e-301 WHERE id = 2", [(2, "differs")]),
    ("postgres", "UPDATE lake.one SET part = '{}' WHERE id = 1", [(1, "differs")]),
    ("postgres", "UPDATE lake.one SET words = words || 'x'::text WHERE id = 5", [(5, "differs")]),
    ("postgres", "DELETE FROM lake.one WHERE id >= 28", [(28, "missing"), (29, "missing")]),
    ("postgres", "INSERT INTO lake.one (id) VALUES (-4)", [(-4, "extra")]),
    ("postgres", "UPDATE lake.one SET id = 100 WHERE id = 6", [(6, "missing"), (100, "extra")]),
    ("postgres", f"{DROPPED_KEY}; INSERT INTO lake.one SELECT * FROM lake.one WHERE id = 9", [(9, "repeated")]),
    ("redis", 'set far:one:7 {"id":7,"word":"forged"}', [(7, "differs")]),
    ("redis", "del far:one:0 far:one:3", [(0, "missing"), (3, "missing")]),
    ("redis", 'set far:one:99 {"id":99}', [(99, "extra")]),
    ("opensearch", ("7", {"id": 7, "word": "forged"}), [(7, "differs")]),
    ("opensearch", ("0", None), [(0, "missing")]),
    ("opensearch", ("99", {"id": 99}), [(99, "extra")]),
]


@pytest.mark.parametrize(
    ("target", "forgery", "expected"),
    [pytest.param((kind, 0), *rest, marks=getattr(pytest.mark, kind)) for kind, *rest in FORGED],
    indirect=["target"],
)
def test_row_that_was_tampered_with_is_named_and_repaired(target: AnyTarget, forgery: Any, expected: Any) -> None:
    far, settings = target.declare("one", "two"), target.settings
    edition(settings, 1, "id", one=every_type(30), two=every_type(3))
    deliver(settings, far)
    target.forge(forgery)
    one, two = command(settings, "verify", "--sink", NAME, code=1)["tables"]
    assert sorted((row["id"], row["change"]) for row in one["differences"]) == sorted(expected)
    assert (one["verdict"], two["verdict"], one["differing"]) == ("differs", "identical", len(expected))
    assert not deliver(settings, far).changed, "there is no later edition"
    command(settings, "deliver", NAME, "--repair")
    assert target.check(far) == 1


@over("postgres", "opensearch", "kafka")
def test_row_that_the_target_cannot_take_is_rejected_until_it_changes(target: AnyTarget) -> None:
    bad, table, reason = target.rejected
    query = f"SELECT range AS id, CASE WHEN range % 3 = {{}} THEN {bad} ELSE 'fine' END AS word FROM range(6)"
    far, settings = target.declare("one", "two", table=table), target.settings
    edition(settings, 1, "id", one=query.format(0), two=words(6))
    done = deliver(settings, far)
    assert (done.rejected, [sent.rejected for sent in done.tables]) == (2, [2, 0])
    far = target.declare("one", table=table)
    [status] = command(settings, "status")["sinks"]
    assert [(row["table"], row["key"]) for row in status["rejected"]] == [("one", '{"id": 0}'), ("one", '{"id": 3}')]
    assert all(reason in row["reason"] and "éé" not in row["reason"] for row in status["rejected"]), status["rejected"]
    if target.proven:
        [verdict] = verify_sink(settings, far)[1]
        assert (verdict.verdict, verdict.differing) == ("differs", 0)
        assert verdict.why == "the target cannot take 2 of them: lake status"
    edition(settings, 2, "id", one=query.format(1))
    assert deliver(settings, far).rejected == 2
    assert sorted(target.read("one")) == [0, 2, 3, 5], "an update that cannot be taken removes the row"
    edition(settings, 3, "id", one="SELECT range AS id, 'fine' AS word FROM range(6)")
    assert deliver(settings, far).rejected == 0
    assert target.check(far) == 3
    if target.proven:
        edition(settings, 4, "id", one=f"SELECT range AS id, 'fine' || {bad} AS word FROM range(1001)")
        with pytest.raises(LakeError, match=r"cannot take more than 1,000 rows of one"):
            deliver(settings, far)
        assert target.check(far) == 3
        edition(settings, 5, "id", one="SELECT range AS id, 'fine' AS word FROM range(9)")
        assert bring(target, far) == 5


@over("postgres", "opensearch", "kafka")
def test_upsert_keeps_no_older_row_of_one_that_comes_back_and_cannot_be_taken(target: AnyTarget) -> None:
    bad, table, _ = target.rejected
    far, settings = target.declare("one", table=f'mode = "upsert"\n{table}'), target.settings
    for number, (rows, word) in enumerate([(2, "'old'"), (1, "'new'"), (2, f"'new' || {bad}")], 1):
        query = f"SELECT range AS id, CASE WHEN range = 1 THEN {word} ELSE 'fine' END AS word FROM range({rows})"
        edition(settings, number, "id", one=query)
        deliver(settings, far)
    assert sorted(target.read("one")) == [0]


@over(*STATES)
def test_table_of_another_program_is_replaced_only_when_asked(target: AnyTarget) -> None:
    far, settings = target.declare("one"), target.settings
    target.occupy()
    edition(settings, 1, "id", one=target.every_type(3))
    with pytest.raises(DeclarationError, match=target.occupied):
        deliver(settings, far)
    deliver(settings, far, resync=True)
    assert target.check(far) == 1
    assert target.is_kept()
    if target.removed:
        target.remove()
        edition(settings, 2, "id", one=every_type(4))
        with pytest.raises(DeclarationError, match=target.removed):
            deliver(settings, far)
        deliver(settings, far, resync=True)
        assert target.check(far) == 2


def publish(settings: Settings, cut: int, **listed: str) -> None:
    """An edition of tables `one` and `two`, of rows `_1="a"` with a third column."""
    values = ", ".join(f"({name[1:]}, '{word}', {cut})" for name, word in listed.items())
    rows = f"SELECT * FROM (VALUES {values}) t(id, word, other)"
    edition(settings, cut, "id", one=rows, two=rows)


@over(*STATES)
def test_upsert_keeps_rows_that_go_and_mirror_does_not(target: AnyTarget) -> None:
    settings, upsert = target.settings, 'mode = "upsert"\ncolumns = ["id", "word"]'
    far = target.declare("one", table=upsert)
    publish(settings, 1, _1="a", _2="b")
    deliver(settings, far)
    publish(settings, 2, _1="z", _3="c")
    deliver(settings, far)
    assert {id: row["word"] for id, row in target.read("one").items()} == {1: "z", 2: "b", 3: "c"}
    assert "other" not in target.read("one")[1]
    deliver(settings, target.declare("one", "two", table=upsert))
    assert target.read("two") == {1: {"id": 1, "word": "z"}, 3: {"id": 3, "word": "c"}}
    publish(settings, 3, _1="z")
    mirror = target.declare("one", "two", table=upsert.replace("upsert", "mirror"))
    deliver(settings, mirror)
    assert {name: sorted(target.read(name)) for name in ("one", "two")} == {"one": [1], "two": [1]}
    editions.expire_editions(settings, [3])
    publish(settings, 4, _2="q", _4="r")
    deliver(settings, mirror)
    assert {id: row["word"] for id, row in target.read("one").items()} == {2: "q", 4: "r"}


@over(*STATES)
def test_upsert_starts_over_only_when_asked(target: AnyTarget) -> None:
    settings, far = target.settings, target.declare("one", table='mode = "upsert"')
    publish(settings, 1, _1="a", _2="b")
    deliver(settings, far)
    publish(settings, 2, _2="c")
    editions.expire_editions(settings, [1])
    with pytest.raises(StartOver, match="edition 1, which it has, has expired"):
        deliver(settings, far)
    deliver(settings, far, resync=True)
    assert target.check(far) == 2


@over(*STATES)
def test_table_gets_a_new_column(target: AnyTarget) -> None:
    far, settings = target.declare("one"), target.settings
    edition(settings, 1, "id", one="SELECT range AS id, 2 AS old FROM range(3)")
    bring(target, far)
    edition(settings, 2, "id", one="SELECT range AS id, 2 AS old, 'x' AS new FROM range(4)")
    bring(target, far)
    assert target.read("one") == {number: {"id": number, "old": 2, "new": "x"} for number in range(4)}


@over(*STATES)
def test_different_identities_stay_different(target: AnyTarget) -> None:
    texts = ["a", "b", "a:b", "", "%null", "%", "%3A", "a%3Ab", "ä🙂", "[x]*?", "x y\\n", "y" * 600, "y" * 601]
    listed = ", ".join([*(f"('{text}')" for text in texts), "(NULL)"])
    far, settings = target.declare("one"), target.settings
    pairs = f"SELECT a.w AS a, b.w AS b, 1 AS n FROM (VALUES {listed}) a(w), (VALUES {listed}) b(w)"
    edition(settings, 1, "a", "b", one=pairs)
    assert deliver(settings, far).rejected == 0
    assert target.check(far) == 1
    edition(settings, 2, "a", one=f"SELECT a.w AS a, 1 AS n FROM (VALUES {listed}) a(w)")
    bring(target, far)


@pytest.mark.parametrize("words", ["deliver far", "deliver far --repair"])
@over(*PROVEN)
def test_target_that_does_not_answer_is_tried_again_and_its_password_is_not_printed(
    target: AnyTarget, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv(URL, target.unreachable)
    edition(target.settings, 1, "id", one=every_type(3))
    target.declare("one")
    done = lake(target.settings, words.split())
    assert done.returncode == 75
    [status] = command(target.settings, "status")["sinks"]
    assert "does not answer" in done.stderr
    assert "does not answer" in status["error"]
    assert "secret123" not in done.stdout + done.stderr + json.dumps(status)


@over(*TARGETS)
def test_page_prints_what_it_shows(target: AnyTarget, commands: Commands, tmp_path: Path) -> None:
    if target.page_program:
        needed(which(target.page_program), f"{target.page_program} is missing")
    with target.page() as environment:
        folder = tmp_path / "page"
        folder.mkdir()
        play([SHOP, f"docs/how-to/sink-{target.kind}.md"], folder, {**commands.environment, **environment})
