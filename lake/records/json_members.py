"""Decoder of JSON records: msgspec, with the standard library for those that msgspec may decode with a loss.

msgspec keeps the last of two members with one name, reads -0 as 0, accepts U+FFFF, and its stack bounds the depth.
Records that may be affected, and those it rejects, are decoded again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from lake.contracts.reasons import Reason
from lake.records.json_value import DEPTH, NotJson, read_object
from lake.records.raw_values import ABSENT, NO_CHARACTER, JsonNumber, RawValue

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
    for index in _doubtful(texts, values):
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


def _doubtful(texts: Sequence[bytes], values: Sequence[object]) -> Iterator[int]:
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
    if _brackets(text) - len(texts) >= DEPTH and any(_brackets(one) > DEPTH for one in texts):
        return False
    return all(text.count(sign) == again.count(sign) for sign in (b'"', b"-"))


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _as_written(number: object) -> msgspec.Raw:
    if isinstance(number, JsonNumber):
        return msgspec.Raw(number.encode())
    raise TypeError(f"{type(number).__name__} is no value of a record")
