"""Who is told by signed POSTs: a message is taken, refused, or tried again until it is clear that nobody is there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx
from standardwebhooks.webhooks import Webhook

from lake.errors import DeclarationError, LakeError, Unavailable
from lake.text import counted

AGAIN: Final = frozenset({408, 425, 429})
"""Statuses of 4xx after which a message is tried again, as after 5xx."""
DOWN: Final = frozenset({429, 502, 503, 504})
"""Statuses that say that nobody is there, whatever the message is."""
GONE: Final = 410
FIRST_PAUSE: Final = 0.5
"""Seconds before the second attempt; twice as many before each further one."""
ANSWER_BYTES: Final = 64 << 10
"""So much of an answer is read, so that its connection may be used again; it is not looked at."""


@dataclass(frozen=True)
class Message:
    """What is sent: `id` is its own whenever it is; of messages with one `key` in common, one is sent at a time."""

    id: str
    keys: tuple[str, ...]
    body: bytes


@dataclass(frozen=True)
class Limits:
    """What is asked of a receiver: the options of a webhook."""

    parallel: int
    attempts: int
    seconds: int
    pause: int
    bytes: int
    undelivered: int


@dataclass
class Receiver:
    """A receiver at `url`. Closed after use. Neither secrets nor what is sent or answered is told to anybody else."""

    where: str
    url: str = field(repr=False)
    secret: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    limits: Limits
    _client: httpx.Client | None = field(default=None, init=False, repr=False)
    _taken: int = field(default=0, init=False)
    _quiet_until: float = field(default=0.0, init=False)
    _failure: Exception | None = field(default=None, init=False, repr=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def close(self) -> None:
        """Lets go of connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def tell(self, messages: Sequence[Message]) -> dict[str, str]:
        """Sends messages, those of one key in their order. Those that are not taken, by their ids, with why.

        Raises Unavailable where nobody takes anything, DeclarationError where it makes no sense to go on.
        """
        self._ended.clear()
        self._failure = None
        self._connected()
        reasons: dict[str, str] = {}
        with ThreadPoolExecutor(self.limits.parallel) as pool:
            try:
                for told in pool.map(self._one_after_another, _by_key(messages)):
                    reasons |= told
            finally:
                self._ended.set()
        if self._failure is not None:
            raise self._failure
        return reasons

    def _one_after_another(self, messages: Iterable[Message]) -> dict[str, str]:
        """Sends them. The first failure ends all that others are at, and is told when they have ended."""
        reasons = {}
        try:
            for message in messages:
                if reason := self._told(message):
                    reasons[message.id] = reason
        except Exception as failure:
            self._failure = self._failure or failure
            self._ended.set()
        return reasons

    def _told(self, message: Message) -> str:
        """Why a message is not taken; nothing where it is."""
        if len(message.body) > self.limits.bytes:
            return f"its message has {len(message.body):,} bytes, more than {self.limits.bytes:,}"
        taken, found = self._taken, ""
        for attempt in range(self.limits.attempts):
            self._wait(FIRST_PAUSE * 2 ** (attempt - 1) if attempt else 0.0)
            status, found = self._posted(message)
            if status is not None and 200 <= status < 300:
                self._taken += 1
                return ""
            if status is not None and 400 <= status < 500 and status not in AGAIN:
                return found
        if (status is None or status in DOWN) and self._taken == taken:
            raise self._unavailable(f"{found}, {counted(self.limits.attempts, 'time')}")
        return f"{found}, {counted(self.limits.attempts, 'time')}"

    def _posted(self, message: Message) -> tuple[int | None, str]:
        """The status of an answer, None where there is none, and what was found."""
        try:
            with self._connected().stream("POST", self.url, content=message.body, headers=self._signed(message)) as got:
                self._read(got)
                self._must_be_there(got)
                return got.status_code, f"status {got.status_code}"
        except httpx.HTTPError as error:
            return None, f"no answer: {type(error).__name__}"

    def _read(self, answer: httpx.Response) -> None:
        size = 0
        for part in answer.iter_raw():
            size += len(part)
            if size > ANSWER_BYTES:
                return

    def _must_be_there(self, answer: httpx.Response) -> None:
        """Raises where it says that it is not, or is elsewhere; notes for how long it asks to be left alone."""
        if answer.status_code == GONE:
            raise DeclarationError(
                "the receiver is gone for good (status 410)",
                where=self.where,
                fix="remove the sink, or correct its url",
            )
        if 300 <= answer.status_code < 400:
            raise DeclarationError(
                f"the receiver is elsewhere (status {answer.status_code}), and is not followed there",
                where=self.where,
                fix="correct url",
            )
        if answer.status_code in {429, 503} and (asked := _seconds(answer.headers.get("retry-after", ""))):
            if asked > self.limits.pause:
                raise self._unavailable(f"it asks to be left alone for {asked:.0f} s")
            self._quiet_until = max(self._quiet_until, time.monotonic() + asked)

    def _wait(self, seconds: float) -> None:
        """Waits, and as long as the receiver asked for. Raises where another message found that it makes no sense."""
        seconds = max(seconds, self._quiet_until - time.monotonic())
        if self._ended.wait(max(seconds, 0.0)):
            raise self._unavailable("another message was given up")

    def _signed(self, message: Message) -> dict[str, str]:
        now = datetime.now(UTC)
        signature = Webhook(self.secret).sign(message.id, now, message.body.decode())
        own = {"webhook-id": message.id, "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
        return {**self.headers, "content-type": "application/json", **own}

    def _connected(self) -> httpx.Client:
        if self._client is None:
            logging.getLogger("httpx").setLevel(logging.WARNING)  # else it tells the address, which may be a secret
            self._client = httpx.Client(timeout=self.limits.seconds, follow_redirects=False)
        return self._client

    def _unavailable(self, why: str) -> LakeError:
        return Unavailable(
            f"the receiver is unavailable: {why}",
            where=self.where,
            fix="try again when it answers; what it has taken is not sent again",
        )


def _by_key(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages that may be sent at the same time, apart from those that may not."""
    lane: dict[str, list[Message]] = {}
    lanes: list[list[Message]] = []
    for message in messages:
        before = next((lane[key] for key in message.keys if key in lane), None)
        if before is None:
            lanes.append(before := [])
        before.append(message)
        lane |= dict.fromkeys(message.keys, before)
    return lanes


def _seconds(text: str) -> float:
    """What Retry-After says, in seconds from now; 0 for what is none."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max((at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)
