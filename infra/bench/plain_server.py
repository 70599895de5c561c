"""Queries of published tables by plain Starlette and DuckDB: one database, a cursor for a request, JSON.

It checks no token and no query, limits nothing, and records nothing.
"""

from __future__ import annotations

import json
import sys

import duckdb
import uvicorn
from deltalake import DeltaTable
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def views(tables: list[str]) -> duckdb.DuckDBPyConnection:
    """A database with a view for each Delta table, a folder."""
    con = duckdb.connect()
    con.execute("SET GLOBAL TimeZone = 'UTC'")
    for table in tables:
        files = ", ".join(f"'{file}'" for file in DeltaTable(table).file_uris())
        con.execute(f"CREATE VIEW {table.rpartition('/')[2]} AS FROM read_parquet([{files}])")
    return con


def app(con: duckdb.DuckDBPyConnection) -> Starlette:
    def answer(query: str) -> str:
        with con.cursor() as cursor:
            rows = cursor.execute(query)
            names = [column[0] for column in rows.description]
            return json.dumps([dict(zip(names, row, strict=True)) for row in rows.fetchall()], default=str)

    async def sql(request: Request) -> Response:
        text = await run_in_threadpool(answer, (await request.body()).decode())
        return Response(text, media_type="application/json")

    return Starlette(routes=[Route("/sql", sql, methods=["POST"])])


if __name__ == "__main__":
    port, *tables = sys.argv[1:]
    uvicorn.run(app(views(tables)), port=int(port), log_level="error")
