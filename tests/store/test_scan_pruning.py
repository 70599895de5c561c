"""Files that a scan skips by the ranges in commit statistics: none with a matching row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lake import cost
from lake.store import delta
from lake.store.duckdb_tables import TableFiles, open_files
from lake.store.log_head import LogHead
from lake.store.proof import chain
from lake.store.scan import Scan, has_key
from lake.store.storage import Address

pytestmark = pytest.mark.slow

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
SCHEMA: Final = pa.schema(
    [
        ("_batch", pa.int64()),
        ("_time", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("number", pa.int32()),
        ("value", pa.float64()),
        ("money", pa.decimal128(20, 2)),
        ("code", pa.binary()),
        ("flag", pa.bool_()),
        ("place", pa.struct([("at", pa.int32()), ("name", pa.string())])),
        ("tags", pa.list_(pa.string())),
    ]
)
NAMES: Final = ("", "a", "Z", "é", "a" * 40, "a" * 40 + "b", "\U0001f600", "\uffff", "x'y", "😀" * 33)
"""Some are longer than file statistics keep."""
EXTREMES: Final = (
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1582, 10, 14, 23, 59, 59, 999_999, UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
)


HEADS: Final = [LogHead("", delta.start(""), batch) for batch in range(1, 31)]


def instant(random: Random) -> datetime | None:
    """Return an instant of one day to the microsecond, an extreme one, or None."""
    if random.random() < 0.1:
        return random.choice((None, *EXTREMES))
    return datetime(2024, 6, 1, tzinfo=UTC) + random.randrange(86_400_000_000) * MICROSECOND


def row(random: Random, batch: int) -> dict[str, Any]:
    return {
        "_batch": batch,
        "_time": instant(random),
        "name": random.choice((None, *NAMES)),
        "day": random.choice((None, date(1, 1, 1), date(2024, 6, random.randint(1, 30)), date(9999, 12, 31))),
        "number": random.choice((None, -(2**31), random.randint(-5, 5), 2**31 - 1)),
        "value": random.choice((None, math.nan, -0.0, 0.0, math.inf, -math.inf, 1e308, 0.1)),
        "money": random.choice((None, Decimal("-1.00"), Decimal(0), Decimal("9" * 18 + ".99"))),
        "code": random.choice((None, b"", b"\0", b"\x7f", b"\x80", b"\xff" * 40, b"\xff" * 41)),
        "flag": random.choice((None, True, False)),
        "place": random.choice((None, {"at": None, "name": "a"}, {"at": 1, "name": None}, {"at": 1, "name": "a"})),
        "tags": random.choice((None, [], [None], ["a"], ["a", None])),
    }


def table(seed: int, tmp_path: Path) -> tuple[Random, Address, pa.Table]:
    """Make a table of 30 files of one to three rows, each file of its own batch."""
    random = Random(seed)
    parts = [pa.Table.from_pylist([row(random, n) for _ in range(random.randint(1, 3))], SCHEMA) for n in range(1, 31)]
    for part in parts:
        write_deltalake(tmp_path / "t", part, mode="append")
    return random, Address(str(tmp_path / "t")), pa.concat_tables(parts)


def micros(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND


def equal_values(values: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return a text that is equal for equal values: nulls, NaN, and the two zeros are."""
    return str([values[c] + 0.0 if isinstance(values[c], float) else values[c] for c in columns])


def in_order(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_scan_by_time_omits_no_matching_event(seed: int, tmp_path: Path) -> None:
    random, path, rows = table(seed, tmp_path)
    times = sorted(micros(at) for at in rows.column("_time").to_pylist() if at is not None)
    spans = [tuple(sorted((random.choice(times) + random.randint(-1, 1), random.choice(times)))) for _ in range(20)]
    # Spans within one millisecond, the precision of statistics, and up to the limits of SQL.
    spans += [(at, at) for at in times[::4]] + [(-(1 << 62), times[0]), (times[-1], 1 << 62), (-(1 << 62), 1 << 62)]
    left_out = 0
    for first, last in spans:
        scan = Scan(path, times=(first, last))
        wanted = pa.Table.from_pylist(
            [row for row in rows.to_pylist() if row["_time"] is not None and first <= micros(row["_time"]) <= last],
            SCHEMA,
        )
        assert in_order(scan.arrow()) == in_order(wanted)
        left_out += 30 - len(scan.files())
        batches = set(wanted.column("_batch").to_pylist())
        assert batches <= {head.batch for head in chain.heads_at(path, HEADS, (first, last))}
    assert left_out > 300


@pytest.mark.turns
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_scan_by_keys_omits_no_matching_row(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, path, rows = table(seed, tmp_path)
    whole = Scan(path)
    pairs = (["number", "name"], ["_time", "day", "_batch"], ["value", "flag"], ["place", "code"])
    for columns in (*([name] for name in SCHEMA.names), *pairs):
        for count in (1, 20) if seed > 1 else (20,):
            picked = rows.select(columns).take([random.randrange(rows.num_rows) for _ in range(count)])
            other = pa.Table.from_pylist([row(random, random.randint(1, 40))], SCHEMA).select(columns)
            keys = pa.concat_tables([picked, other])
            found = whole.arrow(keys=keys)
            sought = {equal_values(key, columns) for key in keys.to_pylist()}
            wanted = [one for one in rows.to_pylist() if equal_values(one, columns) in sought]
            assert in_order(found) == in_order(pa.Table.from_pylist(wanted, SCHEMA))
            monkeypatch.setattr(cost, "PRUNED_KEYS", 0)
            assert in_order(found) == in_order(whole.arrow(keys=keys))
            monkeypatch.setattr(cost, "SOUGHT_ROWS", 0)
            assert in_order(found) == in_order(whole.arrow(keys=keys))
            assert whole.arrow(keys=keys, limit=3).num_rows == min(found.num_rows, 3)
            monkeypatch.undo()
            others = whole.arrow(where=f"NOT {has_key(keys)}", lookup=keys)
            assert found.num_rows + others.num_rows == rows.num_rows
    least = pa.table({"_batch": pa.array([7, 9], pa.int64())})
    assert {*whole.arrow(keys=least).column("_batch").to_pylist()} == {7, 9}
    assert len(whole.files(keys=least)) == 2


@pytest.mark.turns
@pytest.mark.parametrize("seed", range(1, 13))
def test_late_events_are_counted_from_the_files_that_can_have_them(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, watermark, rows, files = Random(seed), None, list[dict[str, Any]](), list[str]()
    schema = SCHEMA.append(pa.field("_watermark", pa.timestamp("us", "UTC")))
    in_order = random.random() < 0.5
    for batch in range(1, 21):
        some = [row(random, batch) | {"_watermark": watermark} for _ in range(random.randint(1, 3))]
        if in_order:
            some = [each | {"_time": datetime(2024, 6, batch, tzinfo=UTC)} for each in some]
        write_deltalake(tmp_path / "t", pa.Table.from_pylist(some, schema), mode="append")
        rows += some
        watermark = max((each["_time"] for each in some if each["_time"]), default=watermark)
    upto, lateness = random.randint(0, 20), random.choice((0, 1, 999, 10**6, 3_600_000_000)) * MICROSECOND
    late = [
        each
        for each in rows
        if each["_batch"] <= upto and each["_time"] and each["_watermark"]
        if micros(each["_time"]) < micros(each["_watermark"]) - lateness // MICROSECOND
    ]

    def counted(some: TableFiles) -> Any:
        files.extend(some.paths)
        return open_files(some)

    monkeypatch.setattr("lake.store.scan.open_files", counted)
    assert Scan(Address(str(tmp_path / "t")), bounds={"_batch": (1, upto)}).late(lateness) == len(late)
    assert not (in_order and files)
