"""Rejections of requests as problem details (RFC 9457), and translation of exceptions to them.

Query workers import this module, so it imports parts of the server on demand.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import duckdb

from lake.errors import DeclarationError, LakeError, Unavailable

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    Endpoint = Callable[[Request], Awaitable[Response]]

Kinds = Mapping[str, tuple[int, str, str]]
"""Status, title and fix, by the last part of a problem's `type`."""
_DECLARED: Final = tomllib.loads(resources.files("lake.serve").joinpath("problems.toml").read_text("utf-8"))
INTAKE_KINDS: Final[Kinds] = _DECLARED["taking"]
READING: Final[Kinds] = _DECLARED["reading"]
KINDS: Final[Kinds] = {**INTAKE_KINDS, **READING}
MEDIA_TYPE: Final = "application/problem+json"
MESSAGE_CHARACTERS: Final = 2_000
"""Most characters of an error message: error(text) in a query can create one of any length."""


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
            headers["retry-after"] = str(max(1, ceil(self.after)))
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
    """Return the problem of a reader's request. Faults of the server are logged, without their paths in the answer."""
    if isinstance(error, Problem):
        return error
    if _is_out_of_memory(error) or _is_out_of_memory(error.__context__):
        limit = "disk (query_disk)" if "max_temp_directory_size" in str(error.__context__) else "memory (query_memory)"
        return Problem("too-much", f"the query needs more {limit} than it may take")
    if isinstance(error, DeclarationError):
        where = f" ({error.where})" if error.where.startswith("line ") else ""
        what = error.what if len(error.what) <= MESSAGE_CHARACTERS else f"{error.what[:MESSAGE_CHARACTERS]} …"
        return Problem("bad-query", f"{what}{where}", hint=error.fix)
    logging.getLogger("lake").warning("a read failed: %s", error)
    if isinstance(error, Unavailable):
        return Problem("busy", error.what, after=10)
    if isinstance(error, LakeError | OSError):
        return Problem("unreadable", "a stored file is damaged or gone")
    return Problem("fault", "an unexpected fault")


def _is_out_of_memory(error: BaseException | None) -> bool:
    return isinstance(error, duckdb.OutOfMemoryException | MemoryError) or "can't start new thread" in str(error)
