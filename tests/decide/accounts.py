"""Project whose accounts may not be overdrawn: events are decided before they are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lake.config import Settings
from tests.shop import contract, declare, empty

SENT: Final = ("string", {"from": "http.id"})
ENTRIES: Final = {"account": "long", "amount": "decimal(9, 2)", "note": "string?", "request": SENT}
ORDERS: Final = {
    "order_id": "string",
    "what": ({"type": "enum", "name": "what", "symbols": ["placed", "paid", "shipped"]}, {}),
    "request": SENT,
}
NOTES: Final = {"number": "long", "text": "string?"}
ACCOUNT: Final = '''"""Accounts."""

from decimal import Decimal

from lake import Fold, Refusal, log, table


def enter(state, event):
    """No account is overdrawn."""
    left = state["balance"] + event["amount"]
    if left < 0:
        return Refusal(f"{-left} short")
    return {"balance": left, "entries": state["entries"] + 1, "last": [event["amount"], *state["last"]][:3]}


@table(
    Fold(
        "account",
        state="balance decimal(18, 2), entries int, last array<decimal(9, 2)>",
        start={"balance": Decimal("0.00"), "entries": 0, "last": []},
        step=enter,
    ),
    log("entries"),
)
def account(entries):
    """An account."""
    return entries.select("account", "amount")
'''
ORDER: Final = '''"""Orders."""

from lake import Fold, Refusal, log, table

BEFORE = {"placed": None, "paid": "placed", "shipped": "paid"}


def go_on(state, event):
    """Each is placed, then paid, then shipped."""
    if state["status"] != BEFORE[event["what"]]:
        return Refusal(f"it is {state['status']}")
    return {"status": event["what"]}


@table(Fold("order_id", state="status string", step=go_on), log("orders"))
def order(orders):
    """An order."""
    return orders.select("order_id", "what")
'''
DECIDE: Final = 'decide.entries = "account"\ndecide.orders = "order"\n'


def accounts(folder: Path, options: str = DECIDE, **about: Any) -> Settings:
    """Declare streams decided by Folds, `entries` by `account` and `orders` by `order`, and undecided `notes`."""
    settings = empty(folder)
    declare(
        settings,
        contract("entries", ENTRIES, **{"id": ["request"], **about}),
        contract("orders", ORDERS, id=["request"]),
        contract("notes", NOTES),
        jobs={"account": ACCOUNT, "order": ORDER},
    )
    settings.path("sources").mkdir()
    settings.path("sources/web.toml").write_text(f'kind = "http"\n{options}')
    return settings
