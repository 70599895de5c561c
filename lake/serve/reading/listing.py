"""Endpoint `GET /tables`: the tables a reader may read, with descriptions, as JSON or HTML."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from lake.errors import LakeError
from lake.read.relation import SystemRelation
from lake.read.sql import EditionReader
from lake.serve.reading import pages
from lake.serve.reading.content_negotiation import edition_request, parameters
from lake.serve.reading.faults import problem_of
from lake.serve.reading.queries import PRIVATE, edition_headers
from lake.serve.reading.request_context import RequestContext
from lake.store.snapshot import Published


@dataclass(frozen=True)
class Listing:
    """Endpoint of the list of tables."""

    context: RequestContext

    async def tables(self, request: Request) -> Response:
        grant = await self.context.grant(request)
        with self.context.editions.keep_files():
            reader = await self.context.reader(grant, edition_request(parameters(request, "edition", "cut")))
            try:
                listed = await asyncio.to_thread(_listed, reader)
            except LakeError as error:
                raise problem_of(error) from error
        headers = PRIVATE | edition_headers(reader, reader.edition.cut)
        if "text/html" in request.headers.get("accept", ""):
            base = str(request.base_url).rstrip("/")
            return HTMLResponse(pages.tables(base, grant.name, listed), 200, headers)
        return JSONResponse(listed, 200, headers)


def _listed(reader: EditionReader) -> dict[str, Any]:
    edition = reader.edition
    system_tables = [_system_table(relation) for relation in reader.system_tables.readable(but=())]
    return {
        "edition": edition.number,
        "cut": edition.cut,
        "published_at": edition.published_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "tables": [*(_table(reader, name) for name in edition.tables), *system_tables],
    }


def _table(reader: EditionReader, name: str) -> dict[str, Any]:
    entry, table = reader.edition.tables[name], reader.table(name)
    about = {"table": table.title, "name": name, "layer": entry.layer, "description": table.doc}
    return about | {"rows": entry.rows, "cut": reader.edition.cut_of(name), "queried_only": False, **_columns(table)}


def _system_table(relation: SystemRelation) -> dict[str, Any]:
    about = {"table": relation.title, "name": relation.title, "layer": relation.schema, "description": relation.doc}
    return about | {"rows": None, "cut": None, "queried_only": True, **_columns(relation)}


def _columns(table: Published | SystemRelation) -> dict[str, Any]:
    return {
        "columns": [
            {"name": column.name, "type": column.type, "description": column.description} for column in table.columns
        ]
    }
