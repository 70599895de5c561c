"""A Kafka cluster, asked through librdkafka: ids, offsets, the committed records of a range, a group's offsets.

librdkafka tries again for ever and says why in its log. Here nothing waits longer than `seconds` without an answer, and
the reason is that of the error. What it logs goes to the logger `lake` as debug lines, and secrets never do.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from lake.errors import DeclarationError, LakeError, Unavailable, install
from lake.sources.kafka.faults import Moving, may_pass, meant, unavailable
from lake.sources.kafka.options import Options
from lake.sources.kafka.ranges import Bounds, Here, Range
from lake.sources.source import Gap

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

T = TypeVar("T")
INVALID: Final = re.compile(r'^Invalid value ".*" (?=for configuration)', re.DOTALL)
"""How librdkafka shows a value, which may be a secret that was given to the wrong setting."""
BATCH: Final = 10_000
POLL_SECONDS: Final = 0.1
FETCHING: Final[Mapping[str, Any]] = {
    "fetch.wait.max.ms": 10,  # a range that is read has records: there is nothing to wait for
    "queued.max.messages.kbytes": 32 << 10,
    "max.poll.interval.ms": 86_400_000,  # between two ranges a commit may take long, and nobody else has partitions
}
"""Defaults that a source's file may change."""
READING: Final[Mapping[str, Any]] = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}


class Client(Protocol):
    """What of librdkafka's consumer is used."""

    def assign(self, partitions: list[Any], /) -> None: ...
    def unassign(self) -> None: ...
    def commit(self, *, offsets: list[Any], asynchronous: Literal[True]) -> None: ...
    def poll(self, timeout: float) -> Any: ...
    def consume(self, num_messages: int, timeout: float) -> list[Message]: ...
    def position(self, partitions: list[Any], /) -> list[Any]: ...
    def close(self) -> Any: ...


class Log:
    """Takes what librdkafka logs, in place of a logging.Logger."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def log(self, _: int, text: str, *words: object) -> None:
        logging.getLogger("lake").debug("librdkafka: %s", self.options.redacted(text % words))


class Cluster:
    """One cluster. Closed after use."""

    def __init__(self, options: Options, *, consumer: Client | None = None, admin: Any = None) -> None:
        self.options = options
        self.heard: KafkaError | None = None
        self._written: tuple[KafkaError | None, list[Any]] | None = None
        if consumer is None:
            consumer, admin = self._connected()
        self._consumer, self._admin = consumer, admin

    def _connected(self) -> tuple[Client, Any]:
        if find_spec("confluent_kafka") is None:
            raise DeclarationError(
                "Kafka needs confluent-kafka, which the extra `kafka` installs",
                where=self.options.where,
                fix=install("kafka"),
            )
        from confluent_kafka import Consumer
        from confluent_kafka.admin import AdminClient

        reading = {**READING, "group.id": self.options.group, "on_commit": self._committed}
        return self.client(Consumer, FETCHING, reading), self.client(AdminClient, {}, {})

    def client(self, kind: Callable[..., T], defaults: Mapping[str, Any], ours: Mapping[str, Any]) -> T:
        """A client of the cluster, with `defaults` that the declared settings may change, and those that are `ours`.

        Raises DeclarationError where librdkafka refuses a setting.
        """
        from confluent_kafka import KafkaException

        said = {name: str(value) for name, value in self.options.client.items()}
        about = {"bootstrap.servers": self.options.bootstrap, "error_cb": self._heard}
        try:
            return kind({**defaults, **said, **about, **ours}, logger=Log(self.options))
        except KafkaException as error:
            reason = self.options.redacted(INVALID.sub("Invalid value ", error.args[0].str()))
            raise DeclarationError(
                f"librdkafka refuses a setting: {reason}", where=self.options.where, fix="correct it in [client]"
            ) from None

    def close(self) -> None:
        self._consumer.close()

    @property
    def id(self) -> str:
        return str(self._answer(self._admin.describe_cluster(request_timeout=self.options.seconds)).cluster_id)

    def topics(self, names: Iterable[str]) -> dict[str, Here]:
        """The topics of these names, with what their partitions have. Raises DeclarationError where one is missing."""
        names, end, self.heard = list(names), time.monotonic() + self.options.seconds, None
        while True:
            try:
                return self._topics(names)
            except Moving:
                if time.monotonic() > end:
                    raise
                self._admin.poll(POLL_SECONDS)

    def _topics(self, names: list[str]) -> dict[str, Here]:
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # its stub forgets to export it

        wait, described = self.options.seconds, self._described(names)
        latest, earliest = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # so is the client
        places = [TopicPartition(name, part.id) for name in names for part in described[name].partitions]
        specs = (
            (earliest, IsolationLevel.READ_COMMITTED),
            (latest, IsolationLevel.READ_COMMITTED),
            (latest, IsolationLevel.READ_UNCOMMITTED),
        )
        futures = [
            self._admin.list_offsets(dict.fromkeys(places, spec), isolation_level=level, request_timeout=wait)
            for spec, level in specs
        ]
        topics = {
            (place.topic, place.partition): Bounds(*(self._answer(future[place]).offset for future in futures))
            for place in places
        }
        return {
            name: Here(
                str(described[name].topic_id), {part.id: topics[name, part.id] for part in described[name].partitions}
            )
            for name in names
        }

    def must_be(self, here: Mapping[str, Here]) -> None:
        """Raises Unavailable where a topic is another by now: what was read may be of either."""
        for name, topic in self._described(list(here)).items():
            if str(topic.topic_id) != here[name].id:
                raise self.unavailable(f"the topic {name!r} was recreated while it was being read")

    def _described(self, names: list[str]) -> dict[str, Any]:
        from confluent_kafka import TopicCollection

        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=self.options.seconds)
        return {name: self._answer(asked[name], f"the topic {name!r}: ") for name in names}

    def read(self, wanted: Range) -> Iterator[tuple[Sequence[Message], int]]:
        """The committed records of a range, in batches, each with the offset up to which there are no others."""
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.first)])
        at, heard = wanted.first, time.monotonic()
        while at < wanted.end:
            messages, upto = self._consumed(wanted, at)
            if upto > at:
                at = min(upto, wanted.end)
                yield messages, at
                heard = time.monotonic()
            elif time.monotonic() - heard > self.options.seconds:
                raise self.unavailable(f"no records received from {_shown(wanted)} after offset {at}")

    def _consumed(self, wanted: Range, at: int) -> tuple[list[Message], int]:
        """The next records before the end of a range, and where the consumer is: beyond holes that follow them."""
        from confluent_kafka import TopicPartition

        got = self._consumer.consume(min(BATCH, wanted.end - at), POLL_SECONDS)
        upto = self._consumer.position([TopicPartition(wanted.topic, wanted.partition)])[0].offset
        messages = []
        for message in got:
            error = message.error()
            if error is not None:
                upto = max(upto, self._ended(error, message, wanted))
            elif (message.offset() or 0) < wanted.end:
                messages.append(message)
        return messages, max(upto, at)

    def _ended(self, error: KafkaError, message: Message, wanted: Range) -> int:
        """The offset at which a partition ends. Raises what any other error means."""
        from confluent_kafka import KafkaError as Codes

        if error.code() == Codes._PARTITION_EOF:
            return message.offset() or 0
        if error.code() in {Codes._AUTO_OFFSET_RESET, Codes.OFFSET_OUT_OF_RANGE}:
            raise Gap(
                f"{_shown(wanted)}: offset {wanted.first} is gone",
                where=self.options.where,
                fix=f"lake ingest {self.options.name} --give-up goes on without what is gone",
            )
        if may_pass(error):
            self._heard(error)
            return 0
        raise self.meant(error, f"{_shown(wanted)}: ")

    def oldest(self, waiting: Sequence[Range]) -> float | None:
        """When the oldest record came of those that are `waiting`, in seconds since 1970. None where none tells."""
        from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, TopicPartition

        if not waiting:
            return None
        self._consumer.assign([TopicPartition(each.topic, each.partition, each.first) for each in waiting])
        times: dict[tuple[str | None, int | None], int | None] = {}
        end = time.monotonic() + self.options.seconds
        while len(times) < len(waiting) and time.monotonic() < end:
            for message in self._consumer.consume(BATCH, POLL_SECONDS):
                kind, milliseconds = message.timestamp() if message.error() is None else (TIMESTAMP_NOT_AVAILABLE, 0)
                stamp = None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds
                times.setdefault((message.topic(), message.partition()), stamp)  # at an end: that there is none
        stamps = [stamp for stamp in times.values() if stamp is not None]
        return min(stamps) / 1000 if stamps else None

    def commit(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Writes the group's offsets, which are for others to look at: a cluster that forbids it is told, no more.

        By the consumer: where a coordinator goes away, what an administrator asks of it ends the process (librdkafka
        4605, 5397).
        """
        from confluent_kafka import KafkaException, TopicPartition

        self._consumer.unassign()
        self._written = None
        places = [TopicPartition(topic, partition, offset) for topic, partition, offset in offsets]
        self._consumer.commit(offsets=places, asynchronous=True)
        end = time.monotonic() + self.options.seconds
        while self._written is None:
            if self.heard is not None and not may_pass(self.heard):
                raise self.meant(self.heard)
            if time.monotonic() > end:
                raise self.unavailable(f"the offsets of the group {self.options.group} were not written")
            with suppress(KafkaException):
                self._consumer.poll(POLL_SECONDS)
        error, written = self._written
        errors = [fault for fault in (error, *(place.error for place in written)) if fault]
        if passing := [fault for fault in errors if may_pass(fault)]:
            raise self.meant(passing[0], f"the offsets of the group {self.options.group} were not written: ")
        if errors:
            logging.getLogger("lake").warning(
                "%s: the offsets of the group %s were not written: %s",
                self.options.name,
                self.options.group,
                self.options.redacted(errors[0].str()),
            )

    def _committed(self, error: KafkaError | None, written: list[Any]) -> None:
        """Keeps what became of the offsets of the group."""
        self._written = error, written

    def _heard(self, error: KafkaError) -> None:
        """Keeps why nothing comes."""
        self.heard = error

    def _answer(self, future: Future[T], about: str = "") -> T:
        """What a request brings. Raises Unavailable where nothing comes, and at once where no wait can help."""
        from confluent_kafka import KafkaException

        end = time.monotonic() + self.options.seconds
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except NoAnswer:
                self._admin.poll(0)
                if self.heard is not None and not may_pass(self.heard):
                    raise self.meant(self.heard, about) from None
                if time.monotonic() > end:
                    raise self.unavailable(f"{about}no answer") from None
            except KafkaException as error:
                self._admin.poll(0)
                reason: KafkaError = error.args[0]
                hard = self.heard is not None and not may_pass(self.heard)
                raise self.meant(self.heard if hard and self.heard else reason, about) from None

    def meant(self, error: KafkaError, about: str = "") -> LakeError:
        return meant(error, self.options, about)

    def unavailable(self, what: str) -> Unavailable:
        """What to raise where nothing comes, with the reason that was heard."""
        why = f": {self.options.redacted(self.heard.str())}" if self.heard else ""
        return unavailable(f"{what}{why}", self.options)


def _shown(wanted: Range) -> str:
    return f"partition {wanted.partition} of the topic {wanted.topic!r}"
