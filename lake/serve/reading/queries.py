"""Endpoints for whole tables (`GET /tables/<table>.csv`) and for queries (`POST /sql`) of an edition."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from string import printable
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from lake.errors import DeclarationError
from lake.read.sql import EditionReader
from lake.serve.bodies import receive
from lake.serve.problems import Problem
from lake.serve.reading.query_pool import AnswerClosed, RunningQuery, stop_on_disconnect
from lake.serve.reading.query_worker import QueryTask
from lake.serve.reading.request_context import RequestContext
from lake.serve.reading.request_parameters import MEDIA, edition_choice, json_object, negotiated_format, parameters
from lake.serve.reading.stored_answers import AnswerResponse, StoredAnswer
from lake.store.ledger.reads import Read
from lake.store.snapshot import Published
from lake.text import quoted

SQL_BYTES: Final = 256 << 10
BODY_SECONDS: Final = 30.0
PRIVATE: Final = {
    "cache-control": "private, no-cache",
    "vary": "accept, authorization",
    "x-content-type-options": "nosniff",
}
"""Headers of every answer: no shared cache may store it, and no browser may guess its type."""


async def get_table(context: RequestContext, request: Request) -> Response:
    grant = await context.grant(request)
    given = parameters(request, "edition", "cut", "format")
    name, kind = _named(request)
    kind = negotiated_format(request, given.get("format", kind))
    with context.editions.keep_files():
        reader = await context.reader(grant, edition_choice(given))
        table = await asyncio.to_thread(_found, reader, name)
        cut = reader.edition.cut_of(table.name)
        tag = _tag(kind, *table.files, *(f"{each.name} {each.type}" for each in table.columns))
        headers = PRIVATE | edition_headers(reader, cut) | {"etag": tag}
        headers["content-disposition"] = _attachment(f"{table.name}.{kind}")
        read = Read(grant.name, grant.id, "table", (table.name,), None, reader.edition.number, cut, kind)
        if {tag, "*"} & _tags(request):
            await context.access_log.record(read.ended("unchanged"))
            return Response(None, 304, headers)
        if request.method == "HEAD":
            response = Response(None, 200, headers, MEDIA[kind])
            del response.headers["content-length"]  # as for GET, whose answer is streamed
            return response
        query = f"FROM {quoted(table.layer)}.{quoted(table.name)}"
        return await Download(context, reader, query, kind, read).response(request, headers)


async def post_query(context: RequestContext, request: Request) -> Response:
    grant = await context.grant(request)
    given = parameters(request, "edition", "cut", "format")
    text, in_body = await _sql_and_options(request)
    if both := sorted(given.keys() & in_body.keys()):
        raise Problem("bad-request", f"{both[0]} is given twice, in the address and in the body")
    chosen = {**given, **in_body}
    kind = negotiated_format(request, chosen.get("format"))
    with context.editions.keep_files():
        reader = await context.reader(grant, edition_choice(chosen))
        at = reader.edition
        read = Read(grant.name, grant.id, "sql", (), None, at.number, at.cut, kind)
        size = min(context.serve.query_bytes, context.serve.answers_bytes)
        task = QueryTask(reader, text, kind, checked=True, rows=context.serve.query_rows, size=size)
        answer = context.answers.add(RunningQuery())
        try:
            async with stop_on_disconnect(request, answer.work):
                return await _answered(context, task, read, answer)
        except BaseException:
            answer.close()
            raise


async def _answered(context: RequestContext, task: QueryTask, read: Read, answer: StoredAnswer) -> Response:
    reader, work = task.reader, answer.work
    try:
        rows = (await context.pool.run(work, task, answer.write, context.serve.query_seconds))["rows"]
    except Problem as problem:
        outcome = work.outcome or ("refused" if problem.status < 500 else "failed")
        await context.access_log.record(replace(read, **work.checked).ended(outcome))
        raise
    answer.end()
    read = replace(read, **work.checked)
    headers = PRIVATE | edition_headers(reader, reader.edition.cut)
    headers |= {"lake-rows": str(rows), "content-length": str(answer.size)}
    if note := reader.across_cuts(read.tables):
        headers["lake-note"] = quote(note, safe=printable)
    await context.access_log.record(read.ended("answered", rows=rows, size=answer.size))
    return AnswerResponse(answer, task.kind, headers)


def _found(reader: EditionReader, name: str) -> Published:
    try:
        return reader.table(name)
    except DeclarationError as error:
        if name.lower() in map(str.lower, reader.system_tables.titles):
            what = f"{name} is no table of the edition, and is read by POST /sql only"
            raise Problem("no-table", what, hint=f"POST /sql with FROM {name}") from None
        raise Problem("no-table", error.what, hint=error.fix) from None


def edition_headers(reader: EditionReader, cut: int) -> dict[str, str]:
    return {"lake-edition": str(reader.edition.number), "lake-cut": str(cut)}


def _attachment(name: str) -> str:
    """Headers are ASCII, but names of tables may be of any script (RFC 6266)."""
    return f'attachment; filename="{name}"' if name.isascii() else f"attachment; filename*=UTF-8''{quote(name)}"


def _named(request: Request) -> tuple[str, str | None]:
    name = str(request.path_params["table"])
    stem, dot, end = name.rpartition(".")
    return (stem, end) if dot and end in MEDIA else (name, None)


def _tag(*parts: object) -> str:
    """Return the entity tag of a table's files: equal in all editions between which the table did not change.

    A path and a version do not suffice: a table that is dropped and recreated may have both again.
    """
    return f'"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}"'


def _tags(request: Request) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}


async def _sql_and_options(request: Request) -> tuple[str, dict[str, Any]]:
    body = await whole_body(request, SQL_BYTES)
    if "json" not in request.headers.get("content-type", ""):
        return _plain(body), {}
    members = json_object(body)
    if not isinstance(members.get("sql"), str):
        raise Problem("bad-request", 'the body has no text "sql"')
    rest = {name: value for name, value in members.items() if name != "sql" and value is not None}
    if unknown := sorted(rest.keys() - {"edition", "cut", "format"}):
        raise Problem("bad-request", f"no member {unknown[0]!r} in the body: sql, edition, cut and format are known")
    return _plain(members["sql"].encode("utf-8", "surrogatepass")), rest


def _plain(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Problem("bad-request", f"the query is not UTF-8 at byte {error.start}") from None
    if "\0" in text:
        raise Problem("bad-request", "the query has a zero byte")
    return text


async def whole_body(request: Request, most: int) -> bytes:
    body = bytearray()

    def take(part: bytes) -> None:
        body.extend(part)
        if len(body) > most:
            raise Problem("too-long", f"more than {most:,} bytes")

    await receive(request, BODY_SECONDS, take)
    return bytes(body)


@dataclass
class Download:
    """Whole table, streamed while it is read. Its query does not wait for the client."""

    context: RequestContext
    reader: EditionReader
    query: str
    kind: str
    read: Read
    work: RunningQuery = field(default_factory=RunningQuery)
    fault: Problem | None = None

    async def response(self, request: Request, headers: Mapping[str, str]) -> Response:
        """Return the response once its log entry is on the disk and the answer has begun. Raises Problem.

        HTTP/1.0, which has no chunked encoding, gets the complete answer: it needs a length.
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
                raise self.fault or self.work.problem() from None
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
