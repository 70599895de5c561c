"""Decimals that Spark would round: where a result of + or * has more than 38 digits, it gives up decimal places.

Told by types alone, of the SQL that a declaration's measures and reducers are made of, before any data is read. What a
declaration itself asks to be rounded (a scale, a cast, a division) is its own matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lake.errors import DeclarationError
from lake.kinds.aggregate import Aggregate
from lake.kinds.fold import Fold
from lake.kinds.grouped_map import arrow_schema
from lake.kinds.measures.decimals import KEPT, MOST_PLACES
from lake.kinds.measures.measure import Avg, Measure, OfValues
from lake.kinds.measures.variance import Variance
from lake.kinds.pattern import Pattern
from lake.kinds.python_values import too_long
from lake.kinds.reducer import SqlReducer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from lake.declaration import Declaration

_TOKEN: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[\w.]+|->|\|\||[<>=!]+|\S")
_ENDS: Final = {"case", "when", "then", "else", "end", "and", "or", "not", "as", "is", "in", "between", "like", "div"}
FIX: Final = "cast its parts to fewer digits, so that the result has at most 38"


def faults(declaration: Declaration, rows: DataFrame) -> list[DeclarationError]:
    """What of `declaration` would round decimals of `rows`, its function's result."""
    found = [
        declaration.fault(f"{column} would lose decimal places: Spark keeps {kept} of the {places} of {sql}", fix=FIX)
        for column, text, frame in _calculated(declaration, rows)
        for sql, kept, places in _lossy(text, frame)
    ]
    kind = declaration.kind
    if isinstance(kind, Aggregate | Pattern):
        for name, measure in kind.measures.items():
            found += [declaration.fault(f"{name} {what}", fix=fix) for what, fix in _rounding(measure, rows)]
    if isinstance(kind, Fold):
        found += [declaration.fault(what, fix="write it with fewer decimal places") for what in _start(kind, rows)]
        fix = "say how it is rounded: round(…, 2), cast(…), or give the state's field a wider type"
        found += [declaration.fault(what, fix=fix) for what in _narrowed(declaration, kind, rows)]
    return found


def _calculated(declaration: Declaration, rows: DataFrame) -> Iterator[tuple[str, str, DataFrame]]:
    """The SQL that makes columns of the table, and what it is over: (column, SQL, frame)."""
    from pyspark.sql import functions as F

    kind = declaration.kind
    if isinstance(kind, Aggregate | Pattern):
        yield from ((name, m.of, rows) for name, m in kind.measures.items() if isinstance(m, OfValues))
    if isinstance(kind, Fold) and isinstance(kind.reducer, SqlReducer):
        state = ", ".join(f"`{name}`: {type_}" for name, type_ in kind.reducer.fields.items())
        both = rows.select(F.struct("*").alias("event"), F.lit(None).cast(f"struct<{state}>").alias("state"))
        yield from ((name, sql, both) for name, sql in kind.reducer.step.items())


def _rounding(measure: Measure, rows: DataFrame) -> Iterator[tuple[str, str]]:
    """What a measure cannot add up exactly, as (what, fix)."""
    if not isinstance(measure, Avg | Variance):
        return
    places = _places(rows, measure.of)
    if isinstance(measure, Variance) and places is not None and 2 * places > KEPT:
        what = f"squares {measure.of}, which has {places} decimal places, so Spark would round the squares"
        yield what, f"use values of at most {KEPT // 2}: cast(… as decimal(18, {KEPT // 2})), or whole units"
    if isinstance(measure, Avg) and places is not None and places > measure.scale > MOST_PLACES:
        what = f"is a mean of {measure.scale} decimal places of {measure.of}, which has {places}"
        yield what, f"use a scale of at most {MOST_PLACES}, or of {places}"


def _narrowed(declaration: Declaration, kind: Fold, rows: DataFrame) -> Iterator[str]:
    """The fields of a fold's state whose SQL gives more than they hold."""
    from pyspark.sql import functions as F

    for column, sql, frame in _calculated(declaration, rows):
        given = _type(frame, sql)
        held = frame.select(F.lit(None).cast(kind.reducer.fields[column])).schema[0].dataType
        if given is not None and (lost := _lost(given, held)):
            yield f"{column} would lose {lost}: {sql} is a {given.simpleString()}, {column} a {held.simpleString()}"


def _lost(given: DataType, held: DataType) -> str:
    """What a value of one type loses in a column of the other; empty where nothing."""
    from pyspark.sql import types as T

    if isinstance(given, T.ArrayType) and isinstance(held, T.ArrayType):
        return _lost(given.elementType, held.elementType)
    if isinstance(given, T.StructType) and isinstance(held, T.StructType):
        return next(filter(None, (_lost(a.dataType, b.dataType) for a, b in zip(given, held, strict=False))), "")
    if isinstance(given, T.FractionalType) and isinstance(held, T.IntegralType):
        return "all decimal places" if not isinstance(given, T.DecimalType) or given.scale else ""
    if isinstance(held, T.DecimalType):
        inexact = isinstance(given, T.FloatType | T.DoubleType)
        return "decimal places" if inexact or (isinstance(given, T.DecimalType) and given.scale > held.scale) else ""
    return ""


def _start(kind: Fold, rows: DataFrame) -> Iterator[str]:
    """The numbers that a fold is to start from and that do not fit its state."""
    from pyspark.sql import functions as F

    typed = [F.lit(None).cast(type_).alias(name) for name, type_ in kind.reducer.fields.items()]
    types: dict[str, pa.DataType] = {field.name: field.type for field in arrow_schema(rows.select(*typed).schema)}
    for name, value in kind.reducer.start.items():
        if (wrong := too_long(value, types[name])) is not None:
            yield f"start has {wrong} for {name}, a {kind.reducer.fields[name]}"


@dataclass
class _Operands:
    """What stands between commas, keywords and comparisons: terms that are added, each of factors."""

    begin: int
    end: int
    terms: list[list[tuple[int, int]]]
    divides: bool = False


def _lossy(sql: str, frame: DataFrame) -> Iterator[tuple[str, int, int]]:
    """The sums and products in `sql` over `frame` that lose decimal places: (SQL, places kept, places there)."""

    @cache
    def places(begin: int, end: int) -> int | None:
        return _places(frame, sql[begin:end])

    for each in _arithmetic(sql):
        true = []
        for term in each.terms:
            of = [places(*factor) for factor in term]
            if each.divides or None in of:
                break
            true.append(sum(number for number in of if number is not None))
            whole = term[0][0], term[-1][1]
            kept = places(*whole) if len(term) > 1 else true[-1]
            if kept is not None and kept < true[-1]:
                yield sql[slice(*whole)].strip(), kept, true[-1]
                break
        else:
            kept = places(each.begin, each.end)
            if kept is not None and kept < max(true):
                yield sql[each.begin : each.end].strip(), kept, max(true)


def _places(frame: DataFrame, sql: str) -> int | None:
    """The decimal places of an exact number; None of what is no such, or not known (a variable of a lambda)."""
    from pyspark.sql import types as T

    found = _type(frame, sql)
    return found.scale if isinstance(found, T.DecimalType) else 0 if isinstance(found, T.IntegralType) else None


def _type(frame: DataFrame, sql: str) -> DataType | None:
    """The type of `sql` over `frame`; None where it cannot be told."""
    from pyspark.errors import PySparkException

    if not sql.strip():
        return None
    try:
        return frame.selectExpr(f"{sql} as found").schema[0].dataType
    except PySparkException:
        return None


def _arithmetic(sql: str) -> list[_Operands]:
    """Whatever adds, subtracts or multiplies in `sql`, at any depth."""
    found: list[_Operands] = []
    open_: list[_Operands] = []
    operand = True  # whether an operand is to come, so that a - belongs to it

    def begin(at: int) -> None:
        open_.append(_Operands(at, at, [[(at, at)]]))

    def close(at: int) -> None:
        last = open_.pop()
        last.end = at
        last.terms[-1][-1] = (last.terms[-1][-1][0], at)
        if len(last.terms) > 1 or len(last.terms[0]) > 1:
            found.append(last)

    begin(0)
    for token in _TOKEN.finditer(sql):
        text, at, after = token[0], token.start(), token.end()
        if text in "([{":
            begin(after)
            operand = True
        elif text in ")]}" and len(open_) > 1:
            close(at)
            operand = False
        elif text == "," or text.lower() in _ENDS or text[0] in "<>=!|" or text == "->":
            close(at)
            begin(after)
            operand = True
        elif text in "+-*/%" and not operand:
            here = open_[-1]
            here.terms[-1][-1] = (here.terms[-1][-1][0], at)
            here.divides |= text in "/%"
            if text in "+-":
                here.terms.append([(after, after)])
            else:
                here.terms[-1].append((after, after))
            operand = True
        else:
            operand = text in "+-"
    close(len(sql))
    return found
