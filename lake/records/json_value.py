"""JSON values that keep every digit of numbers, their text, and a fast decoder of records.

The decoder is msgspec, with the standard library for records that msgspec may decode with a loss: it keeps the last of
two members with one name, reads -0 as 0, accepts U+FFFF, and its stack bounds the depth. Records that may be affected,
and those it rejects, are decoded again.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final, NoReturn, TypeVar
from uuid import UUID

import msgspec

from lake.contracts.reasons import Reason
from lake.records.raw_values import ABSENT, NO_CHARACTER, JsonNumber, RawValue

NOT_ONE: Final = "not one JSON object"
NOT_A_CHARACTER: Final = "U+FFFF, which is no character"
DEPTH: Final = 200
"""Most nested levels: within Python's stack."""


class NotJson(ValueError):
    """Text that is rejected; the message is the reason."""


class Malformed(NotJson):
    """Text that breaks the grammar of JSON."""


def decode(text: str) -> RawValue:
    """Return the one value in `text`; its characters are not checked. Raises NotJson."""
    try:
        value: RawValue = json.loads(
            text,
            parse_int=JsonNumber,
            parse_float=JsonNumber,
            parse_constant=_reject_constant,
            object_pairs_hook=_unique_members,
        )
    except json.JSONDecodeError as error:
        raise Malformed(str(error)) from None
    except RecursionError:
        raise NotJson(f"more than {DEPTH} levels") from None
    if text.count("[") + text.count("{") > DEPTH and _depth(value) > DEPTH:
        raise NotJson(f"more than {DEPTH} levels")
    return value


def parse_if_json(given: RawValue) -> RawValue:
    if type(given) is not str:
        return given
    try:
        return decode(given)
    except NotJson:
        return given


def read_json(text: bytes) -> RawValue:
    """Return the one JSON value in `text`, whose characters are valid. Raises NotJson."""
    try:
        characters = text.decode()
    except UnicodeDecodeError:
        raise NotJson("not valid UTF-8") from None
    _check_characters(characters)
    try:
        value = decode(characters)
    except Malformed:
        raise NotJson(NOT_ONE) from None
    except NotJson as fault:
        raise NotJson(f"{NOT_ONE}: {fault}") from None
    if "\\u" in characters:
        _check_characters(json.dumps(value, ensure_ascii=False))
    return value


def read_object(text: bytes) -> dict[str, RawValue]:
    value = read_json(text)
    if not isinstance(value, dict):
        raise NotJson(NOT_ONE)
    return value


def encode(value: RawValue) -> str:  # noqa: PLR0911 one type after the other
    """Return compact JSON: numbers as written, bytes as base64, times ISO 8601, non-finite floats as texts."""
    match value:
        case JsonNumber():
            return str(value)
        case dict():
            members = [f"{_quoted(name)}:{encode(value[name])}" for name in value]
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(encode, value)) + "]"
        case float() if not math.isfinite(value):
            return f'"{plain_text(value)}"'
        case Decimal():
            return plain_text(value)
        case None | bool() | int() | float():
            return json.dumps(value)
    return _quoted(plain_text(value))


def plain_text(value: RawValue) -> str:  # noqa: PLR0911 one type after the other
    match value:
        case str():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case bytes():
            return b64encode(value).decode()
        case float() if not math.isfinite(value):
            return json.dumps(value)
        case msgspec.UNSET:
            return ""
    return encode(value)


def uuid_text(data: bytes) -> str:
    return str(UUID(bytes=data))


def has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_characters(text: str) -> None:
    if NO_CHARACTER in text:
        raise NotJson(NOT_A_CHARACTER)
    if has_surrogates(text):
        raise NotJson("unpaired surrogate")


def _depth(value: RawValue) -> int:
    depth, level = 0, [value]
    while level := [node for node in level if isinstance(node, list | dict)]:
        depth += 1
        level = [part for node in level for part in (node.values() if isinstance(node, dict) else node)]
    return depth


def _unique_members(pairs: list[tuple[str, RawValue]]) -> dict[str, RawValue]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise NotJson("duplicate field name")
    return members


def _reject_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


T = TypeVar("T")
BLANKS: Final = b" \t\r\n"
_MARK: Final = NO_CHARACTER.encode()
_PLAIN: Final = re.compile(r'[^\x00-\x1f"\\]+')
"""Names that msgspec can map to slots. Records with other names are decoded as dicts."""
_ESCAPED: Final = re.compile(rb"\\u(?:[fF]{4}|002[2dD])")
PIECES: Final = 16


@dataclass(frozen=True)
class Members:
    """Members of records: `columns` by name, and `extra`, the undeclared members of each record or None.

    `broken` maps indices to reason and detail. `optional` has, by field, indices of records that may lack it. If
    `are_typed`, values are not JSON values.
    """

    columns: Mapping[str, Sequence[RawValue]]
    extra: Sequence[dict[str, RawValue] | None]
    broken: Mapping[int, tuple[str, str]]
    optional: Mapping[str, Collection[int]] = field(default_factory=dict)
    are_typed: bool = False


class Decoder:
    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        slots = {name: f"member_{number}" for number, name in enumerate(self.names)}
        self._record = msgspec.defstruct(
            "Record",
            [(slot, Any, ABSENT) for slot in slots.values()],
            rename={slot: name if _PLAIN.fullmatch(name) else NO_CHARACTER + slot for name, slot in slots.items()},
            forbid_unknown_fields=True,
            gc=False,
        )
        self._members = {name: attrgetter(slot) for name, slot in slots.items()}
        self._decode = decoder(self._record)
        self._decode_any = decoder(dict[str, Any])

    def __reduce__(self) -> tuple[type[Decoder], tuple[Sequence[str]]]:
        return Decoder, (self.names,)

    def decode(self, texts: Sequence[bytes]) -> Members:
        records: list[object] = []
        extra: list[dict[str, RawValue] | None] = [None] * len(texts)
        broken: dict[int, tuple[str, str]] = {}
        for index, record in enumerate(decode_without_loss(texts, self._decode, self._decode_any)):
            if type(record) is self._record:
                records.append(record)
                continue
            try:
                members = record if isinstance(record, dict) else read_object(texts[index])
            except NotJson as fault:
                members, broken[index] = {}, (Reason.UNPARSEABLE, str(fault))
            records.append(self._record(*[members.pop(name, ABSENT) for name in self.names]))
            extra[index] = members or None
        return Members({name: list(map(get, records)) for name, get in self._members.items()}, extra, broken)


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.json.Decoder(kind, float_hook=JsonNumber).decode


def encoder(*, is_sorted: bool = True) -> msgspec.json.Encoder:
    return msgspec.json.Encoder(enc_hook=_as_written, order="deterministic" if is_sorted else None)


def decode_without_loss(texts: Sequence[bytes], *decoders: Callable[[bytes], T]) -> list[T | None]:
    """Return the value of each text by the first decoder that reads it; None if none does without a possible loss."""
    values = [_decoded(text, decoders) for text in texts]
    for index in _maybe_lossy(texts, values):
        values[index] = None
    return values


def _decoded(text: bytes, decoders: Sequence[Callable[[bytes], T]]) -> T | None:
    for decode in decoders:
        try:
            return decode(text)
        except msgspec.ValidationError:
            continue
        except (ValueError, RecursionError):
            break
    return None


def _maybe_lossy(texts: Sequence[bytes], values: Sequence[object]) -> Iterator[int]:
    """Yield the indices of values that may differ from their text. All are compared at once, then in pieces."""
    encode_lines = encoder(is_sorted=False).encode_lines
    pieces = [[index for index, value in enumerate(values) if value is not None]]
    while pieces:
        piece = pieces.pop()
        if _keeps_all([texts[index] for index in piece], encode_lines([values[index] for index in piece])):
            continue
        if len(piece) == 1:
            yield piece[0]
        else:
            size = -(-len(piece) // PIECES)
            pieces += [piece[start : start + size] for start in range(0, len(piece), size)]


def _keeps_all(texts: Sequence[bytes], again: bytes) -> bool:
    text = b"\n".join(texts)
    if (not text.isascii() and _MARK in text) or (rb"\u" in text and _ESCAPED.search(text)):
        return False
    if _brackets(text) - len(texts) >= DEPTH and any(_brackets(each) > DEPTH for each in texts):
        return False
    return all(text.count(sign) == again.count(sign) for sign in (b'"', b"-"))


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _as_written(number: object) -> msgspec.Raw:
    if isinstance(number, JsonNumber):
        return msgspec.Raw(number.encode())
    raise TypeError(f"{type(number).__name__} is no value of a record")
