"""Translation of exceptions into problems for readers: details of a bad request, but none of a fault of the server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import duckdb

from lake.errors import DeclarationError, LakeError, Unavailable
from lake.serve.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from lake.serve.problem_handler import Endpoint

LONGEST: Final = 2_000
"""Most characters of an error message: error(text) in a query can make one of any length."""


def problem_of(error: BaseException) -> Problem:
    """Return the Problem for an exception. Faults of the server are logged; their paths are not shown to the reader."""
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


def report_faults(answer: Endpoint) -> Endpoint:
    """Return the endpoint such that every exception becomes a Problem."""
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except (Problem, HTTPException, ClientDisconnect):
            raise
        except Exception as error:
            raise problem_of(error) from error

    return endpoint
