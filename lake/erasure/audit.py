"""The proof that a person is forgotten: a search of every byte under the warehouse, compressed ones unpacked.

Values are looked for as whole words: as they are, as JSON may write them, as an address does, and by their beginnings,
which are all that Delta's column statistics keep of a text.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import duckdb

from lake.config import Settings, in_store
from lake.erasure.forget import whom
from lake.erasure.search import decoded, sought, spelled, whole_word
from lake.erasure.sinks import unproven
from lake.errors import LawError
from lake.ingest.landing import LANDED
from lake.project import Project
from lake.store import cold, small
from lake.store.storage import Address, object_store
from lake.store.warehouse import Warehouse

SPARK_KEEPS: Final = 32
"""So many characters of a text Spark keeps in statistics, and a mark after the greatest value's."""
DELTA_RS_KEEPS: Final = 64
"""So many bytes delta-rs does; of the greatest value, the last character is one further in Unicode."""
OWNERS: Final = (".lake/airflow", ".lake/landing", ".lake/spark/local", ".lake/sql_history")
"""What Airflow keeps of what commands print, what came by HTTP, Spark's temporary files, what somebody has typed."""
PARQUET: Final = re.compile(r"\.parquet(#\d+)?$")
"""The names of Parquet files, and of those that delta-rs had not finished."""
ROW: Final = 'to_json("a row")::VARCHAR'
"""A table's columns have names of one word: else a column would be taken for the row."""
UNREADABLE: Final = (duckdb.Error, gzip.BadGzipFile, EOFError, zlib.error)
FORGET: Final = "lake forget with --yes removes it; what a reader or a pin still holds goes with a later lake run"
NAMED: Final = f"{FORGET}; file names stay in the log: have the producer stop putting personal data in them"
MANY: Final = 10_000
CHUNK: Final = 16 << 20
OVERLAP: Final = 4096

Files: TypeAlias = Iterator[tuple[Address, int]]
"""Files with their sizes in bytes."""


@dataclass(frozen=True)
class Proof:
    """Where any of so many `values` was found: `files` were searched, of `size` bytes in all.

    `found` are files below the warehouse and the folder it lies in, with those that cannot be unpacked; `outside`,
    landing files, archived ones and OWNERS, which are no one's to change but their owner's; `names`, those of files
    that were taken in, which logs keep for good.
    """

    values: int
    files: int
    size: int
    found: tuple[str, ...]
    outside: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return bool(self.values) and not self.found

    @property
    def record(self) -> dict[str, Any]:
        """As JSON has it; the values are not in it."""
        return {
            "holds": self.holds,
            "values_searched": self.values,
            "files_searched": self.files,
            "bytes_searched": self.size,
            "found": list(self.found),
            "outside_the_warehouse": list(self.outside),
            "names_of_files": list(self.names),
        }


@dataclass(frozen=True)
class Report:
    """The proof that nothing of a `person` (a token) of `stream` is left; it is kept in `file`.

    `left_out` are personal values that cannot be searched for, and why, in words that reveal none of them; `sinks`,
    what was delivered outside and is not proved to be gone.
    """

    stream: str
    person: str
    proof: Proof
    left_out: tuple[str, ...]
    file: Path
    sinks: tuple[str, ...] = ()

    @property
    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        about = {"stream": self.stream, "person": self.person}
        return {**about, **self.proof.record, "not_searched": list(self.left_out), "sinks_unproven": list(self.sinks)}

    @property
    def fault(self) -> LawError | None:
        """Why it proves nothing, or what is still there; None where it holds."""
        if not self.proof.values:
            return LawError(
                "nothing was searched for, so nothing was proved",
                where="; ".join(self.left_out),
                fix="name values of this person: --value TEXT, at least 4 characters, repeatable",
            )
        if not self.proof.holds:
            return LawError(
                f"data of this person is still in {len(self.proof.found)} files",
                where=self.proof.found[0],
                fix=NAMED if self.proof.names else FORGET,
            )
        return None


def prove(project: Project, stream: str, subject: str, values: Collection[str]) -> Report:
    """Searches every file for a person's `values` and the subject, and writes the report beside the key store.

    Raises DeclarationError where the stream has no personal fields, or no events of such a person.
    """
    contract, token = whom(project, stream, subject)
    searched, left_out = sought(contract, subject, values)
    file = project.settings.keys_path.with_name(f"forgotten-{stream}-{token[:8]}.json")
    proof, outside = search_files(project.settings, searched), tuple(unproven(project, stream))
    report = Report(stream, token, proof, tuple(left_out), file, outside)
    file.write_text(json.dumps(report.record, indent=2) + "\n")
    return report


def search_files(settings: Settings, values: Collection[str]) -> Proof:
    """Searches for `values` under the warehouse, beside it, and in its owner's files. Nothing is found of none.

    Raises StorageError where archived batches are gone, of which nothing could be said.
    """
    if not values:
        return Proof(0, 0, 0, (), ())
    text = re.compile(whole_word({guise for value in values for guise in _guises(value)}))
    bytes_ = re.compile(text.pattern.encode())
    inside = _searched(lambda: _inside(settings), text, bytes_)
    outside = _searched(lambda: _outside(settings), text, bytes_)
    within, beyond = (tuple(str(entry.file) for entry in part if entry.found) for part in (inside, outside))
    size = sum(entry.size for entry in inside)
    return Proof(len(values), len(inside), size, within, beyond, tuple(_named(settings, text)))


@dataclass(frozen=True)
class _Looked:
    """A file of `size` bytes, and whether one of the values was `found` in it."""

    file: Address
    size: int
    found: bool


def _searched(listed: Callable[[], Files], text: re.Pattern[str], bytes_: re.Pattern[bytes]) -> list[_Looked]:
    """Every file that is `listed`, and what comes while they are searched: a compaction has rows in other files then.

    Files that go meanwhile, as those that say who holds a lease, have nothing.
    """
    looked, seen = [], set[Address]()
    while new := {file: size for file, size in listed() if file not in seen}:
        seen |= new.keys()
        for file, size in new.items():
            with suppress(FileNotFoundError):
                looked.append(_Looked(file, size, _holds(file, text, bytes_)))
    return sorted(looked, key=lambda each: each.file)


def _inside(settings: Settings) -> Files:
    owners = tuple(f"{settings.path(folder)}/" for folder in OWNERS)
    warehouse = Warehouse(settings)
    yield from _files(warehouse.root)
    for log in warehouse.folders("log"):
        for part in cold.parts_of(log.path):
            cold.must_be_there(log.path, [part])
            at = part.path(log.path)
            yield from () if at.url.startswith(f"{warehouse.root}/") else _files(at)
    yield from (each for each in _files(_local(settings, ".lake")) if not f"{each[0]}/".startswith(owners))
    yield from _files(Address(str(settings.keys_path)))


def _outside(settings: Settings) -> Files:
    folders = [settings.landing, *([settings.archive] if settings.archive else []), *OWNERS]
    for folder in folders:
        with suppress(PermissionError):
            url = in_store(folder)
            yield from _files(object_store.at(settings, url) if url else _local(settings, folder))


def _local(settings: Settings, path: Path | str) -> Address:
    return Address(str(settings.path(path)))


def _named(settings: Settings, text: re.Pattern[str]) -> Iterator[str]:
    """The names of files that were taken in, in which one of the values is."""
    landed = LANDED.rows(settings, "SELECT DISTINCT name FROM t ORDER BY name")
    return (row["name"] for row in landed if any(text.search(each) for each in decoded(row["name"])))


def _guises(value: str) -> Iterator[str]:
    """Regular expressions of what files may have of a value."""
    yield spelled(value)
    cut = value.encode()[:DELTA_RS_KEEPS].decode(errors="ignore")
    for text in (value, value[:SPARK_KEEPS], cut):
        yield from map(re.escape, _written(text))
    if cut != value:
        yield from (f'{re.escape(text)}[^"]{{1,4}}' for text in _written(cut[:-1]))  # four bytes at most


def _written(text: str) -> set[str]:
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], quote(text)}


def _files(place: Address) -> Files:
    """The files below a folder, or the one that `place` is."""
    if file := place.head():
        yield place, file.size
        return
    with suppress(FileNotFoundError):
        for entry in place.list(deep=True):
            yield place / entry.name, entry.size


def _holds(file: Address, text: re.Pattern[str], bytes_: re.Pattern[bytes]) -> bool:
    """Whether one of the values is in `file`; what cannot be unpacked may have them."""
    try:
        if any(bytes_.search(chunk) for chunk in _chunks(file)):
            return True
        return _rows(file, text) if PARQUET.search(file.name) else _escaped(file, text)
    except UNREADABLE:
        left = file.head()
        return left is not None and left.size > 0


def _escaped(file: Address, text: re.Pattern[str]) -> bool:
    """Whether one of the values is there under escapes of JSON."""
    texts = (chunk.decode("utf-8", "replace") for chunk in _chunks(file) if b"\\" in chunk)
    return any(text.search(plain) for escaped in texts for plain in decoded(escaped))


def _chunks(file: Address) -> Iterator[bytes]:
    """The content of `file` in parts that overlap, so that nothing is cut in two."""
    tail = b""
    with file.open() as packed, gzip.open(packed) if file.name.lower().endswith(".gz") else packed as opened:
        while chunk := opened.read(CHUNK):
            yield tail + chunk
            tail = chunk[-OVERLAP:]


def _rows(file: Address, text: re.Pattern[str]) -> bool:
    """Whether a row of a Parquet file holds one of the values, in any column."""
    with small.connection() as con:
        con.register("a row", con.read_parquet(file.url))
        if con.execute(f'SELECT 1 FROM "a row" WHERE regexp_matches({ROW}, $1) LIMIT 1', [text.pattern]).fetchone():
            return True
        escaped = con.execute(f"""SELECT {ROW} FROM "a row" WHERE contains({ROW}, '\\')""")
        return any(text.search(plain) for row in _each(escaped) for plain in decoded(row))


def _each(answer: duckdb.DuckDBPyConnection) -> Iterator[str]:
    while some := answer.fetchmany(MANY):
        yield from (row for [row] in some)
