"""Fingerprints of generated rows of every type: Spark, DuckDB and a model in plain Python agree."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lake.store import delta_writer, duckdb_tables
from lake.store.proof import chain, fingerprints
from lake.store.proof.fingerprints import DUCK, MODULUS, SPARKS, Fingerprint, Kind, fields_of, of_arrow, row_text
from lake.store.scan import Scan, to_frame
from lake.store.storage import Address

pytestmark = pytest.mark.slow

ROWS = 1100
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TEXTS = ["", "a", "é", "a;b", "1:x;", "~", "\0", "🦅 x", "'\"\\`", "null", " \n\t", "x" * 300]
INT = pa.struct([("b", pa.int32()), ("a", pa.string())])
TYPES = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "small": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "dec_3_3": pa.decimal128(3, 3),
    "dec_12_2": pa.decimal128(12, 2),
    "dec_38_0": pa.decimal128(38, 0),
    "dec_38_38": pa.decimal128(38, 38),
    "single": pa.float32(),
    "double": pa.float64(),
    "day": pa.date32(),
    "instant": pa.timestamp("us", tz="UTC"),
    "local": pa.timestamp("us"),
    "text": pa.string(),
    "bytes": pa.binary(),
    "odd 'name'\\": pa.string(),
    "struct": pa.struct([("z", pa.float64()), ("in", INT)]),
    "array": pa.list_(pa.string()),
    "arrays": pa.list_(pa.list_(INT)),
    "map": pa.map_(pa.string(), pa.float64()),
    "maps": pa.map_(pa.int32(), pa.list_(pa.decimal128(5, 5))),
}


def value(kind: pa.DataType, chance: Random) -> Any:  # noqa: PLR0911  one line a type
    if chance.random() < 0.2:
        return None
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_integer(kind):
        least, most = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
        return chance.choice([0, 1, -1, least, most, chance.randint(least, most)])
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        digits = chance.choice([0, 1, -1, most, -most, chance.randint(-most, most)])
        return Decimal(f"{digits}E-{kind.scale}")
    if pa.types.is_float32(kind):
        return struct.unpack("f", struct.pack("I", chance.getrandbits(32)))[0]
    if pa.types.is_float64(kind):
        return floating(chance)
    if pa.types.is_date(kind):
        return dt.date(1970, 1, 1) + dt.timedelta(
            days=chance.choice([0, -1, -25000, 2932896, chance.randint(0, 40000)])
        )
    if pa.types.is_timestamp(kind):
        seconds = chance.choice([0, -1, 253402300799, chance.randint(-(10**9), 10**10)])
        found = EPOCH + dt.timedelta(seconds=seconds, microseconds=chance.choice([0, 1, 999999]))
        return found if kind.tz else found.replace(tzinfo=None)
    if pa.types.is_string(kind):
        return chance.choice(TEXTS)
    if pa.types.is_binary(kind):
        return chance.randbytes(chance.choice([0, 1, 20]))
    if pa.types.is_struct(kind):
        return {field.name: value(field.type, chance) for field in kind}
    if pa.types.is_map(kind):
        keys = {value(kind.key_type, chance) for _ in range(chance.randint(0, 4))} - {None}
        return [(key, value(kind.item_type, chance)) for key in chance.sample(sorted(keys), len(keys))]
    return [value(kind.value_type, chance) for _ in range(chance.randint(0, 3))]


def floating(chance: Random) -> float:
    power = chance.choice([0, 1, -1, 52, 53, -1022, -1074, 1023, chance.randint(-1074, 1023)])
    near = math.ldexp(1.0, power)
    some = chance.choice([near, math.nextafter(near, 0), math.nextafter(near, math.inf), chance.random() * near])
    [bits] = struct.unpack("d", struct.pack("Q", chance.getrandbits(64)))
    return float(chance.choice([some, -some, bits, 0.0, -0.0, 0.1, 1e23, 2e-3, math.inf, -math.inf, math.nan]))


def model(kind: Kind, it: Any) -> str:  # noqa: PLR0911  one line a type
    """Return the text of a value as lake.store.proof.fingerprints defines it."""
    if isinstance(kind, Mapping):
        if kind["type"] == "struct":
            return (
                "{" + "".join(member_text(f["name"], f["type"], it[f["name"]]) for f in by_name(kind["fields"])) + "}"
            )
        if kind["type"] == "array":
            return "[" + "".join("~" if each is None else model(kind["elementType"], each) for each in it) + "]"
        pairs = [
            f"{model(kind['keyType'], key)}={'~' if each is None else model(kind['valueType'], each)}"
            for key, each in it
        ]
        return "<" + "".join(sorted(pairs, key=str.encode)) + ">"
    if kind == "boolean":
        return f"{str(it).lower()};"
    if kind in {"float", "double"}:
        return f"{float_text(it)};"
    if kind == "date":
        return f"{(it - EPOCH.date()).days};"
    if kind in {"timestamp", "timestamp_ntz"}:
        return f"{(it.replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)};"
    if kind == "string":
        return f"{len(it.encode())}:{it};"
    if kind == "binary":
        return f"{it.hex().upper()};"
    return f"{it:f};" if isinstance(it, Decimal) else f"{it};"


def float_text(it: float) -> str:
    if math.isnan(it) or math.isinf(it):
        return str(it)
    if not it:
        return "0"
    top, bottom = it.as_integer_ratio()
    zeros = (abs(top) & -abs(top)).bit_length() - 1
    return f"{top >> zeros}b{zeros - (bottom.bit_length() - 1)}"


def by_name(fields: list[Any]) -> list[Any]:
    return sorted(fields, key=lambda each: each["name"])


def member_text(name: str, kind: Kind, it: Any) -> str:
    return "" if it is None else f"{len(name.encode())}:{name}={model(kind, it)}"


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    chance = Random(15)
    columns = {name: [value(kind, chance) for _ in range(ROWS)] for name, kind in TYPES.items()}
    powers = [math.ldexp(1.0, power) for power in range(-1074, 1024)]
    columns["double"][: len(powers[::2])] = powers[::2][:ROWS]
    schema = pa.schema([("n", pa.int64()), *TYPES.items()])
    return pa.table({"n": range(ROWS), **columns}, schema=schema)


def expected(rows: pa.Table) -> list[str]:
    fields = sorted(fields_of(rows.schema))
    there = {name: rows.column(name).to_pylist() for name, _ in fields}
    return ["".join(member_text(name, kind, there[name][n]) for name, kind in fields) for n in range(rows.num_rows)]


def text_hash(text: str) -> int:
    return int(hashlib.md5(text.encode()).hexdigest()[:16], 16)


@pytest.mark.parametrize("filled", [(), ("n",), ("n", *TYPES)[::2], ("n", *TYPES)], ids=len)
def test_duckdb_writes_every_value_as_the_model(rows: pa.Table, filled: Sequence[str]) -> None:
    fields = fields_of(rows.schema)
    with duckdb_tables.connection() as con:
        con.register("t", rows)
        values = f"SELECT {fingerprints.duck_values(fields, rows.column_names)} FROM t"
        found = con.sql(f"SELECT {row_text(fields, DUCK, filled=filled)} FROM ({values}) ORDER BY n").fetchall()
    for [text], wanted in zip(found, expected(rows), strict=True):
        assert text == wanted


def test_spark_writes_every_value_as_the_model(rows: pa.Table, spark: SparkSession) -> None:
    fields, wanted = fields_of(rows.schema), expected(rows)
    there = to_frame(spark, rows).selectExpr("n", f"{row_text(fields, SPARKS)} AS text", hash_of(fields)).toArrow()
    for each, text in zip(there.sort_by("n").to_pylist(), wanted, strict=True):
        assert (each["text"], int(each["hash"])) == (text, text_hash(text))
    assert of_arrow(rows) == Fingerprint(ROWS, sum(map(text_hash, wanted)) % MODULUS)
    assert of_arrow(rows, "secret").total != of_arrow(rows).total


def hash_of(fields: list[Any]) -> str:
    return f"{fingerprints.spark_hash(fields)} AS hash"


def too_large(_: DataFrame) -> pa.Table:
    raise PySparkException("Total size of serialized results of 8 tasks is bigger than spark.driver.maxResultSize")


@pytest.mark.long
def test_batch_has_the_fingerprints_of_its_files(
    rows: pa.Table, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = rows.drop_columns([name for name in rows.column_names if name.startswith("odd")])
    numbers = pa.array([n % 3 - 1 for n in range(ROWS)], pa.int32())
    some = some.append_column("_bucket", numbers).append_column("_offset", rows["n"])
    some = some.append_column("_batch", pa.array([1] * ROWS, pa.int64()))
    frame = to_frame(spark, some)
    _, small = chain.fingerprinted(frame, ["text", "bytes"], few=True)
    _, large = chain.fingerprinted(frame, ["text", "bytes"], few=False)
    assert (small, sorted(small)) == (large, [-1, 0, 1])
    with monkeypatch.context() as more_than_a_driver_takes:
        more_than_a_driver_takes.setattr(chain, "to_arrow", too_large)
        left, same = chain.fingerprinted(frame, ["text", "bytes"], few=True)
    assert (same, isinstance(left, pa.Table)) == (small, False)
    assert [len(prints) for prints in small.values()] == [2, 2, 2]
    path = Address(str(tmp_path / "log"))
    frame.write.format("delta").partitionBy("_bucket").save(str(path))
    stored = {bucket: (Fingerprint(), Fingerprint()) for bucket in small}
    for _, _, bucket, count, clear, sealed in chain._sums_by_file(path, ["text", "bytes"], [1]):
        one, other = stored[bucket]
        stored[bucket] = one + Fingerprint(count, clear % MODULUS), other + Fingerprint(count, sealed % MODULUS)
    assert stored == small


def test_fingerprints_add_and_subtract(rows: pa.Table) -> None:
    first, rest = (rows.take(pa.array(part)) for part in (range(500), range(500, ROWS)))
    whole = of_arrow(rows)
    assert of_arrow(first) + of_arrow(rest) == whole
    assert whole - of_arrow(first) == of_arrow(rest)
    assert Fingerprint.parse(str(whole)) == whole
    assert of_arrow(rows.append_column("later", pa.nulls(ROWS, pa.string()))) == whole
    mixed = rows.take(pa.array(Random(1).sample(range(ROWS), ROWS)))
    assert of_arrow(mixed.select(mixed.column_names[::-1])) == whole
    assert of_arrow(pa.concat_tables([rows, first])) != whole
    assert of_arrow(rows.slice(0, 0)) == Fingerprint()


def test_fingerprint_of_a_scan_is_unchanged_by_a_new_column(tmp_path: Path) -> None:
    """Older files lack the new column."""
    path = Address(str(tmp_path / "t"))
    duckdb_tables.append(path, "n BIGINT, text VARCHAR", [[1, "a"], [2, None]])
    before = of_arrow(Scan(path).arrow())
    duckdb_tables.append(path, "n BIGINT, text VARCHAR, more DOUBLE", [[3, "b", 0.5]])
    after = Scan(path).arrow()
    assert of_arrow(after) - of_arrow(after.filter(pa.compute.equal(after["n"], 3))) == before


def test_fingerprint_counts_nan_that_file_statistics_omit(tmp_path: Path) -> None:
    """As Parquet defines, statistics by delta-rs omit NaN. DuckDB would evaluate isnan() to false for each row."""
    rows = pa.table({"v": pa.array([2.0, math.nan, -3.0], pa.float64())})
    delta_writer.add(Address(str(tmp_path / "t")), rows)
    assert fingerprints.of_version(Address(str(tmp_path / "t"))) == of_arrow(rows)
