"""Verification against a source: compares its rows at one position of its log with the tables that mirror them.

1. Read the rows of the source as of a position, while others continue to write. Ingest exactly up to that position,
   and record a cut there.
2. Advance every Latest over the stream alone to the cut. Compare it with the result of its own function and kind over
   the source's rows, without columns that describe a change instead of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lake.config import Settings
from lake.contracts.contract import Contract, known_stream
from lake.contracts.fields import Field
from lake.engine.advance import advance
from lake.engine.compare import compare, fingerprints
from lake.engine.inputs import Inputs
from lake.engine.stored_rows import HIDDEN, event_order
from lake.engine.verify import Verdict, first_differences
from lake.errors import DeclarationError
from lake.ingest import record_frames
from lake.ingest.event_columns import with_event_columns
from lake.ingest.source_ingestion import open_ingestion
from lake.lazy import DataFrame, SparkSession
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.publish.cut import cut
from lake.records.read_tasks import TextTask
from lake.records.reader import RecordReader
from lake.session import SessionFactory, file_modes
from lake.sources import spool
from lake.sources.declared import DeclaredSource, sound_sources
from lake.sources.source import SnapshotSource, SourceRecord
from lake.store import log_rows, temporary_files
from lake.store.table_head import HANDED_ON

ROW: Final = ("before", "after")
"""Members of an envelope with the row; the others describe the change."""


def verify_source(project: Project, connect: SessionFactory, stream: str) -> list[Verdict]:
    """Return the verdicts on the tables that mirror the source of `stream`, as of one position of its log.

    Raises DeclarationError if no table does, or the source cannot show its rows.
    """
    contract = known_stream(project.contracts, stream)
    tables = [table for table in project.tables.values() if _mirrors(table, stream)]
    if not tables:
        raise DeclarationError(f"no Latest reads {stream} alone", fix="declare one: there is nothing to compare with")
    with open_ingestion(project.settings, connect, project.contracts, _source_of(project, stream)) as work:
        reader = work.reader
        if not isinstance(reader, SnapshotSource):
            raise DeclarationError(
                f"a source of kind {work.source.kind} cannot show its rows as of one place",
                where=work.source.where,
                fix="lake verify proves the tables from the logs",
            )
        with reader.rows(stream) as rows, _spooled(project.settings, stream, rows.records) as file:
            place = rows.lsn
            work.ingest_next(lambda after, to: None if after is None else reader.read_upto(after, place, to))
            inputs = Inputs(connect, project, cut(project))
            events = _events(connect(), project.settings, contract, file)
            return [_verdict(inputs, table, events, place) for table in tables]


def _verdict(inputs: Inputs, declaration: Declaration, events: DataFrame, at: str) -> Verdict:
    advance(inputs, declaration)
    project, table, [source] = inputs.project, inputs.table(declaration), declaration.inputs
    head = table.head()
    assert head is not None
    handed_on = head.columns[source.name][HANDED_ON]
    of_row = {field.name for field in project.contracts[source.name].fields if _of_row(field)}
    identity = declaration.kind.identity
    columns = [c for c in table.columns(head.version) if c in identity or handed_on.get(c) in of_row]
    old = table.read(inputs.spark, head.version).select(*columns)
    source_inputs = Inputs(inputs.connect, project, inputs.cut, cached={source.name: events})
    rows = source_inputs.evaluate(declaration).select(*columns)
    stored, at_source = fingerprints(old, rows)
    total, left = table.rows(head.version), [c for c in table.columns(head.version) if c not in columns]
    why = f"at {at}" + (f", except {', '.join(left)}, which describe changes" if left else "")
    if stored == at_source:
        return Verdict(declaration.name, inputs.cut.number, "identical", total, stored, why=why)
    differing, differences = first_differences(table, head.version, compare(rows, old, identity), identity)
    return Verdict(declaration.name, inputs.cut.number, "differs", total, stored, differing, differences, why=why)


def _mirrors(table: Declaration, stream: str) -> bool:
    return table.kind.name == "Latest" and [source.name for source in table.inputs] == [stream] and not table.parked_of


def _of_row(field: Field) -> bool:
    return not field.path or field.path[0] in ROW


def _source_of(project: Project, stream: str) -> DeclaredSource:
    sources, faults = sound_sources(project.settings, project.contracts)
    DeclarationError.raise_any(faults.values())
    matching = [source for source in sources.values() if stream in source.streams]
    if len(matching) != 1:
        names = ", ".join(source.name for source in matching)
        raise DeclarationError(
            f"{stream} has several sources, {names}" if matching else f"{stream} has no source",
            fix="only a stream with exactly one source can be compared",
        )
    return matching[0]


@contextmanager
def _spooled(settings: Settings, stream: str, records: Iterable[SourceRecord]) -> Iterator[str]:
    with TemporaryDirectory(dir=file_modes.scratch(settings, "staging")) as folder:
        writer = spool.SpoolWriter(Path(folder))
        for record in records:
            writer.put(stream, record)
        writer.close()
        file = Path(folder) / f"{stream}{spool.SUFFIX}"
        up = temporary_files.upload(settings, [file] if file.exists() else [])
        try:
            yield str(up.get(file, file)) if file.exists() else ""
        finally:
            temporary_files.remove_uploads(up.values())


def _events(spark: SparkSession, settings: Settings, contract: Contract, file: str) -> DataFrame:
    """Return the rows as events of the stream's log. Raises DeclarationError if one breaks the contract."""
    if not file:
        return event_order(log_rows.empty(spark, contract).drop(*HIDDEN))
    reader = RecordReader(contract, settings.record_bytes)
    texts = record_frames.of_spool(spark, file, contract.name)
    parsed = with_event_columns(record_frames.read(texts, TextTask(reader)), contract, now=datetime.now(UTC))
    for refused in parsed.where("_reason IS NOT NULL").select("_source", "_reason", "_detail").limit(1).collect():
        raise DeclarationError(
            f"{contract.name}: a row of its source breaks the contract: {refused['_reason']}, {refused['_detail']}",
            where=refused["_source"],
            fix="correct the row, or the contract: lake quarantine list shows those that came as changes",
        )
    own = {"_batch": "0L", "_arrival": "_position", "_offset": "_position"}
    types = {name: kind for name, kind in log_rows.types(contract).items() if name not in HIDDEN}
    made = [f"cast({own.get(name, f'`{name}`' if name in parsed.columns else 'NULL')} AS {kind}) AS `{name}`"
            for name, kind in types.items()]  # fmt: skip
    return event_order(parsed.selectExpr(*made))
