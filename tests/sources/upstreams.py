"""External systems for the contract suite of sources: each has numbers, which a source of it reads into one stream."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from lake.connect.kafka.source.reader import KafkaSource
from lake.contracts.contract import load_contracts
from lake.serve.intake_folder import GroupWriter, IntakeFolder
from lake.sources.declared import sound_sources
from lake.sources.source import Source
from tests.servers.http import shop as http_project
from tests.servers.kafka import Kafka
from tests.shop import contract, declare, empty
from tests.sources.kafka import options
from tests.sources.shop import Shop

ROOT = Path(__file__).parents[2]
TAP = str(Path(__file__).with_name("fake_tap.py"))


class Upstream(Protocol):
    """System whose records have a field `number`."""

    repeats_places: bool
    """Whether a record that is read again has the same place."""

    def add(self, *numbers: int) -> None: ...

    def source(self) -> Source:
        """Return a new source, not connected."""


@dataclass
class _Declared:
    """Upstream of a project with one declared source."""

    project: Path
    write: Callable[[list[int]], None]
    repeats_places: bool = True
    _numbers: list[int] = field(default_factory=list)

    def add(self, *numbers: int) -> None:
        self._numbers += numbers
        self.write([*numbers])

    def source(self) -> Source:
        from lake.config import load_settings

        settings = load_settings(self.project)
        sources, faults = sound_sources(settings, load_contracts(settings))
        assert not faults
        [source] = sources.values()
        return source.open()


def of_http(folder: Path) -> Upstream:
    settings = http_project(folder)
    intake = IntakeFolder.of(settings, "web")

    def write(numbers: list[int]) -> None:
        lines = [json.dumps(["readings", json.dumps({"number": n}), {"http.id": f"i{n}"}]) for n in numbers]
        with closing(GroupWriter(intake)) as writer:
            writer.put([f"{line}\n".encode() for line in lines], len(lines))

    return _Declared(settings.project, write)


def of_tap(folder: Path) -> Upstream:
    settings = empty(folder)
    declare(settings, contract("rows", {"number": "long"}))
    script, steps = settings.path("script.json"), list[Any]()
    settings.path("sources").mkdir()
    command = json.dumps([sys.executable, TAP, str(script)])
    settings.path("sources/t.toml").write_text(f'kind = "tap"\ncommand = {command}\n[streams]\nrows = "s"\n')
    script.write_text("[]")

    def write(numbers: list[int]) -> None:
        steps.extend([*(("row", n) for n in numbers), ("state", numbers[-1])])
        script.write_text(json.dumps(steps))

    return _Declared(settings.project, write, repeats_places=False)


def of_sqlite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """Return the upstream of the page "Write a source"."""
    from tests.packages import install

    monkeypatch.syspath_prepend(ROOT / "docs/connectors/sqlite-source")
    install(monkeypatch, folder / "packages", {"lake.sources": {"sqlite": "headwater_sqlite_source:KIND"}})
    settings = empty(folder / "shop")
    declare(settings, contract("rows", {"number": "long"}))
    settings.path("sources").mkdir()
    settings.path("sources/till.toml").write_text('kind = "sqlite"\nfile = "till.sqlite"\n[streams]\nrows = "t"\n')

    def write(numbers: list[int]) -> None:
        with closing(sqlite3.connect(settings.path("till.sqlite"))) as database:
            database.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, number INTEGER)")
            database.executemany("INSERT INTO t (number) VALUES (?)", [(number,) for number in numbers])
            database.commit()

    write([])
    return _Declared(settings.project, write)


@dataclass
class OfKafka:
    kafka: Kafka
    repeats_places: bool = True

    def __post_init__(self) -> None:
        self.topic = self.kafka.topic()

    def add(self, *numbers: int) -> None:
        self.kafka.transaction(self.topic, [json.dumps({"number": number}) for number in numbers])

    def source(self) -> Source:
        return KafkaSource(options(self.kafka.bootstrap, topics={"rows": self.topic}))


@dataclass
class OfPostgres:
    shop: Shop
    repeats_places: bool = False  # A repeated copy has another position of the log

    def __post_init__(self) -> None:
        self.shop.execute("CREATE TABLE rows (number bigint PRIMARY KEY)", "CREATE PUBLICATION lake FOR TABLE rows")
        self.shop.stream("rows", ["number"], {"number": "long"})

    def add(self, *numbers: int) -> None:
        self.shop.execute(*(f"INSERT INTO rows VALUES ({number})" for number in numbers))

    def source(self) -> Source:
        return self.shop.source()
