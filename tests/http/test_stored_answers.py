"""Answers stored on disk until they are sent: their order, limit and end. No server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lake.serve.reading.query_pool import AnswerClosed, RunningQuery
from lake.serve.reading.stored_answers import MEMORY_BYTES, StoredAnswer, StoredAnswers


async def read_answer(answer: StoredAnswer) -> bytes:
    return b"".join([block async for block in answer.blocks()])


@pytest.mark.parametrize("times", [1, MEMORY_BYTES // 8, MEMORY_BYTES])
def test_answer_is_sent_while_it_grows(tmp_path: Path, times: int) -> None:
    blocks = [block * times for block in (b"one ", b"two ", b"three")]

    async def grow() -> bytes:
        answer = StoredAnswers(tmp_path, 1 << 20).add(RunningQuery())
        taking = asyncio.create_task(read_answer(answer))
        for block in blocks:
            await answer.write(block)
            await asyncio.sleep(0)
        answer.end()
        text = await taking
        assert answer.is_sent
        answer.close()
        return text

    assert asyncio.run(grow()) == b"".join(blocks)


def test_oldest_answer_with_bytes_is_closed_when_all_are_over_the_limit(tmp_path: Path) -> None:
    async def crowd() -> None:
        answers = StoredAnswers(tmp_path, 10)
        empty, oldest, newer, newest = (answers.add(RunningQuery()) for _ in range(4))
        for answer in (oldest, newer, newest):
            await answer.write(b"1234")
        assert (oldest.reason, oldest.work.reason) == ("room", "room")
        with pytest.raises(AnswerClosed):
            await read_answer(oldest)
        with pytest.raises(AnswerClosed):
            await oldest.write(b"5")
        for answer in (newer, newest):
            answer.end()
            assert await read_answer(answer) == b"1234"
        answers.stop()
        assert (empty.reason, newer.reason) == ("stopping", "stopping")

    asyncio.run(crowd())


@pytest.mark.parametrize("wait", [read_answer, StoredAnswer.wait_for_start])
def test_waiting_client_is_notified_when_its_answer_is_closed(
    tmp_path: Path, wait: Callable[[StoredAnswer], Coroutine[Any, Any, object]]
) -> None:
    async def close() -> None:
        answer = StoredAnswers(tmp_path, 10).add(RunningQuery())
        waiting = asyncio.create_task(wait(answer))
        await asyncio.sleep(0)
        answer.close()
        with pytest.raises(AnswerClosed):
            await waiting

    asyncio.run(close())
