"""Call of a job's function, with checks of what it returns."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from traceback import extract_tb, walk_tb
from typing import Final

from lake.errors import DeclarationError, did_you_mean
from lake.kinds.columns import CARRIED, ORDER, SIGN, digest, in_log_order, visible, with_one_zero
from lake.kinds.grouped_map import arrow_schema
from lake.lazy import DataFrame, F
from lake.project.declaration import Declaration
from lake.quality import row_conditions
from lake.quality.parking import BY, PLACE, ROW
from lake.session.spark_session import first_line, raise_if_gone
from lake.text import literal

OWN_COLUMNS: Final = "make it in the function, in each of its calls: DuckDB and Spark have columns of different types"
BRACES: Final = "pass it by name, as in spark.sql('… {rows} …', rows=rows); write braces that are text as {{ and }}"
PYSPARK: Final = "pyspark"
CachedFunction: Final = type(cache(len))
_UNKNOWN: Final = re.compile(r"UNRESOLVED_COLUMN.* name `(?:\w+`\.`)?(\w+)`")


def call(declaration: Declaration, inputs: Sequence[DataFrame]) -> list[DataFrame]:
    """Call the function; return a frame for each input, or the one of a View. Raises DeclarationError.

    Cached functions of the job run again: they may return columns or frames of another session.
    """
    from pyspark.sql import DataFrame

    from lake.engine.carrying_frame import CarryingFrame, unwrapped

    kind = declaration.kind
    for value in [*declaration.function.__globals__.values()]:
        if isinstance(value, CachedFunction):
            value.cache_clear()
    try:
        result = declaration(*(CarryingFrame(f) if kind.row_by_row else f.drop(*CARRIED) for f in inputs))
    except Exception as error:
        raise_if_gone(error)
        columns = [column for frame in inputs for column in frame.columns]
        raise fault(declaration, error, columns, of="the function") from error
    sides = list(result) if isinstance(result, tuple) else [result]
    for side in sides:
        if not isinstance(side, DataFrame):
            raise declaration.fault(
                f"the function returns {side!r}, not a DataFrame",
                fix="return its_input.select(…), or the result of spark.sql",
            )
    if len(sides) != (len(inputs) if kind.row_by_row else 1):
        raise declaration.fault(
            f"the function returns {len(sides)} frames, but its {kind.name} has {len(inputs)} inputs",
            fix="return one frame for each input, in their order",
        )
    return [unwrapped(side) for side in sides]


def prepared(declaration: Declaration, sides: Sequence[DataFrame]) -> list[DataFrame]:
    try:
        return [
            declaration.kind.prepare(with_one_zero(_complete(declaration, rows, side)), side)
            for side, rows in enumerate(sides)
        ]
    except DeclarationError as fault:
        raise fault if fault.where else declaration.fault(fault.what, fix=fault.fix) from fault


def _complete(declaration: Declaration, rows: DataFrame, side: int) -> DataFrame:
    kind = (declaration.parked_of or declaration).kind
    if twice := [name for name, count in Counter(visible(rows.columns)).items() if count > 1]:
        raise declaration.fault(f"the function returns two columns {twice[0]!r}", fix="leave one out, or rename it")
    if kind.row_by_row and not {ORDER, SIGN} <= set(rows.columns):
        raise declaration.fault(
            f"the function of a {kind.name} must map each row on its own, but this one loses track of its input rows",
            fix="use select, where, withColumn and the like; aggregate with the kind, or declare a View",
        )
    for column, use in kind.requires(side).items():
        if column not in rows.columns:
            of = f" for {declaration.inputs[side].name}" if len(declaration.inputs) > 1 and kind.row_by_row else ""
            raise declaration.fault(
                f"the function returns no column {column!r}{of} ({use})", fix="add it to the select"
            )
    return _parted(declaration, rows) if declaration.parking else rows


def fault(declaration: Declaration, error: Exception, columns: Iterable[str] = (), *, of: str) -> DeclarationError:
    """Return why `of` (the function, or the kind) failed, with the line of the job.

    `columns` are candidates for an unknown one.
    """
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename == str(declaration.file)]
    unknown = _UNKNOWN.search(str(error))
    if unknown:
        what, fix = f"no column {unknown[1]!r}", did_you_mean(unknown[1], visible(columns))
    elif _is_of_braces(error):
        what, fix = _fault_of_braces(error), BRACES
    elif _is_of_kept_column(error):
        what, fix = "it uses an expression of columns that an earlier call has made", OWN_COLUMNS
    else:
        what, fix = f"{type(error).__name__}: {first_line(error)}", "correct that line; --debug shows the stack trace"
    raised = declaration.fault(f"{of} fails: {what}", fix=fix)
    if frames:
        raised.where = f"{declaration.where.partition(':')[0]}:{frames[-1].lineno}"
    return raised


def _is_of_kept_column(error: Exception) -> bool:
    """Return whether an embedded Spark got a column that was made while DuckDB called the function."""
    from pyspark.sql.connect.column import Column
    from pyspark.sql.utils import is_remote

    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return not is_remote() and any(isinstance(v, Column) for frame in frames for v in frame.f_locals.values())


def _is_of_braces(error: Exception) -> bool:
    """Return whether spark.sql failed to fill in the braces of an SQL text."""
    if not isinstance(error, KeyError | IndexError | ValueError | AttributeError | TypeError):
        return False
    frames = extract_tb(error.__traceback__)
    return (
        bool(frames)
        and frames[-1].filename == string.__file__
        and any(PYSPARK in re.split(r"[/\\]", frame.filename) for frame in frames)
    )


def _fault_of_braces(error: Exception) -> str:
    match error:
        case KeyError():
            return f"the SQL text has {{{error.args[0]}}}, and spark.sql is given no argument of that name"
        case IndexError():
            return "the SQL text has braces with a number, or with nothing, which stand for no argument of spark.sql"
    return f"the braces of the SQL text are not those of arguments: {error}"


def _parted(declaration: Declaration, rows: DataFrame) -> DataFrame:
    for expectation in declaration.parking:
        for column in expectation.columns or ():
            if column not in rows.columns:
                raise declaration.fault(
                    f"{expectation} parks by {column!r}, which the function does not return",
                    fix=did_you_mean(column, visible(rows.columns), otherwise="add it to the select"),
                )
    kind, of_log = (declaration.parked_of or declaration).kind, in_log_order(rows)
    never = [kind.broadcast, kind.deletes, f"{ORDER}._bucket < 0" if of_log else None]
    exempt = " OR ".join(f"coalesce({sql}, false)" for sql in never if sql) or "false"
    columns = sorted({column for expectation in declaration.parking for column in expectation.columns or ()})
    types = arrow_schema(rows.select(*columns).schema)
    failed = ", ".join(
        f"CASE WHEN {expectation.failure_sql(types, kind.zone)} THEN {literal(str(expectation))} END"
        for expectation in declaration.parking
    )
    by = row_conditions.evaluate_sql(f"nullif(concat_ws('; ', {failed}), '')", types.names, "string")
    rows = rows.withColumn(BY, F.when(~F.expr(exempt), by))
    if declaration.parked_of is None:
        return rows.where(F.col(BY).isNull()).drop(BY)
    event = f"concat_ws(':', {ORDER}._batch, {ORDER}._bucket, {ORDER}._offset)" if of_log else f"to_json({ORDER})"
    columns = [name for name in visible(rows.columns) if name != BY]
    row = digest(rows, columns)
    return (
        rows.withColumns({PLACE: F.expr(event), ROW: F.expr(row)})
        .where(F.col(BY).isNotNull())
        .drop(*(name for name in rows.columns if name not in {*columns, *CARRIED, BY}))
    )
