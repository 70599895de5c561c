"""Rows as JSON are what `plain` makes of them, whatever their types, and come back as what they were."""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from lake.sinks.json_rows import json_rows, named_rows
from lake.sinks.sink import TableChanges, TargetTable, key_of
from lake.store.snapshot import Column
from lake.text import plain, text

TEXTS: Final = (
    *("", "NULL", "null", "%null", "%", ":", "%3A", "a:b%c", '"', "\\", "\\u001F", "/", "'", "ä€😀", "\u2028", "\x7f"),
    *(chr(n) for n in range(32)),
    *("\x00\x1f\\u001f\x0b", "{}", "[1]", "nan", " ", "a\nb\r\tc"),
)
DOUBLES: Final = (
    *(
        0.0,
        -0.0,
        0.1,
        1 / 3,
        1e15,
        1e16,
        1e17,
        1e-4,
        1e-5,
        1e22,
        1e23,
        123456789012345680.0,
        5e-324,
        2.2250738585072014e-308,
    ),
    *(1.7976931348623157e308, math.nan, math.inf, -math.inf, 9007199254740993.0, -2.5),
)
FLOATS: Final = (
    0.0,
    -0.0,
    0.10000000149011612,
    16777216.0,
    1.401298464324817e-45,
    3.4028234663852886e38,
    math.nan,
    math.inf,
    -math.inf,
)
INSTANTS: Final = (
    *(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1969, 12, 31, 23, 59, 59, 1)),
    *(
        datetime(1970, 1, 1),
        datetime(2024, 3, 30, 9, 12),
        datetime(1582, 10, 10),
        datetime(2024, 2, 29, 0, 0, 0, 500000),
    ),
)


@dataclass(frozen=True)
class Kind:
    """A type, as Arrow and as DuckDB have it, and values of it."""

    arrow: pa.DataType
    duck: str
    value: Callable[[random.Random], Any]


def whole(bits: int, arrow: pa.DataType, duck: str) -> Kind:
    most = 2 ** (bits - 1) - 1
    return Kind(arrow, duck, lambda r: r.choice([0, 1, -1, most, -most - 1, r.randint(-most, most)]))


def decimal(precision: int, scale: int) -> Kind:
    most = 10**precision - 1

    def value(r: random.Random) -> Decimal:
        digits = r.choice([0, 1, -1, most, -most, r.randint(-most, most)])
        return Decimal(digits).scaleb(-scale, None) if abs(digits) < 10**27 else Decimal(f"{digits}e-{scale}")

    return Kind(pa.decimal128(precision, scale), f"DECIMAL({precision},{scale})", value)


def word(r: random.Random) -> str:
    return r.choice([*TEXTS, "".join(r.choice(TEXTS) for _ in range(r.randrange(6)))])


SIMPLE: Final = (
    Kind(pa.bool_(), "BOOLEAN", lambda r: r.random() < 0.5),
    whole(8, pa.int8(), "TINYINT"),
    whole(16, pa.int16(), "SMALLINT"),
    whole(32, pa.int32(), "INTEGER"),
    whole(64, pa.int64(), "BIGINT"),
    Kind(pa.float32(), "FLOAT", lambda r: r.choice(FLOATS)),
    Kind(pa.float64(), "DOUBLE", lambda r: r.choice([*DOUBLES, r.uniform(-1, 1) * 10 ** r.randint(-300, 300)])),
    *(decimal(p, s) for p, s in ((1, 0), (1, 1), (9, 2), (18, 18), (38, 0), (38, 10), (38, 38))),
    Kind(pa.string(), "VARCHAR", word),
    Kind(pa.binary(), "BLOB", lambda r: r.choice([b"", b"\x00\xff", r.randbytes(5)])),
    Kind(pa.date32(), "DATE", lambda r: r.choice([date.min, date.max, date(1970, 1, 1), date(1969, 12, 31)])),
    Kind(pa.timestamp("us"), "TIMESTAMP", lambda r: r.choice(INSTANTS)),
    Kind(
        pa.timestamp("us", tz="UTC"),
        "TIMESTAMPTZ",
        lambda r: r.choice(
            [*INSTANTS, datetime(1970, 1, 1) + timedelta(microseconds=r.randint(-(10**15), 10**15))]
        ).replace(tzinfo=UTC),
    ),
)


def some(kind: Kind, r: random.Random) -> Any:
    return None if r.random() < 0.2 else kind.value(r)


def listed(kind: Kind) -> Kind:
    return Kind(pa.list_(kind.arrow), f"{kind.duck}[]", lambda r: [some(kind, r) for _ in range(r.randrange(4))])


def struct(names: list[str], kinds: list[Kind]) -> Kind:
    duck = ", ".join(f'"{name}" {kind.duck}' for name, kind in zip(names, kinds, strict=True))
    arrow = pa.struct([pa.field(name, kind.arrow) for name, kind in zip(names, kinds, strict=True)])
    return Kind(
        arrow, f"STRUCT({duck})", lambda r: {name: some(kind, r) for name, kind in zip(names, kinds, strict=True)}
    )


def mapped(key: Kind, value: Kind) -> Kind:
    def pairs(r: random.Random) -> list[tuple[Any, Any]]:
        keys = list(dict.fromkeys(key.value(r) for _ in range(r.randrange(4))))  # 0.0 and -0.0 are one key
        return list({text(k): (k, some(value, r)) for k in keys}.values())

    return Kind(pa.map_(key.arrow, value.arrow), f"MAP({key.duck}, {value.duck})", pairs)


def any_kind(r: random.Random, depth: int = 0) -> Kind:
    match r.randrange(4) if depth < 3 else 0:
        case 1:
            return listed(any_kind(r, depth + 1))
        case 2:
            names = r.sample(["a", "b c", "é", "it's", "key", "value"], r.randint(1, 3))
            return struct(names, [any_kind(r, depth + 1) for _ in names])
        case 3:
            return mapped(r.choice(SIMPLE), any_kind(r, depth + 1))
    return r.choice(SIMPLE)


def table(kinds: dict[str, Kind], identity: tuple[str, ...]) -> TargetTable:
    return TargetTable("t", "t", tuple(Column(name, kind.duck, "", "") for name, kind in kinds.items()), identity)


class Given:
    """Changes of rows that come, change and go."""

    def __init__(self, row: pa.DataType, images: list[tuple[Any, Any]]) -> None:
        changes = ["delete" if after is None else "insert" if before is None else "update" for before, after in images]
        befores, afters = zip(*images, strict=True)
        columns = {"change": pa.array(changes), "before": pa.array(befores, row), "after": pa.array(afters, row)}
        self.batch = pa.RecordBatch.from_pydict(columns)

    def batches(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.batch.schema, [self.batch])


def exactly(value: Any) -> Any:
    """A value that is equal to itself, and to no other zero."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return [exactly(inner) for inner in value]
    return {exactly(key): exactly(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def as_name(row: dict[str, Any], identity: tuple[str, ...]) -> str:
    parts = ("%null" if row[c] is None else text(row[c]).replace("%", "%25").replace(":", "%3A") for c in identity)
    return ":".join(parts)


def kinds_of(seed: int) -> Iterator[tuple[random.Random, dict[str, Kind]]]:
    for each in range(6):
        r = random.Random(f"{seed}.{each}")
        names = r.sample(["k", "Größe", "of", "change", "before", "image", "row"], 4)
        yield r, {name: any_kind(r) for name in names}


def tried(r: random.Random, kinds: dict[str, Kind], rows: int) -> None:
    row = struct(list(kinds), list(kinds.values()))
    identity = tuple(r.sample(list(kinds), r.randint(1, 3)))
    far = table(kinds, identity)
    images = [(row.value(r) if n % 3 else None, row.value(r) if n % 4 or not n % 3 else None) for n in range(rows)]
    given = Given(row.arrow, images)
    expected = given.batch.to_pylist(maps_as_pydicts="strict")
    found = [one for batch in json_rows(TableChanges(far, given)) for one in batch.to_pylist()]
    for one, of in zip(found, expected, strict=True):
        for side in ("before", "after"):
            made = None if of[side] is None else json.dumps(plain(of[side]), ensure_ascii=False)
            assert one[side] == made
        image = of["before"] if of["after"] is None else of["after"]
        assert (one["change"], one["key"]) == (of["change"], key_of(image, identity))
        assert one["name"] == as_name(image, identity)
    texts = [(None, one["after"]) for one in found if one["after"] is not None]
    back = named_rows(far, [texts[:3], [], texts[3:]]).read_all()
    rows_back = back.to_pylist(maps_as_pydicts="strict")
    assert back.column_names == list(kinds)
    assert [exactly(one) for one in rows_back] == [exactly(of["after"]) for of in expected if of["after"] is not None]


@pytest.mark.long
def test_json_of_random_types_equals_plain_and_is_read_back() -> None:
    for r, kinds in kinds_of(0):
        tried(r, kinds, 40)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_json_of_many_more_types_equals_plain_and_is_read_back(seed: int) -> None:
    for r, kinds in kinds_of(seed):
        tried(r, kinds, 300)


@pytest.mark.long
def test_json_of_extreme_values_equals_plain_and_is_read_back() -> None:
    r = random.Random(0)
    for kind in SIMPLE:
        tried(r, {"k": kind, "l": listed(kind), "m": mapped(kind, kind)}, 200)


def test_delivery_without_changes_has_no_rows() -> None:
    far = table({"k": SIMPLE[4]}, ("k",))
    empty = pa.RecordBatchReader.from_batches(pa.schema([("change", pa.string())]), [])

    class Nothing:
        def batches(self) -> pa.RecordBatchReader:
            return empty

    assert list(json_rows(TableChanges(far, Nothing()))) == []
    assert named_rows(far, []).read_all().num_rows == 0


def test_json_rows_calls_python_for_each_batch_and_not_for_each_row() -> None:
    kinds = {"k": SIMPLE[4], "w": SIMPLE[14], "d": SIMPLE[9], "x": SIMPLE[6], "at": SIMPLE[-1]}
    r = random.Random(0)
    row = struct(list(kinds), list(kinds.values()))

    def calls(rows: int) -> int:
        given, counted = Given(row.arrow, [(None, row.value(r)) for _ in range(rows)]), Counter[str]()
        sys.setprofile(lambda _frame, event, _argument: counted.update([event]))
        try:
            read = sum(batch.num_rows for batch in json_rows(TableChanges(table(kinds, ("k",)), given)))
        finally:
            sys.setprofile(None)
        assert read == rows
        return counted["call"] + counted["c_call"]

    assert calls(10_000) < 2 * calls(10)
