"""The quick reading of records: `from_json` with the contract's types, wherever that loses nothing.

It takes the records that are one JSON object of the contract's fields without anything else, repeated or unknown, all
types right and nothing wrong with them: nearly all, as a rule. The others are left to `parse`, which reads any record,
and would read these as they are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from lake.contracts.cast_sql import DIGITS, defaulted, places, plain_form, value, widest
from lake.contracts.contract import Contract
from lake.contracts.digits import is_text, number_name, text_name
from lake.contracts.event_id import literal, quoted
from lake.contracts.fields import Field
from lake.ingest.records.file_facts import SOURCE, FileOf
from lake.ingest.records.parse import (
    Reading,
    all_names,
    bucket_of,
    evaluations,
    event_checks,
    facts_of,
    field_checks,
    first,
    id_of,
    lacking,
    missing_checks,
    readable,
    unreadable,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TYPES: Final = frozenset({"boolean", "int", "bigint", "float", "double", "string"})
"""What `from_json` tells right from wrong in; times are taken as text."""
LEFT: Final = "_bucket < -1"
"""Records that have not been read; their buckets spread them over as many parts as SPREAD."""
SPREAD: Final = 64
OPTIONS: Final = "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false')"
ROUGH: Final = frozenset({"float", "double", "boolean", "binary"})  # they need no more digits than a double has
DIGIT: Final = r"(?:\p{Nd}|\\u(?!00(?:[46]5|2[cCeE]))[0-9a-fA-F]{4})"  # any character of a text may be escaped
SIGNED: Final = rf"(?:[-+]|{DIGIT})"


def may_read(contract: Contract, files: Iterable[FileOf]) -> bool:
    """Whether records of these files can be such: not messages in an envelope, not CSV, where all is text."""
    names = [name.lower() for _, name, _ in files]
    return not contract.envelope and not (names and all(name.endswith((".csv", ".csv.gz")) for name in names))


def quick(records: DataFrame, contract: Contract, *, now: datetime, record_bytes: int) -> DataFrame:
    """The columns of `records` and those that `parse` gives; where LEFT, the former alone, to be read by that."""
    fields = tuple(field for field in contract.fields if not field.is_fact)
    tried = (
        records.selectExpr("*", f"CASE WHEN {readable(record_bytes)} THEN json_object_keys(_raw) END AS _keys")
        .selectExpr("*", f"{_reading(fields)} AS _tried")
        .selectExpr("*", f"CASE WHEN {_trusted(fields)} THEN _tried END AS _quick")
    )
    texts = tried.selectExpr(
        *records.columns,
        "_keys",
        "_quick",
        *(f"false AS {number_name(field)}" for field in fields if is_text(field)),
        *facts_of(contract.fields),
    )
    reading = Reading(
        texts,
        value=lambda field: value(field, text_name(field)) if field.is_fact else _typed(field),
        text=lambda field: text_name(field) if field.is_fact else _by_any_name(field),
        keys="_keys",
        has_all="false" if any(field.aliases for field in fields) else f"size(_keys) = {len(fields)}",
        exact=lambda field: not field.is_fact and _typed(field) == _by_any_name(field),
    )
    checks = [*missing_checks(contract, reading), *field_checks(contract, reading)]
    checks += event_checks(contract, reading, now)
    wrong = [*unreadable(), *(test for test, *_ in checks)]
    left = f"_quick IS NULL OR coalesce({' OR '.join(f'({test})' for test in wrong)}, false)"
    whole = ("_raw", SOURCE)
    return (
        reading.typed(contract)
        .selectExpr("*", *evaluations(contract, "_quick IS NOT NULL"))
        .selectExpr("*", f"{left} AS _left")
        .selectExpr(
            *(f"CASE WHEN _left THEN {name} END AS {name}" if name in whole else name for name in records.columns),
            *(f"cast(NULL AS string) AS {name}" for name in ("_reason", "_detail", "_extra", "_numbers")),
            *(quoted(field.name) for field in contract.fields),
            "_time",
            f"CASE WHEN _left THEN cast(-2 - pmod(_seq, {SPREAD}) AS int) ELSE {bucket_of(contract)} END AS _bucket",
            f"{id_of(contract)} AS _id",
            *lacking(contract, reading),
        )
    )


def _by_any_name(field: Field) -> str:
    """What was found for `field`, under its name or a former one."""
    return first(f"_quick.{quoted(name)}" for name in field.names)


def _typed(field: Field) -> str:
    text = _by_any_name(field)
    if not field.form.plain:
        typed = value(field, plain_form(field, text))
    elif field.type.startswith("decimal"):
        typed = f"CASE WHEN try_cast({text} AS {field.type}) = {text} THEN try_cast({text} AS {field.type}) END"
    elif field.type in {"float", "double"}:
        typed = f"CASE WHEN abs({text}) < double('Infinity') THEN {text} END"
    else:
        typed = text if field.type in TYPES else value(field, text)
    if field.default is None:
        return typed
    return defaulted(field, typed, f"CASE WHEN {text} IS NULL THEN {value(field, literal(field.default))} END")


def _reading(fields: tuple[Field, ...]) -> str:
    """SQL of the fields' values, or null where the record is not seen to be an object of these fields alone.

    A struct of the names and former names of `fields`, and `_corrupt_record`: null where all types are right.
    """
    columns = [f"{quoted(name)} {_type(field)}" for field in fields for name in field.names]
    schema = ", ".join([*columns, "_corrupt_record string"])
    expected = f"array({all_names(fields)})"
    lossy = "|".join(_lossy(fields))
    return (
        f"CASE WHEN locate('}}', _raw) = length(rtrim(_raw))"
        f" AND (_keys = {expected} OR size(array_intersect(_keys, {expected})) = size(_keys))"
        f"{f' AND NOT regexp_like(_raw, {literal(lossy)})' if lossy else ''}"
        f" THEN from_json(_raw, {literal(schema)}, {OPTIONS}) END"
    )


def _trusted(fields: Iterable[Field]) -> str:
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
