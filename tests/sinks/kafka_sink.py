"""A table that is published again and again, and a sink that takes it to a topic of a broker."""

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
from lake.text import plain
from tests.read.things import NAME, Things
from tests.servers.kafka import Kafka
from tests.shop import empty

SINK = "crm"


@dataclass
class Shop:
    """A project with a sink, whose target is a broker."""

    broker: Kafka
    things: Things
    topic: str

    @classmethod
    def made(cls, broker: Kafka, folder: Path, options: str = "", table: str = "") -> Shop:
        """A new one; with more options of the sink, and of its table. Its names are its own on the broker."""
        broker.made += 1
        settings = empty(folder / "shop", "lease_seconds = 0.1\n")
        shop = cls(broker, Things(settings), f"things-{broker.made}")
        shop.declare(options, table)
        return shop

    def declare(self, options: str = "", table: str = "") -> None:
        self.things.settings = load_settings(self.things.settings.project)
        file = self.things.settings.path(self.things.settings.sinks) / f"{SINK}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            f'kind = "kafka"\nbootstrap = "{self.broker.bootstrap}"\nid = "{self.topic}"\n'
            f'seconds = 60\n{options}\n[tables.{NAME}]\nname = "{self.topic}"\n{table}\n'
        )

    @property
    def sink(self) -> DeclaredSink:
        [sink] = declared_sinks(self.things.settings, [SINK])
        return sink

    def deliver(self, **options: Any) -> DeliveryOutcome:
        return deliver(self.things.settings, self.sink, **options)

    @property
    def read(self) -> dict[str, str]:
        """What who reads the compacted topic has: the last committed value of each key, tombstones taken away."""
        latest = {record.key: record.value for record in self.broker.committed(self.topic)}
        return {key: value for key, value in latest.items() if value is not None}

    @property
    def published(self) -> dict[str, str]:
        """What that has to be, of the edition that readers see."""
        shown = reader(self.things.settings).edition.number
        rows = self.things.as_of(shown)
        return {spelt({"k": key}): spelt(row) for key, row in rows.items()}

    def in_step(self) -> bool:
        return self.read == self.published


def spelt(row: Any) -> str:
    return json.dumps(plain(row), ensure_ascii=False)
