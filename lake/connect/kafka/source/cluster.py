"""Client of a Kafka cluster, by librdkafka.

librdkafka retries forever. Here nothing waits longer than `seconds` without an answer, and the error has the reason
that librdkafka logged. Its log goes to the logger `lake`, without secrets.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import suppress
from typing import Any, Final, TypeVar

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stub forgets to export it

from lake.connect.kafka.source.options import KafkaOptions
from lake.connect.kafka.source.ranges import PartitionBounds, Range, TopicState
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.sources.source import Gap

REFUSING: Final = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "_SSL"})
UNKNOWN: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"})
LASTING: Final = (
    REFUSING
    | UNKNOWN
    | {"TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "INVALID_GROUP_ID"}
    | {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "INVALID_TRANSACTION_TIMEOUT", "POLICY_VIOLATION"}
    | {"INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS", "INVALID_CONFIG"}
    | {"_INVALID_ARG", "INVALID_REQUEST", "UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE", "_NOT_IMPLEMENTED"}
)
MOVING: Final = frozenset(
    {"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE"}
    | {"FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "_NO_OFFSET"}
)
T = TypeVar("T")
INVALID: Final = re.compile(r'^Invalid value ".*" (?=for configuration)', re.DOTALL)
"""How librdkafka quotes a setting's value, which may be a misplaced secret."""
BATCH: Final = 10_000
POLL_SECONDS: Final = 0.1
UNANSWERED: Final = "try again when the brokers answer; is bootstrap right?"
FETCHING: Final[Mapping[str, Any]] = {
    "fetch.wait.max.ms": 10,  # a range to read has records, so there is nothing to wait for
    "queued.max.messages.kbytes": 32 << 10,
    "max.poll.interval.ms": 86_400_000,  # a commit between two ranges may take long
}
READING: Final[Mapping[str, Any]] = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}


class NoLeader(Unavailable): ...


class UnknownTopic(DeclarationError): ...


def may_pass(error: KafkaError) -> bool:
    return error.name() not in LASTING


class KafkaLogger:
    def __init__(self, options: KafkaOptions) -> None:
        self.options = options

    def log(self, _: int, text: str, *words: object) -> None:
        logging.getLogger("lake").debug("librdkafka: %s", self.options.redacted(text % words))


class Cluster:
    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self.last_error: KafkaError | None = None
        self._written: tuple[KafkaError | None, list[Any]] | None = None
        reading = {**READING, "group.id": options.group, "on_commit": self._committed}
        self._consumer, self._admin = self.client(Consumer, FETCHING, reading), self.client(AdminClient, {}, {})

    def client(self, kind: Callable[..., T], defaults: Mapping[str, Any], ours: Mapping[str, Any]) -> T:
        """Declared settings override `defaults`, not `ours`. Raises DeclarationError if librdkafka rejects one."""
        declared = {name: str(value) for name, value in self.options.client.items()}
        about = {"bootstrap.servers": self.options.bootstrap, "error_cb": self._on_error}
        try:
            return kind({**defaults, **declared, **about, **ours}, logger=KafkaLogger(self.options))
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

    def topics(self, names: Iterable[str]) -> dict[str, TopicState]:
        names, self.last_error = list(names), None
        return self.repeat(lambda: self._topics(names), NoLeader)

    def repeat(self, ask: Callable[[], T], passing: type[LakeError]) -> T:
        """Retry for `seconds` while `ask` raises `passing`."""
        end = time.monotonic() + self.options.seconds
        while True:
            try:
                return ask()
            except passing:
                if time.monotonic() > end:
                    raise
                self._admin.poll(POLL_SECONDS)

    def _topics(self, names: list[str]) -> dict[str, TopicState]:
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
        bounds: dict[str, dict[int, PartitionBounds]] = {name: {} for name in names}
        for place in places:
            offsets = (self._answer(future[place]).offset for future in futures)
            bounds[place.topic][place.partition] = PartitionBounds(*offsets)
        return {name: TopicState(str(described[name].topic_id), bounds[name]) for name in names}

    def check_unchanged(self, here: Mapping[str, TopicState]) -> None:
        for name, topic in self._described(list(here)).items():
            if str(topic.topic_id) != here[name].id:
                raise self.unavailable(f"the topic {name!r} was recreated while it was being read")

    def _described(self, names: list[str]) -> dict[str, Any]:
        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=self.options.seconds)
        return {name: self._answer(asked[name], f"the topic {name!r}: ") for name in names}

    def read(self, wanted: Range) -> Iterator[tuple[Sequence[Message], int]]:
        """Yield batches of committed records, each with the offset up to which it is complete."""
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
        if error.code() == KafkaError._PARTITION_EOF:
            return message.offset() or 0
        if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
            raise Gap(
                f"{_shown(wanted)}: offset {wanted.first} is gone",
                where=self.options.where,
                fix=f"lake ingest {self.options.name} --give-up goes on without what is gone",
            )
        if may_pass(error):
            self._on_error(error)
            return 0
        raise self.as_error(error, f"{_shown(wanted)}: ")

    def oldest(self, waiting: Sequence[Range]) -> float | None:
        """Return the time of the oldest record in Unix seconds; None if no record has one."""
        if not waiting:
            return None
        self._consumer.assign([TopicPartition(each.topic, each.partition, each.first) for each in waiting])
        times: dict[tuple[str | None, int | None], int | None] = {}
        end = time.monotonic() + self.options.seconds
        while len(times) < len(waiting) and time.monotonic() < end:
            for message in self._consumer.consume(BATCH, POLL_SECONDS):
                kind, milliseconds = message.timestamp() if message.error() is None else (TIMESTAMP_NOT_AVAILABLE, 0)
                stamp = None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds
                times.setdefault((message.topic(), message.partition()), stamp)  # None at the end of a partition
        stamps = [stamp for stamp in times.values() if stamp is not None]
        return min(stamps) / 1000 if stamps else None

    def commit(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Write the group's offsets, a hint for tools.

        The consumer does it: an admin client's request crashes the process if a coordinator goes away (librdkafka 4605,
        5397).
        """
        self._consumer.unassign()
        self._written = None
        places = [TopicPartition(topic, partition, offset) for topic, partition, offset in offsets]
        self._consumer.commit(offsets=places, asynchronous=True)
        end = time.monotonic() + self.options.seconds
        while self._written is None:
            if self.last_error is not None and not may_pass(self.last_error):
                raise self.as_error(self.last_error)
            if time.monotonic() > end:
                raise self.unavailable(f"the offsets of the group {self.options.group} were not written")
            with suppress(KafkaException):
                self._consumer.poll(POLL_SECONDS)
        error, written = self._written
        errors = [fault for fault in (error, *(place.error for place in written)) if fault]
        if passing := [fault for fault in errors if may_pass(fault)]:
            raise self.as_error(passing[0], f"the offsets of the group {self.options.group} were not written: ")
        if errors:
            logging.getLogger("lake").warning(
                "%s: the offsets of the group %s were not written: %s",
                self.options.name,
                self.options.group,
                self.options.redacted(errors[0].str()),
            )

    def _committed(self, error: KafkaError | None, written: list[Any]) -> None:
        self._written = error, written

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error

    def _answer(self, future: Future[T], about: str = "") -> T:
        end = time.monotonic() + self.options.seconds
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except NoAnswer:
                self._admin.poll(0)
                if self.last_error is not None and not may_pass(self.last_error):
                    raise self.as_error(self.last_error, about) from None
                if time.monotonic() > end:
                    raise self.unavailable(f"{about}no answer") from None
            except KafkaException as error:
                self._admin.poll(0)
                reason: KafkaError = error.args[0]
                hard = self.last_error is not None and not may_pass(self.last_error)
                raise self.as_error(self.last_error if hard and self.last_error else reason, about) from None

    def as_error(self, error: KafkaError, about: str = "") -> LakeError:
        where, message = self.options.where, f"{about}{self.options.redacted(error.str())}"
        if error.name() in MOVING:
            return NoLeader(f"Kafka is unavailable: {message}", where=where, fix="try again in a moment")
        if may_pass(error):
            return Unavailable(f"Kafka is unavailable: {message}", where=where, fix=UNANSWERED)
        if error.name() in UNKNOWN:
            return UnknownTopic(message, where=where, fix="correct its name, or make the topic first")
        fix = "ask who runs the cluster for what this user may do"
        if error.name() in REFUSING:
            message, fix = f"authentication failed: {message}", "correct the sasl.… and ssl.… settings in [client]"
        return DeclarationError(message, where=where, fix=fix)

    def unavailable(self, what: str) -> Unavailable:
        why = f": {self.options.redacted(self.last_error.str())}" if self.last_error else ""
        return Unavailable(f"Kafka is unavailable: {what}{why}", where=self.options.where, fix=UNANSWERED)


def _shown(wanted: Range) -> str:
    return f"partition {wanted.partition} of the topic {wanted.topic!r}"
