"""A small shop that crashes: random orders, what its tables must be by a model in plain Python, and what is wrong."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from lake.ops.scaffold import TEMPLATE, init
from lake.privacy.audit import search_files
from lake.store import archive_tier, duckdb_tables, erasures
from lake.store.keys import open_store
from lake.store.ledger.cuts import latest_cut
from lake.store.ledger.editions import current_edition, kept_editions
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.warehouse import Warehouse
from lake.testing import CommandResult, Commands, Lakehouse

BEGAN: Final = datetime(2024, 3, 1, tzinfo=UTC)
CUSTOMERS: Final = (
    "ada lovelace",
    "grace hopper",
    "joan clarke",
    "mary somerville",
    "emmy noether",
    "hedy lamarr",
)
STATUSES: Final = ("placed", "paid", "shipped", "cancelled")
LONDON: Final = ZoneInfo("Europe/London")
PAST: Final = '''
from lake import History, log, table

@table(History("order_id", sequence="changed_at", track="status"), log("orders"))
def order_past(orders):
    """What an order's status was, and when."""
    return orders.select("order_id", "status", "changed_at")
'''
OTHERWISE: Final = ('"placed_at", "changed_at")', '"placed_at", "changed_at", "amount as charged")')
"""A change of the first table's definition that adds a column."""

Row = dict[str, Any]


@dataclass
class Shop:
    """A Lakehouse, the events that its log must have (the first of each id), and the dice that make more of them.

    `refused` are the texts that quarantine must have, each so many times. Of editions up to `lost_until` a table is
    gone.
    """

    home: Path
    chance: random.Random
    events: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    sent: list[Row] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    changed: bool = False
    lost_until: int = 0

    def __post_init__(self) -> None:
        init(self.home / "shop")
        shutil.rmtree(self.home / "shop/landing")
        (self.home / "shop/jobs/silver/order_past.py").write_text(PAST)
        self.lakehouse = self._opened()

    def _opened(self) -> Lakehouse:
        lakehouse = Lakehouse(self.home / "shop", self.home)
        lakehouse.settings = replace(lakehouse.settings, archive=self.home / "archive", cold=self.home / "cold")
        return lakehouse

    # What happens to it.

    def order(self, *, late: bool = False, number: int = 0) -> Row:
        """A change of one of a few orders, or of that `number`; a late one happened before most that are known."""
        self.steps += 1
        at = BEGAN + timedelta(minutes=self.chance.randrange(60) if late else 100 * self.steps, seconds=self.steps)
        number = number or self.chance.randrange(1, 12)
        return {
            "order_id": number,
            "customer": CUSTOMERS[number % len(CUSTOMERS)],
            "status": self.chance.choice(STATUSES),
            "amount": f"{self.chance.randrange(1, 50_000) / 100:.2f}",
            "placed_at": (BEGAN + timedelta(hours=7 * number)).isoformat(),
            "changed_at": at.isoformat(),
        }

    def land(self, *records: Row | str) -> None:
        """Lands one file. A record whose id is known already is a duplicate, or a conflict: neither is an event."""
        self.lakehouse.home.mkdir(exist_ok=True)
        folder = self.home / "landing/orders"
        folder.mkdir(parents=True, exist_ok=True)
        self.steps += 1
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        (folder / f"{self.steps:06d}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        for record in records:
            if isinstance(record, dict):
                self.events.setdefault((record["order_id"], record["changed_at"], record["status"]), record)
                self.sent.append(record)
            else:
                self.refused[record] += 1

    def land_some(self) -> None:
        """New, late, repeated, conflicting and broken records in one file."""
        new = [self.order(late=self.chance.random() < 0.3) for _ in range(self.chance.randrange(1, 4))]
        again = [self.chance.choice(self.sent)] if self.sent else []
        other = [{**self.chance.choice(self.sent), "amount": "0.01"}] if self.chance.random() < 0.3 and again else []
        self.land(*new, *again, *other, "no order at all")

    def somebody(self) -> str:
        """A customer who has ordered and is not forgotten."""
        names: set[str] = {record["customer"] for record in self.sent}
        return self.chance.choice(sorted(names - self.forgotten()))

    def batch(self) -> int:
        """A batch of the log that is not archived, if there is one."""
        log = Log(self.lakehouse.settings, "orders")
        archived = max((part.through for part in archive_tier.parts_of(log.path)), default=0)
        last = log.head().batch
        return self.chance.randrange(min(archived + 1, last), last + 1)

    def change(self) -> None:
        """Changes the definition of the first table, or takes the change back."""
        job = self.home / "shop/jobs/silver/current_order.py"
        plain = (TEMPLATE / "jobs/silver/current_order.py").read_text()
        self.changed = not self.changed
        job.write_text(
            plain.replace(*OTHERWISE).replace("orders.select(", "orders.selectExpr(") if self.changed else plain
        )

    def add_field(self) -> None:
        """A new version of the contract, with one field more."""
        file = self.home / "shop/schemas/orders.avsc"
        schema = json.loads(file.read_text())
        name = f"note_{len(schema['fields'])}"
        schema["fields"].append({"name": name, "type": ["null", "string"], "default": None, "doc": "What was noted."})
        file.write_text(json.dumps(schema, indent=2))

    # What it must be.

    def forgotten(self) -> set[str]:
        """The customers whom the warehouse's book says to be erased."""
        erased = erasures.subjects(self.lakehouse.settings, "orders")
        store = open_store(self.lakehouse.settings, make=True) if erased else None
        return {name for name in CUSTOMERS if store and store.token("orders", name) in erased}

    def tables(self) -> dict[str, list[Row]]:
        """What readers must see, without what a changed definition adds."""
        gone = self.forgotten()
        changes = [
            {**change, "customer": None if change["customer"] in gone else change["customer"]}
            for change in self.sorted()
        ]
        current = {change["order_id"]: change for change in changes}
        return {
            "current_order": [_typed(order) for order in current.values()],
            "order_past": list(_past(changes)),
            "customer_daily": _daily(list(map(_typed, current.values()))),
        }

    def sorted(self) -> list[Row]:
        return sorted(self.events.values(), key=lambda event: (event["order_id"], _time(event["changed_at"])))

    def faults(self, commands: Commands) -> Iterator[str]:
        """What is not as it must be: the log, the tables, their recomputation, the edition."""
        for line in (("verify",), ("log", "orders", "--check")):
            done = commands.lake(*line, at=self.lakehouse)
            if done.code:
                yield f"lake {' '.join(line)} ends with {done.code}: {done.out}{done.err}"
        yield from self.model_faults()
        yield from self.unreadable()
        yield from self.quarantine_faults()
        yield from (
            f"{file} still has somebody" for file in search_files(self.lakehouse.settings, self.forgotten()).found
        )

    def model_faults(self) -> Iterator[str]:
        """Where the edition that readers see is not of the newest cut, or its rows are not those of the model."""
        settings = self.lakehouse.settings
        edition, cut = current_edition(settings), latest_cut(settings)
        if edition is None or cut is None or edition.cut != cut.number:
            yield f"the edition is {edition}, the cut {cut}"
            return
        for name, wanted in self.tables().items():
            entry = edition.tables[name]
            found = Scan(Warehouse(settings).root / entry.path, entry.version).arrow().to_pylist()
            rows = [{column: row[column] for column in wanted[0]} for row in found] if wanted else found
            if _ordered(rows) != _ordered(wanted):
                yield f"{name}: {[row for row in _ordered(rows) if row not in wanted]} is there, wanted {wanted}"

    def unreadable(self) -> Iterator[str]:
        """The tables of kept editions that cannot be read."""
        kept = [edition for edition in kept_editions(self.lakehouse.settings) if edition.number > self.lost_until]
        for edition in kept:
            for name, entry in edition.tables.items():
                try:
                    Scan(Warehouse(self.lakehouse.settings).root / entry.path, entry.version).arrow()
                except Exception as error:
                    yield f"{name} of edition {edition.number}: {type(error).__name__}: {error}"

    def quarantine_faults(self) -> Iterator[str]:
        """Where quarantine has what was no order more or less often than it came."""
        rows = duckdb_tables.rows(Warehouse(self.lakehouse.settings).quarantine("orders").path, "SELECT raw FROM t")
        found = Counter(row["raw"] for row in rows if row["raw"] in self.refused)
        if found != self.refused:
            yield f"quarantine has {found}, wanted {self.refused}"

    def live(self, table: str) -> str:
        """The folder in the warehouse of a table as readers see it."""
        edition = current_edition(self.lakehouse.settings)
        assert edition is not None
        return edition.tables[table].path

    def edition(self) -> int:
        """The number of the newest edition."""
        edition = current_edition(self.lakehouse.settings)
        return edition.number if edition else 0

    def status(self, done: CommandResult) -> str:
        """What a command said, where it did not end well."""
        return f"{done.code}: {done.out[-500:]}{done.err[-2000:]}"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _typed(order: Row) -> Row:
    times = {name: _time(order[name]) for name in ("placed_at", "changed_at")}
    return {name: order[name] for name in order} | {"amount": Decimal(order["amount"])} | times


def _past(changes: list[Row]) -> Iterator[Row]:
    """Uninterrupted periods of a status; `changes` come by order and time."""
    periods: list[Row] = []
    for change in changes:
        last = periods[-1] if periods and periods[-1]["order_id"] == change["order_id"] else None
        if last and last["status"] == change["status"]:
            continue
        at = _time(change["changed_at"])
        if last:
            last["valid_to"] = at
        periods.append({"order_id": change["order_id"], "status": change["status"], "valid_from": at, "valid_to": None})
    yield from periods


def _daily(orders: list[Row]) -> list[Row]:
    days: dict[tuple[str, date], Row] = {}
    for order in orders:
        key = order["customer"], order["placed_at"].astimezone(LONDON).date()
        row = days.setdefault(
            key, {"customer": key[0], "day": key[1], "orders": 0, "cancelled": 0, "amount": Decimal(0)}
        )
        row["orders"] += 1
        row["cancelled"] += order["status"] == "cancelled"
        row["amount"] += order["amount"]
    return list(days.values())


def _ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=str)
