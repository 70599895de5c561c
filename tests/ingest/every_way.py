"""Ways of ingestion for the table of values: records, outcomes, and differences from the table."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import avro.datafile
import avro.io
import avro.schema
import pyarrow as pa
import pyarrow.parquet as pq

from lake.config import Settings
from lake.ingest.replay import quarantined_records
from lake.store import duckdb_tables
from lake.store.log import Log
from tests.records.table import FORMS, MORE, PLAIN, Case

NAMES: Final = (*PLAIN, *FORMS, MORE)
Outcome = tuple[Any, ...]
"""(value, `_extra`) of an accepted record, (reason, detail) of a rejected one."""


def is_unicode(case: Case) -> bool:
    """Return whether Parquet and Avro can have the value: as a text, or as the null of a declared field."""
    if not isinstance(case.value, str):
        return case.value is None and case.name != MORE
    return not any("\ud800" <= character <= "\udfff" for character in case.value)


def is_csv(case: Case) -> bool:
    return is_unicode(case) and not case.is_no_text and "\0" not in str(case.value)


def schema(*names: str) -> dict[str, Any]:
    """Return a schema of Avro for records with these members, which are texts."""
    texts = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    return {"type": "record", "name": "texts", "fields": [{"name": "id", "type": "long"}, *texts]}


def jsonl(table: Sequence[Case]) -> bytes:
    return "".join(f"{case.text}\n" for case in table).encode()


def csv(table: Sequence[Case]) -> bytes:
    lines = [["id", *NAMES]]
    for case in table:
        text = "" if case.value is None else f'"{case.value.replace(chr(34), chr(34) * 2)}"'
        lines.append([str(case.number), *(text if name == case.name else "" for name in NAMES)])
    return "".join(f"{','.join(line)}\n" for line in lines).encode()


def parquet(table: Sequence[Case]) -> bytes:
    texts = {
        name: pa.array([case.value if case.name == name else None for case in table], pa.string()) for name in NAMES
    }
    out = io.BytesIO()
    pq.write_table(pa.table({"id": [case.number for case in table], **texts}), out)
    return out.getvalue()


def avro_file(table: Sequence[Case]) -> bytes:
    out = io.BytesIO()
    writer = avro.datafile.DataFileWriter(out, avro.io.DatumWriter(), avro.schema.parse(json.dumps(schema(*NAMES))))
    for case in table:
        writer.append({"id": case.number, case.name: case.value})
    writer.flush()
    return out.getvalue()


FILES: Final[Mapping[str, tuple[Callable[[Case], bool], Callable[[Sequence[Case]], bytes]]]] = {
    "jsonl": (lambda _: True, jsonl),
    "csv": (is_csv, csv),
    "parquet": (is_unicode, parquet),
    "avro": (is_unicode, avro_file),
}
"""The cases that files of each format can have, and the writer of such a file."""


def land(settings: Settings, stream: str, table: Sequence[Case], formats: Iterable[str]) -> None:
    folder = settings.path(settings.landing) / stream
    folder.mkdir()
    for name in formats:
        carries, write = FILES[name]
        (folder / f"a.{name}").write_bytes(write([case for case in table if carries(case)]))


@dataclass(frozen=True)
class Way:
    """A stream with the records of the table that `carries` accepts, in files of `format` if given.

    `refused` are the outcomes of records that did not reach the log. With an `envelope`, details name other fixes.
    """

    stream: str
    format: str = ""
    carries: Callable[[Case], bool] = lambda _: True
    refused: Mapping[int, Outcome] = field(default_factory=dict)
    envelope: bool = False

    def has(self, source: str) -> bool:
        """Return whether a record of the stream came this way, by its place."""
        return not self.format or source.rpartition(":")[0].endswith(f".{self.format}")


def differences(settings: Settings, table: Collection[Case], ways: Iterable[Way]) -> list[tuple[object, ...]]:
    """Return the records that are not as in the table, or not rejected with the same reason by all ways."""
    wrong, words = list[tuple[object, ...]](), dict[int, Outcome]()
    names = {case.number: case.name for case in table}
    for way in ways:
        found = outcomes(settings, way, names)
        for case in filter(way.carries, table):
            outcome = found.pop(case.number, ())
            expected = (value_text(case.expected), case.extra)
            if case.reason:
                expected = outcome if way.envelope else words.setdefault(case.number, outcome)
            is_right = outcome == expected and (not case.reason or outcome[:1] == (case.reason,))
            if not is_right:
                wrong.append((way, case, outcome, words.get(case.number)))
        wrong += [(way, *one) for one in found.items()]
    return wrong


def outcomes(settings: Settings, way: Way, names: Mapping[int, str]) -> dict[int, Outcome]:
    """Return the outcome of each record of a way, by its number."""
    found = {**way.refused}
    for row in duckdb_tables.rows(Log(settings, way.stream).path, "SELECT * FROM t WHERE _bucket >= 0"):
        if way.has(row["_source"]):
            values = {name: row[name] for name in NAMES if row.get(name) is not None}
            found[row["id"]] = value_text(values.pop(names[row["id"]], None)), row["_extra"]
            assert not values
    for refused in quarantined_records(settings, [way.stream]):
        if way.has(refused.source):
            record = json.loads(refused.raw)
            found[int(record.get("after", record)["id"])] = refused.reason, refused.detail
    return found


def value_text(value: Any) -> str:
    """Return the text of a value with its type, digits and sign. Instants are in UTC."""
    if value == 0 and isinstance(value, float):
        return "0.0"  # a log has no minus zero
    return repr(value).replace("<UTC>", "datetime.timezone.utc")
