"""A table that is published again and again, and a sink that takes it to a broker or to a receiver of webhooks."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final, Self

from lake.config import load_settings
from lake.read.sql import reader
from lake.sinks.deliver import DeliveryOutcome, deliver
from lake.sinks.kind import DeclaredSink, declared_sinks
from lake.store.ledger import sent
from lake.text import plain
from tests.read.things import NAME, Things
from tests.servers.kafka import Kafka
from tests.servers.webhook import VARIABLE, Webhook
from tests.shop import empty

SINK: Final = "crm"


class Shop(ABC):
    """A project with the sink `crm` of the table `thing`."""

    def __init__(self, server: Any, things: Things) -> None:
        self.server, self.things = server, things

    @classmethod
    def made(cls, server: Any, folder: Path, options: str = "", table: str = "") -> Self:
        """A new one; with more options of the sink, and of its table."""
        shop = cls(server, Things(empty(folder / "shop", "lease_seconds = 0.1\n")))
        shop.declare(options, table)
        return shop

    @property
    @abstractmethod
    def about(self) -> tuple[str, str]:
        """The options of the sink and of its table that every test has."""

    def declare(self, options: str = "", table: str = "") -> None:
        settings = self.things.settings = load_settings(self.things.settings.project)
        file = settings.path(settings.sinks) / f"{SINK}.toml"
        file.parent.mkdir(exist_ok=True)
        of_sink, of_table = self.about
        file.write_text(f"{of_sink}{options}\n[tables.{NAME}]\n{of_table}{table}\n")

    @property
    def sink(self) -> DeclaredSink:
        [sink] = declared_sinks(self.things.settings, [SINK])
        return sink

    def deliver(self, **options: Any) -> DeliveryOutcome:
        return deliver(self.things.settings, self.sink, **options)

    @property
    def published(self) -> dict[str, Any]:
        """The rows of the edition that readers see, by key."""
        rows = self.things.as_of(reader(self.things.settings).edition.number)
        return {json.dumps({"k": key}): plain(row) for key, row in rows.items()}

    @property
    @abstractmethod
    def read(self) -> dict[str, Any]:
        """The rows that a reader of the target has, by key."""

    def in_step(self) -> bool:
        return self.read == self.published


class KafkaShop(Shop):
    """Its sink fills a topic of a broker, whose name is its own."""

    server: Kafka

    def __init__(self, server: Kafka, things: Things, topic: str = "") -> None:
        super().__init__(server, things)
        server.made += not topic
        self.topic = topic or f"things-{server.made}"

    @property
    def about(self) -> tuple[str, str]:
        bootstrap = f'kind = "kafka"\nbootstrap = "{self.server.bootstrap}"\n'
        return f'{bootstrap}id = "{self.topic}"\nseconds = 60\n', f'name = "{self.topic}"\n'

    @property
    def read(self) -> dict[str, Any]:
        """The last committed value of each key, tombstones excluded."""
        latest = {record.key: record.value for record in self.server.committed(self.topic)}
        return {key: json.loads(value) for key, value in latest.items() if value is not None}


class WebhookShop(Shop):
    """Its sink sends messages to a receiver."""

    server: Webhook

    @property
    def about(self) -> tuple[str, str]:
        return f'kind = "webhook"\nurl = "{self.server.url}"\nsecret = "env:{VARIABLE}"\n', ""

    @property
    def undelivered(self) -> list[sent.Undelivered]:
        return sent.undelivered(self.things.settings, SINK)

    @property
    def read(self) -> dict[str, Any]:
        return self.server.rows()
