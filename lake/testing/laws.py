"""The laws of a kind, tried on rows at hand: slice by slice it makes the table that it makes of everything at once.

Kinds are local to keys, so each key of one frame can be a history of its own: thousands run in a few jobs.
`parts` are slices of a log in its order: signed rows of the declared function, or one frame for each input.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from lake.kinds.columns import AGAIN, SIGN, TIME, same
from lake.kinds.kind import Kind
from lake.quoting import SPARK
from lake.store.scan import distinct, to_arrow, to_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Part = DataFrame | Sequence[DataFrame]


def at_once(kind: Kind, parts: Sequence[Part]) -> DataFrame:
    """The table from all parts together."""
    sides = _sides(kind, parts)
    return kind.at_horizon(kind.evaluate(*map(_netted, sides)), _horizon(sides[0]))


def by_slices(kind: Kind, parts: Sequence[Part]) -> DataFrame:
    """The table after the parts, each advanced to from what was there, as the engine does it."""
    parts = [[local(rows) for rows in _frames(part)] for part in parts]
    table = local(at_once(kind, parts[:1]))
    for number in range(2, len(parts) + 1):
        table = _advanced(kind, table, parts[:number])
    return table


def local(rows: DataFrame) -> DataFrame:
    """`rows` without the plan that made them, in one partition: small jobs need no shuffle."""
    return to_frame(rows.sparkSession, to_arrow(rows))


def _advanced(kind: Kind, table: DataFrame, parts: Sequence[Part]) -> DataFrame:
    whole, changes = [_netted(side) for side in _sides(kind, parts)], _sides(kind, parts[-1:])
    horizon = _horizon(_sides(kind, parts)[0]) if kind.needs_time else None
    news = kind.broadcast is not None and not changes[0].where(kind.broadcast).isEmpty()
    if news or not (kind.key or kind.absorbs):
        return local(kind.at_horizon(kind.evaluate(*whole), horizon))
    old, rest = table, table.limit(0)
    if kind.key:
        keys = local(reduce(lambda a, b: a.unionByName(b), _touched(kind, table, changes, whole[0])).distinct())
        old = table.join(keys, same(table, keys, kind.key), "left_semi")
        rest = kind.at_horizon(table.join(keys, same(table, keys, kind.key), "left_anti"), horizon)
    elif all(rows.isEmpty() for rows in changes):
        return local(kind.at_horizon(table, horizon))
    if not kind.absorbs:
        return local(kind.at_horizon(kind.evaluate(*_restricted(kind, whole, keys)), horizon).unionByName(rest))
    heard = changes[0] if kind.broadcast is None else changes[0].unionByName(whole[0].where(kind.broadcast))
    new = kind.at_horizon(kind.absorb(old, heard, *whole[1:]), horizon)
    both = to_arrow(new.unionByName(rest, allowMissingColumns=True))
    again = pa.compute.fill_null(both.column(AGAIN), False)
    kept = to_frame(table.sparkSession, both.filter(pa.compute.invert(again)).drop_columns(AGAIN))
    if not pa.compute.any(again).as_py():
        return kept
    if not kind.key:
        return local(kind.at_horizon(kind.evaluate(*whole), horizon))
    keys_again = distinct(both.filter(again).select(list(kind.key)))
    evaluated = kind.evaluate(*_restricted(kind, whole, to_frame(table.sparkSession, keys_again)))
    return local(kept.unionByName(kind.at_horizon(evaluated, horizon)))


def _touched(kind: Kind, table: DataFrame, changes: Sequence[DataFrame], first: DataFrame) -> list[DataFrame]:
    found = []
    for side, rows in enumerate(changes):
        if kind.names_key(side):
            found.append(rows.select(*kind.key))
        else:
            from pyspark.sql.functions import expr

            rows_of, reach = (table if kind.absorbs else first).alias("t"), kind.reaching(side, rows).alias("k")
            found.append(rows_of.join(reach, expr(kind.reaches(side, SPARK)), "left_semi").select(*kind.key))
    return found


def _restricted(kind: Kind, whole: Sequence[DataFrame], keys: DataFrame) -> list[DataFrame]:
    found = []
    for side, rows in enumerate(whole):
        some = rows.join(keys, same(rows, keys, kind.key), "left_semi") if kind.names_key(side) else rows
        if kind.broadcast is not None:
            some = some.unionByName(rows.where(kind.broadcast))
        found.append(some)
    return found


def _sides(kind: Kind, parts: Sequence[Part]) -> list[DataFrame]:
    """For each input the prepared rows of all parts."""
    split = map(_frames, parts)
    joined = [reduce(lambda a, b: a.unionByName(b), frames).coalesce(1) for frames in zip(*split, strict=True)]
    return [kind.prepare(rows, side) for side, rows in enumerate(joined)]


def _frames(part: Part) -> list[DataFrame]:
    return list(part) if isinstance(part, Sequence) else [part]


def _netted(rows: DataFrame) -> DataFrame:
    """The rows that are there: each as often as it came more than it went."""
    from pyspark.sql import functions as F

    columns = [column for column in rows.columns if column != SIGN]
    there = rows.groupBy(*columns).agg(F.sum(SIGN).alias(SIGN)).where(f"{SIGN} > 0")
    return there.withColumn(SIGN, F.lit(1))


def _horizon(rows: DataFrame) -> datetime | None:
    if TIME not in rows.columns:
        return None
    found: datetime | None = rows.agg({TIME: "max"}).head()[0]  # type: ignore[index]
    return found
