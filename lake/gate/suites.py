"""Loader of the suites of all tables."""

from __future__ import annotations

import pyarrow as pa

from lake.errors import DeclarationError, did_you_mean
from lake.gate.row_tests import find_unsuitable
from lake.kinds.columns import visible
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.quality.suite import Suite, read_suite


def load_suites(project: Project) -> dict[str, Suite]:
    """Return the suite of each table with a quality file. Raises DeclarationError with all faults.

    Columns are checked if the table is built by its current definition.
    """
    suites: dict[str, Suite] = {}
    faults: list[DeclarationError] = []
    for file in sorted(project.settings.path("quality").glob("*.json")):
        declaration = project.tables.get(file.stem)
        if declaration is None:
            fix = did_you_mean(file.stem, project.tables)
            faults.append(DeclarationError(f"no table {file.stem!r}", where=f"quality/{file.name}", fix=fix))
            continue
        try:
            suite = read_suite(file)
        except DeclarationError as fault:
            faults.append(fault)
            continue
        suites[declaration.name] = suite
        if schema := _schema(project, declaration):
            faults += [*suite.faults(schema.names)] or [
                *find_unsuitable(suite.expectations, schema, declaration.kind.zone)
            ]
    if faults:
        raise DeclarationError.all(faults)
    return suites


def _schema(project: Project, declaration: Declaration) -> pa.Schema | None:
    table = project.table(declaration)
    head = table.head()
    if head is None or not project.is_built(declaration, head):
        return None
    schema = table.schema()
    return pa.schema([schema.field(name) for name in visible(schema.names)])
