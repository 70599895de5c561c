"""Project: all of its contracts and declarations, loaded and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract, load_contracts, sound_contracts
from lake.contracts.declared_text import files_in
from lake.contracts.evolution import append_version
from lake.contracts.origins import several_names
from lake.contracts.upcast import definition as upcast_definition
from lake.errors import DeclarationError, did_you_mean
from lake.kinds.latest import First
from lake.project import groups
from lake.project.declaration import Declaration, UpstreamFailed, importing, load_declaration
from lake.project.groups import Groups
from lake.project.jobfile import JobFile
from lake.quality.parking import PLACE, ROW, SUFFIX, definition_text
from lake.quality.suite import has_parking, load_suite
from lake.store.ledger import contract_versions
from lake.store.ledger.editions import Edition, latest_edition
from lake.store.table_head import HANDED_ON, Columns, TableHead
from lake.store.tables import Table
from lake.store.warehouse import LAYERS
from lake.text import check_column_names

FIELD: Final = "contract field "
SOURCE: Final = "source"
PARKED: Final = First((PLACE, ROW))
DECIDING: Final = {"function", "kind"}
"""Attributes of a declaration whose use by another job can change that job's rows."""
NESTED_PREFIXES: Final = ("array<", "struct<", "map<", "{")
"""Prefixes of nested types in a contract, and of those that Delta writes as JSON."""


@dataclass(frozen=True)
class Project:
    """Contracts and tables, in the order of their dependencies.

    `files` are the jobs by table, `modules` these and all files below `jobs/` that they import, by module. `staged`
    names the homes of tables that are being built beside the live ones.
    """

    settings: Settings
    contracts: Mapping[str, Contract]
    tables: Mapping[str, Declaration]
    files: Mapping[str, JobFile]
    modules: Mapping[str, JobFile] = field(default_factory=dict)
    staged: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _names_by_stream(self) -> dict[str, Mapping[str, str]]:
        return {}

    @cached_property
    def seen(self) -> Edition | None:
        """The newest edition, as of the first access."""
        return latest_edition(self.settings)

    @cached_property
    def groups(self) -> Groups:
        return groups.groups(self.settings, self.tables)

    def table(self, declaration: Declaration) -> Table:
        name = declaration.name
        live = self.seen.tables.get(name) if self.seen else None
        return self.table_in(declaration, self.staged.get(name) or (live.home if live else name))

    def table_in(self, declaration: Declaration, home: str) -> Table:
        """Return the table in a folder of its layer; readers by path use the folder of the table's name."""
        personal = self.is_personal(declaration)
        return Table(self.settings, declaration.layer, declaration.name, home, personal=personal)

    def is_personal(self, declaration: Declaration) -> bool:
        return any(self.contracts[stream].sealed for stream in self.logs(declaration) if stream in self.contracts)

    def pick(self, names: Iterable[str]) -> list[Declaration]:
        """Return the named tables in dependency order; all for no names. Raises DeclarationError for unknown ones."""
        wanted = set(names)
        for name in sorted(wanted - set(self.tables)):
            raise DeclarationError(f"unknown table {name!r}", fix=did_you_mean(name, self.tables))
        return [table for table in self.tables.values() if not wanted or table.name in wanted]

    def below(self, *names: str, including: Iterable[str] = ()) -> list[str]:
        """Return the tables derived from `names`, directly or not, and those `including`, in dependency order."""
        reached = set(names)
        for table in self.tables.values():
            if reached & {source.name for source in table.inputs}:
                reached.add(table.name)
        return [name for name in self.tables if name in reached - set(names) | set(including)]

    def fingerprint(self, declaration: Declaration, columns: Columns) -> str:
        """Return a hash of the job file, its imports, the kind's version, and the fields in a head's `columns`."""
        fields = [f"{name} {type_}" for name, type_ in self._fields(declaration, columns).items()]
        imported = [file.fingerprint() for file in self._imports(declaration)]
        parking = [f"{name} {text}" for name, text in _parking_texts(declaration).items()]
        revision = self._revision(declaration, columns)
        return self.files[declaration.name].fingerprint(declaration.kind.name, revision, *fields, *imported, *parking)

    def texts(self) -> set[str]:
        return {text for file in self.modules.values() for text in file.texts}

    def is_built(self, declaration: Declaration, head: TableHead) -> bool:
        return head.fingerprint == self.fingerprint(declaration, head.columns)

    def definition(self, declaration: Declaration, columns: Columns) -> dict[str, str]:
        """Return the parts of the fingerprint as short texts and hashes, to show which have changed.

        SOURCE, the job file's text with comments, is compared for people only.
        """
        return {
            **self.files[declaration.name].parts(),
            SOURCE: self.files[declaration.name].text,
            "kind version": self._revision(declaration, columns),
            **{f"{FIELD}{name}": type_ for name, type_ in self._fields(declaration, columns).items()},
            **{f"imported jobs file {self._label(file)}": file.fingerprint() for file in self._imports(declaration)},
            **_parking_texts(declaration),
        }

    def _revision(self, declaration: Declaration, columns: Columns) -> str:
        kind = declaration.kind
        return str(kind.revision + any(_takes_nested(of_input, kind.digested) for of_input in columns.values()))

    def lineage(self, declaration: Declaration) -> str:
        """Return a hash of all that can decide the rows of the table and of all tables that it is derived from."""
        parents = [self.lineage(source.table) for source in declaration.inputs if source.table is not None]
        fields = {s.name: {"read": self.fields(s.name)} for s in declaration.inputs if s.is_log}
        return hashlib.sha256("\n".join([self.fingerprint(declaration, fields), *parents]).encode()).hexdigest()[:8]

    def fields(self, stream: str) -> dict[str, str]:
        if stream not in self._names_by_stream:
            stored = contract_versions.versions(self.settings, stream)
            self._names_by_stream[stream] = several_names(append_version(stored, self.contracts[stream]))
        fields, names = self.contracts[stream].fields, self._names_by_stream[stream]
        texts = {field.name: f"{field.type} {field.default!r} {names[field.name]}".rstrip() for field in fields}
        return upcast_definition(self.contracts[stream].upcast, fields, texts)

    def _fields(self, declaration: Declaration, columns: Columns) -> dict[str, str]:
        return {
            f"{source.name}.{name}": type_
            for source in declaration.inputs
            if source.is_log
            for name, type_ in self.fields(source.name).items()
            if name in columns.get(source.name, {}).get("read", {})
        }

    def _imports(self, declaration: Declaration) -> list[JobFile]:
        """Return the files whose code the table's function can call; not those that it uses only as inputs."""
        file = self.files[declaration.name]
        inputs = {self.files[source.name].module for source in declaration.inputs if not source.is_log}
        found = self._used_modules(file) | {*file.imported} & self.modules.keys() - inputs - {file.module}
        pending = [*found]
        while pending:
            new = self._used_modules(self.modules[pending.pop()]) - found - {file.module}
            found |= new
            pending += new
        return sorted((self.modules[module] for module in found), key=lambda file: (file.path.stem, file.module))

    def _label(self, file: JobFile) -> str:
        return file.path.stem if file.module in self._tables_by_module else file.module

    @cached_property
    def _tables_by_module(self) -> dict[str, str]:
        return {job.module: table for table, job in self.files.items() if table == job.path.stem}  # no parked ones

    def _used_modules(self, file: JobFile) -> set[str]:
        """Return the modules that `file` uses for more than naming their table as an input."""

        def is_used(module: str) -> bool:
            table = self._tables_by_module.get(module)
            of_table = file.imported.get(f"{module}.{table}", set())
            return table is None or bool(file.imported[module] - {table} or of_table & DECIDING)

        used = {module for module in file.imported if module in self.modules and is_used(module)}
        return used | {package for module in used for package in _packages(module) if package in self.modules}

    def logs(self, declaration: Declaration) -> set[str]:
        streams: set[str] = set()
        for source in declaration.inputs:
            streams |= {source.name} if source.table is None else self.logs(source.table)
        return streams


def _parking_texts(declaration: Declaration) -> dict[str, str]:
    zone = (declaration.parked_of or declaration).kind.zone
    texts = (definition_text(expectation.type, expectation.kwargs, zone) for expectation in declaration.parking)
    parts = {f"parking {number}": text for number, text in enumerate(texts, 1)}
    return parts if declaration.parked_of is None else parts | {"rows": "parked ones"}


def _takes_nested(of_input: Mapping[str, Any], names: Collection[str]) -> bool:
    """Return whether a function's column in `names` is an unchanged nested column of the input."""
    called = of_input.get(HANDED_ON, {})
    return any(of_input["read"].get(called.get(name), "").startswith(NESTED_PREFIXES) for name in names)


def load(settings: Settings) -> Project:
    """Load and check the declarations; no JVM, no data. Raises DeclarationError that lists every fault."""
    project, faults = _load_tables(settings, load_contracts(settings))
    if faults := faults or [*groups.faults(settings, project.tables)]:
        raise DeclarationError.all(faults)
    return project


def sound_project(settings: Settings) -> tuple[Project, list[DeclarationError]]:
    """Return the project without tables that depend on faulty declarations; and the faults."""
    contracts, faulty = sound_contracts(settings)
    project, faults = _load_tables(settings, contracts, faulty)
    faults = [*faulty.values(), *faults]
    return project, faults or [*groups.faults(settings, project.tables)]  # otherwise a fault may make one unknown


def _load_tables(
    settings: Settings, contracts: Mapping[str, Contract], faulty: Collection[str] = ()
) -> tuple[Project, list[DeclarationError]]:
    """Load tables other than those over `faulty` streams. Faults of declarations are added only if no file has one."""
    files, faults = _read_files(settings)
    modules, unreadable = _modules(settings, files)
    by_path = {file.path: file for file in files}
    module_faults = {module: [*file.faults()] for module, file in modules.items()}
    cycles = _cycles(files)
    faults += [*unreadable, *chain(*module_faults.values()), *cycles]
    if faults:
        sound = {module for module, of_module in module_faults.items() if not of_module}
        files = [f for f in files if f.module in sound and {*f.imported} & modules.keys() <= sound and not cycles]
    with importing(settings.project):
        declarations, declaration_faults = _declarations(contracts, files, by_path, faulty)
    faults = faults or declaration_faults
    graph = {name: {s.name for s in declared.inputs if not s.is_log} for name, (declared, _) in declarations.items()}
    tables: dict[str, Declaration] = {}
    job_files: dict[str, JobFile] = {}
    for name in TopologicalSorter(graph).static_order():
        if name not in declarations or graph[name] - tables.keys():
            continue
        declared, file = declarations[name]
        try:
            with_parked = [*_with_parked(settings, declared, tables)]
        except DeclarationError as fault:
            faults.append(fault)
            continue
        for table in with_parked:
            if table.parked_of is not None and table.name in declarations:
                what = f"has the name of the table where {name} parks rows"
                faults.append(declarations[table.name][0].fault(what, fix="rename it, with its file"))
            tables[table.name], job_files[table.name] = table, file
    return Project(settings, contracts, tables, job_files, modules), faults


def _declarations(
    contracts: Mapping[str, Contract],
    files: Iterable[JobFile],
    by_path: Mapping[Path, JobFile],
    faulty: Collection[str],
) -> tuple[dict[str, tuple[Declaration, JobFile]], list[DeclarationError]]:
    declarations, faults = dict[str, tuple[Declaration, JobFile]](), list[DeclarationError]()
    for file in files:
        try:
            declared = load_declaration(file, by_path)
        except DeclarationError as fault:
            faults.append(fault)
            continue
        except UpstreamFailed:
            continue
        if faulty and {source.name for source in declared.inputs if source.is_log} & {*faulty}:
            continue
        project_faults = [*_faults(declared, contracts)]
        if declared.name in declarations:
            first = declarations[declared.name][0].where
            fix = "rename one of them, with its file"
            project_faults.append(declared.fault(f"declared twice, first in {first}", fix=fix))
        faults += project_faults
        if not project_faults:
            declarations[declared.name] = declared, file
    return declarations, faults


def _with_parked(settings: Settings, declared: Declaration, tables: Mapping[str, Declaration]) -> Iterator[Declaration]:
    inputs = tuple(s if s.table is None else replace(s, table=tables[s.name]) for s in declared.inputs)
    suite = load_suite(settings, declared.name) if has_parking(settings, declared.name) else None
    parking = () if suite is None else suite.parking
    table = replace(declared, inputs=inputs, parking=parking)
    yield table
    if parking:
        if why := _cannot_park(table):
            raise DeclarationError(
                f"{table.name}: {why}", where=parking[0].where, fix="use severity stop, or filter in the job"
            )
        yield replace(table, name=f"{table.name}{SUFFIX}", kind=PARKED, parked_of=table)


def _cannot_park(table: Declaration) -> str:
    if not table.kind.row_by_row or len(table.inputs) > 1:
        return f"a {table.kind.name} cannot park rows: only kinds that map rows of a single input one by one can"
    if table.kind.needs_refusals:
        return "rows of full dumps cannot be parked: a missing row counts as deleted"
    return ""


def _read_files(settings: Settings) -> tuple[list[JobFile], list[DeclarationError]]:
    files, faults = [], []
    for path in [path for layer in LAYERS for path in files_in(settings.path(f"jobs/{layer}"), ".py")]:
        try:
            files.append(JobFile.read(path))
        except DeclarationError as fault:
            faults.append(fault)
    return files, faults


def _modules(settings: Settings, files: Collection[JobFile]) -> tuple[dict[str, JobFile], list[DeclarationError]]:
    """Return `files` and all files below `jobs/` that they import, by module; and faults of unreadable ones."""
    found, faults = {file.module: file for file in files}, list[DeclarationError]()
    pending, seen = [module for file in files for module in file.imported], {*found}
    layers = {settings.path(f"jobs/{layer}") for layer in LAYERS}
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        pending += _packages(module)
        path = settings.path(module.replace(".", "/"))
        in_order = (path / "__init__.py", path.with_suffix(".py"))  # as Python looks for them
        file = next(filter(Path.is_file, in_order), None)
        if file is not None and file.parent not in layers:
            try:
                found[module] = JobFile.read(file)
            except DeclarationError as fault:
                faults.append(fault)
            else:
                pending += found[module].imported
    return found, faults


def _packages(module: str) -> Iterator[str]:
    """Yield the packages around a module; Python runs their files before it."""
    while module := module.rpartition(".")[0]:
        yield module


def _faults(declared: Declaration, contracts: Mapping[str, Contract]) -> Iterator[DeclarationError]:
    kind = declared.kind.name
    if not declared.doc:
        yield declared.fault("has no docstring", fix="write one that says what one row is, with units")
    if not declared.inputs:
        yield declared.fault("has no input", fix='add one: @table(…, log("a_stream"))')
    yield from _wrong_inputs(declared, contracts)
    if not declared.kind.identity:
        named = 'View(key=(), identity="…")' if kind == "View" else f'{kind}(key="…", …)'
        yield declared.fault("its rows have no identity", fix=f"name the columns that identify a row: {named}")
    try:
        check_column_names(declared.kind.identity)
    except DeclarationError as fault:
        yield declared.fault(fault.what, fix=fault.fix)
    for source in declared.inputs:
        if source.is_log and source.name not in contracts:
            yield declared.fault(f"unknown stream {source.name!r}", fix=did_you_mean(source.name, contracts))


def _wrong_inputs(declared: Declaration, contracts: Mapping[str, Contract]) -> Iterator[DeclarationError]:
    kind, count = declared.kind, len(declared.inputs)
    least, most = kind.inputs
    if declared.inputs and not least <= count <= most:
        exactly = {1: "one input", 2: "two inputs"}.get(least, f"{least} inputs")
        wanted = exactly if least == most else "one or two inputs" if most == 2 else f"{least} or more inputs"
        yield declared.fault(
            f"{kind.name} takes {wanted}, found {count}",
            fix="name one input for each frame, or join in a View",
        )
    timed = all(s.is_log and (s.name not in contracts or contracts[s.name].time) for s in declared.inputs)
    if kind.needs_time and not timed:
        yield declared.fault(
            "late events and is_final need a log's event time, which an input lacks",
            fix='derive it from a log whose contract declares "time", or let late events correct it: late="correct"',
        )


def _cycles(files: list[JobFile]) -> list[DeclarationError]:
    by_module = {file.module: file for file in files}
    graph = {file.module: {*file.imported} & set(by_module) for file in files}
    try:
        TopologicalSorter(graph).prepare()
    except ValueError as error:
        cycle = [by_module[name].path.stem for name in error.args[1]]
        return [
            DeclarationError(
                f"inputs form a cycle: {' → '.join(reversed(cycle))}",
                where=by_module[error.args[1][0]].where,
                fix="a table cannot be derived from itself, not even through other tables",
            )
        ]
    return []
