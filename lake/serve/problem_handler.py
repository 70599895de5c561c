"""Endpoint wrapper that turns a raised Problem into its response."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lake.serve.problems import Problem

Endpoint = Callable[[Request], Awaitable[Response]]


def handle_problems(answer: Endpoint) -> Endpoint:
    """Return the endpoint such that a Problem becomes its response, and any other exception a logged 500."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except Problem as problem:
            return problem.response
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except HTTPException:
            raise
        except Exception:
            logging.getLogger("lake").exception("an unexpected fault")
            return Problem("fault", "an unexpected fault").response

    return endpoint


async def page_not_found(request: Request, error: Exception) -> Response:
    """Answer 404 for an unknown path, 405 for a wrong method."""
    method = isinstance(error, HTTPException) and error.status_code == 405
    return Problem("wrong-method" if method else "no-page", f"{request.method} {request.url.path}").response
