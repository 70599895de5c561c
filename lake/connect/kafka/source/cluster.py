"""Client of a Kafka cluster, by librdkafka.

librdkafka retries forever. A call of this client waits at most `seconds` for an answer, and its error has the reason
that librdkafka logged. The logger `lake` gets that log, without secrets.
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

LOGIN_ERRORS: Final = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "_SSL"})
TOPIC_ERRORS: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"})
PERMANENT_ERRORS: Final = (
    LOGIN_ERRORS
    | TOPIC_ERRORS
    | {"TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "INVALID_GROUP_ID"}
    | {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "INVALID_TRANSACTION_TIMEOUT", "POLICY_VIOLATION"}
    | {"INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS", "INVALID_CONFIG"}
    | {"_INVALID_ARG", "INVALID_REQUEST", "UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE", "_NOT_IMPLEMENTED"}
)
LEADER_ERRORS: Final = frozenset(
    {"NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE"}
    | {"FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "_NO_OFFSET"}
)
T = TypeVar("T")
INVALID_SETTING: Final = re.compile(r'^Invalid value ".*" (?=for configuration)', re.DOTALL)
"""The start of a message of librdkafka. The quoted value may be a secret."""
BATCH: Final = 10_000
POLL_SECONDS: Final = 0.1
NO_ANSWER_FIX: Final = "try again when the brokers answer; is bootstrap right?"
CONSUMER_DEFAULTS: Final[Mapping[str, Any]] = {
    "fetch.wait.max.ms": 10,  # a range to read has records, so there is nothing to wait for
    "queued.max.messages.kbytes": 32 << 10,
    "max.poll.interval.ms": 86_400_000,  # a commit between two ranges may take long
}
CONSUMER_SETTINGS: Final[Mapping[str, Any]] = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}


class NoLeader(Unavailable): ...


class UnknownTopic(DeclarationError): ...


def is_transient(error: KafkaError) -> bool:
    return error.name() not in PERMANENT_ERRORS


class KafkaLogger:
    def __init__(self, options: KafkaOptions) -> None:
        self.options = options

    def log(self, _: int, text: str, *words: object) -> None:
        logging.getLogger("lake").debug("librdkafka: %s", self.options.redacted(text % words))


class Cluster:
    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self.last_error: KafkaError | None = None
        self._commit_result: tuple[KafkaError | None, list[Any]] | None = None
        reading = {**CONSUMER_SETTINGS, "group.id": options.group, "on_commit": self._committed}
        self._consumer = self.client(Consumer, CONSUMER_DEFAULTS, reading)
        self._admin = self.client(AdminClient, {}, {})

    def client(self, kind: Callable[..., T], defaults: Mapping[str, Any], ours: Mapping[str, Any]) -> T:
        """Declared settings override `defaults`, not `ours`. Raises DeclarationError if librdkafka rejects one."""
        declared = {name: str(value) for name, value in self.options.client.items()}
        about = {"bootstrap.servers": self.options.bootstrap, "error_cb": self._on_error}
        try:
            return kind({**defaults, **declared, **about, **ours}, logger=KafkaLogger(self.options))
        except KafkaException as error:
            reason = self.options.redacted(INVALID_SETTING.sub("Invalid value ", error.args[0].str()))
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
        return self.retry(lambda: self._topics(names), NoLeader)

    def retry(self, ask: Callable[[], T], transient: type[LakeError]) -> T:
        """Retry for `seconds` while `ask` raises `transient`."""
        end = time.monotonic() + self.options.seconds
        while True:
            try:
                return ask()
            except transient:
                if time.monotonic() > end:
                    raise
                self._admin.poll(POLL_SECONDS)

    def _topics(self, names: list[str]) -> dict[str, TopicState]:
        wait, described = self.options.seconds, self._described(names)
        latest, earliest = OffsetSpec.latest(), OffsetSpec.earliest()  # type: ignore[no-untyped-call]
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

    def check_unchanged(self, topics: Mapping[str, TopicState]) -> None:
        for name, topic in self._described(list(topics)).items():
            if str(topic.topic_id) != topics[name].id:
                raise self.unavailable(f"the topic {name!r} was recreated while it was being read")

    def _described(self, names: list[str]) -> dict[str, Any]:
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=self.options.seconds)
        return {name: self._answer(futures[name], f"the topic {name!r}: ") for name in names}

    def read(self, wanted: Range) -> Iterator[tuple[Sequence[Message], int]]:
        """Yield batches of committed records, each with the offset up to which it is complete."""
        self._consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.first)])
        at, progress_at = wanted.first, time.monotonic()
        while at < wanted.end:
            messages, upto = self._consumed(wanted, at)
            if upto > at:
                at = min(upto, wanted.end)
                yield messages, at
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > self.options.seconds:
                raise self.unavailable(f"no records received from {_partition_text(wanted)} after offset {at}")

    def _consumed(self, wanted: Range, at: int) -> tuple[list[Message], int]:
        consumed = self._consumer.consume(min(BATCH, wanted.end - at), POLL_SECONDS)
        upto = self._consumer.position([TopicPartition(wanted.topic, wanted.partition)])[0].offset
        messages = []
        for message in consumed:
            error = message.error()
            if error is not None:
                upto = max(upto, self._offset_at(error, message, wanted))
            elif (message.offset() or 0) < wanted.end:
                messages.append(message)
        return messages, max(upto, at)

    def _offset_at(self, error: KafkaError, message: Message, wanted: Range) -> int:
        if error.code() == KafkaError._PARTITION_EOF:
            return message.offset() or 0
        if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
            raise Gap(
                f"{_partition_text(wanted)}: offset {wanted.first} is gone",
                where=self.options.where,
                fix=f"lake ingest {self.options.name} --give-up continues without the lost records",
            )
        if is_transient(error):
            self._on_error(error)
            return 0
        raise self.as_error(error, f"{_partition_text(wanted)}: ")

    def oldest(self, waiting: Sequence[Range]) -> float | None:
        """Return the timestamp of the oldest record in Unix seconds; None if no record has one."""
        if not waiting:
            return None
        self._consumer.assign([TopicPartition(each.topic, each.partition, each.first) for each in waiting])
        times: dict[tuple[str | None, int | None], int | None] = {}
        end = time.monotonic() + self.options.seconds
        while len(times) < len(waiting) and time.monotonic() < end:
            for message in self._consumer.consume(BATCH, POLL_SECONDS):
                kind, milliseconds = message.timestamp() if message.error() is None else (TIMESTAMP_NOT_AVAILABLE, 0)
                stamp = None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds
                times.setdefault((message.topic(), message.partition()), stamp)
        stamps = [stamp for stamp in times.values() if stamp is not None]
        return min(stamps) / 1000 if stamps else None

    def commit(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Write the group's offsets, a hint for tools.

        By the consumer: an admin client crashes the process if the coordinator goes away (librdkafka 4605, 5397).
        """
        self._consumer.unassign()
        self._commit_result = None
        places = [TopicPartition(topic, partition, offset) for topic, partition, offset in offsets]
        self._consumer.commit(offsets=places, asynchronous=True)
        end = time.monotonic() + self.options.seconds
        while self._commit_result is None:
            if self.last_error is not None and not is_transient(self.last_error):
                raise self.as_error(self.last_error)
            if time.monotonic() > end:
                raise self.unavailable(f"the offsets of the group {self.options.group} were not written")
            with suppress(KafkaException):
                self._consumer.poll(POLL_SECONDS)
        error, written = self._commit_result
        errors = [fault for fault in (error, *(place.error for place in written)) if fault]
        if transient := [fault for fault in errors if is_transient(fault)]:
            raise self.as_error(transient[0], f"the offsets of the group {self.options.group} were not written: ")
        if errors:
            logging.getLogger("lake").warning(
                "%s: the offsets of the group %s were not written: %s",
                self.options.name,
                self.options.group,
                self.options.redacted(errors[0].str()),
            )

    def _committed(self, error: KafkaError | None, written: list[Any]) -> None:
        self._commit_result = error, written

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error

    def _answer(self, future: Future[T], about: str = "") -> T:
        end = time.monotonic() + self.options.seconds
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except NoAnswer:
                self._admin.poll(0)
                if self.last_error is not None and not is_transient(self.last_error):
                    raise self.as_error(self.last_error, about) from None
                if time.monotonic() > end:
                    raise self.unavailable(f"{about}no answer") from None
            except KafkaException as error:
                self._admin.poll(0)
                reason: KafkaError = error.args[0]
                is_permanent = self.last_error is not None and not is_transient(self.last_error)
                raise self.as_error(self.last_error if is_permanent and self.last_error else reason, about) from None

    def as_error(self, error: KafkaError, about: str = "") -> LakeError:
        where, message = self.options.where, f"{about}{self.options.redacted(error.str())}"
        if error.name() in LEADER_ERRORS:
            return NoLeader(f"Kafka is unavailable: {message}", where=where, fix="try again in a moment")
        if is_transient(error):
            return Unavailable(f"Kafka is unavailable: {message}", where=where, fix=NO_ANSWER_FIX)
        if error.name() in TOPIC_ERRORS:
            return UnknownTopic(message, where=where, fix="correct its name, or make the topic first")
        fix = "ask who runs the cluster for what this user may do"
        if error.name() in LOGIN_ERRORS:
            message, fix = f"authentication failed: {message}", "correct the sasl.… and ssl.… settings in [client]"
        return DeclarationError(message, where=where, fix=fix)

    def unavailable(self, what: str) -> Unavailable:
        why = f": {self.options.redacted(self.last_error.str())}" if self.last_error else ""
        return Unavailable(f"Kafka is unavailable: {what}{why}", where=self.options.where, fix=NO_ANSWER_FIX)


def _partition_text(wanted: Range) -> str:
    return f"partition {wanted.partition} of the topic {wanted.topic!r}"
