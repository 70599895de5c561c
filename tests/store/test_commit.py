"""Contract of commits for both writers: the effect of a diff, the recorded position, and races."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.config import Settings
from lake.errors import LawError, Unavailable
from lake.store import delta
from lake.store.commit import commit, describe, replace
from lake.store.delta import Position, start
from lake.store.rows import Rows
from lake.store.scan import Scan, to_frame
from lake.store.table_head import CHANGE, Counts
from lake.store.table_log import delta_table
from lake.store.tables import Table
from tests.checks import present
from tests.shop import empty

DAYS = [dt.date(2013, 1, 1) + dt.timedelta(days=n) for n in range(40)]
SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("code", pa.string()),
        ("n", pa.int64()),
        ("amount", pa.decimal128(20, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("_order", pa.struct([("_batch", pa.int64()), ("_offset", pa.int64())])),
    ]
)
IDENTITY = ("day", "code")
# A null, and a name that would break unquoted SQL.
CODES = ["AA", None, "o'neil; drop"]


def row(day: dt.date, code: str | None, n: int, change: str = "insert") -> dict[str, Any]:
    at = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)
    order = {"_batch": n, "_offset": 2**40 + n}
    return {"day": day, "code": code, "n": n, "amount": Decimal(n) / 4, "at": at, "_order": order, CHANGE: change}


def diff(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA.append(pa.field(CHANGE, pa.string())))


@dataclass
class Writer:
    """A table and the writer that commits to it."""

    table: Table
    spark: SparkSession
    frames: bool

    def write(self, *rows: dict[str, Any], position: Position | None = None) -> Position:
        before = position or self.table.position() or start(self.table.app)
        data = diff(*rows)
        following = before.next(verb="advance", cut=before.txn + 1, inputs={}, counts={})
        given = to_frame(self.spark, data) if self.frames else data
        return commit(self.table, Rows(given), Counts.of(Rows(data)), IDENTITY, following)

    def content(self) -> list[tuple[Any, ...]]:
        rows = Scan(self.table.path).arrow().to_pylist()
        return sorted(((r["day"], r["code"], r["n"], r["amount"]) for r in rows), key=str)


@pytest.fixture(params=["delta-rs", "rewritten files", "spark"])
def writer(
    request: pytest.FixtureRequest, project: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Writer:
    if request.param == "rewritten files":
        monkeypatch.setattr(cost, "MERGED_ROWS", -1)
    table = Table(project, "gold", "sums", "sums")
    table.create(SCHEMA, description="Sums.")
    return Writer(table, spark, request.param == "spark")


def test_commit_matches_rows_by_a_null_in_the_first_identity_column(project: Settings) -> None:
    table = Table(project, "gold", "sums", "sums")
    table.create(SCHEMA, description="Sums.")
    position = start(table.app)
    for rows in ([row(DAYS[0], None, 1), row(DAYS[1], None, 2)], [row(DAYS[1], None, 3, "update")]):
        position = position.next(verb="advance", cut=position.txn + 1, inputs={}, counts={})
        position = commit(table, Rows(diff(*rows)), Counts.of(Rows(diff(*rows))), ("code", "day"), position)
    assert sorted(r["n"] for r in Scan(table.path).arrow().to_pylist()) == [1, 3]


@pytest.mark.parametrize("merged", [cost.MERGED_ROWS, -1])
def test_commit_keeps_small_row_groups_when_rows_change(
    project: Settings, monkeypatch: pytest.MonkeyPatch, merged: int
) -> None:
    monkeypatch.setattr(cost, "MERGED_ROWS", merged)
    monkeypatch.setattr(cost, "ROW_GROUP", 10_000)
    table = Table(project, "gold", "sums", "sums")
    table.create(SCHEMA, description="Sums.")
    position = start(table.app)
    for rows in ([row(day, str(n), n) for n in range(100) for day in DAYS], [row(DAYS[1], "2", 3, "update")]):
        position = position.next(verb="advance", cut=position.txn + 1, inputs={}, counts={})
        position = commit(table, Rows(diff(*rows)), Counts.of(Rows(diff(*rows))), IDENTITY, position)
        [file] = delta.files(delta_table(table.path))
        with table.path.at(file).open() as content:
            assert 4 < pq.ParquetFile(content).metadata.num_row_groups < 80


@pytest.mark.parametrize("merged", [cost.MERGED_ROWS, -1])
def test_commit_that_does_not_find_a_row_is_reported(
    project: Settings, monkeypatch: pytest.MonkeyPatch, merged: int
) -> None:
    monkeypatch.setattr(cost, "MERGED_ROWS", merged)
    table = Table(project, "gold", "sums", "sums")
    table.create(SCHEMA, description="Sums.")
    first = start(table.app).next(verb="advance", cut=1, inputs={}, counts={})
    rows = Rows(diff(row(DAYS[0], "AA", 1)))
    position = commit(table, rows, Counts.of(rows), IDENTITY, first).next(verb="advance", cut=2, inputs={}, counts={})
    unknown = [row(DAYS[1], "AA", 2, "update"), row(DAYS[2], "AA", 2)], [row(DAYS[1], "AA", 2, "delete")]
    for changes in (*unknown, [row(DAYS[0], "AA", 1, "update"), row(DAYS[0], "AA", 2)]):
        rows = Rows(diff(*changes))
        with pytest.raises(LawError, match="only"):
            commit(table, rows, Counts.of(rows), IDENTITY, position)
        position = present(table.position()).next(verb="advance", cut=3, inputs={}, counts={})


@pytest.mark.turns(2)
def test_commit_inserts_updates_deletes_and_records_its_position(writer: Writer) -> None:
    first = [row(day, code, 1) for day in DAYS for code in CODES]
    assert writer.write(*first).txn == 1
    after = writer.write(
        row(DAYS[3], None, 7, "update"), row(DAYS[4], "AA", 0, "delete"), row(DAYS[5], "new", 9),
        row(DAYS[6], "o'neil; drop", 8, "update"),
    )  # fmt: skip
    expected = {(d, c): (1, Decimal("0.25")) for d in DAYS for c in CODES}
    expected |= {(DAYS[3], None): (7, Decimal("1.75")), (DAYS[6], "o'neil; drop"): (8, Decimal(2))}
    expected |= {(DAYS[5], "new"): (9, Decimal("2.25"))}
    del expected[DAYS[4], "AA"]
    assert writer.content() == sorted(((*k, *v) for k, v in expected.items()), key=str)
    head = writer.table.position()
    assert head == after
    assert (head.txn, head.data["cut"]) == (2, 2)


@pytest.mark.turns
def test_commit_of_an_empty_diff_records_a_position(writer: Writer) -> None:
    writer.write(row(DAYS[0], "AA", 1))
    after = writer.write()
    assert (after.txn, writer.table.position()) == (2, after)
    assert len(writer.content()) == 1


@pytest.mark.turns(2)
def test_change_feed_nets_several_commits(writer: Writer) -> None:
    writer.write(*[row(day, "AA", 1) for day in DAYS[:5]])
    before = present(writer.table.position()).version
    writer.write(row(DAYS[0], "AA", 2, "update"), row(DAYS[1], "AA", 0, "delete"), row(DAYS[6], "AA", 6))
    writer.write(row(DAYS[0], "AA", 3, "update"), row(DAYS[6], "AA", 0, "delete"))
    writer.write()
    rows = writer.table.changes(writer.spark, after=before, upto=present(writer.table.position()).version).collect()
    assert sorted((r.day, r.n, r["_sign"]) for r in rows) == [
        (DAYS[0], 1, -1), (DAYS[0], 3, 1), (DAYS[1], 1, -1)
    ]  # fmt: skip


@pytest.mark.turns
@pytest.mark.parametrize("change", ["insert", "update", "delete", "none"])
def test_commit_of_a_writer_that_read_an_older_state_fails(writer: Writer, change: str) -> None:
    stale = writer.write(row(DAYS[0], "AA", 1))
    writer.write(row(DAYS[0], "AA", 2, "update"))
    rows = [] if change == "none" else [row(DAYS[1] if change == "insert" else DAYS[0], "AA", 9, change)]
    with pytest.raises(Unavailable, match="another writer"):
        writer.write(*rows, position=stale)
    assert writer.content() == [(DAYS[0], "AA", 2, Decimal("0.5"))]


def test_replace_by_spark_stores_texts_of_the_default_collation_as_plain_ones(
    project: Settings, spark: SparkSession
) -> None:
    """Spark Connect names that collation in the columns that a Python function makes."""
    table = Table(project, "gold", "sums", "sums")
    table.create(SCHEMA, description="Sums.")
    named = "collate('a', 'UTF8_BINARY')"
    rows = spark.range(1).selectExpr(f"{named} as code", f"array({named}) as codes", f"struct({named} as code) as one")
    replace(table, Rows(rows), ["code"], start(table.app).next(verb="rebuild", cut=1), meanings={})
    assert "collate" not in delta_table(table.path).schema().to_json()
    assert Scan(table.path).arrow().to_pylist() == [{"code": "a", "codes": ["a"], "one": {"code": "a"}}]


@pytest.mark.turns
def test_replace_changes_the_columns_of_a_table_in_one_commit(writer: Writer) -> None:
    before = writer.write(row(DAYS[0], "AA", 1), row(DAYS[1], "AA", 1))
    rows = pa.table({"code": ["AA", None], "total": pa.array([2, 3], pa.int64())})
    given = writer.spark.createDataFrame(rows) if writer.frames else rows
    following = before.next(verb="rebuild", cut=2, inputs={}, counts={})
    after = replace(
        writer.table,
        Rows(given),
        ["code"],
        following,
        meanings={"total": {"comment": "of all"}, "n": {"comment": "gone"}},
    )
    fields = delta_table(writer.table.path).schema().fields
    assert {f.name: f.metadata.get("comment") for f in fields} == {"code": None, "total": "of all"}
    assert after.version == before.version + 1
    assert Scan(writer.table.path).arrow().sort_by("total").to_pylist() == rows.to_pylist()
    assert Scan(writer.table.path, before.version).arrow().num_rows == 2


@pytest.mark.long
def test_readers_see_descriptions_and_need_no_reader_features(writer: Writer) -> None:
    writer.write(row(DAYS[0], "AA", 1))
    describe(writer.table, "Sums.", {"n": {"comment": "how many", "unit": "pieces"}})
    writer.write(row(DAYS[0], "AA", 2, "update"), row(DAYS[1], None, 3))
    table = delta_table(writer.table.path)
    assert table.metadata().description == "Sums."
    assert {f.name: f.metadata for f in table.schema().fields}["n"] == {"comment": "how many", "unit": "pieces"}
    assert table.protocol().min_reader_version == 1
    rows = writer.spark.read.format("delta").load(writer.table.path.url)
    assert rows.schema["n"].metadata == {"comment": "how many", "unit": "pieces"}
    assert sorted(r.n for r in rows.collect()) == [2, 3]


def test_describe_changes_only_metadata_in_one_commit(project: Settings) -> None:
    table = Table(project, "gold", "sums", "sums")
    table.create(SCHEMA, description="Sums.")
    first = next_commit(table, row(DAYS[0], "AA", 1), row(DAYS[1], "AA", 1))
    both: dict[str, dict[str, str]] = {"n": {"comment": "how many", "unit": "pieces"}, "code": {"comment": "whose"}}
    one = {"n": {"unit": "boxes"}}
    for meanings, version in ((both, 1), (both, 1), (one, 2), (one, 2)):
        describe(table, "Sums by code.", meanings)
        described = delta_table(table.path)
        assert {f.name: f.metadata for f in described.schema().fields if f.metadata} == meanings
        assert described.metadata().description == "Sums by code."
        assert table.version() == first.version + version
    standing = present(table.position())
    assert (standing.txn, standing.origin, standing.version) == (first.txn, first.version, first.version + 2)
    after = next_commit(table, row(DAYS[0], "AA", 2, "update"), row(DAYS[2], "AA", 5))
    feed = pa.table(delta_table(table.path).load_cdf(first.version + 1, after.version)).to_pylist()
    assert sorted((each["_change_type"], each["n"]) for each in feed) == [
        ("insert", 5), ("update_postimage", 2), ("update_preimage", 1)
    ]  # fmt: skip
    assert delta_table(table.path).metadata().configuration["delta.enableChangeDataFeed"] == "true"


def test_describe_changes_nothing_when_another_tool_wrote_the_table_last(project: Settings) -> None:
    table = Table(project, "gold", "sums", "sums")
    table.create(SCHEMA, description="Sums.")
    next_commit(table, row(DAYS[0], "AA", 1))
    delta_table(table.path).delete("n = 1")
    describe(table, "Other sums.", {"n": {"comment": "how many"}})
    assert delta_table(table.path).metadata().description == "Sums."


def next_commit(table: Table, *rows: dict[str, Any]) -> Position:
    before = table.position() or start(table.app)
    following = before.next(verb="advance", cut=before.txn + 1, inputs={}, counts={})
    read_before = pa.schema([field.with_metadata({"comment": "as it was"}) for field in diff().schema])
    changes = Rows(diff(*rows).cast(read_before))
    return commit(table, changes, Counts.of(changes), IDENTITY, following)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.string()), [["a, b"], ["a", "b"], [None], None]),
        (pa.struct([("u", pa.int32()), ("v", pa.int32())]), [{"u": 1, "v": None}, {"u": 1, "v": 2}, None]),
    ],
    ids=["lists", "structs"],
)
def test_commit_distinguishes_rows_by_nested_identity(project: Settings, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("said", kind), ("n", pa.int64())])
    table = Table(project, "gold", "sums", "sums")
    table.create(schema, description="Sums.")
    for change, some in (("insert", values), ("update", values[:1]), ("update", values[1:]), ("delete", values[:2])):
        rows = [
            {"said": value, "n": n if change == "insert" else -n, CHANGE: change} for n, value in enumerate(some, 1)
        ]
        given = Rows(pa.Table.from_pylist(rows, schema.append(pa.field(CHANGE, pa.string()))))
        before = table.position() or start(table.app)
        following = before.next(verb="advance", cut=before.txn + 1, inputs={}, counts={})
        commit(table, given, Counts.of(given), ("said",), following)
    left = {repr(row["said"]): row["n"] for row in Scan(table.path).arrow().to_pylist()}
    assert left == {repr(value): -n for n, value in enumerate(values[1:], 1) if n > 1}


OF_ANY_TYPE = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.float64()),
        ("small", pa.int16()),
        ("amount", pa.decimal128(38, 10)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("content", pa.binary()),
        ("flag", pa.bool_()),
        ("parts", pa.list_(pa.struct([("n", pa.int32()), ("note", pa.string())]))),
        ("facts", pa.map_(pa.string(), pa.int64())),
    ]
)
ENDS: dict[str, list[Any]] = {
    "text": ["", "a", "b ", "é\u0301", "x" * 200],
    "number": [0.0, -0.0, math.nan, math.inf, 1e-300],
    "small": [-(2**15), 2**15 - 1],
    "amount": [Decimal("0E-10"), Decimal("-9999999999999999999999999999.9999999999")],
    "day": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)],
    "at": [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, dt.UTC)],
    "local": [dt.datetime(1582, 10, 10), dt.datetime(2024, 3, 31, 2, 30)],
    "content": [b"", b"\x00\xff"],
    "flag": [True, False],
    "parts": [[], [{"n": None, "note": "a"}, None], [{"n": 1, "note": None}]],
    "facts": [[], [("a", None)], [("a", 1), ("b", 2)]],
}


def random_row(chance: random.Random, identity: Sequence[str], number: int) -> dict[str, Any]:
    values = {name: chance.choice([None, *some]) for name, some in ENDS.items()}
    own = {"text": f"{number:03}", "number": float(number), "parts": [{"n": number, "note": None}]}
    ends: dict[str, list[Any]] = {"text": [None, ""], "number": [None, math.nan], "parts": [None, []]}
    kept = {name: ends[name][number] if number < 2 else own[name] for name in identity}
    return {**values, **kept}


@pytest.mark.turns(2)
@pytest.mark.parametrize("identity", [("text",), ("number",), ("parts",), ("text", "number")])
@pytest.mark.parametrize("seed", range(3))
def test_rewritten_files_have_the_rows_and_the_feed_of_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: tuple[str, ...], seed: int
) -> None:
    """Commits insert, update and delete rows of any type; the files without changed rows stay."""
    found = []
    for merged, current in ((cost.MERGED_ROWS, None), (-1, None), (-1, "flag")):
        monkeypatch.setattr(cost, "MERGED_ROWS", merged)
        table, chance = Table(empty(tmp_path / f"{merged}{current}"), "gold", "any", "any"), random.Random(seed)
        table.create(OF_ANY_TYPE, description="Any.")
        there, states = set[int](), list[Any]()
        for step in range(5):
            new = chance.sample([n for n in range(60) if n not in there], 9)
            changed = chance.sample(sorted(there), len(there) // 4)
            gone = chance.sample(sorted(there - {*changed}), len(there) // 8)
            old = {row_key(row, identity): row for row in Scan(table.path).arrow().to_pylist()}
            rows = [random_row(chance, identity, n) | {CHANGE: "insert"} for n in new]
            rows += [random_row(chance, identity, n) | {CHANGE: "update"} for n in changed]
            keys = [row_key(random_row(chance, identity, n), identity) for n in gone]
            rows += [old[key] | {CHANGE: "delete"} for key in keys]
            there = (there | {*new}) - {*gone}
            position = (table.position() or start(table.app)).next(verb="advance", cut=step, inputs={}, counts={})
            given = Rows(pa.Table.from_pylist(rows, OF_ANY_TYPE.append(pa.field(CHANGE, pa.string()))))
            done = commit(table, given, Counts.of(given), identity, position, current)
            feed = pa.table(delta_table(table.path).load_cdf(done.version, done.version))
            states.append((as_text(Scan(table.path).arrow()), as_text(feed.drop_columns(["_commit_timestamp"]))))
        assert len(states[-1][0]) == len(there)
        found.append(states)
    assert found[0] == found[1] == found[2]


def test_rewriting_leaves_files_without_changed_rows(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "MERGED_ROWS", -1)
    table = Table(project, "gold", "sums", "sums")
    table.create(SCHEMA, description="Sums.")
    for day in DAYS[:3]:
        next_commit(table, row(day, "AA", 1), row(day, "BB", 2))
    before = {*delta.files(delta_table(table.path))}
    next_commit(table, row(DAYS[0], "AA", 3, "update"), row(DAYS[2], "BB", 2, "delete"), row(DAYS[2], "CC", 4))
    after = {*delta.files(delta_table(table.path))}
    assert (len(before & after), len(before - after), len(after - before)) == (1, 2, 1)
    assert sorted(each["n"] for each in Scan(table.path).arrow().to_pylist()) == [1, 1, 2, 2, 3, 4]


def row_key(row: dict[str, Any], identity: Sequence[str]) -> str:
    return repr([row[name] for name in identity])


def as_text(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.select(sorted(rows.column_names)).to_pylist()))
