"""A table that is published again and again, and a sink that tells a receiver of its changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lake.config import load_settings
from lake.read.sql import reader
from lake.sinks.declared import declared_sinks
from lake.sinks.deliver import DeliveryOutcome, deliver
from lake.sinks.kind import DeclaredSink
from lake.store.ledger import sent
from lake.text import plain
from tests.read.things import NAME, Things
from tests.servers.webhook import VARIABLE, Webhook
from tests.shop import empty

SINK = "crm"


@dataclass
class Shop:
    """A project with a sink, whose target is a receiver."""

    receiver: Webhook
    things: Things

    @classmethod
    def made(cls, receiver: Webhook, folder: Path, options: str = "", table: str = "") -> Shop:
        """A new one; with more options of the sink, and of its table."""
        shop = cls(receiver, Things(empty(folder / "shop", "lease_seconds = 0.1\n")))
        shop.declare(options, table)
        return shop

    def declare(self, options: str = "", table: str = "") -> None:
        settings = self.things.settings = load_settings(self.things.settings.project)
        file = settings.path(settings.sinks) / f"{SINK}.toml"
        file.parent.mkdir(exist_ok=True)
        about = f'kind = "webhook"\nurl = "{self.receiver.url}"\nsecret = "env:{VARIABLE}"\n'
        file.write_text(f"{about}{options}\n[tables.{NAME}]\n{table}\n")

    @property
    def sink(self) -> DeclaredSink:
        [sink] = declared_sinks(self.things.settings, [SINK])
        return sink

    def deliver(self, **options: Any) -> DeliveryOutcome:
        return deliver(self.things.settings, self.sink, **options)

    @property
    def undelivered(self) -> list[sent.Undelivered]:
        return sent.undelivered(self.things.settings, SINK)

    @property
    def published(self) -> dict[str, Any]:
        """The rows of the edition that readers see, by key."""
        rows = self.things.as_of(reader(self.things.settings).edition.number)
        return {json.dumps({"k": key}): plain(row) for key, row in rows.items()}

    def in_step(self) -> bool:
        return self.receiver.rows() == self.published
