"""What only Spark's analysed plan shows: functions that are not functions of the log.

The plan is read as text (`explain`), the one form of it that an embedded session and a Connect server both give.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final

from lake.errors import DeclarationError
from lake.jobfile import NONDETERMINISTIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake.declaration import Declaration
    from lake.kinds.kind import Kind

# Operators that look at more than one row.
MANY_ROWS: Final = re.compile(
    r"^[\s:+\-]*(Aggregate|Window|Deduplicate|Distinct|Sort|GlobalLimit|LocalLimit|Sample|Join|Offset)\b", re.MULTILINE
)
RECURSION: Final = re.compile(r"\bUnionLoop\b")
UNION: Final = re.compile(r"^[\s:+\-]*Union", re.MULTILINE)
LIMIT: Final = re.compile(r"^[\s:+\-]*(GlobalLimit|Sample|Offset|Tail)\b", re.MULTILINE)
# A view of a server's catalogue; those that hand a frame to spark.sql are of no database.
VIEW: Final = re.compile(r"^[\s:+\-]*View \(`spark_catalog`\.(`[^,]+`),", re.MULTILINE)
ADDING: Final = re.compile(
    r"\b(sum|avg|mean|stddev\w*|var\w*|std|corr|covar\w*|skewness|kurtosis|regr_\w+)\((?:distinct )?([^()]*)",
    re.IGNORECASE,
)
CALLED: Final = re.compile(r"\b([a-z_]+)\(", re.IGNORECASE)
FLOATS: Final = ("float", "double")
DECIMALS: Final = "add decimals: cast(… as decimal(18, 2))"

# `explain` can only print, and there is one stdout for the tables that are evaluated side by side.
_PRINTING: Final = threading.Lock()


def check(declaration: Declaration, rows: DataFrame, inputs: list[DataFrame]) -> None:
    """Raises DeclarationError where `rows`, the function's result over `inputs`, could differ between two runs.

    Reads no data: only plans and schemas.
    """
    text = analysed(rows)
    faults = [
        declaration.fault(f"{called} is not deterministic", fix="derive it from the event")
        for called in sorted({match[1].lower() for match in CALLED.finditer(text)} & NONDETERMINISTIC)
    ]
    faults += [
        declaration.fault(
            f"reads {view.replace('`', '')}, which is not one of its inputs",
            fix="import its function and name it as an input: @table(…, carrier_daily)",
        )
        for view in sorted(set(VIEW.findall(text)))
    ]
    if declaration.kind.row_by_row:
        faults += [
            declaration.fault(
                f"the function of a {declaration.kind.name} must map each row on its own, found {operator}",
                fix="aggregate with the kind, or declare a View",
            )
            for operator in sorted({match[1] for match in MANY_ROWS.finditer(text)})
        ]
    else:
        faults += [declaration.fault(what, fix=fix) for what, fix in _not_local(declaration.kind, text)]
        faults += [declaration.fault(what, fix=DECIMALS) for what in _float_sums([rows, *inputs], text)]
    if len(declaration.inputs) == 1 or not declaration.kind.row_by_row:
        faults += _of_kind(declaration, [rows])
    if faults:
        raise DeclarationError.all(faults)


def check_together(declaration: Declaration, sides: Sequence[DataFrame]) -> None:
    """As `check`, of what only the function's rows for several inputs show together."""
    if len(sides) > 1 and (faults := _of_kind(declaration, sides)):
        raise DeclarationError.all(faults)


def _of_kind(declaration: Declaration, sides: Sequence[DataFrame]) -> list[DeclarationError]:
    return [declaration.fault(fault.what, fix=fault.fix) for fault in declaration.kind.faults(*sides)]


def _not_local(kind: Kind, text: str) -> Iterator[tuple[str, str]]:
    """What in a plan makes rows of a key depend on other keys, as (what, fix)."""
    if not kind.may_recurse and RECURSION.search(text):
        what = "the query is recursive, so its rows do not depend on one key"
        yield what, 'View(key=(), identity="…", recursive=True)'
    limit = LIMIT.search(text)
    if kind.key and limit:
        yield f"{limit[1]} depends on the rows of all keys", 'View(key=(), identity="…"), or a row_number() by key'


def analysed(frame: DataFrame) -> str:
    """The analysed logical plan of `frame`."""
    return _plans(frame).partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]


def unions(frame: DataFrame) -> int:
    """How often `frame` puts the rows of several frames below each other; recursion does so too."""
    return len(UNION.findall(analysed(frame)))


def physical(frame: DataFrame) -> str:
    """The physical plan of `frame`."""
    return _plans(frame).partition("== Physical Plan ==")[2]


def _plans(frame: DataFrame) -> str:
    with _PRINTING, redirect_stdout(io.StringIO()) as out:
        frame.explain(extended=True)
    return out.getvalue()


def _float_sums(frames: Iterable[DataFrame], text: str) -> Iterable[str]:
    """The sums and averages of floats in a plan, told by the names of columns of `frames`; each once."""
    floats = {name for frame in frames for name, type_ in frame.dtypes if type_ in FLOATS}
    sums = []
    for line in text.splitlines():
        for match in ADDING.finditer(line):
            alias = re.match(r"[^,]*? AS (\w+)#", line[match.end() :])
            names = set(re.findall(r"(\w+)#", match[2])) | ({alias[1]} if alias else set())
            sums += [f"{match[1]} of floats ({name})" for name in sorted(names & floats)]
    return dict.fromkeys(sums)
