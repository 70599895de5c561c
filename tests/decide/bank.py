"""Log and table of accounts, written without Spark in the way that Spark writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import arro3.core
import pyarrow as pa
from deltalake import write_deltalake

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.project.project import Project, load
from lake.serve.decide.command_validation import CommandValidator
from lake.serve.decide.rule import rules
from lake.serve.intake_folder import GroupWriter
from lake.serve.source import HttpSource, find_declaration
from lake.store import delta
from lake.store.delta import Position
from lake.store.ledger import contract_versions
from lake.store.log import Log
from lake.store.scan import Scan
from tests.spool import Kept

AT: Final = datetime(2024, 1, 1, tzinfo=UTC)
EVENTS: Final = pa.schema(
    [
        ("_batch", pa.int64()),
        ("_arrival", pa.int64()),
        ("_bucket", pa.int32()),
        ("_offset", pa.int64()),
        ("_source", pa.string()),
        ("_version", pa.int32()),
        ("_extra", pa.string()),
        ("account", pa.int64()),
        ("amount", pa.decimal128(9, 2)),
        ("note", pa.string()),
        ("request", pa.string()),
    ]
)
STATES: Final = pa.schema(
    [
        ("account", pa.int64()),
        ("balance", pa.decimal128(18, 2)),
        ("entries", pa.int32()),
        ("last", pa.list_(pa.field("element", pa.decimal128(9, 2)))),
        ("refused", pa.int64()),
    ]
)


@dataclass
class Bank:
    """Project of `tests.decide.accounts` with the stream `entries` alone."""

    settings: Settings
    offsets: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})

    @cached_property
    def project(self) -> Project:
        contract_versions.register(self.settings, load_contracts(self.settings)["entries"])
        return load(self.settings)

    @cached_property
    def source(self) -> HttpSource:
        return HttpSource(find_declaration(self.settings, self.project.contracts, "web"))

    def decider(self, **options: Any) -> CommandValidator:
        """Return a decider that has not begun."""
        declared = self.source.declared
        found = rules(self.project, declared)
        return CommandValidator(declared, {"entries": found["entries"]}, **options)

    def writer(self) -> GroupWriter:
        return GroupWriter(self.source.declared.folder)

    @property
    def log(self) -> Log:
        return Log(self.settings, "entries")

    def ingest(self, *, acknowledge: bool = True, given_up: bool = False) -> None:
        """Write one delivery to the log and delete its groups, unless the process dies before.

        With `given_up`, continue after the groups lost by the folder.
        """
        head, taken = self.log.head(), Kept()
        newest = head.sources.get("web")
        source = HttpSource(self.source.declared)
        after = newest.progress if newest else None
        progress = source.read(source.skip_gap(after) if given_up else after, taken)
        if progress is None:
            if newest and acknowledge:
                source.acknowledge(newest.progress)
            return
        rows = []
        for arrival, (stream, record) in enumerate(taken.records):
            assert stream == "entries"
            values = json.loads(record.text)
            undeclared = {name: value for name, value in values.items() if name not in EVENTS.names}
            bucket = values["account"] % 2
            rows.append(
                {
                    "_batch": head.batch + 1,
                    "_arrival": arrival,
                    "_bucket": bucket,
                    "_offset": self.offsets[bucket],
                    "_source": f"web:{record.place}",
                    "_version": 1,
                    "account": values["account"],
                    "amount": Decimal(values["amount"]),
                    "note": values.get("note"),
                    "_extra": json.dumps(undeclared) if undeclared else None,
                    "request": record.facts["http.id"],
                }
            )
            self.offsets[bucket] += 1
        delivery = newest.number + 1 if newest else 1
        sources = {"web": {"delivery": delivery, "streams": ["entries"], "progress": progress, "batch": head.batch + 1}}
        position = head.next(
            offsets={str(bucket): offset for bucket, offset in self.offsets.items()},
            watermark=None,
            counts={"read": len(rows), "accepted": len(rows), "duplicates": 0, "quarantined": 0, "control": 0},
            files=[],
            contract=1,
            at=AT.isoformat(),
            content={},
            sources=sources,
        )
        _write(self.log.path, pa.Table.from_pylist(rows, EVENTS), position, "append", ["_bucket"])
        if acknowledge:
            source.acknowledge(progress)

    def advance(self, fingerprint: str = "", **wrong: Any) -> None:
        """Write the table again at the log's head; by another definition, with the states `wrong`."""
        declaration = self.project.tables["account"]
        table, head = self.project.table(declaration), self.log.head()
        said: dict[str, Any] = {"verb": "build", "cut": head.batch, "voids": 0, "inputs": {"entries": head.batch}}
        said |= {"homes": {}, "fingerprint": fingerprint or self.project.fingerprint(declaration, {})}
        said |= {"counts": {"inserted": 0, "updated": 0, "deleted": 0}}
        said |= {"definition": self.project.definition(declaration, {})}
        rows = [{"account": account, **state, **wrong} for account, state in self.folded().items()]
        position = delta.head_or_start(table.path, table.app).next(**said)
        _write(table.path, pa.Table.from_pylist(rows, STATES), position, "overwrite", None)

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the log in order."""
        if not self.log.head().batch:
            return []
        rows = Scan(self.log.path).arrow().to_pylist()
        return sorted(rows, key=lambda row: (row["_batch"], row["_arrival"]))

    def folded(self) -> dict[int, dict[str, Any]]:
        """Return the accounts computed from the log in plain Python."""
        states: dict[int, dict[str, Any]] = {}
        for event in self.events():
            state = states.setdefault(
                event["account"], {"balance": Decimal("0.00"), "entries": 0, "last": [], "refused": 0}
            )
            if state["balance"] + event["amount"] < 0:
                state["refused"] += 1
                continue
            state["balance"] += event["amount"]
            state["entries"] += 1
            state["last"] = [event["amount"], *state["last"]][:3]
        return states


def _write(path: Any, rows: pa.Table, position: Position, mode: Any, by: list[str] | None) -> None:
    about = position.commit_properties
    write_deltalake(str(path), arro3.core.Table.from_arrow(rows), mode=mode, commit_properties=about, partition_by=by)
