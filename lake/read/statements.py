"""Checks that a statement only reads, and hints for DuckDB's errors."""

from __future__ import annotations

import itertools
import re
from typing import Final

import duckdb

from lake.errors import DeclarationError

READS: Final = frozenset({"SELECT", "EXPLAIN", "MULTI"})
"""Statement types that only read. DESCRIBE, SHOW, SUMMARIZE and VALUES are SELECT, PIVOT is MULTI."""

# Comments are not recognized: only DuckDB's parser knows where one ends. One before ANALYZE is an error.
_EXPLAIN: Final = re.compile(r"EXPLAIN\b\s*(?:ANALYZE\b)?\s*(?:\(\s*(?:ANALYZE|FORMAT)\b[\w\s,]*\))?", re.I | re.A)
_WRITE_NODE: Final = re.compile(r'"type":"(COPY|INSERT|UPDATE|DELETE|MERGE)_QUERY_NODE"')
_WRITE_WORD: Final = re.compile(rb"(?:COPY|INSERT|UPDATE|DELETE|MERGE)\b(?!\s*\))", re.I)


def check_statement(con: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raise DeclarationError unless `query` is one statement that only reads."""
    statements = con.extract_statements(query)
    if len(statements) != 1:
        count = f"{len(statements)} statements" if statements else "no statement"
        raise DeclarationError(f"found {count}, one statement is allowed at a time", fix="write one SELECT")
    kind, text = statements[0].type.name, statements[0].query
    if kind == "EXPLAIN" and (outer := _EXPLAIN.match(text)):
        return check_statement(con, text[outer.end() :])
    if kind in READS and (inner := _write_within(con, text)):
        kind = f"{inner} in a WITH"
    if kind not in READS - {"EXPLAIN"}:
        raise DeclarationError(
            f"{kind.replace('_', ' ')} is not allowed: an edition is read-only",
            fix="SELECT, WITH, FROM, VALUES, PIVOT, DESCRIBE, SHOW, SUMMARIZE and EXPLAIN are allowed",
        )
    return None


def _write_within(con: duckdb.DuckDBPyConnection, text: str) -> str:
    """Return the kind of a writing statement in the body of a WITH, or "".

    DuckDB counts it as a SELECT. Its parser cannot serialize PIVOT without values: then tokens are compared.
    """
    [[tree]] = con.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [text]).fetchall()
    if tree.startswith('{"error":false'):
        found = _WRITE_NODE.search(tree)
        return found[1] if found else ""
    content = text.encode()
    tokens = [at for at, kind in duckdb.tokenize(text) if kind != duckdb.token_type.comment]
    for before, at in itertools.pairwise(tokens):
        if content[before : before + 1] in b"()" and (word := _WRITE_WORD.match(content, at)):
            return word[0].decode().upper()
    return ""


def fix_for(what: str) -> str:
    """Return a fix for an error message."""
    if re.search(r"[Ff]unction", what):
        return 'DuckDB\'s functions: duckdb.org/docs; `lake sql "describe TABLE"` shows the types of columns'
    if re.search(r"convert|cast|out of range|[Cc]onversion", what):
        return "correct the value, or write try_cast(… as …), which is null where a value does not fit"
    return 'correct the query there: DuckDB\'s SQL, duckdb.org/docs; `lake sql "describe TABLE"` shows the columns'


def place_in_query(error: str, query: str) -> str:
    """Return `line 1, column 15` from the caret in DuckDB's error, or ""."""
    caret = re.search(r"^LINE (\d+): (.*)\n( *)\^", error, re.M)
    if not caret:
        return ""
    number, excerpt, indent = int(caret[1]), caret[2], len(caret[3]) - len(f"LINE {caret[1]}: ")
    around = excerpt.removeprefix("...").removesuffix("...")
    lines = [i for i, line in enumerate(query.split("\n"), 1) if around in line]
    if number not in lines:  # the query is part of a longer statement
        number = lines[0] if len(lines) == 1 else 0
    if not number:
        return ""
    shift = query.split("\n")[number - 1].find(around) - (3 if excerpt.startswith("...") else 0)
    return f"line {number}, column {indent + shift + 1}"
