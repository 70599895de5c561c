"""SQL of the expressions in a contract, evaluated so that a record on which one raises can be rejected.

Spark has no function that replaces any error by null. Two of its functions do so for their arguments as well:
`try_add` of a timestamp and an interval, and `try_to_binary`. Each use is a branch of a CASE without ELSE: Spark
evaluates an expression that is repeated ahead of these functions, unless it is in a branch.
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
    """Return SQL of an event's time as its producer reports it; null if the expression raises.

    `sound` is SQL of a condition on the record: if it does not hold, the time is null too.
    """
    time = f"cast({contract.time or 'NULL'} AS timestamp)"
    return f"CASE WHEN {sound} THEN try_add({time}, {NO_TIME}) END" if is_expression(contract.time) else time


def time_raises(contract: Contract) -> str:
    """Return SQL of whether the expression of a time that is null has raised."""
    text = f"coalesce(cast(cast({contract.time} AS timestamp) AS string), '')"
    return f"CASE WHEN _time IS NULL THEN {_tried(text)} IS NULL END"


def is_expression(time: str | None) -> bool:
    """Return whether an event time is more than a field."""
    return time is not None and not re.fullmatch(r"\w+", time)


def conditions(contract: Contract) -> dict[str, tuple[str, str]]:
    """Return the SQL conditions of a contract: {column that holds the outcome: (its name in the contract, SQL)}."""
    punctuation = contract.horizon.punctuation if contract.horizon else None
    declared = {BROADCAST: ("broadcast", contract.broadcast), PUNCTUATION: ("horizon.punctuation", punctuation)}
    return {column: (name, sql) for column, (name, sql) in declared.items() if sql}


def outcomes(contract: Contract, sound: str) -> Iterator[str]:
    """Yield SQL of the columns of `conditions`: null if the condition raises or the record is not `sound`."""
    for column, (_, condition) in conditions(contract).items():
        yield f"CASE WHEN {sound} THEN {_tried(f'cast(coalesce({condition}, false) AS string)')} END AS {column}"


def holds(contract: Contract, column: str) -> str:
    """Return SQL of whether a condition holds; false if the contract has none."""
    return f"coalesce({column} = {TRUE}, false)" if column in conditions(contract) else "false"


def _tried(text: str) -> str:
    """Return SQL of the bytes of `text`, a text that is never null: null if evaluating it raises."""
    return f"try_to_binary({text}, 'utf-8')"
