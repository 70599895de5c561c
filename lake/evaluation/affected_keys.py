"""Which keys of a table the changes of its inputs affect, and the inputs restricted to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lake import cost
from lake.declaration import Declaration, Input
from lake.evaluation.evaluation import Evaluation
from lake.evaluation.inputs import Inputs
from lake.evaluation.pruning import with_keys
from lake.kinds.columns import ORDER, same
from lake.quoting import DUCKDB, SPARK, quoted
from lake.store.log import BROADCAST
from lake.store.scan import distinct, to_arrow, to_frame, within
from lake.store.tables import FeedGap

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Whether a changed row is of a broadcast event that the kind heeds.
MARKED: Final = "_broadcast"


@dataclass(frozen=True)
class Keys:
    """Keys of a table: NOTHING, ALL, or those of `rows`, whose columns are the key's, or some of them.

    `changes`, where the kind can absorb them: the signed rows of the first input, prepared, then all of the others'.
    """

    rows: pa.Table | DataFrame | None
    changes: tuple[DataFrame, ...] | None = None


NOTHING: Final = Keys(None, ())
ALL: Final = Keys(None)


def affected_keys(evaluation: Evaluation) -> Keys:
    """The keys that the changes of the inputs since the table's head affect."""
    inputs, declaration = evaluation.inputs, evaluation.declaration
    try:
        changed = [inputs.changes(source, evaluation.since) for source in declaration.inputs]
        if all(frame is None for frame in changed):
            return NOTHING
        if not declaration.kind.row_by_row:
            return by_inputs(evaluation, changed)
        return _by_rows(evaluation, changed)
    except FeedGap:
        return ALL


def restrict(inputs: Inputs, declaration: Declaration, keys: pa.Table | DataFrame) -> tuple[DataFrame, ...]:
    """The function's rows, prepared, over its inputs restricted to `keys`; broadcast events are always there."""
    from pyspark.sql import functions as F

    wanted = to_frame(inputs.spark, keys) if isinstance(keys, pa.Table) else keys
    hint = F.broadcast(wanted) if isinstance(keys, pa.Table) else wanted
    kind = declaration.kind
    if not kind.row_by_row:
        frames = [inputs.whole(source) for source in declaration.inputs]
        names = [kind.key_of(s.name, f.columns) for s, f in zip(declaration.inputs, frames, strict=True)]
        frames = [
            _narrowed(inputs, source, frame, {k: sql for k, sql in by.items() if k in wanted.columns}, hint)
            for source, frame, by in zip(declaration.inputs, frames, names, strict=True)
        ]
        [rows] = inputs.sides(declaration, frames)
        return (rows.join(hint, same(rows, hint, wanted.columns), "left_semi"),)

    def restricted(frames: Sequence[DataFrame]) -> Iterator[DataFrame]:
        for side, rows in enumerate(inputs.sides(declaration, frames)):
            some = rows.join(hint, same(rows, hint, wanted.columns), "left_semi") if kind.names_key(side) else rows
            yield some if kind.broadcast is None else some.unionByName(_broadcasts(inputs, declaration))

    def made(frames: Sequence[DataFrame]) -> DataFrame:
        return inputs.evaluated(declaration, [*restricted(frames)])

    return tuple(restricted(with_keys(inputs, declaration, keys, made)))


def _narrowed(inputs: Inputs, source: Input, frame: DataFrame, names: dict[str, str], wanted: DataFrame) -> DataFrame:
    """The rows of an input that name one of the keys, and those that name none at all."""
    from pyspark.sql import functions as F

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
    """All broadcast rows that the kind heeds, prepared."""
    (source,) = declaration.inputs
    frame = inputs.broadcasts(source)
    [rows] = inputs.sides(declaration, [inputs.whole(source) if frame is None else frame])
    return rows.where(declaration.kind.broadcast or "false")


def _by_rows(evaluation: Evaluation, changed: Sequence[DataFrame | None]) -> Keys:
    """Of a row-by-row kind: its function over the signed changes."""
    inputs, declaration, kind = evaluation.inputs, evaluation.declaration, evaluation.kind
    frames = [
        inputs.nothing(source) if frame is None else frame
        for source, frame in zip(declaration.inputs, changed, strict=True)
    ]
    sides = inputs.sides(declaration, frames)
    if _many(evaluation):
        if len(sides) > 1 or kind.broadcast is not None or not (kind.absorbs and kind.key):
            return ALL
        return Keys(sides[0].select(*kind.key).distinct(), sides)
    marked = [rows.selectExpr("*", f"coalesce({kind.broadcast or 'false'}, false) as {MARKED}") for rows in sides]
    local = [None if frame is None else to_arrow(rows) for rows, frame in zip(marked, changed, strict=True)]
    if any(rows is not None and pa.compute.any(rows.column(MARKED)).as_py() for rows in local):
        return ALL
    if not any(rows is not None and rows.num_rows for rows in local):
        return NOTHING
    few = [
        sides[i] if rows is None else to_frame(inputs.spark, rows.drop_columns(MARKED)) for i, rows in enumerate(local)
    ]
    return _few(evaluation, few, local)


def _few(evaluation: Evaluation, frames: Sequence[DataFrame], local: Sequence[pa.Table | None]) -> Keys:
    """What changes that are in this process affect: `frames` and `local` are the same rows, a pair an input."""
    inputs, declaration, kind = evaluation.inputs, evaluation.declaration, evaluation.kind
    keys, table = _keys(evaluation, frames, local), evaluation.table
    if isinstance(keys, pa.Table) and not keys.num_rows:
        return NOTHING
    if kind.absorbs:
        first = frames[0] if kind.broadcast is None else frames[0].unionByName(_broadcasts(inputs, declaration))
        wholes = [inputs.whole(source) for source in declaration.inputs] if len(frames) > 1 else []
        return Keys(keys, (first, *(inputs.sides(declaration, wholes)[1:] if wholes else ())))
    if keys is None:
        return Keys(None)
    few = isinstance(keys, pa.Table) and keys.num_rows <= cost.AFFECTED_SHARE * table.rows(table.version())
    return Keys(keys) if few else ALL


def _many(evaluation: Evaluation) -> bool:
    """Whether more rows of an input came or went than one process takes."""
    inputs, sources = evaluation.inputs, evaluation.declaration.inputs
    limit = inputs.project.settings.small_diff_rows
    return any(inputs.size_of_changes(source, evaluation.since) > limit for source in sources)


def _keys(
    evaluation: Evaluation, frames: Sequence[DataFrame], local: Sequence[pa.Table | None]
) -> pa.Table | DataFrame | None:
    kind, key = evaluation.kind, list(evaluation.kind.key)
    if not key:
        return None
    parts: list[pa.Table | DataFrame] = []
    for side, (frame, rows) in enumerate(zip(frames, local, strict=True)):
        if rows is not None and kind.names_key(side):
            parts.append(rows.select(key))
        elif rows is not None and rows.num_rows:
            parts.append(reached(evaluation, side, frame))
    return _together(evaluation, parts)


def _together(evaluation: Evaluation, parts: Sequence[pa.Table | DataFrame]) -> pa.Table | DataFrame:
    """Keys of several inputs, distinct; in this process's memory where all of them are."""
    if few := [part for part in parts if isinstance(part, pa.Table)]:
        local = distinct(pa.concat_tables(few, promote_options="permissive"))
        if len(few) == len(parts):
            return local
        parts = [to_frame(evaluation.spark, local), *(part for part in parts if not isinstance(part, pa.Table))]
    first, *others = parts
    return reduce(lambda a, b: a.unionByName(b), others, first).distinct()


def reached(evaluation: Evaluation, side: int, changes: DataFrame) -> pa.Table | DataFrame:
    """The keys that signed `changes` of input number `side` reach, whose rows do not name them.

    In this process's memory where they are no more than `small_diff_rows`.
    """
    from pyspark.sql import functions as F

    inputs, declaration, table = evaluation.inputs, evaluation.declaration, evaluation.table
    kind, reaching = evaluation.kind, evaluation.kind.reaching(side, changes)
    limit = inputs.project.settings.small_diff_rows
    if kind.absorbs:
        version, others = table.version(), to_arrow(reaching)
        keys = table.keys_where(kind.key, others, kind.reaches(side, DUCKDB), version, limit=limit)
        if keys is not None:
            return keys
        first, reaching = table.read(evaluation.spark, version), to_frame(evaluation.spark, others)
    else:
        first, *_ = inputs.sides(declaration, [inputs.whole(source) for source in declaration.inputs])
    rows = first.alias("t").join(F.broadcast(reaching).alias("k"), F.expr(kind.reaches(side, SPARK)), "left_semi")
    some = rows.select(*kind.key).distinct()
    if kind.absorbs:
        return some
    return to_arrow(some) if inputs.size(declaration.inputs[0]) <= limit else within(some, limit)


def by_inputs(evaluation: Evaluation, changed: Sequence[DataFrame | None]) -> Keys:
    """Of a kind that sees whole inputs: the keys that the changed rows name, by the part that all of them name."""
    from pyspark.sql import functions as F

    inputs, declaration, kind = evaluation.inputs, evaluation.declaration, evaluation.kind
    sources = [(source, f) for source, f in zip(declaration.inputs, changed, strict=True) if f is not None]
    maps = [kind.key_of(source.name, frame.columns) for source, frame in sources]
    common = [k for k in kind.key if all(k in names for names in maps)]
    if not common:
        return ALL
    many = _many(evaluation)
    parts: list[pa.Table | DataFrame] = []
    for (source, frame), names in zip(sources, maps, strict=True):
        if inputs.has_broadcasts(source) and not frame.where(F.col(f"{ORDER}._bucket") == BROADCAST).isEmpty():
            return ALL
        some = frame.selectExpr(*[f"{names[k]} as {quoted(k, SPARK)}" for k in common]).distinct()
        parts.append(within(some, inputs.project.settings.small_diff_rows) if many else to_arrow(some))
    keys = _together(evaluation, parts)
    if not isinstance(keys, pa.Table):
        return ALL
    if not keys.num_rows:
        return NOTHING
    large = keys.num_rows > cost.AFFECTED_SHARE * evaluation.table.rows(evaluation.since.version)
    return ALL if large else Keys(keys)
