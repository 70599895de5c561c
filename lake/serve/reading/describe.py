"""OpenAPI paths of the read API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lake.config import ServeSettings
from lake.serve.describe import problem
from lake.serve.problems import READING
from lake.serve.reading.content_negotiation import MEDIA
from lake.serve.reading.sharing import ROUTES

EDITION: Final = {
    "edition": "The edition that is read; by default the current one.",
    "cut": "The newest edition of it.",
}
FORMAT: Final = {"format": "csv, json, jsonl or parquet; by default what Accept says, else json."}
SHARED: Final[Mapping[str, str]] = {
    "shares": "Delta Sharing: the share.",
    "share": "Delta Sharing: the share.",
    "schemas": "Delta Sharing: layers that have tables.",
    "tables": "Delta Sharing: tables.",
    "version": "Delta Sharing: the version of a table, which is the number of an edition.",
    "metadata": "Delta Sharing: what a table is.",
    "query": "Delta Sharing: what a table is, and addresses of its files.",
    "changes": "Delta Sharing: changes, which are not shared.",
    "file": "Delta Sharing: a file, by an address that was handed out. It needs no token.",
}


def paths(serve: ServeSettings) -> dict[str, Any]:
    """Return the paths, with the configured limits."""
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
    for path, name, method in ROUTES:
        named = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        found[path] = {method.lower(): _operation(SHARED[name], {}, *named, answer="application/json")}
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
    problems: dict[int, list[str]] = {}
    for status, title, _ in READING.values():
        problems.setdefault(status, []).append(title)
    responses = {str(status): problem("; ".join(titles)) for status, titles in problems.items()}
    right = {"description": what, "content": {form: {} for form in forms}}
    return {"summary": what, "parameters": known, "responses": {"200": right, **responses}}
