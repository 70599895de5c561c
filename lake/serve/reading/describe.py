"""Description of the read API: a reader's tables (`GET /tables`, JSON or HTML), examples, OpenAPI paths."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from lake.config import ServeSettings
from lake.read.relation import SystemRelation
from lake.read.sql import EditionReader
from lake.serve.describe import problems
from lake.serve.pages import page
from lake.serve.problems import READING
from lake.serve.reading.queries import PRIVATE, edition_headers
from lake.serve.reading.request_context import RequestContext
from lake.serve.reading.request_parameters import MEDIA, edition_choice, parameters
from lake.serve.reading.sharing import ROUTES
from lake.store.snapshot import Published

EDITION: Final = {
    "edition": "The edition that is read; by default the current one.",
    "cut": "The cut whose newest edition is read.",
}
FORMAT: Final = {"format": "csv, json, jsonl or parquet; by default what Accept says, else json."}


async def list_tables(context: RequestContext, request: Request) -> Response:
    grant = await context.grant(request)
    with context.editions.keep_files():
        reader = await context.reader(grant, edition_choice(parameters(request, "edition", "cut")))
        listed = await asyncio.to_thread(_listed, reader)
    headers = PRIVATE | edition_headers(reader, reader.edition.cut)
    if "text/html" in request.headers.get("accept", ""):
        base = str(request.base_url).rstrip("/")
        return HTMLResponse(_page(base, grant.name, listed), 200, headers)
    return JSONResponse(listed, 200, headers)


def _listed(reader: EditionReader) -> dict[str, Any]:
    edition = reader.edition
    system_tables = [_system_table(relation) for relation in reader.system_tables.readable(excluded=())]
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


def home_section(base: str, *, alone: bool) -> str:
    commands = "".join(f"<pre>{escape(command)}</pre>" for command in _examples(base)) if alone else ""
    return (
        '<section id="read"><h2>Read tables</h2><p>Published tables are read with the token of a reader, which '
        "<code>lake reader add</code> makes: as CSV, JSON or Parquet, by SQL, and by Delta Sharing.</p>"
        '<p><a href="/tables">The tables</a>: a browser asks for a user name, which may be anything, and for a '
        f"password, which is the token.</p>{commands}</section>"
    )


def _examples(base: str, table: str = "TABLE") -> list[str]:
    shown = '-H "Authorization: Bearer $TOKEN"'
    return [
        f"curl {shown} {base}/tables",
        f"curl {shown} {base}/tables/{table}.csv",
        f"curl {shown} '{base}/sql?format=csv' \\\n  --data-binary 'select * from {table} limit 10'",
    ]


def _page(base: str, reader: str, listed: Mapping[str, Any]) -> str:
    found: Sequence[Mapping[str, Any]] = listed["tables"]
    first = next((each["name"] for each in found if each["queried_only"] is False), "TABLE")
    facts = {
        "Reader": reader,
        "Edition": f"{listed['edition']}, cut {listed['cut']}",
        "Published": listed["published_at"],
    }
    about = "".join(f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items())
    commands = "".join(f"<pre>{escape(command)}</pre>" for command in _examples(base, first)) if found else ""
    each = "".join(map(_section, found)) or "<p>This reader may read nothing that is published.</p>"
    return page(
        "Tables",
        f'<p><a href="/">Home</a></p><h1>Tables</h1><dl>{about}</dl>{each}<h2>By program</h2>{commands}'
        f'<p class="muted">Delta Sharing: the endpoint is <code>{escape(base)}/delta-sharing/</code></p>',
    )


def _section(table: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(column['name'])}</code></td><td>{escape(column['type'])}</td>"
        f"<td>{escape(column['description'])}</td></tr>"
        for column in table["columns"]
    )
    links = " · ".join(f'<a href="/tables/{escape(table["name"])}.{kind}">{kind}</a>' for kind in sorted(MEDIA))
    count = f"{table['rows']:,} rows · " if table["rows"] is not None else ""
    by = f"{count}{links}" if not table["queried_only"] else "by SQL alone"
    return (
        f'<section id="{escape(table["table"])}"><h2>{escape(table["table"])}</h2><p>{escape(table["description"])}</p>'
        f'<p class="muted">{by}</p>'
        f'<div class="wide"><table><tr><th>Column</th><th>Type</th><th>Meaning</th></tr>{rows}</table></div></section>'
    )


def paths(serve: ServeSettings) -> dict[str, Any]:
    limits = (
        f"One SELECT of DuckDB's SQL. At most {serve.query_rows:,} rows, {serve.query_bytes:,} bytes and "
        f"{serve.query_seconds:g} seconds."
    )
    body = {
        "type": "object",
        "required": ["sql"],
        "properties": {"sql": {"type": "string"}, "edition": {"type": "integer"}, "cut": {"type": "integer"}}
        | {"format": {"enum": sorted(MEDIA)}},
    }
    content = {"text/plain": {"schema": {"type": "string"}}, "application/json": {"schema": body}}
    found: dict[str, Any] = {
        "/tables": {"get": _operation("The tables that this reader may read.", EDITION, answer="application/json")},
        "/tables/{table}": {
            "get": _operation("A whole table: <table>.csv, .json, .jsonl or .parquet.", EDITION | FORMAT, "table")
        },
        "/sql": {
            "post": _operation(limits, EDITION | FORMAT) | {"requestBody": {"required": True, "content": content}}
        },
    }
    for path, method, _, what in ROUTES:
        named = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        found[path] = {method.lower(): _operation(f"Delta Sharing: {what}.", {}, *named, answer="application/json")}
    return found


def _operation(what: str, query: Mapping[str, str], *path: str, answer: str = "") -> dict[str, Any]:
    known = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": f"The {name}."}
        for name in path
    ]
    known += [
        {"name": name, "in": "query", "schema": {"type": "string"}, "description": text} for name, text in query.items()
    ]
    forms = [answer] if answer else [media.partition(";")[0] for media in MEDIA.values()]
    right = {"description": what, "content": {form: {} for form in forms}}
    return {"summary": what, "parameters": known, "responses": {"200": right, **problems(READING)}}
