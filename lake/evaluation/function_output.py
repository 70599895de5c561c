"""What a job's function gave back: frames, with the columns that its kind needs; told where it did not."""

from __future__ import annotations

import re
import string
from collections import Counter
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame

from lake.declaration import Declaration
from lake.errors import DeclarationError, did_you_mean
from lake.evaluation.carrying_frame import plain
from lake.kinds.columns import CARRIED, ORDER, SIGN, digest, visible
from lake.kinds.ordering import in_log_order
from lake.quality import in_spark
from lake.quality.parking import BY, PLACE, ROW
from lake.quoting import literal
from lake.session import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable

BRACES: Final = "pass it by name, as in spark.sql('… {rows} …', rows=rows); write braces that are text as {{ and }}"
PYSPARK: Final = "pyspark"
_UNKNOWN: Final = re.compile(r"UNRESOLVED_COLUMN.* name `(?:\w+`\.`)?(\w+)`")


def frames(declaration: Declaration, result: Any, inputs: int) -> list[DataFrame]:
    """The frames that the function returned: one for each of its `inputs`, or the one of a View.

    Raises DeclarationError where it returned something else.
    """
    kind = declaration.kind
    sides = list(result) if isinstance(result, tuple) else [result]
    for side in sides:
        if not isinstance(side, DataFrame):
            raise declaration.fault(
                f"the function returns {side!r}, not a DataFrame",
                fix="return its_input.select(…), or the result of spark.sql",
            )
    if len(sides) != (inputs if kind.row_by_row else 1):
        raise declaration.fault(
            f"the function returns {len(sides)} frames, but its {kind.name} has {inputs} inputs",
            fix="return one frame for each input, in their order",
        )
    return [plain(side) for side in sides]


def complete(declaration: Declaration, rows: DataFrame, side: int) -> DataFrame:
    """`rows`, checked to have what the kind needs of input number `side`; of those that a table parks, what it is to
    have.
    """
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
    """What made `of` (the function, or the kind) fail, with the line of the job where there is one.

    `columns` are those that it may have meant where it named one that is not there.
    """
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename == str(declaration.file)]
    unknown = _UNKNOWN.search(str(error))
    if unknown:
        what, fix = f"no column {unknown[1]!r}", did_you_mean(unknown[1], visible(columns))
    elif _is_of_braces(error):
        what, fix = _fault_of_braces(error), BRACES
    else:
        what, fix = f"{type(error).__name__}: {first_line(error)}", "correct that line; --debug shows the stack trace"
    raised = declaration.fault(f"{of} fails: {what}", fix=fix)
    if frames:
        raised.where = f"{declaration.where.partition(':')[0]}:{frames[-1].lineno}"
    return raised


def _is_of_braces(error: Exception) -> bool:
    """Whether Python could not fill in the braces of an SQL text, as spark.sql has it do where arguments are given."""
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
    """Of the function's `rows` those that the table takes; of a table of parked rows the others."""
    from pyspark.sql import functions as F

    for rule in declaration.parking:
        for column in rule.columns:
            if column not in rows.columns:
                raise declaration.fault(
                    f"{rule.expectation} parks by {column!r}, which the function does not return",
                    fix=did_you_mean(column, visible(rows.columns)) or "add it to the select",
                )
    kind, of_log = (declaration.parked_of or declaration).kind, in_log_order(rows)
    never = [kind.broadcast, kind.deletes, f"{ORDER}._bucket < 0" if of_log else None]
    exempt = " OR ".join(f"coalesce({sql}, false)" for sql in never if sql) or "false"
    types = in_spark.schema(rows.select(*sorted({column for rule in declaration.parking for column in rule.columns})))
    failed = ", ".join(
        f"CASE WHEN {rule.fails(types)} THEN {literal(rule.expectation)} END" for rule in declaration.parking
    )
    by = in_spark.evaluate_sql(f"nullif(concat_ws('; ', {failed}), '')", types.names, "string")
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
