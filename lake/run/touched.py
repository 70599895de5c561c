"""Which keys of a table the changes of its inputs touch, and the inputs restricted to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lake.declaration import Declaration
from lake.kinds.kind import SIGN, same
from lake.kinds.view import View
from lake.run.inputs import Inputs
from lake.store.delta import Position
from lake.store.scan import to_frame
from lake.store.tables import FeedGap, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Above this share of a table's rows, evaluating all of it costs less than picking the touched keys.
LARGE_SHARE: Final = 0.2


@dataclass(frozen=True)
class Touched:
    """The touched keys: a frame whose columns are the key's, or some of them; None means all.

    `changes` are the signed rows of the function, prepared, for kinds that can absorb; `retracts` tells whether some
    may be gone. `small` says that the keys are few, so that what follows is.
    """

    keys: Any
    changes: DataFrame | None = None
    retracts: bool = False
    small: bool = False


def touched(inputs: Inputs, declaration: Declaration, table: Table, position: Position) -> Touched | None:
    """What the changes of the inputs since `position` touch; None where nothing changed."""
    try:
        if isinstance(declaration.kind, View):
            return _by_view(inputs, declaration, declaration.kind, table, position)
        return _by_rows(inputs, declaration, position)
    except FeedGap:
        return Touched(None)


def restrict(inputs: Inputs, declaration: Declaration, keys: pa.Table | DataFrame) -> DataFrame:
    """The function's rows, prepared, over its inputs restricted to `keys`."""
    from pyspark.sql import functions as F

    wanted = to_frame(inputs.spark, keys) if isinstance(keys, pa.Table) else keys
    hint = F.broadcast(wanted) if isinstance(keys, pa.Table) else wanted
    frames = [inputs.whole(source) for source in declaration.inputs]
    kind = declaration.kind
    if isinstance(kind, View):
        for i, (source, frame) in enumerate(zip(declaration.inputs, frames, strict=True)):
            names = {k: sql for k, sql in kind.key_of(source.name, frame.columns).items() if k in wanted.columns}
            if names:
                condition = F.lit(True)
                for key, sql in names.items():
                    condition = condition & F.expr(sql).eqNullSafe(F.col(f"_touched.`{key}`"))
                some = hint.select(*names).distinct().alias("_touched")
                frames[i] = frame.join(some, condition, "left_semi")
    rows = inputs.rows(declaration, frames)
    return rows.join(hint, same(rows, hint, wanted.columns), "left_semi")


def _by_rows(inputs: Inputs, declaration: Declaration, position: Position) -> Touched | None:
    """Of a row-by-row kind: its function over the signed changes."""
    (source,) = declaration.inputs
    changed = inputs.changes(source, position)
    if changed is None:
        return None
    rows = inputs.rows(declaration, [changed])
    key = list(declaration.kind.key)
    before = position.data["inputs"][source.name]
    limit = inputs.project.settings.small_diff_rows
    if source.is_log and inputs.size(source, after=before) > limit:
        return Touched(rows.select(*key).distinct() if key else None, rows, retracts=True)
    local = rows.toArrow()
    if not local.num_rows:
        return None
    retracts = pa.compute.min(local.column(SIGN)).as_py() < 0
    keys = local.select(key).group_by(key).aggregate([]) if key else None
    return Touched(keys, to_frame(inputs.spark, local), retracts, small=True)


def _by_view(inputs: Inputs, declaration: Declaration, kind: View, table: Table, position: Position) -> Touched | None:
    """Of a view: the keys that the changed rows name. An input that names only part of the key touches by that part."""
    changed = [(s, frame) for s in declaration.inputs if (frame := inputs.changes(s, position)) is not None]
    if not changed:
        return None
    maps = [kind.key_of(source.name, frame.columns) for source, frame in changed]
    common = [k for k in kind.key if all(k in names for names in maps)]
    if not common:
        return Touched(None)
    parts = [
        frame.selectExpr(*[f"{names[k]} as `{k}`" for k in common]).distinct().toArrow()
        for (_, frame), names in zip(changed, maps, strict=True)
    ]
    keys = pa.concat_tables(parts).group_by(common).aggregate([])
    if not keys.num_rows:
        return None
    if keys.num_rows > LARGE_SHARE * table.rows(position.version):
        return Touched(None)
    return Touched(keys, small=True)
