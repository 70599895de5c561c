"""Inputs of a table, narrowed to the rows that may concern some keys before Spark reads them.

Most functions hand the key's columns on unchanged (see `columns.tags`). Then the rows of a key are found in the input's
files in a tenth of the time of a Spark scan. Keys that contain the event time also exclude files and parts of files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from lake import cost
from lake.contracts.contract import Contract
from lake.engine.analysis import physical_plan, unions
from lake.engine.columns import scanned_columns, tagged, tags
from lake.engine.inputs import Inputs
from lake.engine.lookup import Values
from lake.lazy import Column, DataFrame, F, pa, pc
from lake.project.declaration import Declaration, Input
from lake.session.in_process.mode import in_process
from lake.store.rows import Rows
from lake.store.scan import Span
from lake.text import MICROSECOND, SPARK, quoted

TIMES: Final = ("timestamp", "date")
FAR: Final = 1 << 62
"""Microseconds beyond every event time; SQL can still add to it and subtract from it."""


def inputs_with_keys(
    inputs: Inputs, declaration: Declaration, keys: Rows, evaluate: Callable[[list[DataFrame]], DataFrame]
) -> list[DataFrame]:
    """Return the inputs of a row-by-row kind with at least the rows of `keys`; large logs are narrowed.

    In a large log, columns that `evaluate` does not read may be null.
    """
    sources, large = declaration.inputs, _large(inputs, declaration)
    if not large:
        return [inputs.whole(source) for source in sources]
    names = handed_on(inputs, declaration)
    times = {side: _times(inputs, declaration, side, names[side], keys) for side in large}
    if keys.in_memory is None or keys.in_memory.num_rows > cost.PRUNED_KEYS:
        return [inputs.whole(source, times.get(side)) for side, source in enumerate(sources)]
    # Only columns that are handed on: a window may begin before the years of Python.
    wanted = {side: keys.in_memory.select([c for c in keys.columns if c in names[side]]).to_pylist() for side in large}
    wide = in_process(inputs.spark) or inputs.file_size(declaration) > cost.PICKED_BYTES
    picked = wide and max(large.values()) > cost.SOUGHT_ROWS
    only = file_columns_read(inputs, declaration, evaluate) if picked else {}
    return [
        narrowed(inputs, source, names[side], wanted[side], times[side], only.get(source.name))
        if side in large
        else inputs.whole(source)
        for side, source in enumerate(sources)
    ]


def file_columns_read(
    inputs: Inputs, declaration: Declaration, evaluate: Callable[[list[DataFrame]], DataFrame]
) -> dict[str, frozenset[str]]:
    probes = [inputs.probe_files(source, side) for side, source in enumerate(declaration.inputs)]
    frames, names = zip(*probes, strict=True)
    read: dict[str, frozenset[str]] = {}
    for source, columns in zip(
        declaration.inputs, scanned_columns(physical_plan(evaluate([*frames])), names), strict=True
    ):
        if source.is_log:
            read[source.name] = read.get(source.name, frozenset()) | columns
    return read


def times_read(inputs: Inputs, declaration: Declaration, keys: Rows) -> dict[str, Span | None]:
    """Return the event times that `inputs_with_keys` reads of each log, over all inputs of it; None for all."""
    large = _large(inputs, declaration) if declaration.kind.row_by_row else {}
    names = handed_on(inputs, declaration) if large else []
    read: dict[str, Span | None] = {}
    for side, source in enumerate(declaration.inputs):
        if source.is_log:
            times = _times(inputs, declaration, side, names[side], keys) if side in large else None
            read[source.name] = _both(read[source.name], times) if source.name in read else times
    return read


def _both(one: Span | None, other: Span | None) -> Span | None:
    """Return a span that contains both; None, all times, if one is None."""
    return None if one is None or other is None else (min(one[0], other[0]), max(one[1], other[1]))


def _large(inputs: Inputs, declaration: Declaration) -> dict[int, int]:
    """Return the logs worth narrowing: {input number: rows}."""
    sizes = {
        side: inputs.size(source)
        for side, source in enumerate(declaration.inputs)
        if source.is_log and declaration.kind.names_key(side)
    }
    return {side: rows for side, rows in sizes.items() if rows > cost.PRUNED_LOG_ROWS}


def _times(inputs: Inputs, declaration: Declaration, side: int, names: Mapping[str, str], keys: Rows) -> Span | None:
    """Return the times of all events of `keys` in a log; None if unknown."""
    source = declaration.inputs[side]
    time = event_time(inputs.project.contracts[source.name])
    if time is None or time not in inputs.searchable(source):
        return None
    bounds = {column: of for column, of in declaration.kind.time_bounds.items() if names.get(of.on) == time}
    spans = []
    for column, (first, last) in _ranges(keys, [column for column in bounds if column in keys.columns]):
        before, after = bounds[column].before // MICROSECOND, bounds[column].after // MICROSECOND
        spans.append((first - before, last + after))
    if not spans:
        return None
    return max(-FAR, *(first for first, _ in spans)), min(FAR, *(last for _, last in spans))


def event_time(contract: Contract) -> str | None:
    fields = {field.name: field.type for field in contract.fields}
    return contract.time if contract.clock is None and fields.get(contract.time or "") in TIMES else None


def _ranges(keys: Rows, columns: Sequence[str]) -> Iterator[tuple[str, Span]]:
    """Yield the least and greatest instant of `columns`, of keys without nulls."""
    if not columns:
        return
    ends_of = _extremes(keys.held, columns) if keys.in_memory is None else keys.in_memory
    for column in columns:
        values = ends_of.column(column)
        if values.null_count or not len(values) or not pa.types.is_temporal(values.type):
            continue
        ends = pc.min_max(values.cast(pa.timestamp("us", "UTC")).cast(pa.int64())).as_py()
        yield column, (ends["min"], ends["max"])


def _extremes(keys: DataFrame, columns: Sequence[str]) -> pa.Table:
    def whole(column: str, of: str) -> Column:
        return F.expr(f"if(count(*) = count({quoted(column, SPARK)}), {of}({quoted(column, SPARK)}), null)")

    ends = keys.agg(*[F.struct(*[whole(c, of).alias(c) for c in columns]).alias(of) for of in ("min", "max")])
    return Rows(ends.selectExpr("inline(array(min, max))")).arrow()


def handed_on(inputs: Inputs, declaration: Declaration) -> list[dict[str, str]]:
    """Return for each input {column of the function's rows: column of that input}."""
    frames = [tagged(inputs.no_stored_rows(source), side) for side, source in enumerate(declaration.inputs)]
    names = []
    for side, rows in enumerate(inputs.sides(declaration, frames)):
        own = {name: column for name, (of, column) in tags(rows.schema).items() if of == side}
        names.append({} if own and unions(rows) else own)
    return names


def narrowed(  # noqa: PLR0913, PLR0917 which rows of which input
    inputs: Inputs,
    source: Input,
    names: Mapping[str, str],
    wanted: Sequence[Values | None],
    times: Span | None = None,
    only: Collection[str] | None = None,
) -> DataFrame:
    """Return at least the rows of `source` with the `wanted` values, of a log at `times`.

    `names` are its columns by their name in `wanted`. Columns that do not derive from `only` may be null.
    """
    columns = {name: names[name] for values in wanted if values is not None for name in values if name in names}
    usable = {name: column for name, column in columns.items() if column in inputs.searchable(source)}
    if not usable:
        return inputs.whole(source, times)
    keys = [{column: values[name] for name, column in usable.items()} for values in wanted if values is not None]
    return inputs.narrowed(source, keys, times, only)
