"""Answers stored until they are sent, so that no query waits for its client: on the disk, small ones in memory.

At their size limit the oldest is discarded: its connection is cut off, or its client gets 503 if nothing was sent yet.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import IO, Final, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lake.serve.problems import Problem
from lake.serve.reading.query_pool import AnswerClosed, RunningQuery
from lake.serve.reading.request_parameters import MEDIA

READ_BYTES: Final = 1 << 18
MEMORY_BYTES: Final = 1 << 16
"""An answer up to this size is in memory."""
Content = TypeVar("Content")
Result = TypeVar("Result")


@dataclass
class StoredAnswers:
    folder: Path
    most: int
    _answers: dict[StoredAnswer, None] = field(default_factory=dict)

    def add(self, work: RunningQuery) -> StoredAnswer:
        answer = StoredAnswer(self, work)
        self._answers[answer] = None
        return answer

    def discard(self, answer: StoredAnswer) -> None:
        self._answers.pop(answer, None)

    def make_room(self) -> None:
        while sum(answer.size for answer in self._answers) > self.most:
            next(answer for answer in self._answers if answer.size).close("room")

    def stop(self) -> None:
        for answer in [*self._answers]:
            answer.close("stopping")


class StoredAnswer:
    """Answer that is written by its query, sent at the same time, and closed for a `reason`."""

    def __init__(self, answers: StoredAnswers, work: RunningQuery) -> None:
        self.size, self.reason, self.is_sent = 0, "", False
        self.closed = asyncio.Event()
        self.work, self._answers = work, answers
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=str(answers.folder))  # noqa: SIM115  `close`
        self._lock, self._changed = Lock(), asyncio.Event()
        self._stored, self._is_whole = 0, False

    async def write(self, block: bytes) -> None:
        self.size += len(block)
        self._answers.make_room()
        try:
            await self._at_file(self._store, block)
        except OSError as error:
            raise Problem("disk", f"no place for the answer: {error.strerror}", after=10) from error
        self._stored += len(block)
        self._changed.set()

    def end(self) -> None:
        self._is_whole = True
        self._changed.set()

    def close(self, reason: str = "gone") -> None:
        if not self.closed.is_set():
            self.reason = reason
            self._answers.discard(self)
            self.closed.set()
            self._changed.set()
            self.work.stop(reason)
            with self._lock:
                self._file.close()

    async def wait_for_start(self, *, whole: bool = False) -> None:
        await self._more(0)
        while whole and not self._is_whole:
            await self._more(self._stored)

    async def blocks(self) -> AsyncIterator[bytes]:
        sent = 0
        while await self._more(sent):
            block = await self._at_file(self._load, sent)
            sent += len(block)
            yield block
        self.is_sent = True

    async def _more(self, after: int) -> bool:
        while after == self._stored and not self._is_whole and not self.closed.is_set():
            self._changed.clear()
            await self._changed.wait()
        if self.closed.is_set():
            raise AnswerClosed(self.reason)
        return after < self._stored

    async def _at_file(self, work: Callable[[Content], Result], content: Content) -> Result:
        return work(content) if self.size <= MEMORY_BYTES else await asyncio.to_thread(work, content)

    def _store(self, block: bytes) -> None:
        with self._opened(self._stored) as file:
            file.write(block)
            file.flush()

    def _load(self, at: int) -> bytes:
        with self._opened(at) as file:
            return file.read(min(READ_BYTES, self._stored - at))

    @contextmanager
    def _opened(self, at: int) -> Iterator[IO[bytes]]:
        with self._lock:
            if self.closed.is_set():
                raise AnswerClosed(self.reason)
            self._file.seek(at)
            yield self._file


class AnswerResponse(StreamingResponse):
    """Response that is cut off if the answer is closed early, so that no part looks complete."""

    def __init__(self, answer: StoredAnswer, kind: str, headers: Mapping[str, str]) -> None:
        super().__init__(answer.blocks(), 200, headers, MEDIA[kind])
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(AnswerClosed, asyncio.CancelledError):  # the latter if the server ends
                await super().__call__(scope, receive, send)
        finally:
            self.answer.close()
