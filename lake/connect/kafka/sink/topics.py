"""Topics of a sink, and transactions of a Kafka producer: all records of one are committed, or none is visible.

Starting a transaction fences off earlier producers with the same transactional id, and aborts their open transactions.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub forgets to export them
    ConfigResource,
    NewTopic,
    ResourceType,
)

from lake.connect.kafka.source.cluster import POLL_SECONDS, Cluster, UnknownTopic, is_transient
from lake.connect.kafka.source.ranges import Range, TopicState
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.lazy import pa
from lake.session.duck import connect
from lake.sources.source import Gap
from lake.text import literal

if TYPE_CHECKING:
    import duckdb

COMPACT_POLICY: Final = "compact"
DELETE_POLICY: Final = "delete"
SETTLE_SECONDS: Final = 2.0
"""Most seconds to wait for an ended transaction's markers."""
BATCH: Final = 10_000


@dataclass(frozen=True)
class TopicSpec:
    name: str
    policy: str
    partitions: int = 1


@dataclass(frozen=True)
class TargetTopic:
    id: str
    partitions: int
    record_bytes: int  # the most that it takes


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
        existing = self.ids(topic.name for topic in wanted)
        if missing := [topic for topic in wanted if topic.name not in existing]:
            if not create:
                raise DeclarationError(
                    f"no topic {missing[0].name!r}",
                    where=self.options.where,
                    fix=f"create it, with cleanup.policy={missing[0].policy}; or set create = true",
                )
            self._create(missing, replication)
            names = [topic.name for topic in missing]
            created = self.retry(lambda: self.topics(names), UnknownTopic)  # which waits for their leaders
            existing |= {name: (topic.id, len(topic.partitions)) for name, topic in created.items()}
        return {topic.name: TargetTopic(*existing[topic.name], self._record_bytes(topic)) for topic in wanted}

    def _create(self, missing: Iterable[TopicSpec], replication: int) -> None:
        futures = self._admin.create_topics(
            [
                NewTopic(topic.name, topic.partitions, replication, config={"cleanup.policy": topic.policy})
                for topic in missing
            ],
            request_timeout=self.options.seconds,
        )
        for name, future in futures.items():
            self._answer(future, f"the topic {name!r} could not be created: ")

    def _record_bytes(self, topic: TopicSpec) -> int:
        resource = ConfigResource(ResourceType.TOPIC, topic.name)
        futures = self._admin.describe_configs([resource], request_timeout=self.options.seconds)
        config = self._answer(futures[resource], f"the topic {topic.name!r}: ")
        policy = {word.strip() for word in (config["cleanup.policy"].value or "").split(",")}
        if (COMPACT_POLICY in policy) != (topic.policy == COMPACT_POLICY):
            raise DeclarationError(
                f"the topic {topic.name!r} has cleanup.policy={config['cleanup.policy'].value}, which loses rows here",
                where=self.options.where,
                fix=f"set cleanup.policy={topic.policy}, or name another topic",
            )
        return int(config["max.message.bytes"].value)

    def when_decided(self, name: str) -> TopicState:
        """Wait at most SETTLE_SECONDS until no transaction is open."""
        end = time.monotonic() + min(SETTLE_SECONDS, self.options.seconds)
        while True:
            state = self.topics([name])[name]
            if is_decided(state) or time.monotonic() > end:
                return state
            self._admin.poll(POLL_SECONDS)

    def _records(self, wanted: Range) -> Iterator[Message]:
        try:
            for messages, _ in self.read(wanted):
                yield from messages
        except Gap:
            what = f"Kafka is unavailable: the topic {wanted.topic!r} was cleaned up while it was being read"
            raise Unavailable(what, where=self.options.where, fix="try again in a moment") from None

    def newest(self, name: str, state: TopicState) -> Message | None:
        bounds, back = state.partitions[0], 16
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

    def has_records(self, name: str) -> bool:
        partitions = self.when_decided(name).partitions.items()
        return any(True for at, bounds in partitions for _ in self._records(Range(name, at, bounds.low, bounds.end)))

    @contextmanager
    def latest(self, name: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a table `latest`: each key with its newest `value`, without tombstones."""
        with tempfile.TemporaryDirectory() as spill, closing(connect()) as con:
            con.execute(f"SET temp_directory = {literal(spill)}")
            con.execute("CREATE TABLE records (n BIGINT, key BLOB, value BLOB)")
            partitions = sorted(self.when_decided(name).partitions.items())
            ranges = (Range(name, partition, bounds.low, bounds.end) for partition, bounds in partitions)
            for batch in _batches(chain.from_iterable(map(self._records, ranges))):
                con.from_arrow(batch).insert_into("records")
            con.execute(
                """CREATE TABLE latest AS FROM records
                QUALIFY row_number() OVER (PARTITION BY key ORDER BY n DESC) = 1; DROP TABLE records;
                DELETE FROM latest WHERE value IS NULL OR key IS NULL"""
            )
            yield con


def is_decided(state: TopicState) -> bool:
    return all(bounds.end == bounds.high for bounds in state.partitions.values())


def _batches(messages: Iterator[Message]) -> Iterator[Any]:
    schema = pa.schema([("n", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
    rows = ((number, message.key(), message.value()) for number, message in enumerate(messages))
    while batch := [*islice(rows, BATCH)]:
        yield pa.table([list(column) for column in zip(*batch, strict=True)], schema=schema)


CALL_SECONDS: Final = 1.0
"""Seconds of one call to librdkafka; signals are handled between calls."""
POLL_EVERY: Final = 1000
PRODUCER_DEFAULTS: Final[Mapping[str, Any]] = {
    "linger.ms": 20,
    "queue.buffering.max.kbytes": 64 << 10,
}
OVERHEAD: Final = 512
"""Most bytes of a batch of one record besides key, value and headers' values."""
BATCH_BYTES: Final = 1_000_000
Headers = list[tuple[str, str | bytes | None]]


class KafkaTransaction:
    """Transaction under `id`, of at most `seconds`. `record_bytes` has the size limit of each topic.

    Committed at the end of the block; aborted if the block raises.
    """

    def __init__(self, topics: Topics, id: str, seconds: int, record_bytes: Mapping[str, int]) -> None:
        self._topics, self._id, self._seconds, self._record_bytes = topics, id, seconds, record_bytes
        self._fault: KafkaError | None = None
        self._producer = self._connected()
        self._count = 0

    def _connected(self) -> Producer:
        least, most = min(self._record_bytes.values()), max(self._record_bytes.values())
        ours = {
            "transactional.id": self._id,
            "transaction.timeout.ms": self._seconds * 1000,
            "message.timeout.ms": min(self._seconds, self._topics.options.seconds) * 1000,
            "partitioner": "murmur2_random",
            "batch.size": max(1, min(BATCH_BYTES, least - OVERHEAD)),
            "message.max.bytes": max(1000, most),
            "delivery.report.only.error": True,
        }
        return self._topics.client(Producer, PRODUCER_DEFAULTS, ours)

    def __enter__(self) -> Self:
        try:
            self._retry(self._producer.init_transactions)
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._as_error(error.args[0]) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort()
            return
        try:
            self._retry(self._producer.commit_transaction)
        except KafkaException as refused:
            error = self._as_error(refused.args[0])
            self._abort()
            raise error from None
        except BaseException:
            self._abort()
            raise

    def fits(self, topic: str, key: bytes, value: bytes | None, headers: Headers) -> bool:
        header_bytes = sum(len(name) + len(text or "") for name, text in headers)
        return len(key) + len(value or b"") + header_bytes + OVERHEAD <= self._record_bytes[topic]

    def send(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int | None = None) -> None:
        """Raises if the transaction can no longer be committed."""
        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        progress_at = time.monotonic()
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=self._failed, **where)
                break
            except BufferError:
                before = len(self._producer)
                self._poll(0.05)
                progress_at = progress_at if len(self._producer) >= before else time.monotonic()
                self._check_fault()
                if time.monotonic() - progress_at > self._topics.options.seconds:
                    raise self._topics.unavailable("no record is acknowledged") from None
            except KafkaException as error:
                raise self._as_error(error.args[0]) from None
        self._count += 1
        if self._count % POLL_EVERY == 0:
            self._poll(0)
            self._check_fault()

    def _poll(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except KafkaException as fatal:
            raise self._as_error(fatal.args[0]) from None

    def _failed(self, error: KafkaError | None, _: Message) -> None:
        self._fault = self._fault or error

    def _check_fault(self) -> None:
        if self._fault is not None:
            raise self._as_error(self._fault)

    def _retry(self, call: Callable[[float], None]) -> None:
        left, progress_at = len(self._producer), time.monotonic()
        while True:
            try:
                return call(CALL_SECONDS)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if not (reason.retriable() or reason.code() == KafkaError._TIMED_OUT):
                    raise
                if (permanent := self._topics.last_error) is not None and not is_transient(permanent):
                    raise self._topics.as_error(permanent) from None
                if len(self._producer) != left:
                    left, progress_at = len(self._producer), time.monotonic()
                if time.monotonic() - progress_at > self._topics.options.seconds:
                    raise self._topics.unavailable(f"the transaction {self._id}: {reason.str()}") from None

    def _abort(self) -> None:
        """If no broker answers, the cluster or the next deliverer aborts it."""
        with suppress(KafkaException, LakeError):
            self._producer.purge()
            self._producer.abort_transaction(CALL_SECONDS)

    def _reason(self, error: KafkaError) -> KafkaError:
        if error.code() == KafkaError._FATAL:
            try:
                self._producer.poll(CALL_SECONDS)
            except KafkaException as fatal:
                return cast(KafkaError, fatal.args[0])
        return error

    def _as_error(self, error: KafkaError) -> LakeError:
        options, error = self._topics.options, self._reason(error)
        codes = {fault.code() for fault in (error, self._fault) if fault is not None}
        if codes & {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}:
            return Unavailable(
                f"the transaction {self._id} was ended by another of that id, or took longer than {self._seconds} s",
                where=options.where,
                fix="run one `lake deliver` for each sink; or raise transaction_seconds",
            )
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return DeclarationError(
                f"the cluster allows no transaction of {self._seconds} s",
                where=options.where,
                fix="lower transaction_seconds, or raise transaction.max.timeout.ms of the cluster",
            )
        reason = self._fault if self._fault is not None else error
        return self._topics.as_error(reason, f"the transaction {self._id}: ")
