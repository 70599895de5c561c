"""Fixtures of the Kafka source: a source, its records, and a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from lake.connect.kafka.source.options import KafkaOptions, options_of
from lake.connect.kafka.source.reader import KafkaSource
from lake.contracts.contract import Contract
from lake.contracts.fields import Field
from lake.sources.source import Progress
from tests.spool import Kept

WHERE = "sources/shop.toml"


def stream(name: str, *facts: str, envelope: str | None = None) -> Contract:
    """Return a contract that reads these facts, each into its own field."""
    fields = tuple(Field(f"f{i}", "string", nullable=True, path=tuple(fact.split("."))) for i, fact in enumerate(facts))
    return Contract(name, "", f"schemas/{name}.avsc", fields, key=("f0",), envelope=envelope)


def options(bootstrap: str, *contracts: Contract, topics: Mapping[str, Any], **said: Any) -> KafkaOptions:
    """Return the options of a file; `topics` is [streams], each the name of a topic or a table."""
    streams = {name: {"topic": about} if isinstance(about, str) else about for name, about in topics.items()}
    known = {contract.name: contract for contract in contracts} or {name: stream(name) for name in streams}
    whole = {"bootstrap": bootstrap, "seconds": 20, "streams": streams} | said
    return options_of("shop", whole, known, WHERE)


def read_all(source: KafkaSource, after: Progress | None = None) -> tuple[Kept, Progress | None, int]:
    """Read all waiting deliveries; return the records, the last progress and the number of deliveries."""
    kept, deliveries = Kept(), 0
    while (progress := source.read(after, kept)) is not None:
        after, deliveries = progress, deliveries + 1
    return kept, after, deliveries


class Entry(NamedTuple):
    """Entry of a simulated partition; `data` is delivered only after its commit."""

    transaction: int  # 0 outside a transaction
    data: bool


@dataclass
class Partition:
    """Simulated partition: its entries by offset, the first retained offset, and the outcome of transactions."""

    entries: list[Entry] = field(default_factory=list)
    low: int = 0
    ended: dict[int, bool] = field(default_factory=dict)

    def append(self, random: Random) -> None:
        """Append records, inside or outside a transaction, the end of a transaction, or a hole left by compaction."""
        open_ = sorted({entry.transaction for entry in self.entries} - set(self.ended) - {0})
        match random.choice("rrrtttee" if open_ else "rrrt"):
            case "r":
                self.entries += [Entry(0, random.random() < 0.95)] * random.randint(1, 6)
            case "t":
                number = random.choice([*open_, len(self.entries) + 1])
                self.entries += [Entry(number, True)] * random.randint(1, 6)
            case "e":
                number = random.choice(open_)
                self.ended[number] = random.random() < 0.6
                self.entries.append(Entry(number, False))

    @property
    def end(self) -> int:
        """Return the last stable offset."""
        undecided = (
            i for i, entry in enumerate(self.entries) if entry.transaction and entry.transaction not in self.ended
        )
        return next(undecided, len(self.entries))

    def committed(self, end: int) -> list[int]:
        """Return the offsets of the records to be delivered before `end`."""
        entries = enumerate(self.entries[:end])
        return [i for i, entry in entries if entry.data and self.ended.get(entry.transaction, not entry.transaction)]


def answered(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@dataclass
class MadeUp:
    """Simulated cluster: consumer and administrator at once. Consuming returns any part of the waiting records."""

    partitions: list[Partition]
    random: Random
    id: str = "cluster"
    topic: str = "events"
    topic_id: str = "topic"
    committed: dict[int, int] = field(default_factory=dict)
    on_commit: Any = None
    _at: dict[int, int] = field(default_factory=dict)
    _position: dict[int, int] = field(default_factory=dict)

    def describe_cluster(self, **_: Any) -> Future[Any]:
        return answered(SimpleNamespace(cluster_id=self.id))

    def describe_topics(self, names: Any, **_: Any) -> Mapping[str, Future[Any]]:
        parts = [SimpleNamespace(id=i) for i in range(len(self.partitions))]
        return {self.topic: answered(SimpleNamespace(topic_id=self.topic_id, partitions=parts))}

    def list_offsets(self, specs: Mapping[Any, Any], *, isolation_level: Any, **_: Any) -> Mapping[Any, Future[Any]]:
        return {
            place: answered(SimpleNamespace(offset=self._offset(place.partition, type(spec).__name__, isolation_level)))
            for place, spec in specs.items()
        }

    def _offset(self, partition: int, spec: str, level: Any) -> int:
        kept = self.partitions[partition]
        if "Earliest" in spec:
            return kept.low
        return kept.end if level.name == "READ_COMMITTED" else len(kept.entries)

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        self.committed |= {place.partition: place.offset for place in offsets}

    def poll(self, _: float) -> None:
        if self.on_commit is not None:
            self.on_commit(None, [])

    def unassign(self) -> None:
        self._at = {}

    def assign(self, places: list[Any]) -> None:
        assert all(self.partitions[place.partition].low <= place.offset for place in places)
        self._at = {place.partition: place.offset for place in places}
        self._position = dict.fromkeys(self._at, -1001)

    def position(self, places: list[Any]) -> list[Any]:
        return [SimpleNamespace(offset=self._position[place.partition]) for place in places]

    def consume(self, number: int, timeout: float) -> list[Any]:
        """Return some of the next records. The position skips holes sooner or later; an event marks the end."""
        from confluent_kafka import KafkaError

        chosen = self.random.choice(list(self._at))
        kept = self.partitions[chosen]
        waiting = [i for i in kept.committed(kept.end) if i >= self._at[chosen]]
        if offsets := waiting[: self.random.randint(0, number)]:
            self._at[chosen] = self._position[chosen] = offsets[-1] + 1
            return [Message(self.topic, chosen, offset) for offset in offsets]
        if not waiting:
            self._at[chosen] = kept.end
            if self.random.random() < 0.5:
                return [Message(self.topic, chosen, kept.end, KafkaError(KafkaError._PARTITION_EOF))]
            self._position[chosen] = max(self._position[chosen], kept.end)
        return []

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Message:
    """Record of a simulated partition."""

    of: str
    part: int
    at: int
    fault: Any = None

    def error(self) -> Any:
        return self.fault

    def offset(self) -> int:
        return self.at

    def topic(self) -> str:
        return self.of

    def partition(self) -> int:
        return self.part

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000 * (self.at + 1)

    def value(self) -> bytes:
        return f'{{"at": "{self.part}:{self.at}"}}'.encode()

    def key(self) -> None:
        return None

    def headers(self) -> None:
        return None


def places_of(partitions: Iterable[Partition], ends: Mapping[int, int] | None = None) -> dict[int, list[int]]:
    """Return the offsets to be delivered, by partition."""
    return {i: part.committed(ends[i] if ends else part.end) for i, part in enumerate(partitions)}
