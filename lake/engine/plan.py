"""Plan: changes of declarations since their tables were built, the tables derived from them, and the cost."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from functools import cached_property
from typing import Final, Literal

from lake.contracts.declared_text import files_in
from lake.contracts.evolution import is_lossless
from lake.engine.columns import WAITING, lost_columns
from lake.engine.inputs import Inputs
from lake.engine.table_columns import entering, listed_new_columns
from lake.errors import DeclarationError, did_you_mean
from lake.kinds.columns import visible
from lake.lazy import pa
from lake.project.declaration import Declaration
from lake.project.project import FIELD, SOURCE, Project
from lake.quality.gate import check_suite_fits
from lake.quality.suite import Suite, read_suite
from lake.session import SessionFactory
from lake.session.spark_session import start
from lake.store import delta
from lake.store.ledger import checks, cuts, editions, runs
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.table_head import HANDED_ON, Columns, TableHead
from lake.text import text

DEFAULT: Final = re.compile(r"(.+?) (None|True|False|-?[0-9]\S*|'.*'|\".*\")( under .+)?", re.DOTALL)
"""Definition of a field: type, default as text of Python, and names in older events."""
State = Literal["unchanged", "changed", "wider", "follows", "new", "removed"]
"""State of a table: `wider` if its inputs have new columns that a deploy would pass on."""


@dataclass(frozen=True)
class Planned:
    """One table compared with what it was built with.

    `text` is the unified diff of the job file, `follows` the derived tables. Its evaluation reads `rows` and takes
    `seconds`, at the `rate` (rows a second) of its last evaluation, else of all tables.
    """

    table: str
    state: State
    changes: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    rows: int | None = None
    rate: int | None = None
    seconds: float | None = None


def plan(project: Project, names: Iterable[str] = (), connect: SessionFactory | None = None) -> list[Planned]:
    """Return the named tables (default: all) in dependency order, then those whose jobs are gone.

    A table `follows` if only an input has changed. A session is needed only for an input with new columns
    that DuckDB cannot analyse.
    """
    names = list(names)
    planning = _Planning(project, connect or (lambda: start(project.settings)))
    planned = [planning.planned(declaration) for declaration in project.pick(names)]
    if names:
        return planned
    latest = editions.latest_edition(project.settings)
    gone = sorted(set(latest.tables) - set(project.tables)) if latest else ()
    return [*planned, *(Planned(name, "removed", ("its job is gone: the next edition retires it",)) for name in gone)]


def stale(project: Project, connect: SessionFactory) -> set[str]:
    """Return the built tables that have changed, are derived from one that has, or would get new columns."""
    planning = _Planning(project, connect)
    return {name for name in planning.stale if planning.heads[name] is not None}


def _field(recorded: str) -> str:
    match = DEFAULT.fullmatch(recorded)
    if match is None:
        return recorded
    default = "" if match[2] == "None" else f", default {text(literal_eval(match[2]))}"
    return f"{match[1]}{default}{match[3] or ''}"


@dataclass(frozen=True)
class _Planning:
    project: Project
    connect: SessionFactory

    @cached_property
    def inputs(self) -> Inputs | None:
        newest = cuts.latest_cut(self.project.settings)
        return Inputs(self.connect, self.project, newest) if newest else None

    @cached_property
    def heads(self) -> Mapping[str, TableHead | None]:
        return {table.name: self.project.table(table).head() for table in self.project.tables.values()}

    @cached_property
    def changed(self) -> set[str]:
        return {
            name
            for name, head in self.heads.items()
            if head
            and (
                not self.project.is_built(self.project.tables[name], head) or any(self.lost(self.project.tables[name]))
            )
        }

    @cached_property
    def wider(self) -> dict[str, dict[str, list[str]]]:
        """Columns that would enter otherwise unchanged tables: {table: {input: columns}}."""
        return {
            name: entering for name in self.heads if name not in self.changed and (entering := self._entering(name))
        }

    @cached_property
    def stale(self) -> set[str]:
        own = {*self.changed, *self.wider}
        return {*own, *self.project.below(*own)}

    def lost(self, declaration: Declaration) -> Iterator[str]:
        head = self.heads[declaration.name]
        columns = head.columns if head else {}
        current = {
            source.name: self.project.table(source.table).columns()
            for source in declaration.inputs
            if source.table is not None and source.name in columns and self.heads[source.name] is not None
        }
        yield from lost_columns(columns, current)

    def _entering(self, name: str) -> dict[str, list[str]]:
        declaration, head = self.project.tables[name], self.heads[name]
        if head is None or self.inputs is None:
            return {}
        recorded, given = head.columns, self.inputs.given_columns(declaration)
        current = {
            source.name: self.project.fields(source.name)
            if source.table is None
            else self.project.table(source.table).columns()
            for source in declaration.inputs
            if source.name in given and (source.table is None or self.heads[source.name] is not None)
        }
        held = {name: [column for column in columns if column not in given[name]] for name, columns in current.items()}
        if all({*some} <= listed_new_columns(recorded.get(name, {})) for name, some in held.items()):
            entered = {
                name: [column for column in some if column in recorded[name].get(WAITING, ())]
                for name, some in held.items()
                if some
            }
        else:
            entered = entering(self.inputs, declaration, held)
        return {name: some for name, some in entered.items() if some}

    @cached_property
    def suites(self) -> Mapping[str, Suite]:
        return load_suites(self.project)

    @cached_property
    def last_checks(self) -> Mapping[str, checks.Check]:
        return checks.last_checks(self.project.settings, "table")

    @cached_property
    def rates(self) -> Mapping[str, float]:
        """Rows a second of each table's last evaluation; "" is the rate of all."""
        built = {
            name: run
            for name, run in runs.last_runs(self.project.settings, *runs.WHOLE, outcome="done").items()
            if run.counts.get("read")
        }
        rates = {name: run.counts["read"] / run.seconds for name, run in built.items() if run.seconds}
        seconds = sum(run.seconds for run in built.values())
        return rates | ({"": sum(run.counts["read"] for run in built.values()) / seconds} if seconds else {})

    def planned(self, declaration: Declaration) -> Planned:
        name = declaration.name
        state: State
        if self.heads[name] is None:
            state, changes = "new", ["never built"]
        elif name in self.changed:
            state, changes = "changed", list(self._definition_changes(declaration))
        elif name in self.wider:
            state, changes = "wider", list(self._new_columns(name))
        elif name in self.stale:
            parents = [source.name for source in declaration.inputs if source.name in self.stale]
            state, changes = "follows", [f"derived from {', '.join(parents)}"]
        else:
            return Planned(name, "unchanged", tuple(self._suite_change(name)))
        rows, rate = self._rows(declaration), self.rates.get(name) or self.rates.get("")
        return Planned(
            name,
            state,
            (*changes, *self._suite_change(name)),
            tuple(self.project.below(name)),
            tuple(self._text(declaration)) if state == "changed" else (),
            rows,
            int(rate) if rate else None,
            round(rows / rate, 1) if rate else None,
        )

    def _new_columns(self, name: str) -> Iterator[str]:
        for source, columns in self.wider[name].items():
            for column in columns:
                yield f"column {source}.{column} is new: the table goes on without it until lake deploy"

    def _definition_changes(self, declaration: Declaration) -> Iterator[str]:
        yield from self.lost(declaration)
        table, head = self.project.table(declaration), self.heads[declaration.name]
        if head is not None and self.project.is_built(declaration, head):
            return
        built = (older.definition for older in table.heads() if older.definition)
        columns = head.columns if head else {}
        then, now = next(built, None), self.project.definition(declaration, columns)
        if then is None:
            yield "which part has changed is unknown: the commit that recorded its definition was removed"
            return
        differing = [part for part in dict.fromkeys([*then, *now]) if then.get(part) != now.get(part)]
        for part in differing:
            old, new = then.get(part), now.get(part)
            if part == SOURCE:
                continue
            if part in ("function", "rest of the file") or part.startswith("imported"):
                yield f"{part} {'changed' if old and new else 'added' if new else 'removed'}"
            else:
                text_of = _field if part.startswith(FIELD) else str
                yield f"{part}: {text_of(old) if old else 'none'} → {text_of(new) if new else 'none'}"
        if all(part.startswith(FIELD) for part in differing):
            yield from self._retyped_columns(declaration, columns)

    def _retyped_columns(self, declaration: Declaration, columns: Columns) -> Iterator[str]:
        for source in (source for source in declaration.inputs if source.is_log):
            recorded, fields = columns.get(source.name, {}), self.project.fields(source.name)
            for column, field in recorded.get(HANDED_ON, {}).items():
                was, now = (types.get(field, "").partition(" ")[0] for types in (recorded["read"], fields))
                if was and now and was != now:
                    loss = "readers lose no value" if is_lossless(was, now) else "lake deploy needs --yes for it"
                    yield f"column {column}: {was} → {now}; {loss}"

    def _text(self, declaration: Declaration) -> Iterator[str]:
        built = (head.definition for head in self.project.table(declaration).heads() if head.definition)
        then, file = next(built, {}).get(SOURCE), self.project.files[declaration.name]
        if then is not None:
            yield from unified_diff(
                then.splitlines(), file.text.splitlines(), f"{file.where} as built", file.where, lineterm=""
            )

    def _suite_change(self, name: str) -> Iterator[str]:
        check, suite = self.last_checks.get(name), self.suites.get(name)
        if check is not None and suite is not None and check.suite != suite.hash:
            yield "expectations changed: they are checked again, nothing is evaluated"

    def _rows(self, declaration: Declaration) -> int:
        paths = [
            Log(self.project.settings, source.name).path
            if source.table is None
            else self.project.table(source.table).path
            for source in declaration.inputs
        ]
        return sum(Scan(path).rows() for path in paths if delta.exists(path))


def load_suites(project: Project) -> dict[str, Suite]:
    """Return the suite of each table with a quality file. Raises DeclarationError with all faults.

    Columns are checked if the table is built by its current definition.
    """
    suites: dict[str, Suite] = {}
    faults: list[DeclarationError] = []
    for file in files_in(project.settings.path("quality"), ".json"):
        declaration = project.tables.get(file.stem)
        if declaration is None:
            fix = did_you_mean(file.stem, project.tables)
            faults.append(DeclarationError(f"no table {file.stem!r}", where=f"quality/{file.name}", fix=fix))
            continue
        try:
            suites[declaration.name] = suite = read_suite(file)
            last = checks.last_checks(project.settings, "table").get(declaration.name)
            table = project.table(declaration)
            newest = (suite.hash, table.home, delta.newest_version(table.path))
            known = last is not None and (last.suite, last.home, last.version) == newest
            if not known and (schema := _schema(project, declaration)):
                check_suite_fits(suite, schema, declaration.kind.zone)
        except DeclarationError as fault:
            faults.append(fault)
    DeclarationError.raise_any(faults)
    return suites


def _schema(project: Project, declaration: Declaration) -> pa.Schema | None:
    table = project.table(declaration)
    head = table.head()
    if head is None or not project.is_built(declaration, head):
        return None
    schema = table.schema()
    return pa.schema([schema.field(name) for name in visible(schema.names)])
