"""Background work of a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def repeated(name: str, work: Callable[[], Awaitable[None]], seconds: float) -> AsyncIterator[None]:
    """Run `work` every `seconds` while the block runs. A fault is logged and does not end the repetition."""
    task = asyncio.create_task(_repeat(name, work, seconds))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _repeat(name: str, work: Callable[[], Awaitable[None]], seconds: float) -> None:
    last = ""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
            last = ""
        except Exception as error:  # of any kind, such as a damaged table: the next try may succeed
            why = str(error) or repr(error)
            if why != last:
                logging.getLogger("lake").warning("%s failed and will be retried: %s", name, why)
            last = why
