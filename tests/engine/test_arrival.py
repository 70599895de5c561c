"""Order of arrival is the log order: files and batches make no difference to tables. The tables have another key
than their log, so a key's events are in many buckets; sequences have ties, truncates come in the middle of a file,
keys change, and dumps overlap.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake.config import Settings
from lake.contracts.contract import read_contract
from lake.engine import inputs as run_inputs
from lake.engine import stored_rows
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild_all
from lake.engine.verify import verify_all
from lake.errors import DeclarationError, LawError
from lake.ingest import fsck as log_run
from lake.kinds.columns import ORDER, SIGN
from lake.publish.cut import pick_cut
from lake.testing import Lakehouse
from lake.testing.slices import ALL, LandedStream, RecordPiece, landed_stream, recut
from tests.shop import contract, declare

Record = dict[str, Any]

AHEAD = 1000  # Number of the first event too far ahead of NOW
NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)


MOVES = contract(
    "moves",
    {"thing": "long?", "n": "long", "told": "timestamp", "owner": "string?", "former": "string?", "op": "string?",
     "at": "int?", "v": "int?"},
    id=["n"], buckets=3, broadcast="op = 'truncate'", time="told",
)  # fmt: skip
LISTS = MOVES | {
    "name": "lists", "doc": "A row of a full list of what owners have, or the list's end.",
    "lake": MOVES["lake"] | {"broadcast": "op = 'end'"},
}  # fmt: skip
REMOVED = """deletes="_op = 'delete'", truncate="_op = 'truncate'\""""
COLUMNS = "'owner', 'n', 'at', 'v', 'op as _op', 'former as _former'"
ONE_LOG = {
    "first": 'First("owner")',
    "first_at": 'First("owner", sequence="at")',
    "latest": 'Latest("owner")',
    "latest_kept": f'Latest("owner", {REMOVED})',
    "latest_at": f'Latest("owner", sequence="at", {REMOVED})',
    "latest_former": 'Latest("owner", former={"owner": "_former"})',
    "history": f'History("owner", sequence="at", track="v", {REMOVED}, former={{"owner": "_former"}})',
    "ends": 'Aggregate("owner", {"one": FirstValue("n", by="at"), "last": LastValue("n", by="at", where="v > 1")})',
    "walk": 'Fold("owner", sequence="at", state="way array<bigint>", start={"way": []}, '
    'step={"way": "concat(state.way, array(event.n))"})',
    "refused": 'Fold("owner", state="way array<bigint>", start={"way": []}, step=stepped)',
    "turns": 'Pattern("owner", sequence="at", steps=[Step("low", "v < 3"), Step("high", "v > 2", times="+")], '
    'measures={"start": FirstOf("n"), "end": LastOf("n")})',
}
OTHERS = {
    "newest": ('View("owner")', "moves", """newest.sparkSession.sql(
        "select owner, max_by(n, struct(_batch, _arrival, _bucket, _offset)) as n from {m} where owner is not null"
        " group by owner", m=newest)"""),
    "listed": ('History("owner", sequence="_at", track="v", snapshots=True)', "lists", """listed.where(
        "op is null").selectExpr("owner", "at as _at", "v", "n")"""),
    "ended": ('''History("owner", sequence="_at", track="v", snapshots=True, marker="_op = 'end'")''', "lists",
              """ended.selectExpr("owner", "at as _at", "v", "n", "op as _op")"""),
}  # fmt: skip
TWO_LOGS = {
    "valued": (
        'Enrich("n", AsOf("owner", time="_since"), time="at")',
        'moves.selectExpr("n", "owner", "at")',
        'lists.selectExpr("owner", "at as _since", "n as value")',
    ),
    "both": (
        'Join("owner", how="left")',
        'moves.selectExpr("owner", "n")',
        'lists.selectExpr("owner", "n as listed")',
    ),
}
SOME = ("first", "latest_kept", "history", "refused", "listed")
HEAD = """
from lake import *

def stepped(state, event):
    if len(state["way"]) % 3 == 2 and event["v"] == 1:
        return Refusal("no ones here")
    return {"way": [*state["way"], event["n"]]}
"""


def jobs() -> dict[str, str]:
    found = {
        name: f'@table({kind}, log("moves"))\ndef {name}(moves):\n    """-"""\n    return moves.selectExpr({COLUMNS})\n'
        for name, kind in ONE_LOG.items()
    }
    found |= {
        name: f'@table({kind}, log("{stream}"))\ndef {name}({name}):\n    """-"""\n    return {body}\n'
        for name, (kind, stream, body) in OTHERS.items()
    }
    return found | {
        name: f'@table({kind}, log("moves"), log("lists"))\ndef {name}(moves, lists):\n    """-"""\n'
        f"    return {one}, {other}\n"
        for name, (kind, one, other) in TWO_LOGS.items()
    }


@pytest.fixture
def declared(spark: SparkSession, project: Settings, request: pytest.FixtureRequest) -> Path:
    declare(project, MOVES, LISTS, jobs={name: HEAD + jobs()[name] for name in request.param})
    return project.project


def moves(chance: random.Random, count: int) -> list[Record]:
    """Return changes of a few owners of many things; times have ties and gaps."""
    found: list[Record] = []
    for n in range(count):
        op = chance.choice(["put", "put", "put", "put", "delete"])
        owner, former = chance.choice("abcde"), chance.choice([None, None, *"abcde"])
        at = chance.choice([None, *range(4), n // 8])
        found.append({"n": n, "thing": chance.randrange(20), "owner": owner, "former": former, "op": op})
        found[-1] |= {"at": at, "v": chance.randrange(5)}
    for number in (count // 3, count // 2):
        found.insert(number, {"n": count + number, "op": "truncate", "at": 2})
    return found


def lists(chance: random.Random, numbers: list[int]) -> list[Record]:
    """Return full dumps in sequence, some late, each with its end; a row may come after the next has begun."""
    found: list[Record] = []
    for number in numbers:
        rows = [{"thing": chance.randrange(20), "owner": o, "v": chance.randrange(3), "at": number} for o in "abcde"]
        late = rows.pop() if chance.random() < 0.5 else None
        found += [*chance.sample(rows, 4), {"op": "end", "at": number}, *([late] if late else [])]
    return [{"n": n, **row} for n, row in enumerate(found)]


@pytest.fixture(scope="module")
def records() -> dict[str, list[Record]]:
    chance = random.Random(7)
    told = {"told": "2024-03-01T10:00:00Z"}
    ahead = [
        {"n": AHEAD + n, "thing": n, "owner": owner, "told": "2024-03-03T00:00:00Z"} for n, owner in enumerate("abcde")
    ]
    some = {"moves": moves(chance, 60), "lists": lists(chance, [1, 3, 2, 4, 6, 5, 7])}
    told_of = {stream: [told | each for each in of] for stream, of in some.items()}
    return told_of | {"moves": [*ahead, *told_of["moves"]]}  # For dumps with rejected records, files make a difference


def ingest_records(home: Path, project: Path, records: dict[str, list[Record]], *, files: int, runs: int) -> Lakehouse:
    """Ingest the records in order, in `runs` runs of `files` files each, cut at random places."""
    chance, house = random.Random(files * 10 + runs), Lakehouse(project, home)
    cuts = {
        stream: sorted([0, len(rows), *(chance.randrange(len(rows)) for _ in range(files * runs - 1))])
        for stream, rows in records.items()
    }
    for number in range(runs):
        for stream, rows in records.items():
            for file in range(number * files, (number + 1) * files):
                house.land(stream, *rows[cuts[stream][file] : cuts[stream][file + 1]])
        house.run(now=NOW)
    return house


def tables(house: Lakehouse) -> dict[str, list[Record]]:
    return {name: house.table(name) for name in house.project.tables}


@pytest.mark.long
@pytest.mark.parametrize(
    ("declared", "files", "runs"),
    [
        (SOME, 2, 2),
        *(([*jobs()], *shape) for shape in ((1, 4), (7, 1), (3, 3))),
    ],
    ids=str,
    indirect=["declared"],
)
def test_tables_are_equal_for_any_files_and_batches(
    declared: Path, tmp_path: Path, records: dict[str, list[Record]], files: int, runs: int
) -> None:
    whole = ingest_records(tmp_path / "whole", declared, records, files=1, runs=1)
    sliced = ingest_records(tmp_path / "sliced", declared, records, files=files, runs=runs)
    found, other = tables(whole), tables(sliced)
    assert [name for name in found if found[name] != other[name]] == []
    assert all((row["n"] or 0) < AHEAD for rows in found.values() for row in rows if "n" in row)
    inputs = Inputs(lambda: sliced.spark, sliced.project, pick_cut(sliced.project, None))
    again = rebuild_all(inputs, [], dry_run=True, on_progress=lambda _: None)
    assert [done for done in again if done.inserted or done.updated or done.deleted] == []
    proved = verify_all(lambda: sliced.spark, sliced.project, on_progress=lambda _: None)
    assert {verdict.verdict for verdict in proved} == {"identical"}
    assert [fault for stream in records for fault in log_run.check_log(sliced.settings, stream).faults] == []


@pytest.mark.long
@pytest.mark.parametrize("declared", [[*jobs()]], indirect=True)
def test_tables_keep_the_laws_in_log_order(declared: Path, tmp_path: Path, records: dict[str, list[Record]]) -> None:
    ingest_records(tmp_path / "home", declared, records, files=2, runs=1).check_laws(slices=3)


@pytest.mark.long
@pytest.mark.parametrize("declared", [["first"]], indirect=True)
def test_check_laws_detects_a_table_that_depends_on_buckets(
    declared: Path, tmp_path: Path, records: dict[str, list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_bucket(rows: DataFrame, *, sign: int = 1) -> DataFrame:
        return rows.withColumns({ORDER: F.struct("_batch", "_bucket", "_offset"), SIGN: F.lit(sign)})

    for module in (stored_rows, run_inputs):
        monkeypatch.setattr(module, "event_order", by_bucket)
    house = ingest_records(tmp_path / "home", declared, records, files=1, runs=1)
    with pytest.raises(LawError, match="first differs when its events come in 6 micro-batches and other files"):
        house.check_laws(slices=6)
    (house.settings.path(house.settings.landing) / "moves/000001.jsonl").unlink()
    with pytest.raises(
        DeclarationError, match=r"batch 1 of moves cannot be sliced: there is no landing file moves/000001.jsonl"
    ):
        landed_stream(house.settings, house.project.contracts["moves"])


def of_moves(pieces: int, chance: random.Random) -> LandedStream:
    """Return a stream of lines, each an event; one in ten was rejected."""
    lines = [RecordPiece(f"moves/1.jsonl:{n}", ".jsonl", b"%d\n" % n) for n in range(pieces)]
    refused = frozenset(line.source for line in chance.sample(lines, pieces // 10))
    taken = {line.source: [(1, 0, n)] for n, line in enumerate(lines) if line.source not in refused}
    return LandedStream(read_contract(json.dumps(MOVES), file="moves.avsc"), "", lines, taken, refused)


@pytest.mark.parametrize("seed", range(20))
def test_recut_mixes_records_and_keeps_the_order_that_matters(seed: Any) -> None:
    chance, count = random.Random(seed), 200
    groups = [{1 + chance.randrange(20), 100 + chance.randrange(50)} for _ in range(count)]
    for n in chance.sample(range(count), 3):
        groups[n].add(ALL)
    stream = of_moves(count, chance)
    places = {(1, 0, n): frozenset(of) for n, of in enumerate(groups)}
    slices = recut([stream], {"moves": places}, 3)
    assert len(slices) == 3
    came = [int(line) for part in slices for name in sorted(part.files) for line in part.files[name].split()]
    firsts = list(dict.fromkeys(came))
    refused = {n for n in range(count) if f"moves/1.jsonl:{n}" in stream.refused}
    assert sorted(firsts) == list(range(count))
    assert firsts != sorted(firsts)
    assert {n for n, times in Counter(came).items() if times > 1}.isdisjoint(refused)
    assert len(came) == count + -(-(count - len(refused)) // 10)
    for each in {group for of in groups for group in of}:
        within = [n for n in firsts if each in groups[n] and n not in refused]
        assert within == sorted(within)
    fixed = {n for n in range(count) if ALL in groups[n]} | refused
    assert all(max(firsts[: firsts.index(n)], default=-1) < n for n in fixed)
    in_order = recut([replace(stream, contract=replace(stream.contract, identity="position"))], {}, 3)
    assert [int(x) for part in in_order for name in sorted(part.files) for x in part.files[name].split()] == [
        *range(count)
    ]


def test_recut_keeps_files_whose_names_are_facts_of_events() -> None:
    fields = {**MOVES, "fields": [*MOVES["fields"], {"name": "file", "type": "string", "from": "file.name"}]}
    contract = read_contract(json.dumps(fields), file="moves.avsc")
    files = [RecordPiece(f"moves/{n:02}.csv", ".csv", b"%d\n" % n, whole=True, time=n * 10**9) for n in range(20)]
    slices = recut([LandedStream(contract, "", files, {}, frozenset())], {"moves": {}}, 3)
    assert len([part for part in slices if part.files]) > 1
    came = {name: content for part in slices for name, content in part.files.items()}
    assert came == {file.source: file.content for file in files}
    assert {name: time for part in slices for name, time in part.times.items()} == {f.source: f.time for f in files}
    for one, other in pairwise(part.files for part in slices):
        assert not one or not other or max(one) < min(other)
    with pytest.raises(
        DeclarationError, match="files of moves came in another order than that of their names"
    ) as raised:
        recut([LandedStream(contract, "", files[::-1], {}, frozenset())], {"moves": {}}, 3)
    assert "check_laws(slices=0)" in raised.value.fix
