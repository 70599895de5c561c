"""Receiver of signed POSTs: sends messages, retries them, and detects that the receiver is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from itertools import chain
from typing import Final, NamedTuple

import httpx
from standardwebhooks.webhooks import Webhook

from lake.connect.webhook.client import PostClient
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.text import counted

RETRIED: Final = frozenset({408, 425, 429})
"""4xx statuses that are retried, like 5xx."""
MESSAGE_FAULT: Final = 500
"""Status that may concern one message. Other retried ones mean that the receiver is down, unless it accepts others."""
GONE: Final = 410
FIRST_PAUSE: Final = 0.5
"""Seconds before the second attempt; doubled before each further one."""


@dataclass(frozen=True)
class WebhookMessage:
    """`id` is stable across retries. Messages that share a key are sent one at a time."""

    id: str
    keys: tuple[str, ...]
    body: bytes


class Rejection(NamedTuple):
    reason: str
    attempts: int


@dataclass(frozen=True)
class WebhookLimits:
    parallel: int = 4
    attempts: int = 5
    seconds: int = 10
    pause: int = 60
    bytes: int = 256 << 10
    undelivered: int = 1000


@dataclass
class Receiver:
    """Neither secrets nor contents appear in messages and logs."""

    where: str
    url: str = field(repr=False)
    secret: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    limits: WebhookLimits
    _accepted: int = field(default=0, init=False)
    _paused_until: float = field(default=0.0, init=False)
    _failure: Exception | None = field(default=None, init=False, repr=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def close(self) -> None:
        if client := self.__dict__.pop("_client", None):
            client.close()

    def send(self, messages: Sequence[WebhookMessage], answers: dict[str, Rejection | None]) -> None:
        """Send messages, those with a common key in order. Add the answer to each to `answers`, None if accepted.

        Raises Unavailable if the receiver is down, DeclarationError if its declaration is wrong. `answers` then has
        the answers before that.
        """
        self._stopped.clear()
        self._failure = None
        _ = self._client  # before there are threads
        with ThreadPoolExecutor(self.limits.parallel) as pool:
            try:
                for _ in pool.map(partial(self._send_in_order, answers), _queues(messages)):
                    pass
            finally:
                self._stopped.set()
        if self._failure is not None:
            raise self._failure

    def _send_in_order(self, answers: dict[str, Rejection | None], messages: Iterable[WebhookMessage]) -> None:
        try:
            for message in messages:
                answers[message.id] = self._send(message)
        except Exception as failure:
            self._failure = self._failure or failure
            self._stopped.set()

    def _send(self, message: WebhookMessage) -> Rejection | None:
        if len(message.body) > self.limits.bytes:
            return Rejection(f"its message has {len(message.body):,} bytes, more than {self.limits.bytes:,}", 0)
        accepted_before, result = self._accepted, ""
        for attempt in range(self.limits.attempts):
            self._wait(FIRST_PAUSE * 2 ** (attempt - 1) if attempt else 0.0)
            status, result = self._post(message)
            if status is not None and 200 <= status < 300:
                self._accepted += 1
                return None
            if status is not None and 400 <= status < 500 and status not in RETRIED:
                return Rejection(result, attempt + 1)
        if status != MESSAGE_FAULT and self._accepted == accepted_before:
            raise self._unavailable(f"{result}, {counted(self.limits.attempts, 'time')}")
        return Rejection(result, self.limits.attempts)

    def _post(self, message: WebhookMessage) -> tuple[int | None, str]:
        try:
            answer = self._client.post(self.url, message.body, self._signed(message))
        except TimeoutError:
            return None, f"no answer in {self.limits.seconds} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return None, f"no answer: {type(error).__name__}"
        self._check_status(answer)
        return answer.status_code, f"status {answer.status_code}"

    def _check_status(self, answer: httpx.Response) -> None:
        if answer.status_code == GONE:
            raise DeclarationError(
                "the receiver is gone for good (status 410)",
                where=self.where,
                fix="remove the sink, or correct its url",
            )
        if 300 <= answer.status_code < 400:
            raise DeclarationError(
                f"the receiver redirects elsewhere (status {answer.status_code}); redirects are not followed",
                where=self.where,
                fix="correct url",
            )
        if answer.status_code in {429, 503} and (asked := _seconds(answer.headers.get("retry-after", ""))):
            if asked > self.limits.pause:
                raise self._unavailable(f"it asks to be left alone for {asked:.0f} s")
            self._paused_until = max(self._paused_until, time.monotonic() + asked)

    def _wait(self, seconds: float) -> None:
        seconds = max(seconds, self._paused_until - time.monotonic())
        if self._stopped.wait(max(seconds, 0.0)):
            raise self._unavailable("another message failed")

    def _signed(self, message: WebhookMessage) -> dict[str, str]:
        now = datetime.now(UTC)
        signature = Webhook(self.secret).sign(message.id, now, message.body.decode())
        own = {"webhook-id": message.id, "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
        return {**self.headers, "content-type": "application/json", **own}

    @cached_property
    def _client(self) -> PostClient:
        return PostClient(self.limits.seconds)

    def _unavailable(self, why: str) -> LakeError:
        return Unavailable(
            f"the receiver is unavailable: {why}",
            where=self.where,
            fix="try again when it answers: the delivery continues at the first message that it has not accepted",
        )


def _queues(messages: Sequence[WebhookMessage]) -> list[list[WebhookMessage]]:
    queue_of: dict[str, list[WebhookMessage]] = {}
    for message in messages:
        with_its_keys = {id(queue_of[key]): queue_of[key] for key in message.keys if key in queue_of}
        queue = [*chain.from_iterable(with_its_keys.values()), message]
        queue_of |= {key: queue for queued in queue for key in queued.keys}
    return [*{id(queue): queue for queue in queue_of.values()}.values()]


def _seconds(text: str) -> float:
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    return max((at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)
