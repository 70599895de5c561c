"""Tables at an old cut, evaluated from the logs into a folder of their own, even if no edition of the cut is kept.

Definitions and contracts are current. Fields of people forgotten since are not read.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from lake.engine import integrity
from lake.engine.compare import check_identity
from lake.engine.engines import by_rows
from lake.engine.faults import python_faults
from lake.engine.inputs import Evaluation, Inputs
from lake.engine.table_columns import columns_when_built, meanings
from lake.engine.write import arrow_types
from lake.errors import DeclarationError, did_you_mean
from lake.kinds.columns import visible
from lake.progress import step
from lake.project.declaration import Declaration
from lake.read.locked_database import as_of_macro
from lake.read.sql import EditionReader
from lake.session import file_modes
from lake.session.remote import shares_disk
from lake.store import commit
from lake.store.ledger.editions import Edition, EditionTable
from lake.store.log import Log
from lake.store.rows import Rows
from lake.store.scan import Scan
from lake.store.snapshot import published
from lake.store.table_head import Columns, TableHead
from lake.text import counted


def _input_size(inputs: Inputs, tables: Iterable[Declaration]) -> str:
    settings, batches = inputs.project.settings, inputs.cut.batches
    streams = sorted({stream for table in tables for stream in inputs.project.logs(table)})
    read = {Log(settings, stream): batches[stream] for stream in streams if batches.get(stream)}
    events = sum(log.head_at(batch).events for log, batch in read.items())
    size = sum(Scan(log.path, bounds={"_batch": (1, batch)}).size() for log, batch in read.items())
    return f"{counted(events, 'event')} of {', '.join(streams)}, {size / 2**20:.1f} MiB"


@contextmanager
def recomputed_reader(inputs: Inputs, query: str, *, on_progress: Callable[[str], None]) -> Iterator[EditionReader]:
    """Yield a reader for `query` at the cut; its tables are evaluated into a temporary folder.

    Raises DeclarationError if it names no table.
    """
    project, cut = inputs.project, inputs.cut
    settings = project.settings
    words = set(re.findall(r"\w+", query.lower()))
    named = [name for name in project.tables if {name.lower(), as_of_macro(name.lower())} & words]
    reader = EditionReader(settings, Edition(0, cut.number, {}, datetime.now(UTC)))
    if not named and not reader.titles_in(query):
        raise DeclarationError(
            "the query names no table to recompute", where="--recompute", fix=did_you_mean("", project.tables)
        )
    with TemporaryDirectory(prefix="cut-", dir=file_modes.scratch(settings, "staging")) as folder:
        if named:
            edition = build(inputs, named, Path(folder), on_progress=on_progress)
            copy = replace(settings, warehouse=Path(folder))
            reader = EditionReader(settings, edition, opened={name: published(copy, name, edition) for name in named})
        yield reader


def build_to(inputs: Inputs, names: Iterable[str], folder: Path, *, on_progress: Callable[[str], None]) -> Edition:
    """Evaluate tables into `folder`, new or empty, as Delta tables: `gold/carrier_daily`.

    The folder appears whole or not at all. Raises DeclarationError if it is not empty or within the warehouse, if its
    parent does not exist, or if Spark runs on another machine.
    """
    file_modes.check_new_or_empty(folder)
    file_modes.check_outside_of_warehouse(inputs.project.settings, folder)
    if not folder.absolute().parent.is_dir():
        raise DeclarationError("the folder above it does not exist", where=str(folder), fix="create it first")
    part = folder.absolute().with_name(f".lake-{token_hex(8)}.part")
    part.mkdir(mode=file_modes.ALONE)
    try:
        edition = build(inputs, names, part, on_progress=on_progress)
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return edition


def build(inputs: Inputs, names: Iterable[str], folder: Path, *, on_progress: Callable[[str], None]) -> Edition:
    picked, cut = inputs.project.pick(names), inputs.cut
    if not shares_disk(inputs.project.settings):
        raise DeclarationError(
            "tables of an old cut are written to a folder of this machine, and Spark runs elsewhere",
            where="spark.master",
            fix="LAKE_SPARK__MASTER='local[*]', or spark.shares_disk = true where it can write there all the same",
        )
    what = f"{', '.join(table.name for table in picked)} at cut {cut.number}"
    how = "by the definitions and contracts of now, without what is personal of people forgotten since"
    on_progress(f"recomputing {what}, {how}: reads {_input_size(inputs, picked)}")
    inputs.declared |= set(inputs.project.tables)
    inputs.sound_logs |= integrity.check_integrity(inputs.project, picked)
    tables = {table.name: _built(inputs, table, folder) for table in picked}
    return Edition(0, cut.number, tables, datetime.now(UTC))


def _built(inputs: Inputs, declaration: Declaration, folder: Path) -> EditionTable:
    project, settings = inputs.project, inputs.project.settings
    table = replace(project.table_in(declaration, declaration.name), settings=replace(settings, warehouse=folder))
    batches = {stream: inputs.cut.batches.get(stream, 0) for stream in sorted(project.logs(declaration))}
    events = sum(Log(settings, stream).head_at(batch).events for stream, batch in batches.items())
    with step("recompute", declaration.name) as at_work, python_faults(declaration, inputs):
        find = partial(_rows, events <= settings.collected_rows)
        (columns, rows), engine, _ = by_rows(Evaluation(inputs, declaration, table, None), events, find)
        table.create(arrow_types(rows), description=declaration.doc)
        head = TableHead(
            table.position_or_start(),
            cut=inputs.cut.number,
            verb="rebuild",
            inputs=batches,
            fingerprint=project.fingerprint(declaration, columns),
            columns=columns,
            voids=inputs.cut.voids,
            engine=engine,
        )
        comments = meanings(inputs, declaration, columns)
        position = commit.replace(table, rows, declaration.kind.file_order, head.committed, meanings=comments)
        at_work.rows = table.rows(position.version)
    entry = f"{declaration.layer}/{declaration.name}"
    return EditionTable(declaration.layer, entry, position.version, head.fingerprint, at_work.rows)


def _rows(are_few: bool, evaluation: Evaluation) -> tuple[Columns, Rows]:
    inputs, declaration = evaluation.inputs, evaluation.declaration
    columns = columns_when_built(evaluation)
    frame = inputs.evaluate(declaration)
    rows = Rows(frame.select(*visible(frame.columns)))
    return columns, check_identity(declaration, rows.collected(if_few=are_few))
