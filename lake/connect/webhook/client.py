"""HTTP client with one deadline for a whole request. httpx has only a limit for each read."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import httpx

T = TypeVar("T")
ANSWER_BYTES: Final = 64 << 10
"""Most bytes read and dropped of an answer, so that its connection can be reused."""


class PostClient:
    """Thread-safe client. Its event loop runs in a thread of its own until `close`."""

    def __init__(self, seconds: float) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs the URL, which may be a secret
        self._seconds = seconds
        self._client = httpx.AsyncClient(timeout=None, follow_redirects=False)  # `_post` has the deadline
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Return the answer; its body is ignored. Raises TimeoutError at the deadline, httpx.HTTPError."""
        return self._run(self._post(self._client.build_request("POST", url, content=body, headers=headers)))

    def close(self) -> None:
        self._run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _post(self, request: httpx.Request) -> httpx.Response:
        deadline = self._loop.time() + self._seconds
        async with asyncio.timeout_at(deadline):
            answer = await self._client.send(request, stream=True)
        try:
            with suppress(TimeoutError, httpx.HTTPError):
                async with asyncio.timeout_at(deadline):
                    await _read(answer)
        finally:
            await answer.aclose()
        return answer


async def _read(answer: httpx.Response) -> None:
    size = 0
    async for part in answer.aiter_raw():
        size += len(part)
        if size > ANSWER_BYTES:
            return
