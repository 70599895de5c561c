"""Proof that a person is forgotten: a search of every byte under the warehouse, with compressed files unpacked.

Values are searched as whole words: as they are, as JSON and CSV write them, percent-encoded, and truncated, as in
Delta's column statistics.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import duckdb

from lake.config import Settings
from lake.errors import LawError
from lake.ingest.landing import LANDED
from lake.privacy.forget import find_person
from lake.privacy.search import searchable_values, spelling_pattern, unescaped_texts, whole_word
from lake.project.project import Project
from lake.publish.after_publish import sinks_of_connectors
from lake.sinks.kind import DeclaredSink, sound_sinks
from lake.store import archive_tier, delta, duckdb_tables, erasures, temporary_files
from lake.store.ledger import consumers
from lake.store.storage import Address, address_of
from lake.store.warehouse import KINDS, Warehouse

SPARK_KEEPS: Final = 32
"""Characters of a text that Spark keeps in statistics; a mark follows those of a maximum."""
DELTA_RS_KEEPS: Final = 64
"""Bytes of a text that delta-rs keeps; the last character of a maximum is incremented."""
OUTSIDE_FOLDERS: Final = (".lake/airflow", ".lake/landing", ".lake/spark/local", ".lake/sql_history")
DELETED_TABLE: Final = re.compile(r"/\.[^/]+\.gone/")
"""Deleted table, whose files the next cleanup deletes."""
PARQUET: Final = re.compile(r"\.parquet(#\d+)?$")
ROW: Final = 'to_json("a row")::VARCHAR'
UNREADABLE: Final = (duckdb.Error, gzip.BadGzipFile, EOFError, zlib.error)
FORGET: Final = "lake forget with --yes removes it; what a reader or a pin still holds goes with a later lake run"
UNDELIVERED: Final = (
    "their key is in lake.undelivered: lake deliver SINK --retry, or --give-up, then lake forget with --yes again"
)
STRAY: Final = "delete the files that no table has: lake forget does not reach them"
NAMED: Final = "file names stay in the log: have the producer stop putting personal data in them"
SYSTEM_FOLDERS: Final = ("locks", "manifests", temporary_files.FOLDER, archive_tier.FOLDER)
"""Folders of the warehouse beside those of its tables."""
ROWS_AT_ONCE: Final = 10_000
KEEPING_MODES: Final = {"upsert": "keeps rows that went from the table", "append": "keeps a row of each change"}
CHUNK: Final = 16 << 20
OVERLAP: Final = 4096
"""Least bytes of a chunk that are searched again with the next one."""
ESCAPED: Final = 6
"""Bytes of a character's longest escape, `\\u0061`, per byte of the pattern."""

Files: TypeAlias = Iterator[tuple[Address, int]]


@dataclass(frozen=True)
class Proof:
    """Result of a search. Files in `found` have a value, or cannot be unpacked; those `of_no_table` are stray copies.

    `outside_the_warehouse` are landing files, archived ones and OUTSIDE_FOLDERS, which only their owner may change.
    `names_of_files` are names of ingested files that have a value: logs keep them forever.
    """

    values_searched: int
    files_searched: int
    bytes_searched: int
    found: tuple[str, ...]
    outside_the_warehouse: tuple[str, ...]
    names_of_files: tuple[str, ...] = ()
    of_no_table: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return bool(self.values_searched) and not self.found

    @property
    def fix(self) -> str:
        has_reachable = len(self.found) > len(self.of_no_table)
        is_undelivered = any("/meta/sent/" in file for file in self.found)
        advice = {
            FORGET: has_reachable,
            UNDELIVERED: is_undelivered,
            STRAY: bool(self.of_no_table),
            NAMED: bool(self.names_of_files),
        }
        return "; ".join(text for text, applies in advice.items() if applies)


@dataclass(frozen=True)
class Report:
    """Proof about a `person` (a token), stored in `file`.

    `left_out`: values that cannot be searched for, and why. `sinks`: deliveries that are not proved to be deleted.
    """

    stream: str
    person: str
    proof: Proof
    left_out: tuple[str, ...]
    file: Path
    sinks: tuple[str, ...] = ()

    @property
    def record(self) -> dict[str, Any]:
        about = {"stream": self.stream, "person": self.person, "holds": self.proof.holds, **asdict(self.proof)}
        return {**about, "not_searched": self.left_out, "sinks_unproven": self.sinks}

    @property
    def fault(self) -> LawError | None:
        if not self.proof.values_searched:
            return LawError(
                "nothing was searched for, so nothing was proved",
                where="; ".join(self.left_out),
                fix="name values of this person: --value TEXT, at least 4 characters, repeatable",
            )
        if not self.proof.holds:
            return LawError(
                f"data of this person is still in {len(self.proof.found)} files",
                where=self.proof.found[0],
                fix=self.proof.fix,
            )
        return None


def prove(project: Project, stream: str, subject: str, values: Collection[str]) -> Report:
    """Search for `values` and the subject; write the report beside the key store. Raises as `find_person` does."""
    contract, token = find_person(project, stream, subject)
    searched, left_out = searchable_values(contract, subject, values)
    file = project.settings.keys_path.with_name(f"forgotten-{stream}-{token[:8]}.json")
    proof, outside = search_files(project.settings, searched), tuple(unproven(project, stream))
    report = Report(stream, token, proof, tuple(left_out), file, outside)
    file.write_text(json.dumps(report.record, indent=2) + "\n")
    return report


def search_files(settings: Settings, values: Collection[str]) -> Proof:
    """Search all files for `values`. Raises StorageError if archived batches are missing."""
    if not values:
        return Proof(0, 0, 0, (), ())
    text = re.compile(whole_word({spelling for value in values for spelling in _spellings(value)}))
    bytes_ = re.compile(text.pattern.encode())
    inside = _searched(lambda: _inside(settings), text, bytes_)
    outside = _searched(lambda: _outside(settings), text, bytes_)
    within, beyond = (tuple(str(entry.file) for entry in part if entry.found) for part in (inside, outside))
    size = sum(entry.size for entry in inside)
    names, strays = tuple(_matching_names(settings, text)), tuple(_of_no_table(settings, within))
    return Proof(len(values), len(inside), size, within, beyond, names, strays)


@dataclass(frozen=True)
class _SearchedFile:
    file: Address
    size: int
    found: bool


def _searched(listed: Callable[[], Files], text: re.Pattern[str], bytes_: re.Pattern[bytes]) -> list[_SearchedFile]:
    """Search all listed files, and those that appear meanwhile: a compaction moves rows to other files."""
    searched, seen = [], set[Address]()
    while new := {file: size for file, size in listed() if file not in seen}:
        seen |= new.keys()
        for file, size in new.items():
            with suppress(FileNotFoundError):
                searched.append(_SearchedFile(file, size, _has_value(file, text, bytes_)))
    return sorted(searched, key=lambda entry: entry.file)


def _inside(settings: Settings) -> Files:
    outside = tuple(f"{settings.path(folder)}/" for folder in OUTSIDE_FOLDERS)
    warehouse = Warehouse(settings)
    yield from _files(warehouse.root)
    for log in warehouse.folders("log"):
        for part in archive_tier.parts_of(log.path):
            archive_tier.check_parts(log.path, [part])
            if not (path := part.path(log.path)).url.startswith(f"{warehouse.root}/"):
                yield from _files(path)
    lake = _files(Address(str(settings.path(".lake"))))
    yield from ((file, size) for file, size in lake if not f"{file}/".startswith(outside))
    yield from _files(Address(str(settings.keys_path)))


def _outside(settings: Settings) -> Files:
    folders = [settings.landing, *([settings.archive] if settings.archive else []), *OUTSIDE_FOLDERS]
    for folder in folders:
        with suppress(PermissionError):
            yield from _files(address_of(settings, folder))


def _of_no_table(settings: Settings, files: Collection[str]) -> Iterator[str]:
    warehouse = Warehouse(settings)
    within = [file for file in files if file.startswith(f"{warehouse.root}/")]
    if within:
        tables = (location.path for location in warehouse.folders(*KINDS) if delta.exists(location.path))
        known = tuple(f"{folder}/" for folder in (*tables, *(warehouse.root / name for name in SYSTEM_FOLDERS)))
        yield from (file for file in within if not file.startswith(known) and not DELETED_TABLE.search(file))


def _matching_names(settings: Settings, text: re.Pattern[str]) -> Iterator[str]:
    landed = LANDED.rows(settings, "SELECT DISTINCT name FROM t ORDER BY name")
    return (row["name"] for row in landed if _matches(row["name"], text))


def _spellings(value: str) -> Iterator[str]:
    yield spelling_pattern(value)
    cut = value.encode()[:DELTA_RS_KEEPS].decode(errors="ignore")
    for text in (value, value[:SPARK_KEEPS], cut):
        yield from map(re.escape, _encodings(text))
    if cut != value:  # one character has at most four bytes
        yield from (f'{re.escape(text)}[^"]{{1,4}}' for text in _encodings(cut[:-1]))


def _encodings(text: str) -> set[str]:
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], quote(text)}


def _files(place: Address) -> Files:
    if file := place.head():
        yield place, file.size
        return
    with suppress(FileNotFoundError):
        for entry in place.list(deep=True):
            yield place / entry.name, entry.size


def _has_value(file: Address, text: re.Pattern[str], bytes_: re.Pattern[bytes]) -> bool:
    try:
        overlap = max(OVERLAP, ESCAPED * len(bytes_.pattern))
        if any(bytes_.search(chunk) for chunk in _chunks(file, overlap)):
            return True
        return _rows_match(file, text) if PARQUET.search(file.name) else _escaped_text_matches(file, text, overlap)
    except UNREADABLE:
        left = file.head()
        return left is not None and left.size > 0


def _escaped_text_matches(file: Address, text: re.Pattern[str], overlap: int) -> bool:
    chunks = (chunk for chunk in _chunks(file, overlap) if b"\\" in chunk or b'""' in chunk)
    texts = (chunk.decode("utf-8", "replace") for chunk in chunks)
    return any(_matches(escaped, text) for escaped in texts)


def _chunks(file: Address, overlap: int) -> Iterator[bytes]:
    tail = b""
    with file.open() as packed, gzip.open(packed) if file.name.lower().endswith(".gz") else packed as opened:
        while chunk := opened.read(CHUNK):
            yield tail + chunk
            tail = (tail + chunk)[-overlap:]


def _rows_match(file: Address, text: re.Pattern[str]) -> bool:
    with duckdb_tables.connection() as con:
        con.register("a row", con.read_parquet(file.url))
        if con.execute(f'SELECT 1 FROM "a row" WHERE regexp_matches({ROW}, $1) LIMIT 1', [text.pattern]).fetchone():
            return True
        escaped = con.execute(f"""SELECT {ROW} FROM "a row" WHERE contains({ROW}, '\\')""")
        while rows := escaped.fetchmany(ROWS_AT_ONCE):
            if any(_matches(row, text) for [row] in rows):
                return True
    return False


def _matches(escaped: str, text: re.Pattern[str]) -> bool:
    return any(text.search(plain) for plain in unescaped_texts(escaped))


def unproven(project: Project, stream: str) -> Iterator[str]:
    sinks, faults = sound_sinks(project.settings)
    sinks |= sinks_of_connectors(project.settings)[0]
    for name in faults:
        yield f"sink {name}, whose declaration is faulty"
    derived = {name for name, table in project.tables.items() if stream in project.logs(table)}
    for sink in sinks.values():
        tables = [name for name in sink.tables if name in derived]
        if tables:
            yield from _unproven_copies(project, sink, tables)


def _unproven_copies(project: Project, sink: DeclaredSink, tables: list[str]) -> Iterator[str]:
    consumer = consumers.consumer(project.settings, sink.name, consumers.SINK)
    if consumer.edition is not None and consumer.edition < erasures.purged_with(project.settings):
        yield f"sink {sink.name}: it has edition {consumer.edition}, of before the purge: lake deliver {sink.name}"
    elif consumer.edition is not None and _purge_waits(project):
        yield f"sink {sink.name}: older editions have not been purged yet: lake status"
    if sink.keeps:
        yield f"sink {sink.name}: {sink.keeps}"
    for name in tables:
        if why := KEEPING_MODES.get(sink.tables[name].mode):
            yield f"sink {sink.name}: its table {sink.tables[name].far} {why}"


def _purge_waits(project: Project) -> bool:
    since = erasures.purged(project.settings)
    return any(erasure.number > since for erasure in erasures.entries(project.settings))
