"""What the columns of a table mean, and in what units they count. Of a column, the first of these that says it:

1. a line `column: meaning` in the docstring of the table's job;
2. what is said of the column of an input that it is: by the contract of a log, or of another table as here, and so
   through any number of tables. Only a column that is handed on as it is has that meaning: see `columns`;
3. the kind, of a column that it makes itself.

A unit is that of the contract's field that a column is, whatever is said of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from lake.declaration import Declaration
from lake.evaluation.inputs import Inputs
from lake.quality.parking import COLUMN_COMMENTS
from lake.store.table_head import COMMENT, HANDED_ON, UNIT, Columns, Meanings


def meanings(inputs: Inputs, declaration: Declaration, columns: Columns) -> Meanings:
    """What the columns of the declared table mean, of whose inputs its head says `columns`."""
    lines = declaration.comments
    handed_on = _handed_on(inputs, declaration, columns)
    of_kind = COLUMN_COMMENTS if declaration.parked_of is not None else declaration.kind.meanings
    texts = {name: {COMMENT: text} for name, text in {**of_kind, **lines}.items()}
    for name, meaning in handed_on.items():
        texts[name] = {**meaning, **({COMMENT: lines[name]} if name in lines else {})}
    return {name: meaning for name, meaning in texts.items() if meaning}


def _handed_on(inputs: Inputs, declaration: Declaration, columns: Columns) -> dict[str, Mapping[str, str]]:
    """What the inputs say of those columns of the table that are theirs."""
    handed: dict[str, Mapping[str, str]] = {}
    for source in declaration.inputs:
        theirs = _of_log(inputs, source.name) if source.table is None else _of_table(inputs, source.table)
        for column, its in columns.get(source.name, {}).get(HANDED_ON, {}).items():
            handed[column] = theirs.get(its, {})
    return handed


def _of_log(inputs: Inputs, stream: str) -> Meanings:
    fields = inputs.project.contracts[stream].fields
    documented = {field.name: {COMMENT: field.doc, UNIT: field.unit} for field in fields}
    return {name: {key: text for key, text in meaning.items() if text} for name, meaning in documented.items()}


def _of_table(inputs: Inputs, declaration: Declaration) -> Meanings:
    """What an input's columns mean; asked once it stands at the cut."""
    if declaration.name not in inputs.meanings:
        head = inputs.table(declaration).head()
        inputs.meanings[declaration.name] = meanings(inputs, declaration, head.columns if head else {})
    return inputs.meanings[declaration.name]
