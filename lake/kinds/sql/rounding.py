"""Detection of expressions whose decimal result Spark rounds because it needs more than 38 digits.

Reads types alone. Rounding that the declaration asks for (a scale, a cast, a division) is allowed. Spark's analysed
plan cannot replace the parsing: its text has neither the types of arithmetic nor the quotes of strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final

from lake.errors import DeclarationError
from lake.kinds.sql.sql_parts import SqlPart, parsed
from lake.lazy import DataFrame, F, T

_WHOLE: Final = re.compile(r"-?\d+")
_ADD: Final = {"+", "-", "try_add", "try_subtract"}
_MULTIPLY: Final = {"*", "try_multiply"}
# Spark rounds the results of these to _NEGATED_DIGITS digits.
_NEGATE: Final = {"negative", "abs"}
_NEGATED_DIGITS: Final = 34
# Rounding that the declaration asks for.
_MAY_ROUND: Final = {"cast", "try_cast", "round", "bround", "ceil", "ceiling", "floor", "/", "try_divide", "div"} | {
    *("decimal", "tinyint", "smallint", "int", "bigint")
}
# These return one of their operands, cast to the common type.
_CHOOSE: Final = {
    "case",
    "if",
    "coalesce",
    "nvl",
    "nvl2",
    "ifnull",
    "zeroifnull",
    "decode",
    "greatest",
    "least",
    "array",
}
_FIX: Final = (
    "cast its parts to fewer digits, so that all have room in 38; a whole number beside decimals is written 0BD"
)


def faults(column: str, sql: str, frame: DataFrame) -> Iterator[DeclarationError]:
    """Yield errors if `sql` would cost `column` decimal places."""
    parts = parsed(sql)
    scope = _Scope(sql, frame, parts)
    for loss in dict.fromkeys(loss for part in parts for loss in _losses(part, scope)):
        yield DeclarationError(f"{column} would lose decimal places: Spark {loss}", fix=_FIX)


def places(frame: DataFrame, sql: str) -> int | None:
    """Return the decimal places of an exact number; None for other types."""
    return _places(type_of(frame, sql))


def _places(type_: T.DataType | None) -> int | None:
    return type_.scale if isinstance(type_, T.DecimalType) else 0 if isinstance(type_, T.IntegralType) else None


def type_of(frame: DataFrame, sql: str) -> T.DataType | None:
    """Return the type of `sql` over `frame`; None if Spark rejects it."""
    from pyspark.errors import PySparkException

    if not sql.strip():
        return None
    try:
        return frame.selectExpr(f"{sql} as value").schema[0].dataType
    except PySparkException:
        return None


def storage_loss(given: T.DataType, held: T.DataType) -> str:
    """Describe the loss if a value of type `given` is stored as `held`, or ""."""
    return next(filter(None, (_loss(*pair) for pair in _leaves(given, held))), "")


def _is_float(type_: T.DataType | None) -> bool:
    return isinstance(type_, T.FloatType | T.DoubleType)


def _loss(given: T.DataType, held: T.DataType) -> str:
    if isinstance(given, T.FractionalType) and isinstance(held, T.IntegralType):
        return "all decimal places" if not isinstance(given, T.DecimalType) or given.scale else ""
    inexact = isinstance(held, T.DecimalType) and _is_float(given)
    return "decimal places" if inexact or _narrowed(given, held) else ""


def _narrowed(given: T.DataType, held: T.DataType) -> tuple[int, int] | None:
    """Return (kept, given) decimal places if one decimal becomes another with fewer."""
    if isinstance(given, T.DecimalType) and isinstance(held, T.DecimalType) and given.scale > held.scale:
        return held.scale, given.scale
    return None


def _leaves(given: T.DataType | None, held: T.DataType | None) -> Iterator[tuple[T.DataType, T.DataType]]:
    """Pair each type within `given` with the one within `held` that stores its values."""
    if given is None or held is None:
        return
    if isinstance(given, T.ArrayType) or isinstance(held, T.ArrayType):
        items = [type_.elementType if isinstance(type_, T.ArrayType) else type_ for type_ in (given, held)]
        yield from _leaves(*items)
    elif isinstance(given, T.StructType) and isinstance(held, T.StructType):
        for one, other in zip(given, held, strict=False):
            yield from _leaves(one.dataType, other.dataType)
    elif isinstance(given, T.MapType) and isinstance(held, T.MapType):
        yield from _leaves(given.keyType, held.keyType)
        yield from _leaves(given.valueType, held.valueType)
    else:
        yield given, held


class _Scope:
    def __init__(self, sql: str, frame: DataFrame, parts: Sequence[SqlPart]) -> None:
        self.sql, self.frame = sql, frame
        texts = list(dict.fromkeys(filter(None, (self.text(part) for whole in parts for part in whole.within()))))
        self._types = dict(zip(texts, _types_of(frame, texts), strict=True))

    def text(self, part: SqlPart) -> str:
        return self.sql[part.begin : part.end]

    def type(self, part: SqlPart) -> T.DataType | None:
        return self._types.get(self.text(part))

    def stored_operands(self, part: SqlPart) -> list[tuple[T.DataType | None, T.DataType | None]]:
        """Return the type of each operand, with the type that takes its values."""
        held, given = self.type(part), [self.type(operand) for operand in part.operands]
        if part.made_by == "[]" and isinstance(given[0], T.MapType):
            return [(type_, given[0].keyType) for type_ in given[1:]]
        if part.made_by == "map" and isinstance(held, T.MapType):
            return [*zip(given, cycle((held.keyType, held.valueType)), strict=False)]
        if part.made_by == "map_zip_with" and isinstance(held, T.MapType):
            return [(type_.keyType, held.keyType) for type_ in given if isinstance(type_, T.MapType)]
        if any(operand.made_by == "->" for operand in part.operands):
            return []
        literal = [self.text(operand)[:1].isdecimal() for operand in part.operands]
        return [(type_, held) for type_, is_one in zip(given, literal, strict=True) if not (is_one and _is_float(held))]

    def compared_operands(self, part: SqlPart) -> list[tuple[T.DataType | None, T.DataType | None]]:
        """Return the type of each compared operand, with the type in which Spark compares them."""
        texts = [self.text(operand) for operand in part.operands]
        if part.made_by == "=":  # a whole number has the digits that are written
            texts = [f"{text}BD" if _WHOLE.fullmatch(text) else text for text in texts]
        elif part.made_by == "array_contains":
            texts[1:] = [f"array({text})" for text in texts[1:]]
        elif part.made_by == "map_contains_key":
            texts = [f"map_keys({texts[0]})", *(f"array({text})" for text in texts[1:])]
        elif part.made_by != "in":
            return []
        given = _types_of(self.frame, texts)
        if not any(type_ is not None and "decimal" in type_.simpleString() for type_ in given):
            return []
        common = type_of(self.frame, f"coalesce({', '.join(texts)})")
        return [(type_, common) for type_ in given]

    def of_lambda(self, function: SqlPart, body: SqlPart) -> _Scope:
        """Return the scope of a lambda's body: its names have the types that the function passes."""
        handed = zip(body.names, self._parameter_types(function), strict=False)
        columns = {name.strip("`"): F.lit(None).cast(type_) for name, type_ in handed}
        return _Scope(self.sql, self.frame.withColumns(columns), body.operands)

    def _parameter_types(self, function: SqlPart) -> list[T.DataType]:
        given = [self.type(operand) for operand in function.operands if operand.made_by != "->"]
        items = [type_.elementType for type_ in given if isinstance(type_, T.ArrayType)]
        maps = [type_ for type_ in given if isinstance(type_, T.MapType)]
        if function.made_by in ("aggregate", "reduce"):
            return [type_ for type_ in (*given[1:2], *items[:1]) if type_ is not None]
        if maps:
            return [maps[0].keyType, *(type_.valueType for type_ in maps)]
        return items * 2 if function.made_by == "array_sort" else [*items, T.IntegerType()]


def _types_of(frame: DataFrame, texts: Sequence[str]) -> list[T.DataType | None]:
    from pyspark.errors import PySparkException

    try:
        return [field.dataType for field in frame.selectExpr(*(f"{text} as value" for text in texts)).schema]
    except PySparkException:
        return [type_of(frame, text) for text in texts]


def _losses(part: SqlPart, scope: _Scope) -> list[str]:
    within: list[str] = []
    for inner in part.parts:
        if inner.made_by == "->":
            body = scope.of_lambda(part, inner)
            within += [loss for operand in inner.operands for loss in _losses(operand, body)]
        else:
            within += _losses(inner, scope)
    if within or part.made_by in _MAY_ROUND:
        return within
    return [f"{loss} of {scope.text(part)}" for loss in _own_losses(part, scope)]


def _own_losses(part: SqlPart, scope: _Scope) -> Iterator[str]:
    held = scope.type(part)
    if part.made_by in _NEGATE and isinstance(held, T.DecimalType) and held.precision > _NEGATED_DIGITS:
        yield f"keeps {_NEGATED_DIGITS} of the {held.precision} digits"
    if part.made_by in _ADD | _MULTIPLY and len(part.operands) > 1:
        exact = [number for number in map(_places, map(scope.type, part.operands)) if number is not None]
        kept, needed = _places(held), sum(exact) if part.made_by in _MULTIPLY else max(exact, default=0)
        if kept is not None and kept < needed:
            yield f"keeps {kept} of the {needed}"
        return
    compared = scope.compared_operands(part)
    for given, held in compared or scope.stored_operands(part):
        for one, other in _leaves(given, held):
            if narrowed := _narrowed(one, other):
                yield "{} {} of the {}".format("compares" if compared else "keeps", *narrowed)
            elif part.made_by in _CHOOSE and isinstance(one, T.DecimalType) and _is_float(other):
                yield "makes floats"
