"""Analysis of a declaration by the plans of its function, before any data is read.

Plans are read as text (`explain`): embedded sessions and Connect servers both return it.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final

from lake.contracts.determinism import NONDETERMINISTIC
from lake.engine import function
from lake.engine.columns import Analysed, scanned_columns, tags
from lake.engine.inputs import Inputs
from lake.errors import DeclarationError
from lake.kinds.columns import DELIVERED, TIME, visible
from lake.lazy import Column, DataFrame, F
from lake.project.declaration import Declaration
from lake.session.in_process.mode import only_spark
from lake.session.spark_session import raise_if_gone
from lake.text import check_column_names

if TYPE_CHECKING:
    from lake.kinds.kind import Kind

MANY_ROWS: Final = re.compile(
    r"^[\s:+\-]*(Aggregate|Window|Deduplicate|Distinct|Sort|GlobalLimit|LocalLimit|Sample|(?:AsOf)?Join|Offset)\b",
    re.MULTILINE,
)
SUBQUERY: Final = re.compile(r"\b(?:list|exists|scalar-subquery)#\d+ \[")
RECURSION: Final = re.compile(r"\bUnionLoop\b")
UNION: Final = re.compile(r"^[\s:+\-]*Union", re.MULTILINE)
LIMIT: Final = re.compile(r"^[\s:+\-]*(GlobalLimit|Sample|Offset|Tail)\b", re.MULTILINE)
VIEW: Final = re.compile(r"^[\s:+\-]*View \(`spark_catalog`\.(`[^,]+`),", re.MULTILINE)
"""A view of a server's catalogue; those of frames that spark.sql gets have no database."""
ADDING: Final = re.compile(
    r"\b(sum|avg|mean|stddev\w*|var\w*|std|corr|covar\w*|skewness|kurtosis|regr_\w+)\((?:distinct )?([^()]*)",
    re.IGNORECASE,
)
CALLED: Final = re.compile(r"\b([a-z_]+)\(", re.IGNORECASE)
FLOATS: Final = ("float", "double")
DECIMALS: Final = "add decimals: cast(… as decimal(18, 2))"

# `explain` can only print, and tables that are evaluated in parallel share one stdout.
_PRINTING: Final = threading.Lock()


def analyse(inputs: Inputs, declaration: Declaration) -> Analysed:
    """Evaluate the declaration over inputs without rows; the result is cached in `inputs`.

    Raises DeclarationError for unknown columns, wrong types, invalid names, and results that could differ next time.
    """
    if declaration.name not in inputs.analysed:
        try:
            inputs.analysed[declaration.name] = _analysed(inputs, declaration)
        except DeclarationError:
            only_spark("a declaration with faults")
            raise
    return inputs.analysed[declaration.name]


def _analysed(inputs: Inputs, declaration: Declaration) -> Analysed:
    kind = declaration.kind
    frames = [inputs.probe(source, side) for side, source in enumerate(declaration.inputs)]
    sides: tuple[DataFrame, ...] = ()
    try:
        sides = inputs.function_rows(declaration, frames)
        check_clocks(inputs, declaration)
        for rows in sides:
            check_column_names(rows.columns)
        check_sides(declaration, sides, frames, texts=inputs.project.texts)
        evaluated = inputs.evaluated(declaration, sides)
        columns = evaluated.columns
        check_column_names(columns)
    except DeclarationError as fault:
        raise fault if fault.where else declaration.fault(fault.what, fix=fault.fix) from fault
    except Exception as error:
        raise_if_gone(error)
        columns = [column for rows in sides for column in rows.columns]
        raise function.fault(declaration, error, columns, of=f"its {kind.name}") from error
    missing = [column for column in kind.identity if column not in columns]
    if missing:
        raise declaration.fault(
            f"its rows have no column {missing[0]!r}", fix="it is part of their identity: return it"
        )
    read: dict[str, frozenset[str]] = {}
    scanned = scanned_columns(physical_plan(evaluated), [frame.columns for frame in frames])
    for source, names in zip(declaration.inputs, scanned, strict=True):
        read[source.name] = read.get(source.name, frozenset()) | frozenset(visible(names))
    return Analysed(read, dict(evaluated.dtypes), _handed_on(declaration, sides, evaluated))


def check_clocks(inputs: Inputs, declaration: Declaration) -> None:
    """Raise DeclarationError if a time that the kind compares is made of a field that a clock corrects."""
    kind, corrected = declaration.kind, _corrected_fields(inputs, declaration)
    if not corrected:
        return
    frames = [inputs.probe(source, side) for side, source in enumerate(declaration.inputs)]
    sides = function.call(declaration, frames)
    for side, fields in corrected.items():
        for column in kind.compared_times(side):
            wrong = _fields_behind(sides[side], column, fields, frames, side) if column in sides[side].columns else ()
            for field in sorted(wrong):
                stream = declaration.inputs[side].name
                raise declaration.fault(
                    f"its {kind.name} goes by {column!r}, which is made of {field!r} as the producer told it, and the"
                    f" contract of {stream} has a clock that corrects it",
                    fix=f"return the corrected event time: {TIME} as {column}",
                )


def _corrected_fields(inputs: Inputs, declaration: Declaration) -> dict[int, frozenset[str]]:
    corrected = {}
    for side, source in enumerate(declaration.inputs):
        contract = inputs.project.contracts[source.name] if source.is_log else None
        if contract is not None and contract.clock is not None and declaration.kind.compared_times(side):
            words = {*re.findall(r"\w+", contract.time or "")}
            corrected[side] = frozenset(field.name for field in contract.fields if field.name in words)
    return corrected


def _fields_behind(
    rows: DataFrame, column: str, fields: frozenset[str], frames: list[DataFrame], side: int
) -> frozenset[str]:
    """Return those `fields` of input number `side` that `column` is made of.

    Fields of filters count too, unless `column` is made of the event time.
    """

    def read(selected: Column) -> frozenset[str]:
        return scanned_columns(physical_plan(rows.select(selected)), [frame.columns for frame in frames])[side]

    of_column = read(F.col(f"`{column}`"))
    if not fields & of_column:
        return frozenset()
    only_spark("a time that a field of a clock may decide")  # DuckDB may find too many columns of a filter
    return fields & (of_column - read(F.lit(1)) if TIME in of_column else of_column)


def _handed_on(declaration: Declaration, sides: Sequence[DataFrame], evaluated: DataFrame) -> dict[str, dict[str, str]]:
    """Return the unchanged columns of each input in the `evaluated` table: {input: {column: its column}}.

    A union has the tags of its first part alone, so nothing is known of its columns.
    """
    kind, columns = declaration.kind, visible(evaluated.columns)
    of_sides = [tags(rows.schema) for rows in sides]
    origins: dict[str, tuple[int, str]] = {}
    for column in columns:
        if kind.chooses or (column in kind.key and len(sides) == 1):
            of_side = next((of for of, rows in zip(of_sides, sides, strict=True) if column in rows.columns), {})
            origins |= {column: of_side[column]} if column in of_side else {}
    origins |= {column: tag for column, tag in tags(evaluated.schema).items() if column in columns}
    # The rejections of a log are a union with a side that has DELIVERED, and have no other column.
    mixed = [side for side, rows in enumerate(sides) if unions(rows) > (DELIVERED in rows.columns)]
    unsure = {number for side in mixed for number in (side, *(number for number, _ in of_sides[side].values()))}
    if mixed and not kind.row_by_row:
        return {}
    handed_on: dict[str, dict[str, str]] = {}
    for column, (number, its) in origins.items():
        if number not in unsure:
            handed_on.setdefault(declaration.inputs[number].name, {})[column] = its
    return handed_on


def check_sides(
    declaration: Declaration,
    sides: Sequence[DataFrame],
    inputs: Sequence[DataFrame],
    texts: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Raise DeclarationError for rows that could differ next time, or that the kind rejects.

    `texts` returns the texts in the job files.
    """
    kind, faults = declaration.kind, list[tuple[str, str]]()
    for rows in sides:
        plan = logical_plan(rows)
        faults += _not_deterministic(plan, texts)
        if kind.row_by_row:
            faults += [
                (
                    f"the function of a {kind.name} must map each row on its own, found {operator}",
                    "aggregate with the kind, or declare a View",
                )
                for operator in sorted(_operators_of_many_rows(plan))
            ]
        else:
            faults += _not_local(kind, plan)
            faults += [(what, DECIMALS) for what in _float_sums([rows, *inputs], plan)]
    faults += [(fault.what, fault.fix) for fault in kind.faults(*sides)]
    DeclarationError.raise_any(declaration.fault(what, fix=fix) for what, fix in dict.fromkeys(faults))


def _operators_of_many_rows(plan: str) -> set[str]:
    """A lateral subquery over its own row alone, such as an `explode`, reads OneRowRelation."""
    found = {match[1] for match in MANY_ROWS.finditer(plan)}
    reads = SUBQUERY.search(plan) or plan.count("LateralJoin lateral-subquery#") > plan.count("OneRowRelation")
    return found | {"a subquery"} if reads else found


def _not_deterministic(plan: str, texts: Callable[[], Iterable[str]]) -> Iterator[tuple[str, str]]:
    if _nondeterministic(plan):  # a plan shows texts without quotes, as if they were calls
        for text in sorted(filter(_nondeterministic, texts()), key=len, reverse=True):
            plan = plan.replace(text, "")
    for called in sorted(_nondeterministic(plan)):
        yield f"{called} is not deterministic", "derive it from the event"
    for view in sorted(set(VIEW.findall(plan))):
        what = f"reads {view.replace('`', '')}, which is not one of its inputs"
        yield what, "import its function and name it as an input: @table(…, carrier_daily)"


def _nondeterministic(text: str) -> frozenset[str]:
    return NONDETERMINISTIC & {match[1].lower() for match in CALLED.finditer(text)}


def _not_local(kind: Kind, plan: str) -> Iterator[tuple[str, str]]:
    if not kind.recursive and RECURSION.search(plan):
        what = "the query is recursive, so its rows do not depend on one key"
        yield what, 'View(key=(), identity="…", recursive=True)'
    limit = LIMIT.search(plan)
    if kind.key and limit:
        yield f"{limit[1]} depends on the rows of all keys", 'View(key=(), identity="…"), or a row_number() by key'


def logical_plan(frame: DataFrame) -> str:
    return _plans(frame).partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]


def unions(frame: DataFrame) -> int:
    """Return the number of unions in the plan; a recursive query has one too."""
    return len(UNION.findall(logical_plan(frame)))


def physical_plan(frame: DataFrame) -> str:
    return _plans(frame).partition("== Physical Plan ==")[2]


def _plans(frame: DataFrame) -> str:
    with _PRINTING, redirect_stdout(io.StringIO()) as out:
        frame.explain(extended=True)
    return out.getvalue()


def _float_sums(frames: Iterable[DataFrame], text: str) -> Iterable[str]:
    floats = {name for frame in frames for name, type_ in frame.dtypes if type_ in FLOATS}
    sums = []
    for line in text.splitlines():
        for match in ADDING.finditer(line):
            alias = re.match(r"[^,]*? AS (\w+)#", line[match.end() :])
            names = set(re.findall(r"(\w+)#", match[2])) | ({alias[1]} if alias else set())
            sums += [f"{match[1]} of floats ({name})" for name in sorted(names & floats)]
    return dict.fromkeys(sums)
