"""The quick reading of a record: `from_json` with the contract's types, wherever that loses nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from lake.contracts.cast_sql import DIGITS, places, widest
from lake.contracts.digits import is_text
from lake.contracts.event_id import literal, quoted
from lake.contracts.fields import Field

TYPES: Final = frozenset({"boolean", "int", "bigint", "float", "double", "string"})
"""What `from_json` tells right from wrong in; times are taken as text."""
OPTIONS: Final = "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false')"
ROUGH: Final = frozenset({"float", "double", "boolean", "binary"})  # they need no more digits than a double has
DIGIT: Final = r"(?:\p{Nd}|\\u(?!00(?:[46]5|2[cCeE]))[0-9a-fA-F]{4})"  # any character of a text may be escaped
SIGNED: Final = rf"(?:[-+]|{DIGIT})"


def reading(fields: tuple[Field, ...]) -> str:
    """SQL of the fields' values, or null where the record is not seen to be an object of these fields alone.

    A struct of the names and former names of `fields`, and `_corrupt_record`: null where all types are right.
    """
    columns = [f"{quoted(name)} {_type(field)}" for field in fields for name in field.names]
    schema = ", ".join([*columns, "_corrupt_record string"])
    expected = f"array({names(fields)})"
    lossy = "|".join(_lossy(fields))
    return (
        f"CASE WHEN locate('}}', _raw) = length(rtrim(_raw))"
        f" AND (_keys = {expected} OR size(array_intersect(_keys, {expected})) = size(_keys))"
        f"{f' AND NOT regexp_like(_raw, {literal(lossy)})' if lossy else ''}"
        f" THEN from_json(_raw, {literal(schema)}, {OPTIONS}) END"
    )


def trusted(fields: Iterable[Field]) -> str:
    """SQL of whether `_tried`, a record's quick reading, is what the record says: no number is taken for a text."""
    texts = [field for field in fields if is_text(field) or field.form.numeric]
    right = "_tried._corrupt_record IS NULL"
    if not texts:
        return right
    tried = [f"_tried.{quoted(name)}" for field in texts for name in field.names]
    # From - to 9 the first character; and what becomes of 1e400.
    like = "{0} >= '-' AND {0} < ':' OR {0} IN ('\"Infinity\"', '\"-Infinity\"')"
    like_numbers = " OR ".join(map(like.format, tried))
    pattern = literal(_number_for({name for field in texts for name in field.names}))
    return f"{right} AND NOT (coalesce({like_numbers}, false) AND regexp_like(_raw, {pattern}))"


def names(fields: Iterable[Field]) -> str:
    """SQL of all names of `fields`, as a list."""
    return ", ".join(literal(name) for field in fields for name in field.names) or "''"


def _type(field: Field) -> str:
    if field.form.numeric:
        return "string"
    if field.type.startswith("decimal"):
        return widest(field.type)
    return field.type if field.type in TYPES else "string"


def _lossy(fields: Iterable[Field]) -> Iterator[str]:
    """Patterns of records that `from_json` may take digits from, or need too long for.

    Of a number in a nested value it makes a double. For decimals it leaves out the commas of "19,90",
    makes all digits of 1e99999999, and rounds.
    """
    fields = list(fields)
    leaves = [leaf for field in fields if field.nested for leaf in field.leaves]
    if texts := {field.name for field in leaves if is_text(field)}:
        yield _number_for(texts)
    if any(re.search("(?:array<|map<string,)string", field.type) for field in fields):
        yield r"[\[:,]\s*+(?:-0|-?+[0-9]++[.eE])"
    elif any(field.type not in ROUGH for field in leaves):
        yield r"[\[:,]\s*+-?+(?:(?=[0-9]*+\.)[0-9.]{17}|[0-9.]++[eE])"
    decimals = [field for field in fields if field.type.startswith("decimal") and not field.form.numeric]
    if decimals:
        least = min(places(widest(field.type)) for field in decimals)
        comma = rf"(?:[-+.eE ]|{DIGIT})*+(?:,|\\u002[cC])"
        fraction = rf"{SIGNED}*+(?:\.|\\u002[eE]){DIGIT}{{{least + 1}}}+"
        exponent = rf"(?:\.|{SIGNED})++(?:[eE]|\\u00[46]5){SIGNED}++\s*+[\",}}]"
        long = rf"(?:\.|{SIGNED}){{{DIGITS}}}+"
        yield rf':\s*+(?:"{comma}|"?+(?:{fraction}|{exponent}|{long}))'


def _number_for(names: Iterable[str]) -> str:
    """A pattern of records that may have a number under one of `names`, whose characters may be escaped."""
    return rf'"(?:{"|".join(map(re.escape, sorted(names)))}|[^"\\]*+\\[^"]*+)"\s*+:\s*+-?+[0-9]'
