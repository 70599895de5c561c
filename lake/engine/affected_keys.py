"""Keys of a table that the changes of its inputs affect, and the inputs restricted to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lake import cost
from lake.engine.inputs import Evaluation, Inputs
from lake.engine.pruning import inputs_with_keys
from lake.kinds.columns import ORDER
from lake.lazy import Column, DataFrame, F, pa, pc
from lake.project.declaration import Declaration, Input
from lake.store.log_rows import BROADCAST
from lake.store.rows import Rows
from lake.store.scan import to_arrow, to_frame
from lake.store.tables import FeedGap
from lake.text import DUCKDB, SPARK, quoted

MARKED: Final = "_broadcast"
"""Column that marks changed rows which the kind uses as broadcast events."""


@dataclass(frozen=True)
class AffectedKeys:
    """Keys of a table: NOTHING, ALL, or those of `rows`, which have at least one column of the key.

    `changes`: if the kind absorbs, the first input's signed changes and all rows of the others, prepared.
    """

    rows: Rows | None
    changes: tuple[DataFrame, ...] | None = None


NOTHING: Final = AffectedKeys(None, ())
ALL: Final = AffectedKeys(None)


def affected_keys(evaluation: Evaluation) -> AffectedKeys:
    inputs, declaration = evaluation.inputs, evaluation.declaration
    try:
        changed = [inputs.changes(source, evaluation.since) for source in declaration.inputs]
        if all(frame is None for frame in changed):
            return NOTHING
        if not declaration.kind.row_by_row:
            return keys_by_inputs(evaluation, changed)
        return _by_rows(evaluation, changed)
    except FeedGap:
        return ALL


def restrict(inputs: Inputs, declaration: Declaration, keys: Rows) -> tuple[DataFrame, ...]:
    """Return the function's prepared rows for `keys` and broadcast events alone."""
    wanted, kind = Rows(keys.join_frame(inputs.spark)), declaration.kind
    if not kind.row_by_row:
        frames = [_narrowed(inputs, declaration, source, wanted.held) for source in declaration.inputs]
        [rows] = inputs.sides(declaration, frames)
        return (wanted.matching(rows),)

    def restricted(frames: Sequence[DataFrame]) -> Iterator[DataFrame]:
        for side, rows in enumerate(inputs.sides(declaration, frames)):
            matching = wanted.matching(rows) if kind.names_key(side) else rows
            yield matching if kind.broadcast is None else matching.unionByName(_broadcasts(inputs, declaration))

    def evaluate(frames: Sequence[DataFrame]) -> DataFrame:
        return inputs.evaluated(declaration, [*restricted(frames)])

    return tuple(restricted(inputs_with_keys(inputs, declaration, keys, evaluate)))


def _narrowed(inputs: Inputs, declaration: Declaration, source: Input, wanted: DataFrame) -> DataFrame:
    frame = inputs.whole(source)
    names = declaration.kind.key_of(source.name, frame.columns)
    names = {key: sql for key, sql in names.items() if key in wanted.columns}
    if not names:
        return frame
    keys = wanted.select(*[F.col(key).alias(f"_affected_{key}") for key in names]).distinct()
    condition: Column = F.lit(True)
    for key, sql in names.items():
        condition = condition & F.expr(sql).eqNullSafe(F.col(f"_affected_{key}"))
    if inputs.has_broadcasts(source):
        condition = condition | (F.col(f"{ORDER}._bucket") == BROADCAST)
    return frame.join(keys, condition, "left_semi")


def _broadcasts(inputs: Inputs, declaration: Declaration) -> DataFrame:
    (source,) = declaration.inputs
    frame = inputs.broadcasts(source)
    [rows] = inputs.sides(declaration, [inputs.whole(source) if frame is None else frame])
    return rows.where(declaration.kind.broadcast or "false")


def _by_rows(evaluation: Evaluation, changed: Sequence[DataFrame | None]) -> AffectedKeys:
    inputs, declaration, kind = evaluation.inputs, evaluation.declaration, evaluation.kind
    sides = inputs.sides(declaration, inputs.filled(declaration, changed))
    if _are_many(evaluation):
        if len(sides) > 1 or kind.broadcast is not None or not (kind.absorbs and kind.key):
            return ALL
        return AffectedKeys(Rows(sides[0]).select(kind.key).distinct(), sides)
    marked = [rows.selectExpr("*", f"coalesce({kind.broadcast or 'false'}, false) as {MARKED}") for rows in sides]
    local = [None if frame is None else to_arrow(rows) for rows, frame in zip(marked, changed, strict=True)]
    if any(rows is not None and pc.any(rows.column(MARKED)).as_py() for rows in local):
        return ALL
    if not any(rows is not None and rows.num_rows for rows in local):
        return NOTHING
    few = [
        sides[i] if rows is None else to_frame(inputs.spark, rows.drop_columns(MARKED)) for i, rows in enumerate(local)
    ]
    return _keys_of_few(evaluation, few, local)


def _keys_of_few(evaluation: Evaluation, frames: Sequence[DataFrame], local: Sequence[pa.Table | None]) -> AffectedKeys:
    inputs, declaration, kind = evaluation.inputs, evaluation.declaration, evaluation.kind
    keys = _keys(evaluation, frames, local) if kind.key else None
    if keys is not None and keys.is_empty:
        return NOTHING
    if kind.absorbs:
        first = frames[0] if kind.broadcast is None else frames[0].unionByName(_broadcasts(inputs, declaration))
        wholes = [inputs.whole(source) for source in declaration.inputs] if len(frames) > 1 else []
        return AffectedKeys(keys, (first, *(inputs.sides(declaration, wholes)[1:] if wholes else ())))
    return ALL if keys is None else _unless_many(evaluation, keys)


def _unless_many(evaluation: Evaluation, keys: Rows) -> AffectedKeys:
    if keys.is_empty:
        return NOTHING
    most = cost.AFFECTED_SHARE * evaluation.table.rows(evaluation.since.version)
    return AffectedKeys(keys) if keys.in_memory is not None and keys.in_memory.num_rows <= most else ALL


def _are_many(evaluation: Evaluation) -> bool:
    inputs, sources = evaluation.inputs, evaluation.declaration.inputs
    limit = inputs.collected_rows
    return any(inputs.size_of_changes(source, evaluation.since) > limit for source in sources)


def _keys(evaluation: Evaluation, frames: Sequence[DataFrame], local: Sequence[pa.Table | None]) -> Rows:
    parts = []
    for side, (frame, rows) in enumerate(zip(frames, local, strict=True)):
        if rows is not None and evaluation.kind.names_key(side):
            parts.append(Rows(rows).select(evaluation.kind.key))
        elif rows is not None and rows.num_rows:
            parts.append(reached_keys(evaluation, side, frame))
    return parts[0].union(*parts[1:]).distinct()


def reached_keys(evaluation: Evaluation, side: int, changes: DataFrame) -> Rows:
    """Return the keys that `changes` of input number `side` affect although its rows do not name the key."""
    inputs, declaration, table = evaluation.inputs, evaluation.declaration, evaluation.table
    kind, reaching = evaluation.kind, evaluation.kind.reaching(side, changes)
    limit = inputs.collected_rows
    if kind.absorbs:
        version, others = table.version(), to_arrow(reaching)
        keys = table.keys_where(kind.key, others, kind.reaches(side, DUCKDB), version, limit=limit)
        if keys is not None:
            return Rows(keys)
        first, reaching = table.read(evaluation.spark, version), to_frame(evaluation.spark, others)
    else:
        first, *_ = inputs.sides(declaration, [inputs.whole(source) for source in declaration.inputs])
    rows = first.alias("t").join(F.broadcast(reaching).alias("k"), F.expr(kind.reaches(side, SPARK)), "left_semi")
    some = Rows(rows).select(kind.key).distinct()
    if kind.absorbs:
        return some
    return Rows(some.arrow()) if inputs.size(declaration.inputs[0]) <= limit else some.within(limit)


def keys_by_inputs(evaluation: Evaluation, changed: Sequence[DataFrame | None]) -> AffectedKeys:
    """Return the keys in changed rows, by the key columns that all changed inputs have; ALL if none."""
    inputs, declaration, kind = evaluation.inputs, evaluation.declaration, evaluation.kind
    sources = [(source, f) for source, f in zip(declaration.inputs, changed, strict=True) if f is not None]
    maps = [kind.key_of(source.name, frame.columns) for source, frame in sources]
    common = [k for k in kind.key if all(k in names for names in maps)]
    if not common:
        return ALL
    many = _are_many(evaluation)
    parts = []
    for (source, frame), names in zip(sources, maps, strict=True):
        if inputs.has_broadcasts(source) and not frame.where(F.col(f"{ORDER}._bucket") == BROADCAST).isEmpty():
            return ALL
        some = Rows(frame.selectExpr(*[f"{names[k]} as {quoted(k, SPARK)}" for k in common])).distinct()
        parts.append(some.within(inputs.collected_rows) if many else Rows(some.arrow()))
    return _unless_many(evaluation, parts[0].union(*parts[1:]).distinct())
