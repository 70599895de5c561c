"""What a reader is told of a fault: what is wrong with the request; of the server, no more than that something is."""

from __future__ import annotations

import logging

import duckdb
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lake.errors import DeclarationError, LakeError, Unavailable
from lake.http.answering import Endpoint
from lake.http.problems import Problem


def problem_of(error: BaseException) -> Problem:
    """The problem that a fault is. What is wrong with the server is logged, and its places are told to nobody else."""
    if isinstance(error, Problem):
        return error
    if isinstance(error.__context__, duckdb.OutOfMemoryException):
        return Problem("too-much", "the query needs more memory than it may take")
    if isinstance(error, DeclarationError):
        where = f" ({error.where})" if error.where.startswith("line ") else ""
        return Problem("bad-query", f"{error.what}{where}", hint=error.fix)
    logging.getLogger("lake").warning("a read failed: %s", error)
    if isinstance(error, Unavailable):
        return Problem("busy", error.what, after=10)
    if isinstance(error, LakeError | OSError):
        return Problem("unreadable", "a stored file is damaged or gone")
    return Problem("fault", "an unexpected fault")


def faulting(answer: Endpoint) -> Endpoint:
    """The answer, whose faults are problems, wherever they come from: of who may read as of what is read."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except (Problem, HTTPException, ClientDisconnect):
            raise
        except Exception as error:
            raise problem_of(error) from error

    return endpoint
