"""Rejected records of a full dump: they are not treated as deleted, in any order of the files."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.engine.inputs import Inputs
from lake.engine.verify import verify
from lake.errors import QualityError
from lake.ingest.append import append
from lake.ingest.delivery import Acceptance
from lake.ingest.fsck import check_log
from lake.ingest.replay import quarantined_records, replay
from lake.publish.cut import pick_cut
from lake.read.sql import reader
from lake.testing import Lakehouse
from tests.shop import contract, declare

ITEMS = {"item": "string?", "pieces": "int?", "dump": "int", "ended": ("boolean", {"default": False})}
JOB = '''
from lake import History, log, table

@table(History("item", sequence="_dump", snapshots=True{marker}), log("{stream}"))
def {stream}_item(rows):
    """How many pieces of an item there were, by full dumps."""
    return rows.where("item is not null or ended").selectExpr("item", "pieces", "dump as _dump", "ended as _ended")
'''
STREAMS: dict[str, dict[str, str]] = {"daily": {}, "parts": {"dump": "dump"}, "marked": {}}


@pytest.fixture
def lakehouse(spark: SparkSession, project: Settings) -> Lakehouse:
    contracts = [contract(stream, ITEMS, broadcast="ended", **facts) for stream, facts in STREAMS.items()]
    markers = {stream: ', marker="_ended"' if stream == "marked" else "" for stream in STREAMS}
    texts = {f"{stream}_item": JOB.format(stream=stream, marker=marker) for stream, marker in markers.items()}
    return declare(project, *contracts, jobs=texts)


def rows(dump: int, ended: bool = False, **pieces: Any) -> list[dict[str, Any]]:
    found = [{"item": item, "pieces": count, "dump": dump} for item, count in pieces.items()]
    return [*found, *([{"dump": dump, "ended": True}] if ended else [])]


def spans(lakehouse: Lakehouse, table: str) -> dict[str, tuple[int, int | None]]:
    return {row["item"]: (row["valid_from"], row["valid_to"]) for row in lakehouse.table(table)}


def broken(lakehouse: Lakehouse, stream: str, *, content: bytes = b"no gzip") -> None:
    folder = lakehouse.settings.path(lakehouse.settings.landing) / stream
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "000002.jsonl.gz").write_bytes(content)


@pytest.mark.long
def test_gate_stops_an_emptied_dump_until_the_next_complete_one(lakehouse: Lakehouse) -> None:
    gone = {
        "type": "expect_keys_gone_since_last_edition_to_be_at_most",
        "kwargs": {"share": 0.5},
        "doc": "a cut dump",
    }
    lakehouse.settings.path("quality/marked_item.json").write_text(json.dumps({"expectations": [gone]}))
    lakehouse.land("marked", *rows(1, ended=True, a=1, b=2)).run()
    assert edition_items(lakehouse) == (1, [("a", 1), ("b", 2)])
    lakehouse.land("marked", *rows(2, ended=True))
    with pytest.raises(QualityError, match=r"expect_keys_gone_since_last_edition(.|\n)*item=a"):
        lakehouse.run()
    assert spans(lakehouse, "marked_item") == {"a": (1, 2), "b": (1, 2)}
    assert edition_items(lakehouse) == (1, [("a", 1), ("b", 2)])
    lakehouse.land("marked", *rows(3, ended=True, a=1, b=3)).run()
    assert edition_items(lakehouse) == (2, [("a", 1), ("b", 3)])


def edition_items(lakehouse: Lakehouse) -> tuple[int, list[tuple[Any, ...]]]:
    """Return the edition of readers, and its items."""
    read, query = reader(lakehouse.settings), "SELECT item, pieces FROM marked_item WHERE is_current ORDER BY item"
    with read.connect(query) as con:
        return read.edition.number, con.execute(query).fetchall()


def repair(lakehouse: Lakehouse, stream: str) -> None:
    """Ingest everything of `stream` that waits, `b` as one piece, and unreadable text as a piece of `a`."""
    texts = [
        {"stream": stream, "batch": row.batch, "number": row.number, "raw": json.dumps(rows(2, a=2)[0])}
        if row.raw == "no record"
        else {"stream": stream, "batch": row.batch, "number": row.number, "raw": row.raw.replace('"many"', "1")}
        for row in quarantined_records(lakehouse.settings, [stream])
    ]
    replay(lakehouse.settings, lambda: lakehouse.spark, stream=stream, repairs=texts)


def identical(lakehouse: Lakehouse, *, every: bool) -> None:
    """Check each log, and verify one table, or all if `every`."""
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None), recompute=True)
    for declaration in list(lakehouse.project.tables.values())[: None if every else 1]:
        assert verify(inputs, declaration).verdict == "identical"
    assert [check_log(lakehouse.settings, stream).faults for stream in STREAMS] == [[], [], []]


@pytest.mark.long
@pytest.mark.parametrize("sliced", [False, True], ids=["at once", "by file"])
def test_dump_with_a_rejected_record_closes_no_key_until_repair_or_acceptance(
    lakehouse: Lakehouse, sliced: bool
) -> None:
    """`daily` has a file for each dump, `parts` several in one file with a name for each, `marked` ends each."""

    def items(stream: str) -> dict[str, tuple[int, int | None]]:
        return spans(lakehouse, f"{stream}_item")

    landing = lakehouse.settings.path(lakehouse.settings.landing)
    lakehouse.land("daily", *rows(1, a=1, b=1, c=1))
    lakehouse.land("parts", *rows(1, a=1, b=1, c=1), *rows(2, a=1, b="many"), *rows(3, a=1, b=1))
    lakehouse.land("marked", *rows(1, ended=True, a=1, b=1))
    if sliced:
        lakehouse.run()
    lakehouse.land("daily", *rows(2, a=1, b="many"), "no record")
    lakehouse.land("parts", *rows(4, a=1), '{"item": "b", "dump": 4, "pieces": 2')
    broken(lakehouse, "marked")
    if sliced:
        lakehouse.run()
        assert items("daily") == {"a": (1, None), "b": (1, None), "c": (1, None)}
    (landing / "marked/000003.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows(2, ended=True, a=1)))
    lakehouse.land("daily", *rows(3, a=1)).run()
    assert items("daily") == {"a": (1, None), "b": (1, 3), "c": (1, 3)}
    assert items("parts") == {"a": (1, None), "b": (1, None), "c": (1, 3)}
    assert items("marked") == {"a": (1, None), "b": (1, None)}
    if sliced:
        identical(lakehouse, every=True)
    repair(lakehouse, "daily")
    broken(lakehouse, "marked", content=gzip.compress(json.dumps(rows(2, c=1)[0]).encode()))
    parts = load_contract(lakehouse.settings, "parts")
    append(lakehouse.settings, lambda: lakehouse.spark, parts, lambda _: Acceptance("it is gone"))
    lakehouse.run()
    assert items("daily") == {"a": (3, None), "b": (1, 3), "c": (1, 2)}
    assert items("parts") == {"a": (1, None), "b": (3, 4), "c": (1, 2)}
    assert items("marked") == {"a": (1, None), "b": (1, 2), "c": (2, None)}
    assert not [*quarantined_records(lakehouse.settings, ["daily", "marked"])]
    identical(lakehouse, every=sliced)
