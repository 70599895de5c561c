"""Rows with a column of each type, their extremes and nulls, and the comparison of both engines over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from lake.session.in_process.mode import Unsupported, by_duckdb
from lake.store.duckdb_tables import in_process_session
from lake.store.scan import to_arrow, to_frame

MAX, MIN = datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1)
PART = pa.struct([("a", pa.int64()), ("b", pa.string())])
COLUMNS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [0, 1, -1, 127, -128]),
    "short": (pa.int16(), [0, 7, -7, 32767, -32768]),
    "int": (pa.int32(), [0, 1, -1, 17, 2**31 - 1, -(2**31)]),
    "long": (pa.int64(), [0, 1, -3, 1_000_007, 2**63 - 1, -(2**63)]),
    "float": (pa.float32(), [0.0, 1.5, -2.25, float("inf"), float("-inf"), float("nan"), 3.4028235e38]),
    "double": (
        pa.float64(),
        [0.0, 0.1, -0.3, 0.5, -2.5, 1e300, 1e16, float("inf"), float("-inf"), float("nan"), 5e-324],
    ),
    "money": (pa.decimal128(12, 2), [Decimal("0.00"), Decimal("1.05"), Decimal("-9999999999.99"), Decimal("2.50")]),
    "wide": (pa.decimal128(38, 6), [Decimal("0.000001"), Decimal(10**31), Decimal("-1.500000")]),
    "whole": (pa.decimal128(20, 0), [Decimal(0), Decimal(10**20 - 1), Decimal(-7)]),
    "text": (pa.string(), ["", "a", "A", "añ😀", "10", "-3", "1.50", "2024-02-29", " x ", "a'b\\c`d", "Z\x00z"]),
    "number": (
        pa.string(),
        ["0", "12", "-7", "00042", "2147483648", "9223372036854775808", "1e3", " 5", "+5", "٣", "٣e٣"],
    ),
    "when": (
        pa.string(),
        ["2024-02-29", "2024-02-30", "0001-01-01", "2024-1-5", "2024-03-10 02:30:00", "2024-03-10T02:30:00.5Z"],
    ),
    "raw": (pa.binary(), [b"", b"a", b"\xff\x00"]),
    "day": (pa.date32(), [date(1970, 1, 1), date(2024, 2, 29), MIN.date(), MAX.date(), date(1582, 10, 10)]),
    "at": (
        pa.timestamp("us", "UTC"),
        [d.replace(tzinfo=UTC) for d in (datetime(1970, 1, 1), datetime(2024, 3, 10, 7, 30, 0, 250000), MIN, MAX)]
        + [datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), datetime(2024, 12, 30, 1, tzinfo=UTC)],
    ),
    "wall": (pa.timestamp("us"), [datetime(1970, 1, 1), datetime(2024, 3, 10, 2, 30), MIN, MAX]),
    "part": (PART, [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, {"a": 1, "b": None}, {"a": None, "b": None}]),
    "items": (pa.list_(pa.int32()), [[], [1, 2], [None], [3, None, 3]]),
}


def all_rows() -> pa.Table:
    """Return rows with `id` and, for each column, its values, nulls, and again its values in another order."""
    size = max(len(values) for _, values in COLUMNS.values()) + 1
    columns: dict[str, pa.Array] = {"id": pa.array(range(2 * size), pa.int64())}
    for place, (name, (type_, values)) in enumerate(COLUMNS.items()):
        some = [*values, None]
        columns[name] = pa.array(
            [some[(n * (1 if n < size else place % 5 + 2)) % len(some)] for n in range(2 * size)], type_
        )
    columns["group"] = pa.array([n % 4 for n in range(2 * size)], pa.int32())
    return pa.table(columns)


def in_process() -> SparkSession:
    return in_process_session()


def answered(rows: pa.Table, texts: Iterable[str], *, row_by_row: bool = True) -> dict[str, dict[int, Any]]:
    """Return {SQL: {id of a row: value}} for the rows for which DuckDB has an answer."""
    found = dict[str, dict[int, Any]]()
    with by_duckdb():
        frame = to_frame(in_process(), rows)
        for text in texts:
            try:
                found[text] = _values(frame, text)
            except Unsupported:
                if row_by_row and _is_known(frame, text):
                    found[text] = _one_by_one(rows, text)
    return {text: values for text, values in found.items() if values}


def _is_known(frame: Any, text: str) -> bool:
    try:
        frame.selectExpr(f"{text} as x").schema  # noqa: B018 translates the text
    except Unsupported:
        return False
    return True


def _one_by_one(rows: pa.Table, text: str) -> dict[int, Any]:
    values = dict[int, Any]()
    for number in range(rows.num_rows):
        try:
            values |= _values(to_frame(in_process(), rows.slice(number, 1)), text)
        except Unsupported:
            continue
    return values


def _values(frame: Any, text: str) -> dict[int, Any]:
    found = to_arrow(frame.selectExpr("id", f"{text} as x"))
    return dict(zip(found["id"].to_pylist(), comparable_column(found["x"]), strict=True))


def by_spark(
    spark: SparkSession, rows: pa.Table, wanted: dict[str, dict[int, Any]], *, at_once: int = 60
) -> dict[str, dict[int, Any]]:
    """Return Spark's values of the same texts for the same rows, null for the others."""
    frame, texts, found = to_frame(spark, rows).cache(), list(wanted), dict[str, dict[int, Any]]()
    for first in range(0, len(texts), at_once):
        some = texts[first : first + at_once]
        columns = [
            f"case when id in ({', '.join(map(str, wanted[text]))}) then {text} end as x{n}"
            for n, text in enumerate(some)
        ]
        values = to_arrow(frame.selectExpr("id", *columns))
        for n, text in enumerate(some):
            of_row = dict(zip(values["id"].to_pylist(), comparable_column(values[f"x{n}"]), strict=True))
            found[text] = {number: of_row[number] for number in wanted[text]}
    frame.unpersist()
    return found


def comparable_column(column: pa.ChunkedArray) -> list[tuple[str, Any]]:
    """Return (type, value) of each row; NaN equals NaN, the sign of a zero counts, and times may be beyond Python's."""
    type_ = str(column.type)
    numbers = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    numbers = numbers.cast(pa.int32()) if pa.types.is_date(numbers.type) else numbers
    if pa.types.is_list(numbers.type) and pa.types.is_date(numbers.type.value_type):
        numbers = numbers.cast(pa.list_(pa.int32()))
    return [(type_, comparable(value)) for value in numbers.to_pylist()]


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {name: comparable(part) for name, part in value.items()}
    return [comparable(part) for part in value] if isinstance(value, list) else value
