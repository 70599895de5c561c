"""Rejections of requests as problem details (RFC 9457), and the endpoints' exceptions as such rejections.

Workers of queries import this module, so it imports parts of a server on demand.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import duckdb

from lake.errors import DeclarationError, LakeError, Unavailable

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    Endpoint = Callable[[Request], Awaitable[Response]]

Kinds = Mapping[str, tuple[int, str, str]]
"""Status, title and fix, by the last part of a problem's `type`."""
TAKING: Final[Kinds] = {
    "no-stream": (404, "No such stream", "The path names a stream that this server does not take events for."),
    "no-page": (404, "No such page", "GET / lists what is here."),
    "wrong-method": (405, "Wrong method", "Events and queries are posted; all else is got."),
    "no-token": (401, "Not allowed", "Send the stream's token: Authorization: Bearer <token>."),
    "bad-signature": (
        401,
        "Invalid signature",
        "The body, its id and its time must be signed with the stream's secret.",
    ),
    "wrong-type": (415, "Unsupported content type", "Send JSON, NDJSON or a CloudEvent, and say so in Content-Type."),
    "wrong-encoding": (415, "Unsupported content encoding", "Send the body uncompressed, or with gzip."),
    "wrong-request": (400, "Invalid request", "A parameter or a header is invalid."),
    "too-long": (413, "Body too long", "Send fewer records at once."),
    "too-slow": (408, "Request too slow", "The request did not arrive in time."),
    "long-head": (431, "Head too long", "Send fewer or shorter headers."),
    "unparseable": (
        400,
        "Not valid JSON",
        "Every record is one JSON object. None of the request's records was accepted.",
    ),
    "oversized": (413, "Record too long", "A record is longer than the project's setting record_bytes."),
    "missing-id": (400, "No id", "The stream's contract takes an event's id from the request: send Idempotency-Key."),
    "must-decide": (400, "Decision required", "The stream accepts decided events only: add ?decide."),
    "not-by-contract": (400, "Violates the contract", "None was kept. Write the record as described here."),
    "refused": (409, "Refused", "The state of its key does not allow the event. None of the request was kept."),
    "outdated": (412, "Version conflict", "The key has changed: read it again, and send its version. None was kept."),
    "sent-before": (422, "Id already used", "Repeat a request unchanged, or give it a new id. None was kept."),
    "step-fails": (500, "The step fails", "The Fold's function cannot take the event: correct it. None was kept."),
    "undecided": (
        503,
        "Not decided",
        "The state that decides cannot be read at the moment. Nothing of the request was kept.",
    ),
    "too-fast": (429, "Too many events", "The stream's limit of events per second is reached. Try again later."),
    "too-many": (503, "Too many requests", "Too many concurrent requests. Try again later."),
    "backlog": (503, "Backlog too large", "Too many acknowledged events wait for lake ingest. Try again later."),
    "disk": (503, "Disk full", "Nothing can be stored. Try again later."),
    "stopping": (503, "Shutting down", "Nothing of the request was kept. Try again later."),
}
READING: Final[Kinds] = {
    "no-reader": (401, "Not allowed", "Send a reader's token: Authorization: Bearer <token>, or as a password."),
    "no-table": (404, "No such table", "GET /tables lists what this reader may read."),
    "no-share": (404, "No such share or schema", "GET /delta-sharing/shares lists them."),
    "no-edition": (404, "No such edition", "Leave out edition and cut, or name an edition that is kept."),
    "nothing-published": (503, "Nothing published", "Try again once the first edition is there."),
    "bad-request": (400, "Invalid request", "A parameter, a header or the body is invalid."),
    "bad-query": (400, "Invalid query", "Correct it: DuckDB's SQL, one SELECT over the tables that GET /tables lists."),
    "not-acceptable": (406, "No such format", "Ask for csv, json, jsonl or parquet: by ?format=, or by Accept."),
    "too-large": (
        422,
        "Answer too large",
        "Ask for less, by WHERE, LIMIT or GROUP BY; whole tables: GET /tables/<table>.parquet or Delta Sharing.",
    ),
    "too-much": (422, "Query too large", "It needs more memory or disk than a query may take: ask for less."),
    "too-slow-query": (422, "Query too slow", "It takes longer than a query may: ask for less."),
    "not-shared": (400, "Not shared", "Tables are shared as snapshots. Read an edition as a version, whole."),
    "expired": (403, "Address expired", "Ask for the table again: the answer has new addresses."),
    "busy": (503, "Too many queries", "Try again later."),
    "unrecorded": (503, "Read not recorded", "Every read is recorded first, and that fails at the moment."),
    "unreadable": (500, "Stored files unreadable", "Tell who runs the server: its log says where."),
    "fault": (500, "Fault of the server", "Tell who runs the server: its log says what happened."),
}
KINDS: Final[Kinds] = {**TAKING, **READING}
MEDIA_TYPE: Final = "application/problem+json"
LONGEST: Final = 2_000
"""Most characters of an error message: error(text) in a query can make one of any length."""


class Problem(Exception):
    """Rejection of a request, with a detail and further JSON members. `after` is the seconds to wait."""

    def __init__(self, kind: str, detail: str, *, after: float | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.after, self.more = kind, detail, after, more

    @property
    def status(self) -> int:
        return KINDS[self.kind][0]

    @property
    def response(self) -> Response:
        from starlette.responses import Response

        status, title, fix = KINDS[self.kind]
        body = {"type": f"/problems#{self.kind}", "title": title, "status": status, "detail": self.detail, "fix": fix}
        headers = {}
        if self.after is not None:
            headers["retry-after"] = str(max(1, round(self.after)))
        text = json.dumps(body | self.more, ensure_ascii=False).encode(errors="backslashreplace")  # lone surrogates
        answer = Response(text, status, headers, MEDIA_TYPE)
        if status == 401:  # one header each: browsers ignore a second challenge in one
            answer.headers.append("www-authenticate", "Bearer")
            answer.headers.append("www-authenticate", 'Basic realm="headwater"')
        return answer


def unexpected_fault(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    logging.getLogger("lake").exception("an unexpected fault")
    return Problem("fault", "an unexpected fault")


def handle_problems(answer: Endpoint, as_problem: Callable[[Exception], Problem] = unexpected_fault) -> Endpoint:
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import Response

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except HTTPException:
            raise
        except Exception as error:
            return as_problem(error).response

    return endpoint


def problem_of(error: BaseException) -> Problem:
    """Return the Problem for an exception of a read. Faults of the server are logged; their paths are not shown."""
    if isinstance(error, Problem):
        return error
    if _is_out_of_memory(error) or _is_out_of_memory(error.__context__):
        limit = "disk (query_disk)" if "max_temp_directory_size" in str(error.__context__) else "memory (query_memory)"
        return Problem("too-much", f"the query needs more {limit} than it may take")
    if isinstance(error, DeclarationError):
        where = f" ({error.where})" if error.where.startswith("line ") else ""
        what = error.what if len(error.what) <= LONGEST else f"{error.what[:LONGEST]} …"
        return Problem("bad-query", f"{what}{where}", hint=error.fix)
    logging.getLogger("lake").warning("a read failed: %s", error)
    if isinstance(error, Unavailable):
        return Problem("busy", error.what, after=10)
    if isinstance(error, LakeError | OSError):
        return Problem("unreadable", "a stored file is damaged or gone")
    return Problem("fault", "an unexpected fault")


def _is_out_of_memory(error: BaseException | None) -> bool:
    return isinstance(error, duckdb.OutOfMemoryException | MemoryError) or "can't start new thread" in str(error)
