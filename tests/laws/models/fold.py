"""Fold in plain Python: an account that refuses to be overdrawn."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True)
class Entry:
    """Event of an account: a deposit, or a negative withdrawal."""

    key: int
    at: int | None
    amount: Decimal
    place: int


def in_order(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda e: (e.key, e.at is not None, e.at or 0, e.place))


def accounts(entries: list[Entry]) -> dict[int, tuple[Any, ...]]:
    """key -> (balance, entries, amounts, refused)"""
    found: dict[int, tuple[Any, ...]] = {}
    for each in in_order(entries):
        balance, count, amounts, refused = found.get(each.key, (Decimal("0.00"), 0, [], 0))
        if balance + each.amount < 0:
            found[each.key] = (balance, count, amounts, refused + 1)
        else:
            found[each.key] = (balance + each.amount, count + 1, [*amounts, each.amount], refused)
    return found


def refusals(entries: list[Entry]) -> dict[tuple[int, int], tuple[Any, ...]]:
    """(key, place) -> (at, amount, reason)"""
    found = {}
    for i, each in enumerate(in_order(entries)):
        before = [e for e in in_order(entries)[:i] if e.key == each.key]
        balance = accounts(before).get(each.key, (Decimal(0),))[0]
        if balance + each.amount < 0:
            found[each.key, each.place] = (each.at, each.amount, f"{-(balance + each.amount)} short")
    return found
