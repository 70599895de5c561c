"""New members of nested records: every reader reads an event as if the newest contract had ingested it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake.contracts import origins
from lake.contracts.contract import Contract, read_contract
from lake.contracts.evolution import with_current
from lake.errors import DeclarationError
from lake.kinds.grouped_map import pickled
from lake.read import logs
from lake.records.columns import arrow_type
from lake.records.extra_members import read_members
from lake.records.values import reader
from lake.store import spark_upcast
from lake.store.dialects import fields_sql
from lake.store.scan import to_frame

Shape = Mapping[str, Any]
"""The members of a record: each a type of Avro, another shape, or a list or a map of such."""

WHOLE: Final[Shape] = {
    "city": "string",
    "zip": "int",
    "dt": None,
    "geo": {"lat": "double", "lon": "double", "by": {"who": "string", "how": "string"}},
    "lines": [{"x": "int", "y": "string", "deep": [{"n": "long", "m": "long"}]}],
    "tags": ({"v": "int", "w": "boolean"},),
    "days": ["string"],
}
"""A list has one item, a map is a tuple of one value. A member that is None is declared by no version."""
ADDRESS: Final[Mapping[str, Any]] = {
    "city": "Graz",
    "zip": 8010,
    "dt": {"unknown": [1, {"a": 2}]},
    "geo": {"lat": 47.07, "lon": None, "by": {"who": "gps", "how": "x y"}},
    "lines": [
        {"x": 1, "y": "a", "deep": [{"n": 1, "m": 2}, None]},
        None,
        {"x": None, "y": "c", "deep": None},
        {"x": 4, "y": "d", "deep": []},
    ],
    "tags": {"p.q/~": {"v": 1, "w": True}, "": {"v": 2, "w": None}, "none": None},
    "days": ["mo", None],
}
ADDRESSES: Final[Sequence[Mapping[str, Any] | None]] = (ADDRESS, None, {"city": "Wien"}, {"lines": [], "tags": {}})


def steps(shape: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all members of a shape; 0 leads into a list or a map."""
    if isinstance(shape, dict):
        for name, part in shape.items():
            if part is not None:
                yield (*path, name)
                yield from steps(part, (*path, name))
    elif isinstance(shape, list | tuple):
        yield from steps(shape[0], (*path, 0))


def reduced_shape(shape: Any, chosen: set[tuple[Any, ...]], path: tuple[Any, ...] = ()) -> Any:
    """Return the shape with only the members at the chosen paths; a record without any has none."""
    if isinstance(shape, dict):
        return {n: reduced_shape(part, chosen, (*path, n)) for n, part in shape.items() if (*path, n) in chosen}
    if isinstance(shape, list | tuple):
        return type(shape)([reduced_shape(shape[0], chosen, (*path, 0))])
    return shape


def history(dice: Random) -> list[Shape]:
    """Return shapes that grow by members in random order; no record is empty."""
    left, chosen, shapes = [*steps(WHOLE)], set[tuple[Any, ...]](), list[Shape]()
    dice.shuffle(left)
    while left:
        path = left.pop()
        within = {path[:end] for end in range(1, len(path) + 1)}
        chosen |= within | {first for each in within for first in first_members(each)}
        if dice.random() < 0.5 or not left:
            shapes.append(reduced_shape(WHOLE, chosen))
    return [shape for n, shape in enumerate(shapes) if shape not in shapes[:n]]


def first_members(path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the members that a record at `path` has in every version, because it cannot be empty."""
    part: Any = WHOLE
    for step in path:
        part = part[step]
    while isinstance(part, list | tuple):
        part, path = part[0], (*path, 0)
    if isinstance(part, dict):
        first = (*path, next(iter(part)))
        yield first
        yield from first_members(first)


def avro(shape: Any, name: str) -> Any:
    """Return the Avro type of a shape; everything may be null."""
    if isinstance(shape, dict):
        fields = [{"name": n, "type": ["null", avro(part, f"{name}_{n}")]} for n, part in shape.items()]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(shape, list):
        return {"type": "array", "items": ["null", avro(shape[0], f"{name}_0")]}
    if isinstance(shape, tuple):
        return {"type": "map", "values": ["null", avro(shape[0], f"{name}_0")]}
    return shape


def contract(shape: Any) -> Contract:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "addr", "type": ["null", avro(shape, "addr_t")], "default": None},
    ]
    return read_contract(
        json.dumps({"type": "record", "name": "rows", "lake": {"key": ["id"], "buckets": 1}, "fields": fields}),
        file="x",
    )


def known_part(shape: Any, value: Any) -> Any:
    """Return the part of a value that a contract of this shape accepts."""
    if value is None:
        return None
    if isinstance(shape, dict):
        return {name: known_part(part, value.get(name)) for name, part in shape.items()}
    if isinstance(shape, list):
        return [known_part(shape[0], item) for item in value]
    if isinstance(shape, tuple):
        return {key: known_part(shape[0], item) for key, item in value.items()}
    return value


def unknown_part(shape: Any, value: Any) -> dict[str, Any]:
    """Return the rest of the value, by name, index and key."""
    if isinstance(shape, dict) and isinstance(value, dict):
        rest = {name: part for name, part in value.items() if name not in shape}
        within = {name: unknown_part(part, value[name]) for name, part in shape.items() if name in value}
        return rest | {name: part for name, part in within.items() if part}
    if isinstance(shape, list) and isinstance(value, list):
        within = {str(n): unknown_part(shape[0], item) for n, item in enumerate(value)}
        return {name: part for name, part in within.items() if part}
    if isinstance(shape, tuple) and isinstance(value, dict):
        within = {key: unknown_part(shape[0], item) for key, item in value.items()}
        return {name: part for name, part in within.items() if part}
    return {}


def logged(shapes: Sequence[Shape]) -> tuple[tuple[Contract, ...], pa.Table, list[Any]]:
    """Return the contracts of a history, the events that each version ingests, and the values that the newest reads."""
    contracts: tuple[Contract, ...] = ()
    for shape in shapes:
        contracts = with_current(contracts, contract(shape))
    physical, rows, wanted = origins.columns(contracts), list[dict[str, Any]](), list[Any]()
    for number, (each, shape) in enumerate(zip(contracts, shapes, strict=True), 1):
        for address in ADDRESSES:
            field = each.field("addr")
            rest = unknown_part(shape, address)
            value = reader(field)(known_part(shape, address))
            extra = json.dumps({"addr": rest}) if rest else None
            rows.append({"_version": number, "_extra": extra, physical["addr", field.type]: value, "n": len(rows)})
            wanted.append(known_part(shapes[-1], address))
    columns = {"n": pa.int32(), "_version": pa.int32(), "_extra": pa.string()}
    columns |= {physical["addr", each.field("addr").type]: arrow_type(each.field("addr")) for each in contracts}
    arrays = [pa.array([row.get(name) for row in rows], kind) for name, kind in columns.items()]
    return contracts, pa.table(arrays, names=[*columns]), wanted


def plain(shape: Any, value: Any) -> Any:
    """Return a value as in the model: Arrow returns a map as pairs."""
    if isinstance(shape, dict) and value is not None:
        return {name: plain(part, value[name]) for name, part in shape.items()}
    if isinstance(shape, list) and value is not None:
        return [plain(shape[0], item) for item in value]
    if isinstance(shape, tuple) and value is not None:
        return {key: plain(shape[0], item) for key, item in (value.items() if isinstance(value, dict) else value)}
    return value


SEEDS: Final = [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_sql_reads_later_members_of_a_record_in_events_of_every_version(seed: int) -> None:
    shapes = history(Random(seed))
    contracts, events, wanted = logged(shapes)
    with duckdb.connect() as con:
        con.register("events", events)
        con.execute("CREATE TABLE stored AS SELECT *, 1 AS id FROM events")
        logs.create_functions(contracts, con)
        rows = logs.fields_sql(contracts, "stored", ["n", "_version"])
        found = con.sql(f"SELECT addr FROM {rows} ORDER BY n").to_arrow_table()["addr"].to_pylist()
    assert [plain(shapes[-1], value) for value in found] == wanted


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4))])
def test_tables_read_later_members_of_a_record_in_events_of_every_version(spark: SparkSession, seed: int) -> None:
    shapes = history(Random(seed))
    contracts, events, wanted = logged(shapes)
    rows = spark_upcast.with_members(to_frame(spark, events).selectExpr("*", "1L AS id"), contracts)
    found = rows.selectExpr("n", *fields_sql(contracts)).orderBy("n").toArrow()["addr"].to_pylist()
    assert [plain(shapes[-1], value) for value in found] == wanted


def of(*members: Mapping[str, Any]) -> Contract:
    """Return a contract whose record `addr`, in a list, has these members."""
    record = {"type": "record", "name": "addr_t", "fields": [{"name": "city", "type": "string"}, *members]}
    fields = [{"name": "id", "type": "long"}, {"name": "addr", "type": {"type": "array", "items": record}}]
    text = json.dumps({"type": "record", "name": "rows", "lake": {"key": ["id"]}, "fields": fields})
    return read_contract(text, file="rows.avsc")


@pytest.mark.parametrize(
    "member",
    [
        {"type": ["null", "string"], "default": None},
        {"type": ["null", "string"]},
        {"type": ["string", "null"]},
        {"type": "string", "default": ""},
        {"type": ["null", {"type": "array", "items": "int"}], "default": None},
    ],
    ids=json.dumps,
)
def test_record_accepts_a_new_optional_member(member: dict[str, Any]) -> None:
    contracts = with_current(with_current((), of()), of({"name": "zip", **member}))
    assert {column for (name, _), column in origins.columns(contracts).items() if name == "addr"} == {"addr", "addr__2"}


@pytest.mark.parametrize(
    ("before", "now", "what", "fix"),
    [
        ([], [{"name": "zip", "type": "string"}], "rows: addr[].zip did not exist", 'make its type ["null", …]'),
        ([{"name": "zip", "type": "string"}], [], "rows: addr[].zip existed, and is gone", "restore it"),
        (
            [{"name": "zip", "type": "string"}],
            [{"name": "zip", "type": "int"}],
            "rows: addr[].zip is int, and was string",
            "restore it, or add a new field",
        ),
        (
            [{"name": "zip", "type": "string"}],
            [{"name": "zip", "type": "string"}, {"name": "ZIP", "type": ["null", "string"]}],
            "rows: addr[].ZIP was 'zip'",
            "the names differ in nothing but case",
        ),
        (
            [{"name": "geo", "type": {"type": "array", "items": "int"}}],
            [{"name": "geo", "type": {"type": "map", "values": "int"}}],
            "rows: addr[].geo is map<string,int>, and was array<int>",
            "restore it",
        ),
        (
            [{"name": "zip", "type": ["null", "string"]}],
            [{"name": "zip", "type": "string"}],
            "rows cannot read",
            "restore it, also the names of nested records, enums and fixed types; or publish a new stream",
        ),
    ],
)
def test_record_rejects_any_other_change(
    before: list[dict[str, Any]], now: list[dict[str, Any]], what: str, fix: str
) -> None:
    with pytest.raises(DeclarationError) as fault:
        with_current(with_current((), of(*before)), of(*now))
    assert str(fault.value).startswith(what)
    assert fix in str(fault.value.fix)


def test_member_of_another_type_is_null_and_other_members_are_read() -> None:
    shapes: list[Shape] = [{"city": "string"}, {"city": "string", "zip": "int", "geo": {"lat": "double"}}]
    contracts = with_current(with_current((), contract(shapes[0])), contract(shapes[1]))
    [member] = origins.members(contracts)
    extras = [{"zip": "x", "geo": {"lat": 1}}, {"zip": "7", "geo": 3}, {"zip": 7.5}, "text", [1], None]
    texts = [json.dumps({"addr": extra}) for extra in extras] + ["sealed==", "[1]", "7", ""]
    found = read_members({member: frozenset({1})}, pa.array([1] * len(texts), pa.int32()), pa.array(texts, pa.string()))
    nothing = {"zip": None, "geo": None}
    assert [row["m0"] for row in found.to_pylist()] == [
        {"zip": None, "geo": {"lat": 1.0}}, {"zip": 7, "geo": None}, nothing, *[None] * 7
    ]  # fmt: skip


WITHOUT_LAKE: Final = """
import pickle, sys
class NoLake:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lake":
            raise ImportError(name)
sys.meta_path.insert(0, NoLake())
import pyarrow as pa
work = pickle.load(sys.stdin.buffer)
print(work(pa.array([1], pa.int32()), pa.array(['{"addr": {"zip": 8010}}'])).to_pylist())
"""


def test_members_are_read_by_workers_without_lake() -> None:
    contracts = with_current(with_current((), contract({"city": "string"})), contract({"city": "string", "zip": "int"}))
    work = pickled(partial(read_members, origins.members(contracts)))
    done = subprocess.run([sys.executable, "-I", "-c", WITHOUT_LAKE], input=work, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[{'m0': {'zip': 8010}}]"
