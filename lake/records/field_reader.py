"""Reader of one field: its typed column, and the records that it rejects."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Final

import msgspec
import numpy as np

from lake.contracts import literals
from lake.contracts.fields import Field
from lake.contracts.reasons import Reason
from lake.lazy import pa, pc
from lake.records import json_value
from lake.records.columns import NO_VALUE, arrow_type, column
from lake.records.raw_values import ABSENT, NO_CHARACTER, JsonNumber, RawValue, as_list
from lake.records.values import excerpt, given_default

NUMBERS: Final = (JsonNumber, int, float, Decimal)
NOT_TEXT: Final = "is a number, and the contract wants text"
_EPOCH_HINT: Final = re.compile(r'"format": "epoch-(millis|micros|nanos)"')
_FORM_HINT: Final = re.compile(r' \("(?:format|hour24|decimal|thousands)": [^()]* would read it\)')


@dataclass
class Rejections:
    by_index: dict[int, tuple[str, str]] = field(default_factory=dict)

    def add(self, index: int, reason: str, detail: str) -> None:
        self.by_index.setdefault(index, (str(reason), detail))


@dataclass(frozen=True)
class FieldColumn:
    values: pa.Array
    lacking: Sequence[int] = ()
    numbers: Sequence[int] = ()


@dataclass(frozen=True)
class Bound:
    text: str
    limit: pa.Scalar
    is_minimum: bool

    @property
    def words(self) -> str:
        return f"is {'below' if self.is_minimum else 'above'} {self.text}"

    def outside(self, values: pa.Array) -> pa.Array:
        if self.is_minimum:
            return pc.less(values, self.limit)
        above = pc.greater(values, self.limit)  # NaN is above all numbers
        return pc.or_(above, pc.is_nan(values)) if pa.types.is_floating(values.type) else above


class FieldReader:
    """Reader of the field `declared`. `in_envelope`: the records are change messages."""

    def __init__(self, declared: Field, *, in_envelope: bool = False) -> None:
        self.field, self._in_envelope = declared, in_envelope
        self.type = arrow_type(declared)
        self._symbols = pa.array(declared.symbols, pa.string())
        self.not_in_enum = f"is none of {', '.join(declared.symbols)}"
        self.bounds = tuple(_bounds(declared))
        self.default, self.default_fault = _default(declared)

    def raw_column(
        self, members: Mapping[str, Sequence[RawValue]], size: int, rejections: Rejections
    ) -> Sequence[RawValue]:
        """Return the field's values in `size` records. If it occurs under several of its names, they are merged."""
        if not self.field.aliases:
            return members.get(self.field.name) or [ABSENT] * size
        columns = [members[name] for name in self.field.names if name in members]
        if len(columns) == 1:
            return columns[0]
        filled = [each for each in columns if isinstance(each, pa.Array) or {*map(type, each)} != {msgspec.UnsetType}]
        if len(filled) < 2:
            return (filled or columns or [[ABSENT] * size])[0]
        merged: list[RawValue] = []
        for index, values in enumerate(zip(*map(as_list, filled), strict=True)):
            present = [value for value in values if value is not None and value is not ABSENT]
            if len({json_value.encode(value) for value in present}) > 1:
                rejections.add(index, Reason.UNPARSEABLE, f"{self.field.name} is there under two names")
            merged.append(present[0] if present else None if None in values else ABSENT)
        return merged

    def read(self, given: Sequence[RawValue], rejections: Rejections, *, optional: Collection[int]) -> FieldColumn:
        """Return the typed column, and add its `rejections`. Records in `optional` may lack the field."""
        values, wrong = column(self.field, given)
        kinds = _types_of(given)
        lacking = _indices_of(given, ABSENT) if msgspec.UnsetType in kinds else []
        numbers = self._numbers(given, kinds)
        if kinds & NO_VALUE:
            empty = lacking if self.field.nullable else sorted([*lacking, *_indices_of(given, None)])
            values = self._with_defaults(values, empty, rejections, optional)
        texts = as_list(given) if wrong else ()
        for index, detail in wrong.items():
            if isinstance(text := texts[index], str) and NO_CHARACTER in text:
                rejections.add(index, Reason.UNPARSEABLE, json_value.NOT_A_CHARACTER)
            rejections.add(index, Reason.WRONG_TYPE, _with_encodings(detail) if self._in_envelope else detail)
        if self.field.text_only:
            self._reject(numbers, given, Reason.WRONG_TYPE, NOT_TEXT, rejections)
        self._check(values, given, rejections)
        return FieldColumn(values, lacking, numbers)

    def _with_defaults(
        self, values: pa.Array, empty: Sequence[int], rejections: Rejections, optional: Collection[int]
    ) -> pa.Array:
        if self.default is not None:
            for index in empty if self.default_fault else ():
                rejections.add(index, Reason.WRONG_TYPE, self.default_fault)
            rows = np.arange(len(values))
            rows[empty] = len(values)
            return pa.concat_arrays([values, self.default]).take(pa.array(rows))
        if not self.field.nullable:
            for index in empty:
                if index not in optional:
                    rejections.add(index, Reason.MISSING, self.field.name)
        return values

    def _numbers(self, given: Sequence[RawValue], kinds: set[type]) -> Sequence[int]:
        if self.field.type != "string" or not any(issubclass(kind, NUMBERS) and kind is not bool for kind in kinds):
            return ()
        return [index for index, value in enumerate(as_list(given)) if is_number(value)]

    def _check(self, values: pa.Array, given: Sequence[RawValue], rejections: Rejections) -> None:
        if len(self._symbols):
            unknown = pc.and_(pc.is_valid(values), pc.invert(pc.is_in(values, value_set=self._symbols)))
            self._reject(_true_indices(unknown), given, Reason.NOT_IN_ENUM, self.not_in_enum, rejections)
        for bound in self.bounds:
            outside = _true_indices(bound.outside(values))
            self._reject(outside, given, Reason.OUT_OF_BOUNDS, bound.words, rejections)

    def _reject(
        self, indices: Sequence[int], given: Sequence[RawValue], reason: str, words: str, rejections: Rejections
    ) -> None:
        values = as_list(given) if indices else ()
        for index in indices:
            rejections.add(index, reason, f"{self.excerpt(values[index])} {words}")

    def excerpt(self, value: RawValue) -> str:
        shown = (self.field.default or "") if value is None or value is ABSENT else value
        return f"{self.field.name}: {excerpt(shown)}"


def _with_encodings(detail: str) -> str:
    return _FORM_HINT.sub("", _EPOCH_HINT.sub(r'"encoding": "\1"', detail))


def is_number(value: RawValue) -> bool:
    return isinstance(value, NUMBERS) and not isinstance(value, bool)


def _types_of(given: Sequence[RawValue]) -> set[type]:
    if isinstance(given, pa.Array):
        first_value = given.drop_null()[:1].to_pylist()
        return {*map(type, first_value)} | ({type(None)} if given.null_count else set())
    return {*map(type, given)}


def _indices_of(given: Sequence[RawValue], value: RawValue) -> list[int]:
    return [index for index, each in enumerate(as_list(given)) if each is value]


def _true_indices(mask: pa.Array) -> Sequence[int]:
    indices: list[int] = pc.indices_nonzero(mask).to_pylist() if pc.any(mask).as_py() else []
    return indices


def _default(declared: Field) -> tuple[pa.Array | None, str]:
    if declared.default is None:
        return None, ""
    plain, given = given_default(declared)
    values, wrong = column(plain, [given])
    return values, wrong.get(0, "")


def _bounds(declared: Field) -> Iterator[Bound]:
    if declared.minimum is not None:
        yield Bound(declared.minimum, _limit(declared, declared.minimum), is_minimum=True)
    if declared.maximum is not None:
        yield Bound(declared.maximum, _limit(declared, declared.maximum), is_minimum=False)


def _limit(declared: Field, text: str) -> pa.Scalar:
    limit, kind = literals.read(declared.type, text), arrow_type(declared)
    if pa.types.is_floating(kind):
        limit = float(limit)
    elif pa.types.is_decimal(kind):
        with localcontext(prec=1000):
            scale = Decimal(1).scaleb(-kind.scale)
            most = (10**38 - 1) * scale
            limit = min(max(limit, -most), most).quantize(scale, ROUND_HALF_UP)
        kind = pa.decimal128(38, kind.scale)
    return pa.scalar(limit, kind)
