"""Transaction of a Kafka producer: all of its records are committed, or none is visible.

Starting one fences off earlier producers with the same transactional id, and aborts their open transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from lake.connect.kafka.sink.topics import Topics
from lake.connect.kafka.source.cluster import may_pass
from lake.errors import DeclarationError, LakeError, Unavailable

if TYPE_CHECKING:
    from confluent_kafka import Message

SLICE: Final = 1.0
"""Seconds of one call to librdkafka; signals are handled between calls."""
POLL_EVERY: Final = 1000
SENDING: Final[Mapping[str, Any]] = {
    "linger.ms": 20,
    "queue.buffering.max.kbytes": 64 << 10,
}
OVERHEAD: Final = 512
"""Most bytes of a batch of one record besides key, value and headers' values."""
BATCH_BYTES: Final = 1_000_000
Headers = list[tuple[str, str | bytes | None]]


class KafkaTransaction:
    """Transaction under `id`, of at most `seconds`. `most` has the record size limit of each topic.

    Committed at the end of the block; aborted if the block raises.
    """

    def __init__(self, topics: Topics, id: str, seconds: int, most: Mapping[str, int]) -> None:
        self._topics, self._id, self._seconds, self._most = topics, id, seconds, most
        self._fault: KafkaError | None = None
        self._producer = self._connected()
        self._count = 0

    def _connected(self) -> Producer:
        least, most = min(self._most.values()), max(self._most.values())
        ours = {
            "transactional.id": self._id,
            "transaction.timeout.ms": self._seconds * 1000,
            "message.timeout.ms": min(self._seconds, self._topics.options.seconds) * 1000,
            "partitioner": "murmur2_random",
            "batch.size": max(1, min(BATCH_BYTES, least - OVERHEAD)),
            "message.max.bytes": max(1000, most),
            "delivery.report.only.error": True,
        }
        return self._topics.client(Producer, SENDING, ours)

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
            meant = self._as_error(refused.args[0])
            self._abort()
            raise meant from None
        except BaseException:
            self._abort()
            raise

    def takes(self, topic: str, key: bytes, value: bytes | None, headers: Headers) -> bool:
        header_bytes = sum(len(name) + len(text or "") for name, text in headers)
        return len(key) + len(value or b"") + header_bytes + OVERHEAD <= self._most[topic]

    def send(self, topic: str, key: bytes, value: bytes | None, headers: Headers, partition: int | None = None) -> None:
        """Raises if the transaction can no longer be committed."""
        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        heard = time.monotonic()
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=self._failed, **where)
                break
            except BufferError:
                before = len(self._producer)
                self._poll(0.05)
                heard = heard if len(self._producer) >= before else time.monotonic()
                self._check_fault()
                if time.monotonic() - heard > self._topics.options.seconds:
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

    def _retry(self, work: Callable[[float], None]) -> None:
        """Repeat a call until it succeeds, makes no progress for too long, or cannot succeed."""
        left, heard = len(self._producer), time.monotonic()
        while True:
            try:
                return work(SLICE)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if not (reason.retriable() or reason.code() == KafkaError._TIMED_OUT):
                    raise
                if (hard := self._topics.last_error) is not None and not may_pass(hard):
                    raise self._topics.as_error(hard) from None
                if len(self._producer) != left:
                    left, heard = len(self._producer), time.monotonic()
                if time.monotonic() - heard > self._topics.options.seconds:
                    raise self._topics.unavailable(f"the transaction {self._id}: {reason.str()}") from None

    def _abort(self) -> None:
        """If no broker answers, the cluster or the next deliverer aborts it."""
        with suppress(KafkaException, LakeError):
            self._producer.purge()
            self._producer.abort_transaction(SLICE)

    def _reason(self, error: KafkaError) -> KafkaError:
        if error.code() == KafkaError._FATAL:
            try:
                self._producer.poll(SLICE)
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
