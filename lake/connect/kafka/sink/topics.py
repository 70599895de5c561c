"""Topics of a sink: create, check, and read them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lake.connect.kafka.source.cluster import POLL_SECONDS, Cluster, UnknownTopic
from lake.connect.kafka.source.ranges import Range, TopicState
from lake.errors import DeclarationError, Unavailable
from lake.session.duck import connect
from lake.sources.source import Gap
from lake.text import literal

if TYPE_CHECKING:
    import duckdb
    from confluent_kafka import Message

COMPACTED: Final = "compact"
KEPT: Final = "delete"
SETTLES: Final = 2.0
"""Most seconds to wait for the markers of an ended transaction."""
BATCH: Final = 10_000


@dataclass(frozen=True)
class TopicSpec:
    name: str
    policy: str
    partitions: int = 1


@dataclass(frozen=True)
class TargetTopic:
    """`most` is the size limit of a record in bytes."""

    id: str
    partitions: int
    most: int


class Topics(Cluster):
    def ids(self, names: Iterable[str]) -> dict[str, tuple[str, int]]:
        found = {}
        for name in names:
            try:
                described = self._described([name])[name]
            except UnknownTopic:
                continue
            found[name] = str(described.topic_id), len(described.partitions)
        return found

    def prepare(self, wanted: Iterable[TopicSpec], *, create: bool, replication: int) -> dict[str, TargetTopic]:
        wanted = list(wanted)
        there = self.ids(topic.name for topic in wanted)
        if missing := [topic for topic in wanted if topic.name not in there]:
            if not create:
                raise DeclarationError(
                    f"no topic {missing[0].name!r}",
                    where=self.options.where,
                    fix=f"make it, with cleanup.policy={missing[0].policy}; or say create = true",
                )
            self._make(missing, replication)
            there |= self.wait_for_leaders(missing)
        return {topic.name: TargetTopic(*there[topic.name], self._most(topic)) for topic in wanted}

    def wait_for_leaders(self, made: Iterable[TopicSpec]) -> dict[str, tuple[str, int]]:
        names, end = [topic.name for topic in made], time.monotonic() + self.options.seconds
        while True:
            try:
                return {name: (here.id, len(here.partitions)) for name, here in self.topics(names).items()}
            except UnknownTopic:
                if time.monotonic() > end:
                    raise
                self._admin.poll(POLL_SECONDS)

    def _make(self, missing: Iterable[TopicSpec], replication: int) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # its stub forgets to export it

        asked = self._admin.create_topics(
            [
                NewTopic(topic.name, topic.partitions, replication, config={"cleanup.policy": topic.policy})
                for topic in missing
            ],
            request_timeout=self.options.seconds,
        )
        for name, future in asked.items():
            self._answer(future, f"the topic {name!r} could not be made: ")

    def _most(self, topic: TopicSpec) -> int:
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]  # as above

        resource = ConfigResource(ResourceType.TOPIC, topic.name)
        asked = self._admin.describe_configs([resource], request_timeout=self.options.seconds)
        config = self._answer(asked[resource], f"the topic {topic.name!r}: ")
        policy = {word.strip() for word in (config["cleanup.policy"].value or "").split(",")}
        if (COMPACTED in policy) != (topic.policy == COMPACTED):
            raise DeclarationError(
                f"the topic {topic.name!r} has cleanup.policy={config['cleanup.policy'].value}, which loses rows here",
                where=self.options.where,
                fix=f"set cleanup.policy={topic.policy}, or name another topic",
            )
        return int(config["max.message.bytes"].value)

    def when_decided(self, name: str) -> TopicState:
        """Wait until no transaction is open, or SETTLES seconds."""
        end = time.monotonic() + min(SETTLES, self.options.seconds)
        while True:
            here = self.topics([name])[name]
            if is_decided(here) or time.monotonic() > end:
                return here
            self._admin.poll(POLL_SECONDS)

    def records(self, name: str, here: TopicState) -> Iterator[Message]:
        for partition, bounds in sorted(here.partitions.items()):
            yield from self._records(Range(name, partition, bounds.low, bounds.end))

    def _records(self, wanted: Range) -> Iterator[Message]:
        try:
            for messages, _ in self.read(wanted):
                yield from messages
        except Gap:
            what = f"Kafka is unavailable: the topic {wanted.topic!r} was cleaned up while it was being read"
            raise Unavailable(what, where=self.options.where, fix="try again in a moment") from None

    def newest(self, name: str, here: TopicState) -> Message | None:
        bounds, back = here.partitions[0], 16
        first = bounds.end
        while first > bounds.low:
            first = max(bounds.low, bounds.end - back)
            newest = None
            for newest in self._records(Range(name, 0, first, bounds.end)):  # noqa: B007 - the last is wanted
                pass
            if newest is not None:
                return newest
            back *= 16
        return None

    @contextmanager
    def latest(self, name: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a table `latest`: each key with its newest `value`, without tombstones."""
        with tempfile.TemporaryDirectory() as spill, closing(connect()) as con:
            con.execute(f"SET temp_directory = {literal(spill)}")
            con.execute("CREATE TABLE records (n BIGINT, key BLOB, value BLOB)")
            for batch in _batches(self.records(name, self.when_decided(name))):
                con.from_arrow(batch).insert_into("records")
            con.execute(
                """CREATE TABLE latest AS FROM records
                QUALIFY row_number() OVER (PARTITION BY key ORDER BY n DESC) = 1; DROP TABLE records;
                DELETE FROM latest WHERE value IS NULL OR key IS NULL"""
            )
            yield con


def is_decided(here: TopicState) -> bool:
    return all(bounds.end == bounds.high for bounds in here.partitions.values())


def _batches(messages: Iterator[Message]) -> Iterator[Any]:
    import pyarrow as pa

    columns: Mapping[str, list[Any]] = {"n": [], "key": [], "value": []}
    types = {"n": pa.int64(), "key": pa.binary(), "value": pa.binary()}
    for number, message in enumerate(messages):
        for column, value in zip(columns.values(), (number, message.key(), message.value()), strict=True):
            column.append(value)
        if number % BATCH == BATCH - 1:
            yield pa.table({name: pa.array(column, types[name]) for name, column in columns.items()})
            for column in columns.values():
                column.clear()
    yield pa.table({name: pa.array(column, types[name]) for name, column in columns.items()})
