"""SQL of a contract's expressions, evaluated such that a record whose expression raises can be rejected.

Spark has no function that turns any error into null. Two functions do so for their arguments: `try_add` of a timestamp
and an interval, and `try_to_binary`. Each use is in a CASE branch without ELSE, because Spark evaluates repeated
expressions before these functions unless they are in a branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lake.contracts.contract import Contract

BROADCAST: Final = "_broadcasts"
PUNCTUATION: Final = "_punctuates"
TRUE: Final = "cast('true' AS binary)"
NO_TIME: Final = "INTERVAL '0' SECOND"


def time(contract: Contract, sound: str) -> str:
    """Return SQL of the producer's event time; null if the expression raises, or the condition `sound` is false."""
    time = f"cast({contract.time or 'NULL'} AS timestamp)"
    return f"CASE WHEN {sound} THEN try_add({time}, {NO_TIME}) END" if is_expression(contract.time) else time


def time_raises(contract: Contract) -> str:
    """Return SQL of whether the expression of a null time has raised."""
    text = f"coalesce(cast(cast({contract.time} AS timestamp) AS string), '')"
    return f"CASE WHEN _time IS NULL THEN {_or_null(text)} IS NULL END"


def is_expression(time: str | None) -> bool:
    """Return whether an event time is more than a field."""
    return time is not None and not re.fullmatch(r"\w+", time)


def conditions(contract: Contract) -> dict[str, tuple[str, str]]:
    """Return the SQL conditions of a contract: {result column: (name in the contract, SQL)}."""
    punctuation = contract.horizon.punctuation if contract.horizon else None
    declared = {BROADCAST: ("broadcast", contract.broadcast), PUNCTUATION: ("horizon.punctuation", punctuation)}
    return {column: (name, sql) for column, (name, sql) in declared.items() if sql}


def outcomes(contract: Contract, sound: str) -> Iterator[str]:
    """Yield SQL of the columns of `conditions`; null if a condition raises or the record is not `sound`."""
    for column, (_, condition) in conditions(contract).items():
        yield f"CASE WHEN {sound} THEN {_or_null(f'cast(coalesce({condition}, false) AS string)')} END AS {column}"


def holds(contract: Contract, column: str) -> str:
    """Return SQL of whether a condition is true; false if the contract has none."""
    return f"coalesce({column} = {TRUE}, false)" if column in conditions(contract) else "false"


def _or_null(text: str) -> str:
    return f"try_to_binary({text}, 'utf-8')"
