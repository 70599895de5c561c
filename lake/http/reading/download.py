"""Download of a whole table: sent while it is read, without its query waiting for the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from lake.http.problems import Problem
from lake.http.reading.desk import Desk
from lake.http.reading.kept import KeptAnswer, Sent
from lake.http.reading.query_worker import QueryTask
from lake.http.reading.work import Ended, Work, while_waited_for
from lake.read.sql import EditionReader
from lake.store.ledger.reads import Read


@dataclass
class Download:
    """The answer to `query`, in the format `kind`; `read` is its record."""

    desk: Desk
    reader: EditionReader
    query: str
    kind: str
    read: Read
    work: Work = field(default_factory=Work)
    fault: Problem | None = None

    async def response(self, request: Request, headers: Mapping[str, str]) -> Response:
        """Return the response once its record is on the disk and the answer has begun. Raises Problem.

        To a client of HTTP/1.0, which knows no chunks, the answer is sent once it is whole: it has a length.
        """
        answer, whole = self.desk.answers.add(self.work), request.scope["http_version"] == "1.0"
        self.desk.keep(asyncio.create_task(self._run(answer)))
        try:
            async with while_waited_for(request, self.work):
                await answer.begun(whole=whole)
            await self.desk.recording.record(self.read)
        except BaseException as error:
            answer.close()
            if isinstance(error, Ended):
                raise self.fault or self.work.problem(0) from None
            raise
        return Sent(answer, self.kind, {**headers, "content-length": str(answer.size)} if whole else headers)

    async def _run(self, answer: KeptAnswer) -> None:
        """Read the table, wait until the answer is sent, and record how it ended."""
        serve, rows = self.desk.serve, None
        task = QueryTask(self.reader, self.query, self.kind, size=serve.answers_bytes)
        with self.desk.shelf.held():
            try:
                rows = (await self.desk.queue.run(self.work, task, answer.write, serve.download_seconds))["rows"]
                answer.end()
            except Problem as problem:
                self.fault = problem
                answer.close("failed")
        await answer.closed.wait()
        how = self.work.outcome or ("answered" if answer.is_sent else answer.reason)
        if how == "failed":
            logging.getLogger("lake").warning("a download of %s ended: %s", self.read.tables[0], self.fault)
        with suppress(Problem):
            await self.desk.recording.record(self.read.ended(how, rows=rows, size=answer.size))
