"""Download of a whole table: streamed while it is read. Its query does not wait for the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from lake.read.sql import EditionReader
from lake.serve.problems import Problem
from lake.serve.reading.query_pool import AnswerClosed, RunningQuery, stop_on_disconnect
from lake.serve.reading.query_worker import QueryTask
from lake.serve.reading.request_context import RequestContext
from lake.serve.reading.stored_answers import AnswerResponse, StoredAnswer
from lake.store.ledger.reads import Read


@dataclass
class Download:
    """Answer to `query` in the format `kind`; `read` is its entry in the access log."""

    context: RequestContext
    reader: EditionReader
    query: str
    kind: str
    read: Read
    work: RunningQuery = field(default_factory=RunningQuery)
    fault: Problem | None = None

    async def response(self, request: Request, headers: Mapping[str, str]) -> Response:
        """Return the response once its log entry is on the disk and the answer has begun. Raises Problem.

        For HTTP/1.0, which has no chunked encoding, wait for the complete answer: it needs a length.
        """
        answer, whole = self.context.answers.add(self.work), request.scope["http_version"] == "1.0"
        self.context.keep(asyncio.create_task(self._run(answer)))
        try:
            async with stop_on_disconnect(request, self.work):
                await answer.wait_for_start(whole=whole)
            await self.context.access_log.record(self.read)
        except BaseException as error:
            answer.close()
            if isinstance(error, AnswerClosed):
                raise self.fault or self.work.problem(0) from None
            raise
        return AnswerResponse(answer, self.kind, {**headers, "content-length": str(answer.size)} if whole else headers)

    async def _run(self, answer: StoredAnswer) -> None:
        serve, rows = self.context.serve, None
        task = QueryTask(self.reader, self.query, self.kind, size=serve.answers_bytes)
        with self.context.editions.keep_files():
            try:
                rows = (await self.context.pool.run(self.work, task, answer.write, serve.download_seconds))["rows"]
                answer.end()
            except Problem as problem:
                self.fault = problem
                answer.close("failed")
        await answer.closed.wait()
        how = self.work.outcome or ("answered" if answer.is_sent else answer.reason)
        if how == "failed":
            logging.getLogger("lake").warning("a download of %s ended: %s", self.read.tables[0], self.fault)
        with suppress(Problem):
            await self.context.access_log.record(self.read.ended(how, rows=rows, size=answer.size))
