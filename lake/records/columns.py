"""Conversion of a field's raw values to an Arrow column: vectorized for unambiguous forms, else value by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Final

import msgspec

from lake.contracts.fields import Field
from lake.contracts.written_form import NUMBERS
from lake.lazy import pa, pc
from lake.records.raw_values import ABSENT, NO_CHARACTER, JsonNumber, Memo, RawValue, WrongValue
from lake.records.times import FIRST_DAY, LAST_DAY
from lake.records.values import Reader, Value, excerpt, reader

PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
NO_VALUE: Final = frozenset({type(None), msgspec.UnsetType})
TEXTS: Final = frozenset({str, JsonNumber})
_YEAR: Final = "(?:0[1-9]|[1-8][0-9]|9[0-8])[0-9]{2}"
_DAY: Final = (
    f"{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
"""Days of the years 100 to 9899, so that no offset leads out of the years 1 to 9999; without leap days."""
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
_NUMBER: Final = r"-?[0-9]{1,16}(?:\.[0-9]{1,16})?"
CASTABLE: Final[Mapping[str, str]] = {
    "int": "-?[0-9]{1,9}",
    "bigint": "-?[0-9]{1,18}",
    "float": f"{_NUMBER}(?:[eE][+-]?[0-9])?",
    "double": f"{_NUMBER}(?:[eE][+-]?[0-9]{{1,2}})?",
    "date": _DAY,
    "timestamp": f"{_DAY}(?:[T ]{_TIME})?",
    "timestamp_ntz": f"{_DAY}(?:[T ]{_TIME})?",
}
"""Texts, by type, for which Arrow's cast gives the same value as the grammar."""
_OFFSET: Final = rf"\A{_DAY}[T ]{_TIME}(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])\z"
_DAYS_RANGE: Final = (FIRST_DAY, LAST_DAY)
_MICROS_RANGE: Final = (_DAYS_RANGE[0] * 86_400_000_000, (_DAYS_RANGE[1] + 1) * 86_400_000_000 - 1)


@Memo
def arrow_type(field: Field) -> pa.DataType:
    if field.type.startswith("decimal"):
        return pa.decimal128(*map(int, field.type[len("decimal(") : -1].split(",")))
    parts = [arrow_type(part) for part in field.parts]
    if field.type.startswith("array<"):
        return pa.list_(pa.field("element", parts[0]))
    if field.type.startswith("map<"):
        return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", parts[0]))
    if field.type.startswith("struct<"):
        return pa.struct([pa.field(part.name, of) for part, of in zip(field.parts, parts, strict=True)])
    return PLAIN[field.type]


def column(field: Field, given: Sequence[RawValue] | pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return the column of `field`; null, absent and wrong values are null in it.

    Details of wrong values are by index: "at: 12:30 is not timestamp".
    """
    if isinstance(given, pa.Array):
        ready = _from_arrow(field, given)
        if ready is not None:
            return ready, {}
        given = given.to_pylist()
    kinds = frozenset(map(type, given))
    if msgspec.UnsetType in kinds:
        given = [None if each is ABSENT else each for each in given]
    kinds -= NO_VALUE
    converted = _convert_at_once(field, kinds, given) if kinds else None
    if converted is None:
        converted = pa.nulls(len(given), arrow_type(field))
    return _fill_one_by_one(field, given, converted)


def _from_arrow(field: Field, given: pa.Array) -> pa.Array | None:
    wanted = arrow_type(field)
    if field.nested:
        return None
    if given.type == wanted:
        return _valid_texts(given) if field.type == "string" else given
    is_exact = (
        (pa.types.is_int64(given.type) and pa.types.is_int32(wanted))
        or (pa.types.is_decimal128(given.type) and pa.types.is_decimal128(wanted))
        or (pa.types.is_timestamp(given.type) and field.type == "timestamp")
    )
    try:
        if pa.types.is_float64(given.type) and pa.types.is_float32(wanted):
            return _to_float32(field, given)
        return given.cast(wanted) if is_exact else None
    except pa.ArrowException:
        return None


def _convert_at_once(field: Field, kinds: frozenset[type], given: Sequence[RawValue]) -> pa.Array | None:
    if field.nested:
        return None
    kind = field.type.partition("(")[0]
    try:
        if convert := _CONVERTERS.get((kind, kinds)):
            return convert(field, given)
        if int in kinds and (kind == "string" or (kind in NUMBERS and field.form.plain)):
            given, kinds = [str(each) if type(each) is int else each for each in given], kinds - {int}
        return _from_texts(field, kind, kinds, given) if kinds <= TEXTS else None
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return None


def _from_texts(field: Field, kind: str, kinds: frozenset[type], given: Sequence[RawValue]) -> pa.Array | None:
    if kind == "string":
        return _valid_texts(pa.array(given, pa.string()))
    is_time = kind == "date" or kind.startswith("timestamp")
    if not field.form.plain or (is_time and JsonNumber in kinds):
        return None
    pattern = _decimal_pattern(field) if kind == "decimal" else CASTABLE.get(kind)
    if pattern is None:
        return None
    texts = pa.array(given, pa.string())
    if kind == "timestamp":
        return _instants_from_texts(texts, pattern)
    return _matching(texts, rf"\A(?:{pattern})\z").cast(arrow_type(field))


def _valid_texts(texts: pa.Array) -> pa.Array | None:
    return None if pc.any(pc.match_substring(texts, NO_CHARACTER)).as_py() else texts


def _instants_from_texts(texts: pa.Array, pattern: str) -> pa.Array:
    zoned = _matching(texts, _OFFSET).cast(pa.timestamp("us", "UTC"))
    if not zoned.null_count - texts.null_count:
        return zoned
    local = _matching(texts, rf"\A(?:{pattern})\z").cast(pa.timestamp("us"))
    return pc.coalesce(zoned, local.cast(pa.timestamp("us", "UTC")))


def _matching(texts: pa.Array, pattern: str) -> pa.Array:
    matches = pc.match_substring_regex(texts, pattern)
    return texts if pc.all(matches).as_py() is not False else pc.if_else(matches, texts, None)


def _decimal_pattern(field: Field) -> str:
    kind = arrow_type(field)
    before, after = kind.precision - kind.scale, kind.scale
    whole = f"[0-9]{{1,{before}}}" if before else "0"
    return rf"-?{whole}(?:\.[0-9]{{1,{after}}})?" if after else f"-?{whole}"


def _cast(field: Field, given: Sequence[RawValue]) -> pa.Array:
    return pa.array(given, arrow_type(field))


def _to_float32(_: Field, given: Sequence[RawValue] | pa.Array) -> pa.Array | None:
    doubles = pa.array(given, pa.float64())
    singles = doubles.cast(pa.float32())
    return singles if pc.equal(pc.is_inf(singles), pc.is_inf(doubles)).false_count == 0 else None


def _dates_from_counts(field: Field, given: Sequence[RawValue]) -> pa.Array | None:
    if not field.form.plain:
        return None
    counts = pa.array(given, pa.int64())
    return counts.cast(pa.int32()).cast(pa.date32()) if _within(counts, *_DAYS_RANGE) else None


def _times_from_counts(field: Field, given: Sequence[RawValue]) -> pa.Array | None:
    if field.form.format:
        return None
    counts, micros = pa.array(given, pa.int64()), 1_000_000 // (field.epoch or 1)
    if not _within(counts, -(-_MICROS_RANGE[0] // micros), _MICROS_RANGE[1] // micros):
        return None
    return pc.multiply(counts, micros).cast(arrow_type(field))


def _within(counts: pa.Array, least: int, most: int) -> bool:
    ends = pc.min_max(counts).as_py()
    return bool(least <= ends["min"] and ends["max"] <= most)


_Converter = Callable[[Field, Sequence[RawValue]], "pa.Array | None"]
_CONVERTERS: Final[Mapping[tuple[str, frozenset[type]], _Converter]] = {
    ("boolean", frozenset({bool})): _cast,
    ("int", frozenset({int})): _cast,
    ("bigint", frozenset({int})): _cast,
    ("float", frozenset({float})): _to_float32,
    ("double", frozenset({int})): _cast,
    ("double", frozenset({float})): _cast,
    ("double", frozenset({int, float})): _cast,
    ("decimal", frozenset({int})): _cast,
    ("decimal", frozenset({Decimal})): _cast,
    ("date", frozenset({int})): _dates_from_counts,
    ("date", frozenset({date})): _cast,
    ("timestamp", frozenset({int})): _times_from_counts,
    ("timestamp_ntz", frozenset({int})): _times_from_counts,
    ("binary", frozenset({bytes})): _cast,
}


def _fill_one_by_one(field: Field, given: Sequence[RawValue], converted: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    if converted.null_count == 0:
        return converted, {}
    left = [index for index in pc.indices_nonzero(converted.is_null()).to_pylist() if given[index] is not None]
    if not left:
        return converted, {}
    values, wrong = _read_each(reader(field), field.name, [(index, given[index]) for index in left])
    others: list[Value] = [None] * len(given)
    for index, value in zip(left, values, strict=True):
        others[index] = value
    filled = pa.array(others, arrow_type(field))
    return (filled if converted.null_count == len(converted) else pc.coalesce(converted, filled)), wrong


def _read_each(read: Reader, name: str, given: Sequence[tuple[int, RawValue]]) -> tuple[list[Value], dict[int, str]]:
    values: list[Value] = []
    wrong: dict[int, str] = {}
    known: dict[str, Value] = {}
    for index, each in given:
        if type(each) is str and each in known:
            values.append(known[each])
            continue
        try:
            value = read(each)
        except WrongValue as refusal:
            value, wrong[index] = None, f"{name}: {excerpt(each)} {refusal}"
        else:
            if type(each) is str:
                known[each] = value
        values.append(value)
    return values, wrong
