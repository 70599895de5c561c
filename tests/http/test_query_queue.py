"""Queue of readers' queries with worker processes and no server: limits, slots and memory. No JVM."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from lake.config import Settings
from lake.read.sql import reader
from lake.serve.problems import Problem
from lake.serve.reading.query_worker import QueryTask
from tests.reading import small
from tests.servers.http import installed

pytestmark = pytest.mark.slow

ENDLESS = "select levenshtein(repeat('a', 400000), repeat('b', 400000))"
LARGE = "select len(list_transform(range(3000000), lambda x: repeat('a', 1000)))"


def test_killed_query_releases_its_slot_to_the_next(tmp_path: Path) -> None:
    installed()
    project = small(
        tmp_path / "shop", "[tool.lake.serve]\nqueries_at_once = 1\nquery_memory = 134217728\nquery_disk = 0\n"
    )
    endless, large, gone, last = asyncio.run(_run_queries(project))
    assert (endless, large, gone) == ("too-slow-query", "too-much", "bad-request")
    assert last == b'[\n{"n":1000}\n]\n'


async def _run_queries(project: Settings) -> tuple[str, str, str, bytes]:
    from lake.serve.reading.query_pool import QueryPool, RunningQuery

    queue, blocks = QueryPool.of(project), list[bytes]()
    theirs = replace(reader(project), may_read=str.isupper, is_limited=True)

    async def take(block: bytes) -> None:
        blocks.append(block)

    async def refused(query: str, seconds: float, work: RunningQuery) -> str:
        with pytest.raises(Problem) as problem:
            await queue.run(work, QueryTask(theirs, query, "json", checked=True), take, seconds)
        return problem.value.kind

    try:
        hung_up = RunningQuery()
        waiting = [
            asyncio.create_task(refused(ENDLESS, 1, RunningQuery())),
            asyncio.create_task(refused(LARGE, 60, RunningQuery())),
            asyncio.create_task(refused(ENDLESS, 60, hung_up)),
        ]
        while not hung_up.checked:
            await asyncio.sleep(0.05)
        hung_up.stop("gone")
        endless, large, gone = await asyncio.gather(*waiting)
        task = QueryTask(theirs, "select count(*) as n from numbers", "json", checked=True)
        assert await queue.run(RunningQuery(), task, take, 60) == {"rows": 1}
    finally:
        await queue.close()
    return endless, large, gone, b"".join(blocks)
