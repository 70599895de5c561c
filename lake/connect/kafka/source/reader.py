"""Kafka source: fixes offset ranges, reads them completely, and writes the group's offsets after the commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from lake.connect.kafka.source import ranges
from lake.connect.kafka.source.cluster import Cluster
from lake.connect.kafka.source.options import FACTS, TIMESTAMP, KafkaOptions, KafkaTopic
from lake.connect.kafka.source.ranges import KafkaOffsets, Range, TopicOffsets, TopicState
from lake.connect.kafka.source.values import (
    Decode,
    SchemaRegistry,
    UndecodableError,
    decoder,
    headers_of,
    of_json,
    of_text,
    undecodable_text,
)
from lake.errors import DeclarationError
from lake.lazy import pa, pc
from lake.sources.describe import topic_of
from lake.sources.json_text import SPACES, InvalidJson, members, parse
from lake.sources.source import Lag, Progress, Spool
from lake.text import EPOCH

CONTROL: Final = ""  # the envelope's reader counts it as a control message
TOMBSTONE: Final = "{}"  # an event with facts only
UNDEFINED_TOMBSTONE: Final = (
    "a null value, but no field of the contract is from kafka.tombstone: its meaning is not defined"
)
KEY: Final = f"{FACTS}.key"
HEADERS: Final = f"{FACTS}.headers."
KEY_FIELD: Final = f"{KEY}."
OFFSET: Final = f"{FACTS}.offset"
GENERATION: Final = 1 << 48
"""Added to an offset for each generation; larger than any offset."""


@dataclass
class TopicReader:
    topic: KafkaTopic
    before: TopicOffsets
    value: Decode
    key: Decode

    def columns(self, messages: Sequence[Message], partition: int) -> tuple[pa.Array, pa.Array, dict[str, pa.Array]]:
        """Return texts, places, and facts by name."""
        if self.topic.is_clock:
            _check_broker_times(self.topic, messages)
        offsets = pa.array([message.offset() for message in messages], pa.int64())
        named = topic_of(self.topic.name, self.before.era)
        places = pc.binary_join_element_wise(f"{named}/{partition}", offsets.cast(pa.string()), ":")
        faults: dict[int, str] = {}
        facts = {fact: self._fact(fact, messages, faults) for fact in sorted(self.topic.facts)}
        texts = self._texts(messages)
        if faults:
            texts = pa.array([faults.get(i, text) for i, text in enumerate(texts.to_pylist())], pa.large_string())
        return texts, places, facts

    def _texts(self, messages: Sequence[Message]) -> pa.Array:
        values = [message.value() for message in messages]
        if self.value is of_json:
            plain = pa.array(values, pa.large_binary())
            if plain.null_count == 0 and pc.all(pc.starts_with(plain, b"{")).as_py():
                try:
                    return plain.cast(pa.large_string())
                except pa.ArrowInvalid:
                    pass  # one of them is not UTF-8: decode each
        return pa.array([self._text(*pair) for pair in zip(messages, values, strict=True)], pa.large_string())

    def _text(self, message: Message, value: bytes | None) -> str:
        if value is None:
            if self.topic.envelope:
                return CONTROL
            return (
                TOMBSTONE
                if f"{FACTS}.tombstone" in self.topic.facts
                else undecodable_text(UNDEFINED_TOMBSTONE, message.key() or b"")
            )
        try:
            return self.value(value, headers_of(message))
        except UndecodableError as error:
            return undecodable_text(error, value)

    def _fact(self, fact: str, messages: Sequence[Message], faults: dict[int, str]) -> pa.Array:
        if fact == OFFSET:
            return pa.array([str(self._offset_in_all_generations(message)) for message in messages], pa.string())
        if fact in SIMPLE_FACTS:
            return pa.array([SIMPLE_FACTS[fact](message) for message in messages], pa.string())
        texts: list[str | None] = []
        for row, message in enumerate(messages):
            try:
                texts.append(self._decoded(fact, message))
            except UndecodableError as error:
                texts.append(None)
                faults[row] = undecodable_text(f"{fact}: {error}", message.value() or b"")
        return pa.array(texts, pa.string())

    def _offset_in_all_generations(self, message: Message) -> int:
        offset = message.offset() or 0
        return self.before.generation_of(message.partition() or 0, offset) * GENERATION + offset

    def _decoded(self, fact: str, message: Message) -> str | None:
        if fact.startswith(HEADERS):
            header = dict(headers_of(message)).get(fact.removeprefix(HEADERS))
            return None if header is None else of_text(header)
        key = message.key()
        if key is None:
            return None
        text = self.key(key, headers_of(message))
        return text if fact == KEY else _member(text, fact.removeprefix(KEY_FIELD))


def _check_broker_times(topic: KafkaTopic, messages: Sequence[Message]) -> None:
    for message in messages:
        if message.timestamp()[0] == TIMESTAMP_CREATE_TIME:
            raise DeclarationError(
                f"the clock of {topic.stream} goes by {TIMESTAMP}, which has to be the broker's time; found CreateTime,"
                f" the producer's own clock, at offset {message.offset()}",
                where=f"topic {topic.name}",
                fix="set message.timestamp.type=LogAppendTime, for a new topic: existing records keep their time;"
                f" or leave out the clock in the contract of {topic.stream}",
            )


def _member(text: str, name: str) -> str | None:
    """Return a member of a JSON object: the content of a string, else JSON; None if it is null or missing."""
    text = text.strip(SPACES)
    try:
        if not isinstance(parse(text, loose=True), dict):
            raise UndecodableError("not an object")
    except InvalidJson as error:
        raise UndecodableError(f"not JSON ({error})") from None
    part = dict(members(text)).get(name, "null")
    if part == "null":
        return None
    return str(parse(part)) if part.startswith('"') else part


def _time(message: Message) -> str | None:
    kind, milliseconds = message.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return None
    try:
        return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:
        return None


SIMPLE_FACTS: Final[dict[str, Callable[[Any], str | None]]] = {
    TIMESTAMP: _time,
    f"{FACTS}.topic": lambda message: message.topic(),
    f"{FACTS}.partition": lambda message: str(message.partition()),
    f"{FACTS}.tombstone": lambda message: "true" if message.value() is None else "false",
}


class KafkaSource:
    together = (("kafka", "partition"), ("kafka", "key"))
    offset = ("kafka", "offset")

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self.more = False

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(topic.stream for topic in self.options.topics)

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.options)

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        position, cluster = self._position(after), self.cluster.id
        topics = self._topics() if position.cluster == cluster else {}
        if faults := ranges.gaps(position, cluster, topics, source=self.options.name, where=self.options.where):
            raise faults[0] if len(faults) == 1 else type(faults[0]).all(faults)
        position = self._with_barriers(position, topics)
        waiting = ranges.waiting_ranges(position, topics)
        planned = ranges.plan_ranges(ranges.before_barriers(position, waiting), self.options.records)
        complete = self._read_ranges(planned, position, spool)
        self.more = bool(complete) and [range_.end for range_ in complete] != [range_.end for range_ in waiting]
        if not complete:
            return None
        self.cluster.check_unchanged(topics)
        return position.after_reading(topics, complete).progress

    def _with_barriers(self, position: KafkaOffsets, topics: Mapping[str, TopicState]) -> KafkaOffsets:
        added = ranges.added_partitions(position, topics)
        for topic, partitions in added.items():
            logging.getLogger("lake").warning(
                "%s: the topic %r has new partitions (%s), which are read after the present records of the others",
                self.options.name,
                topic,
                ", ".join(map(str, partitions)),
            )
        return position.with_barriers(added, self._topics()) if added else position

    def _read_ranges(self, planned: list[Range], position: KafkaOffsets, spool: Spool) -> list[Range]:
        left, complete = self.options.bytes, []
        with closing(SchemaRegistry(self.options)) as registry:
            readers = {
                topic.name: TopicReader(
                    topic,
                    position.of_topic(topic.name),
                    decoder(topic.value, registry, is_key=False),
                    decoder(topic.key, registry, is_key=True),
                )
                for topic in self.options.topics
            }
            for place, wanted in enumerate(planned):
                share = left // (len(planned) - place)
                size, end = self._read_range(wanted, readers[wanted.topic], spool, share)
                left = max(0, left - size)
                complete.append(wanted._replace(end=end))
        return complete

    def _read_range(self, wanted: Range, reader: TopicReader, spool: Spool, most: int) -> tuple[int, int]:
        size, end = 0, wanted.first
        for messages, upto in self.cluster.read(wanted):
            end = upto
            if messages:
                texts, places, facts = reader.columns(messages, wanted.partition)
                spool.put_many(reader.topic.stream, texts, places, facts)
                size += texts.nbytes
            if size >= most:
                break
        return size, end

    def acknowledge(self, upto: Progress) -> None:
        names = {topic.name for topic in self.options.topics}
        ends = [end for end in KafkaOffsets.of(upto).ends() if end[0] in names]
        if ends:
            self.cluster.commit(ends)

    def lag(self, after: Progress | None) -> Lag:
        """Count offsets as events, including holes and markers."""
        topics = self._topics()
        position = self._position(after)
        if ranges.gaps(position, self.cluster.id, topics, source="", where=""):
            position = ranges.without_gaps(position, self.cluster.id, topics)
        waiting = ranges.waiting_ranges(position, topics)
        oldest = self.cluster.oldest(waiting)
        events = sum(range_.end - range_.first for range_ in waiting)
        return Lag(events=events, seconds=None if oldest is None else max(0.0, time.time() - oldest))

    def partitions(self, after: Progress) -> Mapping[str, int]:
        taken = KafkaOffsets.of(after).topics
        return {topic.stream: len(taken[topic.name].ranges) for topic in self.options.topics if topic.name in taken}

    def skip_gap(self, after: Progress | None) -> Progress:
        topics = self._topics()
        return ranges.without_gaps(self._with_barriers(self._position(after), topics), self.cluster.id, topics).progress

    def close(self) -> None:
        if cluster := self.__dict__.pop("cluster", None):
            cluster.close()

    def _topics(self) -> dict[str, TopicState]:
        return self.cluster.topics(topic.name for topic in self.options.topics)

    def _position(self, after: Progress | None) -> KafkaOffsets:
        return KafkaOffsets(self.cluster.id) if after is None else KafkaOffsets.of(after)
