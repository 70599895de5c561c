"""Lineage: the input rows behind a table's row, and their roles.

A row-by-row kind carries places of rows through the declared function, so evaluating it for the requested keys yields
exactly those rows. A View keeps no places: its lineage is the input rows with its key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from lake.engine.inputs import Inputs
from lake.engine.lookup import Few, Finding, Lookup, Values
from lake.engine.pruning import handed_on, narrowed
from lake.kinds.columns import ORDER, SIGN
from lake.kinds.kind import INTO, ROLE, Kind
from lake.kinds.snapshots import only_events
from lake.lazy import DataFrame, F
from lake.project.declaration import Declaration, Input
from lake.store.log_rows import BROADCAST
from lake.text import SPARK, quoted

VOIDED: Final = "voided"
PLAIN: Final = re.compile("`([^`]+)`")
WAS, IS = "was", "is"  # the images of a table's row before and after a change


def trace(inputs: Inputs, declaration: Declaration, rows: Sequence[Values], few: Few) -> list[list[Finding]]:
    """Return, for each input and each of `rows` (with state columns), the rows behind it."""
    if not declaration.kind.row_by_row:
        return [_view_lookup(inputs, declaration.kind, source, rows).findings(few) for source in declaration.inputs]
    keeping_late = replace(declaration, kind=declaration.kind.keeping_late)
    names = handed_on(inputs, keeping_late)
    frames = [
        narrowed(inputs, s, names[side], _key_values(declaration, side, rows))
        for side, s in enumerate(keeping_late.inputs)
    ]
    sides = inputs.sides(keeping_late, frames)
    found = [_traced_lookup(declaration, sides, side, rows).findings(few) for side in range(len(sides))]
    void_events = [inputs.voided(source) for source in declaration.inputs]
    voided = _findings_by_key(inputs, keeping_late, void_events, rows, few, role=lambda _: f"'{VOIDED}'")
    return [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(found, voided, strict=True)]


def trace_changes(
    inputs: Inputs, declaration: Declaration, frames: Sequence[DataFrame | None], rows: Sequence[Values], few: Few
) -> list[list[Finding]]:
    """Return, for each of `frames` (None: no change) and each of `rows`, the signed changes that concern it.

    A row depends on the other rows of its key, so all changes of the key are returned, without roles.
    """
    kind = declaration.kind
    if not kind.row_by_row:
        return [
            [Finding() for _ in rows]
            if frame is None
            else _lookup_by_name(inputs, kind, source, frame, rows, role=_change_role(source)).findings(few)
            for source, frame in zip(declaration.inputs, frames, strict=True)
        ]
    keeping_late = replace(declaration, kind=kind.keeping_late)
    return _findings_by_key(inputs, keeping_late, frames, rows, few, role=_change_role)


def _view_lookup(inputs: Inputs, kind: Kind, source: Input, rows: Sequence[Values]) -> Lookup:
    names = kind.key_of(source.name, inputs.no_stored_rows(source).columns)
    plain = {name: match[1] for name, sql in names.items() if (match := PLAIN.fullmatch(sql))}
    wanted = [{name: row[name] for name in plain if name in row} for row in rows]
    return _lookup_by_name(inputs, kind, source, narrowed(inputs, source, plain, wanted), rows)


def _change_role(source: Input) -> str:
    return f"if({SIGN} < 0, '{VOIDED}', null)" if source.is_log else f"if({SIGN} < 0, '{WAS}', '{IS}')"


def _traced_lookup(declaration: Declaration, sides: Sequence[DataFrame], side: int, rows: Sequence[Values]) -> Lookup:
    kind = declaration.kind
    lookups = [_key_lookup(declaration, prepared, number, rows) for number, prepared in enumerate(sides)]
    matching = [replace(keys, broadcast=kind.broadcast or "false").matching() for keys in lookups]
    traced = kind.traced_among(matching, side)
    into = traced.select(f"{INTO}.*").columns if INTO in traced.columns else []
    wanted = [kind.lookup_values(row, side) for row in rows]
    names = {column: quoted(column, SPARK) for column in _column_names(wanted)}
    columns = {column: f"{INTO}.{name}" if column in into else name for column, name in names.items()}
    return Lookup(traced, columns, wanted, kind.broadcast or "false")


def _findings_by_key(  # noqa: PLR0913 the rows of which inputs, for which rows
    inputs: Inputs,
    declaration: Declaration,
    frames: Sequence[DataFrame | None],
    rows: Sequence[Values],
    few: Few,
    *,
    role: Callable[[Input], str],
) -> list[list[Finding]]:
    findings = [[Finding() for _ in rows] for _ in frames]
    if all(frame is None for frame in frames):
        return findings
    for side, prepared in enumerate(inputs.sides(declaration, inputs.filled(declaration, frames))):
        if frames[side] is not None:
            what = f"cast({role(declaration.inputs[side])} as string)"
            marked = only_events(prepared).withColumn(ROLE, F.expr(what))
            findings[side] = _key_lookup(declaration, marked, side, rows).findings(few)
    return findings


def _key_lookup(declaration: Declaration, prepared: DataFrame, side: int, rows: Sequence[Values]) -> Lookup:
    wanted = _key_values(declaration, side, rows)
    return Lookup(prepared, {column: quoted(column, SPARK) for column in _column_names(wanted)}, wanted)


def _key_values(declaration: Declaration, side: int, rows: Sequence[Values]) -> list[Values | None]:
    kind = declaration.kind
    wanted: list[Values | None] = [kind.lookup_values(row, side) for row in rows]
    if not kind.names_key(side):
        return wanted
    return [None if row is None else {c: v for c, v in row.items() if c in kind.key} for row in wanted]


def _lookup_by_name(  # noqa: PLR0913, PLR0917 the rows of which input, for which rows
    inputs: Inputs, kind: Kind, source: Input, frame: DataFrame, rows: Sequence[Values], role: str = "null"
) -> Lookup:
    names = kind.key_of(source.name, frame.columns)
    wanted = [{column: row[column] for column in names if column in row} for row in rows]
    marked = frame.withColumn(ROLE, F.expr(f"cast({role} as string)"))
    broadcast = f"{ORDER}._bucket = {BROADCAST}" if inputs.has_broadcasts(source) else "false"
    return Lookup(marked, {column: names[column] for column in _column_names(wanted)}, wanted, broadcast)


def _column_names(wanted: Sequence[Values | None]) -> list[str]:
    return list(next((row for row in wanted if row is not None), ()))
