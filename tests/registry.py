"""Schema registry for Confluent's client, in memory, on loopback. No registry is published as a package. The paths
and answers are those of docs.confluent.io, "Schema Registry API".
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.processes import free_port, until


@dataclass
class Registry:
    """Schemas by id, from 1, and the versions of each subject. `asked` counts requests for a schema."""

    url: str
    credentials: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: int = 0

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/subjects/{subject}/versions", self.register, methods=["POST"]),
            Route("/subjects/{subject}", self.register, methods=["POST"]),
            Route("/subjects/{subject}/versions/{version}", self.version),
            Route("/schemas/ids/{number:int}", self.by_id),
            Route("/schemas/guids/{guid}", self.by_guid),
        ]
        return Starlette(routes=routes)

    async def register(self, request: Request) -> JSONResponse:
        """Return the id of a schema of a subject; a new one if no equal schema exists."""
        schema = await request.json()
        subject = request.path_params["subject"]
        known = {name: schema[name] for name in ("schema", "schemaType", "references") if schema.get(name)}
        number = next((i for i, had in enumerate(self.schemas, 1) if _same(had, known)), 0)
        if not number:
            self.schemas.append({**known, "guid": str(uuid.uuid4())})
            number = len(self.schemas)
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return JSONResponse(self._registered(subject, versions.index(number) + 1))

    async def version(self, request: Request) -> JSONResponse:
        """Return one version of a subject."""
        subject, version = request.path_params["subject"], request.path_params["version"]
        versions = self.subjects.get(subject, [])
        number = len(versions) if version in {"latest", "-1"} else int(version)
        return JSONResponse(self._registered(subject, number)) if 0 < number <= len(versions) else _missing(40402)

    async def by_id(self, request: Request) -> JSONResponse:
        """Return a schema by its id."""
        if self.credentials and request.headers.get("authorization") != self.credentials:
            return JSONResponse({"error_code": 401, "message": "unauthorized"}, 401)
        self.asked += 1
        number = request.path_params["number"]
        return JSONResponse(self.schemas[number - 1]) if 0 < number <= len(self.schemas) else _missing(40403)

    async def by_guid(self, request: Request) -> JSONResponse:
        """Return a schema by its GUID."""
        self.asked += 1
        found = [schema for schema in self.schemas if schema["guid"] == request.path_params["guid"]]
        return JSONResponse(found[0]) if found else _missing(40403)

    def _registered(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}


def _same(had: dict[str, Any], new: dict[str, Any]) -> bool:
    return {name: value for name, value in had.items() if name != "guid"} == new


def _missing(code: int) -> JSONResponse:
    return JSONResponse({"error_code": code, "message": "not found"}, 404)


@contextmanager
def registry() -> Iterator[Registry]:
    """Run a registry for the block."""
    port = free_port()
    stand_in = Registry(f"http://127.0.0.1:{port}")
    config = uvicorn.Config(stand_in.app(), host="127.0.0.1", port=port, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield stand_in
    finally:
        server.should_exit = True
        thread.join()
