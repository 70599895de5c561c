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

from lake.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_TOKEN: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[\w.]+|->|\|\||[<>=!]+|\S")
_ENDS: Final = {"case", "when", "then", "else", "end", "and", "or", "not", "as", "is", "in", "between", "like", "div"}
FIX: Final = "cast its parts to fewer digits, so that the result has at most 38"


def faults(column: str, sql: str, frame: DataFrame) -> Iterator[DeclarationError]:
    """The sums and products in `sql`, over `frame`, that would cost `column` decimal places."""
    for part, kept, exact in _lossy(sql, frame):
        what = f"{column} would lose decimal places: Spark keeps {kept} of the {exact} of {part}"
        yield DeclarationError(what, fix=FIX)


def places(frame: DataFrame, sql: str) -> int | None:
    """The decimal places of an exact number; None of what is no such, or not known (a variable of a lambda)."""
    from pyspark.sql import types as T

    type_ = type_of(frame, sql)
    return type_.scale if isinstance(type_, T.DecimalType) else 0 if isinstance(type_, T.IntegralType) else None


def type_of(frame: DataFrame, sql: str) -> DataType | None:
    """The type of `sql` over `frame`; None where it cannot be told."""
    from pyspark.errors import PySparkException

    if not sql.strip():
        return None
    try:
        return frame.selectExpr(f"{sql} as value").schema[0].dataType
    except PySparkException:
        return None


def lost(given: DataType, held: DataType) -> str:
    """What a value of one type loses in a column of the other; empty where nothing."""
    from pyspark.sql import types as T

    if isinstance(given, T.ArrayType) and isinstance(held, T.ArrayType):
        return lost(given.elementType, held.elementType)
    if isinstance(given, T.StructType) and isinstance(held, T.StructType):
        return next(filter(None, (lost(a.dataType, b.dataType) for a, b in zip(given, held, strict=False))), "")
    if isinstance(given, T.FractionalType) and isinstance(held, T.IntegralType):
        return "all decimal places" if not isinstance(given, T.DecimalType) or given.scale else ""
    if isinstance(held, T.DecimalType):
        inexact = isinstance(given, T.FloatType | T.DoubleType)
        return "decimal places" if inexact or (isinstance(given, T.DecimalType) and given.scale > held.scale) else ""
    return ""


@dataclass
class _Operands:
    """What stands between commas, keywords and comparisons: terms that are added, each of factors."""

    begin: int
    end: int
    terms: list[list[tuple[int, int]]]
    divides: bool = False


def _lossy(sql: str, frame: DataFrame) -> Iterator[tuple[str, int, int]]:
    """The sums and products in `sql` over `frame` that lose decimal places: (SQL, places kept, exact places)."""

    @cache
    def places_of(begin: int, end: int) -> int | None:
        return places(frame, sql[begin:end])

    for operands in _arithmetic(sql):
        exact = []
        for term in operands.terms:
            factors = [places_of(*factor) for factor in term]
            if operands.divides or None in factors:
                break
            exact.append(sum(number for number in factors if number is not None))
            whole = term[0][0], term[-1][1]
            kept = places_of(*whole) if len(term) > 1 else exact[-1]
            if kept is not None and kept < exact[-1]:
                yield sql[slice(*whole)].strip(), kept, exact[-1]
                break
        else:
            kept = places_of(operands.begin, operands.end)
            if kept is not None and kept < max(exact):
                yield sql[operands.begin : operands.end].strip(), kept, max(exact)


def _arithmetic(sql: str) -> list[_Operands]:
    """Whatever adds, subtracts or multiplies in `sql`, at any depth."""
    closed: list[_Operands] = []
    nested: list[_Operands] = []
    operand = True  # whether an operand is to come, so that a - belongs to it

    def begin(at: int) -> None:
        nested.append(_Operands(at, at, [[(at, at)]]))

    def close(at: int) -> None:
        last = nested.pop()
        last.end = at
        last.terms[-1][-1] = (last.terms[-1][-1][0], at)
        if len(last.terms) > 1 or len(last.terms[0]) > 1:
            closed.append(last)

    begin(0)
    for token in _TOKEN.finditer(sql):
        text, at, after = token[0], token.start(), token.end()
        if text in "([{":
            begin(after)
            operand = True
        elif text in ")]}" and len(nested) > 1:
            close(at)
            operand = False
        elif text == "," or text.lower() in _ENDS or text[0] in "<>=!|" or text == "->":
            close(at)
            begin(after)
            operand = True
        elif text in "+-*/%" and not operand:
            last = nested[-1]
            last.terms[-1][-1] = (last.terms[-1][-1][0], at)
            last.divides |= text in "/%"
            if text in "+-":
                last.terms.append([(after, after)])
            else:
                last.terms[-1].append((after, after))
            operand = True
        else:
            operand = text in "+-"
    close(len(sql))
    return closed
