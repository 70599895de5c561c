"""Small records and files that would be expensive: every format, every field type, any size. They must cost no more per
byte than an ordinary file, be reported, and block no other input.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests import shop

DECIMAL: Final = shop.avro("decimal(10, 2)")
TYPES: Final[Mapping[str, Any]] = {
    "amount": DECIMAL,
    "count": "int",
    "total": "long",
    "share": "float",
    "ratio": "double",
    "ok": "boolean",
    "name": "string",
    "kind": {"type": "enum", "name": "kind", "symbols": ["a", "b"]},
    "day": shop.avro("date"),
    "seen": shop.avro("timestamp"),
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "data": "bytes",
    "tags": {"type": "array", "items": "int"},
    "prices": {"type": "array", "items": DECIMAL},
    "rates": {"type": "map", "values": DECIMAL},
    "part": {"type": "record", "name": "part", "fields": [{"name": "price", "type": DECIMAL}]},
}
OTHER_DIGITS: Final = {ord("0") + n: 0x660 + n for n in range(10)}  # Arabic ones, which Java also accepts
NESTED: Final[Mapping[str, str]] = {"prices": "[%s]", "rates": '{"a": %s}', "part": '{"price": %s}'}
DECIMALS: Final = frozenset({"amount", *NESTED})


def contract(name: str, **lake: Any) -> dict[str, Any]:
    """Return a contract with a field of each type."""
    fields = {"id": "long"} | {field: shop.optional(kind) for field, kind in TYPES.items()}
    return shop.contract(name, fields, **{"id": "content", **lake})


def project(folder: Path, settings: str = "") -> None:
    """Create a project with two streams of hostile input, one of them database changes, and one of sound input."""
    streams = contract("hostile"), contract("changes", envelope="debezium"), contract("sound")
    shop.declare(shop.empty(folder, settings), *streams)
    for stream in streams:
        (folder / "landing" / stream["name"]).mkdir()


def values(size: int) -> Iterator[tuple[str, str]]:
    """Yield (description, a JSON value of at most about `size` bytes)."""
    for number in ("1e99999999", "-1E+99999999", "1e-99999999", "0e-99999999", "1.5e2147483647", "1e99999999999"):
        yield number, number
        yield f"{number} in quotes", f'"{number}"'
    yield "an exponent with commas", '"1e9,9,9,9,9,9,9,9"'
    yield "an exponent with escapes", r'"\u0031\u00659999999\u0039"'
    yield "an exponent in other digits with escapes", r'"\u0661e\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669"'
    yield "an exponent in other digits", '"1e99999999"'.translate(OTHER_DIGITS)
    for digits in (900, size):
        yield f"{digits} digits", "1" * digits
        for text in ("1" * digits, "0." + "1" * digits, ("1" * (digits // 2)).translate(OTHER_DIGITS)):
            yield f"{digits} digits in quotes, {text[:3]}", f'"{text}"'
    for text in ("1,", "1 ", "1e", "-", ".", r"\ud83d"):
        yield f"{text} again and again", f'"{text * (size // len(text))}"'
    for what, element in (("ones", "1"), ("texts", '""'), ("exponents", "1e99999999")):
        yield f"an array of {what}", "[" + ",".join([element] * (size // (len(element) + 1))) + "]"
    yield "levels of arrays", "[" * (size // 2) + "]" * (size // 2)
    yield "levels of objects", '{"a":' * (size // 6) + "1" + "}" * (size // 6)
    yield "a name", '{"' + "a" * size + '": 1}'
    yield "many names", "{" + ",".join(f'"{n}":1' for n in range(size // 12)) + "}"
    yield "one name", "{" + ",".join(['"a":1'] * (size // 6)) + "}"
    yield "spaces", " " * size + "1"


def records(size: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (description, a record as {field: JSON}): each hostile value in each field, in a new one and as a name."""
    number = 0
    for what, value in values(size):
        for field in [*TYPES, "unknown"]:
            for form in dict.fromkeys(("%s", NESTED.get(field, "%s"))):
                number += 1
                yield f"{field}: {form % what}", {"id": str(number), field: form.replace("%s", value)}


def written(record: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in record.items()) + "}"


def change(record: Mapping[str, str]) -> str:
    """Return the record as a message of Debezium."""
    return f'{{"op": "c", "after": {written(record)}, "source": {{}}}}'


def must_be_refused(what: str) -> bool:
    """Return whether the value matches no field type."""
    field, _, value = what.partition(": ")
    return field in {*DECIMALS, "count", "total"} and "e99999999" in value.lower().replace("+", "")


Records = Iterable[tuple[str, Mapping[str, str]]]


def lines(many: Records, *, write: Callable[[Mapping[str, str]], str] = written) -> bytes:
    """Return JSON Lines of records."""
    return "".join(f"{write(record)}\n" for _, record in many).encode()


def table(many: Records) -> bytes:
    """Return CSV of records: every text and number is a text."""
    columns = ["id", *TYPES, "unknown"]
    out = io.StringIO()
    out.write(",".join(columns) + "\n")
    for _, record in many:
        texts = (record.get(name, "").strip('"').replace('"', '""') for name in columns)
        out.write(",".join(f'"{text}"' for text in texts) + "\n")
    return out.getvalue().encode()


def parquet(many: Records) -> bytes:
    """Return Parquet of records with text columns."""
    rows = [{name: value.strip('"') for name, value in record.items()} for _, record in many]
    columns = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in ["id", *TYPES, "unknown"]}
    return _packed(pa.table(columns | {"id": pa.array([int(row["id"]) for row in rows])}))


def files(line: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield (description, name, bytes) of files that are rejected completely if a line may have `line` bytes."""
    row = b'{"id": 1, "name": "x"}\n'
    long = row + b'{"id": 2, "name": "' + b"x" * line + b'"}\n' + row
    yield "a long line", "long.jsonl", long
    yield "a long line that ends nowhere", "endless.jsonl", row + b"x" * (line + 1)
    yield "a long line, packed", "long.jsonl.gz", gzip.compress(long)
    yield "a long line after many", "late.ndjson", row * (2 * line // len(row)) + long
    yield "a long document", "long.json", b'{\n "id": 1,\n' + b' "name": null,\n' * (line // 8) + b' "total": 1\n}'
    yield "blank lines, packed", "blank.jsonl.gz", gzip.compress(b"\n" * (2 * line))
    yield "sound lines, packed", "same.jsonl.gz", gzip.compress(row * (2 * line // len(row)))
    yield "a long line of CSV", "long.csv", b"id,name\n1,x\n2," + b"x" * line + b"\n"
    yield "a quote that is not closed", "open.csv", b'id,name\n1,x\n2,"' + b"x,\n" * (line // 2) + b"\n"
    yield "packed lines of CSV", "same.csv.gz", gzip.compress(b"id,name\n" + b"1,x\n" * (2 * line // 4))
    yield "a wide header", "wide.csv", ",".join(["id", *(f"c{n}" for n in range(6000))]).encode() + b"\n1\n"
    yield "rows of one value", "rows.parquet", _packed(pa.table({"id": pa.array([1] * 3_000_000)}))
    yield "a wide table", "wide.parquet", _packed(pa.table({f"c{n}": [1] for n in range(6000)}))
    text = pa.array(["x" * min(line // 2, 1_000_000)])  # A writer creates no dictionary for a longer one
    many = pa.array([0] * 5000, pa.int32())
    again = pa.DictionaryArray.from_arrays(many, text)
    yield "one text many times", "texts.parquet", _packed(pa.table({"id": range(5000), "name": again}))
    listed = pa.ListArray.from_arrays(pa.array([0, 5000], pa.int32()), again)
    yield "one text many times in a row", "lists.parquet", _packed(pa.table({"id": [1], "name": listed}))
    yield "a long text", "text.parquet", _packed(pa.table({"id": [1], "name": ["x" * (line + 1)]}))


def ordinary(size: int, *, first: int = 1) -> bytes:
    """Return JSON Lines of sound records from the number `first` on, of `size` bytes or a little more."""
    day = "2024-03-31"
    sound = {
        "amount": "12.50", "count": 7, "total": 70, "share": 0.5, "ratio": 0.25, "ok": True, "name": "an ordinary one",
        "kind": "a", "day": day, "seen": f"{day}T12:00:00Z", "local": f"{day}T12:00:00", "data": "AAEC",
        "tags": [1, 2, 3], "prices": [1.5, 2.5], "rates": {"a": 1.5}, "part": {"price": 2.5},
    }  # fmt: skip
    out = bytearray()
    numbers = count(first)
    while len(out) < size:
        out += json.dumps({"id": next(numbers), **sound}).encode() + b"\n"
    return bytes(out)


def _packed(rows: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows, out)
    return out.getvalue()
