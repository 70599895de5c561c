"""HTML pages of the read API: how to read, and the tables of a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lake.serve.pages import page
from lake.serve.reading.content_negotiation import MEDIA


def part(base: str, *, alone: bool) -> str:
    """Return the section of the home page about reading; `alone` if it is the only section."""
    commands = "".join(f"<pre>{escape(command)}</pre>" for command in examples(base)) if alone else ""
    return (
        '<section id="read"><h2>Read tables</h2><p>Published tables are read with the token of a reader, which '
        "<code>lake reader add</code> makes: as CSV, JSON or Parquet, by SQL, and by Delta Sharing.</p>"
        '<p><a href="/tables">The tables</a>: a browser asks for a user name, which may be anything, and for a '
        f"password, which is the token.</p>{commands}</section>"
    )


def examples(base: str, table: str = "TABLE") -> list[str]:
    """Return example commands, with the token in $TOKEN."""
    shown = '-H "Authorization: Bearer $TOKEN"'
    return [
        f"curl {shown} {base}/tables",
        f"curl {shown} {base}/tables/{table}.csv",
        f"curl {shown} '{base}/sql?format=csv' \\\n  --data-binary 'select * from {table} limit 10'",
    ]


def tables(base: str, reader: str, listed: Mapping[str, Any]) -> str:
    """Return the page of a reader's tables. `listed` is the JSON answer."""
    found: Sequence[Mapping[str, Any]] = listed["tables"]
    first = next((each["name"] for each in found if each["queried_only"] is False), "TABLE")
    facts = {
        "Reader": reader,
        "Edition": f"{listed['edition']}, cut {listed['cut']}",
        "Published": listed["published_at"],
    }
    about = "".join(f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items())
    commands = "".join(f"<pre>{escape(command)}</pre>" for command in examples(base, first)) if found else ""
    each = "".join(map(_table, found)) or "<p>This reader may read nothing that is published.</p>"
    return page(
        "Tables",
        f'<p><a href="/">Home</a></p><h1>Tables</h1><dl>{about}</dl>{each}<h2>By program</h2>{commands}'
        f'<p class="muted">Delta Sharing: the endpoint is <code>{escape(base)}/delta-sharing/</code></p>',
    )


def _table(table: Mapping[str, Any]) -> str:
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
