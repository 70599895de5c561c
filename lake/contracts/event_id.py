"""Identity of events: SHA-256 over an injective encoding of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lake import text as texts
from lake.contracts import expressions
from lake.contracts.contract import Contract
from lake.contracts.fields import Field
from lake.text import SPARK


def quoted(name: str) -> str:
    """Return `name` as a Spark SQL identifier."""
    return texts.quoted(name, SPARK)


def literal(text: str) -> str:
    """Return `text` as a Spark SQL string."""
    return texts.literal(text, SPARK)


def identity(contract: Contract) -> str:
    """Return SQL of an event's `_id`, over its fields, `_extra` and `_source`.

    Unless its content is its identity, an event keeps its id under all later contracts.
    """
    key = [_encoded(contract.field(name)) for name in contract.key]
    at = expressions.time(contract, "_time IS NOT NULL") if contract.clock else "_time"
    time = [_length_prefixed(f"cast({at} AS string)")]
    match contract.identity:
        case "id":
            rest = [_encoded(contract.field(name)) for name in contract.id]
        case "content":
            rest = [*_content(contract)]
        case "position":
            rest = [_length_prefixed("_source")]
    return _digest(key + time + rest)


def content(contract: Contract) -> str:
    """Return SQL of a digest of an event's fields except transport ones, and of its `_extra`."""
    return _digest(_content(contract))


def _content(contract: Contract) -> Iterator[str]:
    yield from (_encoded(field) for field in contract.fields if not field.transport)
    yield "coalesce(concat(length(_extra), ':', _extra), '')"


def bucket(contract: Contract) -> str:
    """Return SQL of an event's `_bucket`."""
    return f"cast(pmod(xxhash64({', '.join(quoted(name) for name in contract.key)}), {contract.buckets}) AS int)"


def _encoded(field: Field) -> str:
    column = quoted(field.name)
    if field.nested:
        return _length_prefixed(f"to_json({column})")
    if field.type == "binary":
        return _length_prefixed(f"base64({column})")
    return _length_prefixed(f"cast({column} AS string)")


def _length_prefixed(text: str) -> str:
    return f"coalesce(concat(length({text}), ':', {text}), '-')"


def _digest(parts: Iterable[str]) -> str:
    return f"sha2(concat({', '.join(parts)}), 256)"
