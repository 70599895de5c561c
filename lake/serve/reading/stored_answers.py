"""Answers stored on the disk until they are sent, so that no query waits for its client.

At their size limit the oldest is discarded: its connection is cut off, or its client gets 503 if nothing was sent yet.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from lake.serve.problems import Problem
from lake.serve.reading.content_negotiation import MEDIA
from lake.serve.reading.query_pool import AnswerClosed, RunningQuery

READ_BYTES: Final = 1 << 18


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
        self._file = tempfile.TemporaryFile(dir=answers.folder, buffering=0)  # noqa: SIM115  `close` ends it
        self._lock, self._changed = Lock(), asyncio.Event()
        self._stored, self._is_whole = 0, False

    async def write(self, block: bytes) -> None:
        self.size += len(block)
        self._answers.make_room()
        try:
            await asyncio.to_thread(self._store, block)
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
            block = await asyncio.to_thread(self._load, sent)
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

    def _store(self, block: bytes) -> None:
        with self._lock:
            at = self._stored
            while block:
                written = os.pwrite(self._open_file(), block, at)
                at, block = at + written, block[written:]

    def _load(self, at: int) -> bytes:
        with self._lock:
            return os.pread(self._open_file(), min(READ_BYTES, self._stored - at), at)

    def _open_file(self) -> int:
        if self._file.closed:
            raise AnswerClosed(self.reason)
        return self._file.fileno()


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
