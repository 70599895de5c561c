"""Landing files of every format, option and name, good and bad, and the contracts of their streams."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import avro.datafile
import avro.io
import avro.schema
import pyarrow as pa
import pyarrow.parquet as pq

from tests.shop import contract

FIELDS: Final = {"id": "long", "word": "string?", "price": "decimal(8, 2)?"}
OF_FILE: Final = {"name": ("string", {"from": "file.name"}), "at": ("timestamp", {"from": "file.time"})}
LATIN: Final = {"delimiter": ";", "null": ["NA"], "encoding": "windows-1252"}
HEADLESS: Final = {"columns": ["id", "word", "price"], "quote": ""}
CONTRACTS: Final[Mapping[str, dict[str, Any]]] = {
    "plain": contract("plain", FIELDS, id=["id"]),
    "placed": contract("placed", FIELDS),
    "named": contract("named", FIELDS | OF_FILE, id=["id", "name"]),
    "latin": contract("latin", FIELDS | OF_FILE, csv=LATIN),
    "headless": contract("headless", FIELDS, csv=HEADLESS),
}
ODD: Final = (
    "sp ace.jsonl",
    "st*r[1]{a,b}?.jsonl",
    "per%20cent#1.jsonl",
    "ünï:code.jsonl",
    "é\\back.jsonl",
    "a=b.jsonl",
    "+plus&and.jsonl",
    'q~`^|<>".jsonl',
    "no\u00a0break😀.jsonl",
    "UPPER.JSONL",
    "two.dots.v1.jsonl",
)
PASSED_OVER: Final = (
    ".hidden.jsonl",
    "_SUCCESS",
    "half.jsonl.part",
    "half.jsonl.TMP",
    "sub/inside.jsonl",
    "sub.jsonl/x",
)
AVRO: Final = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "id", "type": "long"}, {"name": "word", "type": ["null", "string"]}],
}


def lines(*records: Mapping[str, Any] | str) -> bytes:
    """Return JSON Lines. A record given as text is written as it is."""
    return "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in records).encode()


def parquet(*rows: int, **more: Any) -> bytes:
    """Return a Parquet file with rows of these ids."""
    out = io.BytesIO()
    pq.write_table(pa.table({"id": list(rows), "word": [f"p{row}" for row in rows], **more}), out, compression="none")
    return out.getvalue()


def container(*rows: int, codec: str = "null") -> bytes:
    """Return an Avro container file with rows of these ids."""
    out = io.BytesIO()
    writer = avro.datafile.DataFileWriter(out, avro.io.DatumWriter(), avro.schema.parse(json.dumps(AVRO)), codec=codec)
    for row in rows:
        writer.append({"id": row, "word": None if row % 2 else "é"})
    writer.flush()
    return out.getvalue()


def texts(first: int) -> Iterator[tuple[str, bytes]]:
    """Yield text files of each format, plain and packed, with ids from `first` on."""
    ids = iter(range(first, first + 100))
    records = [{"id": next(ids), "word": "é"}, {"id": next(ids), "price": "1.5"}]
    rows = "".join(f'{next(ids)},"two\nlines ""é""",{number}.25\r\n' for number in range(2))
    document = json.dumps({"id": next(ids), "word": "whole"}, indent=1).encode()
    for name, content in {
        "a.jsonl": lines(*records),
        "b.ndjson": lines({"id": next(ids)}, "", {"id": next(ids), "more": [1, {"x": "y"}]}),
        "c.json": document,
        "d.csv": f"id,word,price\r\n{rows}".encode(),
        "bom.csv": b"\xef\xbb\xbf" + f"id,word,other\n{next(ids)},x,y\n".encode(),
        "bom.jsonl": b"\xef\xbb\xbf" + lines({"id": next(ids)}),
        "last.jsonl": lines({"id": next(ids)}).rstrip(),
    }.items():
        yield name, content
        yield f"packed-{name}.gz", gzip.compress(content, mtime=0)


def bad() -> Iterator[tuple[str, bytes]]:
    """Yield files that cannot be read, or have unreadable records."""
    packed, broken = gzip.compress(lines({"id": 1}) * 9), bytearray(parquet(*range(2000)))
    broken[4:400] = b"\xff" * 396
    yield "cut.jsonl.gz", packed[:-12]
    yield "not.jsonl.gz", b"plain"
    yield "binary.jsonl", b"\x7fELF\x00\x01" * 9
    yield "utf-16.jsonl", '{"id": 1}'.encode("utf-16")
    yield "picture.png", b"x"
    yield "none.parquet", b"PAR1 no"
    yield "short.parquet", b"PAR"
    yield "damaged.parquet", bytes(broken)
    yield "same.parquet", parquet(1, ID=["x"])
    yield "none.avro", b"Obj\x01no"
    yield "cut.avro", container(*range(700, 900), codec="deflate")[:-40]
    yield "twice.csv", b"id,ID\na,b\n"
    yield "strange.csv", b"who,what\na,b\n"
    yield "bytes.csv", b"id,word\n950,caf\xe9\n"
    yield "records.jsonl", lines("{", "no", {"id": "no number"}, {"word": "no id"}, {"id": 951, "price": "x"}, "[1]")
    yield "long.jsonl", lines({"id": 952, "word": "x" * 20_000}, {"id": 953})
    yield "longer.jsonl", lines({"id": 954, "word": "x" * 400_000}, {"id": 955})
    yield "bomb.jsonl.gz", gzip.compress(b" " * 3_000_000)
    for name in ("empty.jsonl", "empty.csv", "empty.parquet", "empty.avro", "empty.json.gz"):
        yield name, b""


def files() -> Iterator[tuple[str, bytes]]:
    """Yield every file of the landing folder by its name."""
    for stream in ("plain", "named"):
        for name, content in texts(1):
            yield f"{stream}/{name}", content
        yield f"{stream}/e.parquet", parquet(*range(200, 220))
        yield f"{stream}/f.avro", container(300, 301)
        yield f"{stream}/g.avro", container(*range(302, 340), codec="deflate")
    for number, name in enumerate(ODD, 400):
        for stream in ("placed", "named"):
            yield f"{stream}/{name}", lines({"id": number}, {"id": number, "word": "another"})
    for name, content in bad():
        yield f"plain/bad {name}", content
    yield "latin/h.csv", "id;word;price\n500;caf\xe9;NA\n501;\x81;1.5\n".encode("latin-1")
    yield "latin/sp ace.csv", "id;word\n502;€\n".encode("windows-1252")
    yield "latin/packed.csv.gz", gzip.compress("id;word\n503;ü\n".encode("windows-1252"), mtime=0)
    yield "headless/h.csv", b'600,a "quoted" word,2.50\n601,,\n'
    yield "headless/with header.csv", b"id,word,price\n602,x,1\n"
    yield "placed/large.jsonl", b"".join(lines({"id": number, "word": "w" * 90}) for number in range(1000, 13_000))
    yield "placed/large.csv", b"id,word\n" + b"".join(f"{n},{'w' * 90}\n".encode() for n in range(13_000, 25_000))
    for name in PASSED_OVER:
        yield f"plain/{name}", lines({"id": 1})
