"""An endpoint whose problems are answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from lake.http.problems import Problem

Endpoint = Callable[[Request], Awaitable[Response]]


def answering(answer: Endpoint) -> Endpoint:
    """The answer, or the problem in its place."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except Problem as problem:
            return problem.response
        except ClientDisconnect:
            return Response(status_code=400)  # which nobody reads
        except HTTPException:
            raise
        except Exception:
            logging.getLogger("lake").exception("an unexpected fault")
            return Problem("fault", "an unexpected fault").response

    return endpoint


async def no_page(request: Request, error: Exception) -> Response:
    """The answer where there is no such page, or no such method of one."""
    method = isinstance(error, HTTPException) and error.status_code == 405
    return Problem("wrong-method" if method else "no-page", f"{request.method} {request.url.path}").response
