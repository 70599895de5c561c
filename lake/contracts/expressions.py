"""SQL over a contract's fields: event time, conditions, and the id of an event, SHA-256 over an injective encoding.

A record whose expression raises can be rejected: `try_add` of a timestamp and an interval, and `try_to_binary`, turn
any error of their arguments into null. Each use is in a CASE branch without ELSE, because Spark evaluates repeated
expressions before these functions unless they are in a branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from lake import text as sql
from lake.text import SPARK

if TYPE_CHECKING:
    from lake.contracts.contract import Contract
    from lake.contracts.fields import Field

BROADCAST: Final = "_broadcasts"
PUNCTUATION: Final = "_punctuates"
TRUE: Final = "cast('true' AS binary)"
NO_TIME: Final = "INTERVAL '0' SECOND"


def time(contract: Contract, sound: str) -> str:
    """Return SQL of the producer's event time; null if the expression raises, or the SQL condition `sound` is false."""
    time = f"cast({contract.time or 'NULL'} AS timestamp)"
    return f"CASE WHEN {sound} THEN try_add({time}, {NO_TIME}) END" if is_expression(contract.time) else time


def time_raises(contract: Contract) -> str:
    """Return SQL that is true if the expression of the event time raises, null if `_time` has a value."""
    text = f"coalesce(cast(unix_micros(cast({contract.time} AS timestamp)) AS string), '')"
    return f"CASE WHEN _time IS NULL THEN {_or_null(text)} IS NULL END"


def is_expression(time: str | None) -> bool:
    return time is not None and not re.fullmatch(r"\w+", time)


def conditions(contract: Contract) -> dict[str, tuple[str, str]]:
    """Return {result column: (name in the contract, SQL)}."""
    punctuation = contract.horizon.punctuation if contract.horizon else None
    declared = {BROADCAST: ("broadcast", contract.broadcast), PUNCTUATION: ("horizon.punctuation", punctuation)}
    return {column: (name, sql) for column, (name, sql) in declared.items() if sql}


def outcomes(contract: Contract, sound: str) -> Iterator[str]:
    """Yield SQL of the columns of `conditions`; null if a condition raises or the record is not `sound`."""
    for column, (_, condition) in conditions(contract).items():
        yield f"CASE WHEN {sound} THEN {_or_null(f'cast(coalesce({condition}, false) AS string)')} END AS {column}"


def holds(contract: Contract, column: str) -> str:
    """Return SQL that is true if the condition with the result `column` is declared and true."""
    return f"coalesce({column} = {TRUE}, false)" if column in conditions(contract) else "false"


def _or_null(text: str) -> str:
    return f"try_to_binary({text}, 'utf-8')"


def quoted(name: str) -> str:
    return sql.quoted(name, SPARK)


def literal(text: str) -> str:
    return sql.literal(text, SPARK)


def identity(contract: Contract) -> str:
    """Return SQL of `_id`, over an event's fields, `_extra` and `_source`.

    Unless its content is its identity, an event keeps its id under all later contracts.
    """
    key = [_encoded(contract.field(name)) for name in contract.key]
    at = time(contract, "_time IS NOT NULL") if contract.clock else "_time"
    match contract.identity:
        case "id":
            rest = [_encoded(contract.field(name)) for name in contract.id]
        case "content":
            rest = [*_content(contract)]
        case "position":
            rest = [_length_prefixed("_source")]
    return _digest([*key, _length_prefixed(f"cast({at} AS string)"), *rest])


def content(contract: Contract) -> str:
    return _digest(_content(contract))


def _content(contract: Contract) -> Iterator[str]:
    yield from (_encoded(field) for field in contract.fields if not field.transport)
    yield "coalesce(concat(length(_extra), ':', _extra), '')"


def bucket(contract: Contract) -> str:
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
