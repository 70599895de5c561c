"""Sinks of a project, and a table that is delivered again and again while anything happens to its editions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import duckdb

from lake.config import Settings
from lake.sinks.kind import DeclaredSink, declared_sinks
from lake.sinks.verify import verify_sink
from lake.store.ledger.editions import Edition, EditionTable, record_edition
from tests.warehouse import write

CALL: Final = [sys.executable, "-c", "from lake.cli import main; main()"]
TYPES: Final = {
    "flag": "k % 2 = 0",
    "tiny": "(k - 3)::TINYINT",
    "small": "[-32768, 0, 32767][k % 3 + 1]::SMALLINT",
    "whole": "[-2147483648, 0, 2147483647][k % 3 + 1]::INTEGER",
    "long": "[-9223372036854775808, 0, 9223372036854775807][k % 3 + 1]::BIGINT",
    "single": "['nan', '-inf', '0.1'][k % 3 + 1]::FLOAT",
    "double": "['inf', '-0', '1e-300'][k % 3 + 1]::DOUBLE",
    "exact": "['0.50', '-99999999999999999999999999999999999.99', '0'][k % 3 + 1]::DECIMAL(37, 2)",
    "word": "['', 'NULL', E'a,\"b\\n\\\\.\\t', 'ä🙂', ' '][k % 5 + 1]",
    "bytes": "[''::BLOB, '\\x00\\xFF'::BLOB][k % 2 + 1]",
    "day": "[DATE '0001-01-01', DATE '9999-12-31', DATE '1969-12-31'][k % 3 + 1]",
    "at": "[TIMESTAMPTZ '0001-01-01 00:00Z', TIMESTAMPTZ '2024-03-31 01:59:59.999999Z'][k % 2 + 1]",
    "local": "[TIMESTAMP '9999-12-31 23:59:59.999999', TIMESTAMP '1969-12-31 23:59:59'][k % 2 + 1]",
    "words": "[['a', NULL, 'b,\"\\'], [], [''], NULL][k % 4 + 1]",
    "numbers": "[[1.5::DECIMAL(5, 2), NULL], []][k % 2 + 1]",
    "part": "{'size': k, 'of': [1.25::DECIMAL(9, 2)], 'at': TIMESTAMPTZ '2024-03-30 00:00Z'}",
    "pairs": "MAP {'a': k, 'b': NULL}",
}
"""DuckDB's SQL of columns of every type by the number `k`."""


def every_type(rows: int, *, shift: int = 0) -> str:
    """SQL of a table with a column of every type: ordinary values, extremes, and in a fifth of the rows nulls."""
    columns = ", ".join(f"CASE WHEN n % 5 <> 4 THEN {sql} END AS {name}" for name, sql in TYPES.items())
    return f"SELECT n AS id, {columns}, 7 AS _state FROM (SELECT range AS n, range + {shift} AS k FROM range({rows}))"


def edition(settings: Settings, cut: int, *identity: str, **tables: str) -> Edition:
    """The next edition, of the rows that DuckDB's SQL gives for each table."""
    entries = {}
    for name, query in tables.items():
        version = write(settings, "silver", name, query, mode="overwrite", merge=True)
        entries[name] = EditionTable("silver", f"silver/{name}", version, "f", identity=identity)
    return record_edition(settings, cut, entries)


def sink(settings: Settings, name: str, text: str) -> DeclaredSink:
    """A sink that a file declares."""
    folder = settings.path(settings.sinks)
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(text)
    [declared] = declared_sinks(settings, [name])
    return declared


def identical(settings: Settings, declared: DeclaredSink) -> int:
    """The edition that the target of a sink has, whose tables have to be identical."""
    number, verdicts = verify_sink(settings, declared)
    assert [verdict.verdict for verdict in verdicts] == ["identical"] * len(declared.tables), verdicts
    return number


def rows(query: str) -> list[dict[str, Any]]:
    """What DuckDB's SQL gives, without state."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        found = con.sql(f"SELECT * FROM ({query})").to_arrow_table().to_pylist(maps_as_pydicts="strict")
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]


def command(settings: Settings, *words: str, code: int = 0, **environment: str) -> dict[str, Any]:
    """What `lake … --json` prints, in a process of its own that ends with an exit code."""
    done = lake(settings, [*words, "--json"], **environment)
    assert done.returncode == code, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def lake(settings: Settings, words: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """A `lake` command in a process of its own."""
    call = [*CALL, *words, "--project", str(settings.project)]
    return subprocess.run(call, capture_output=True, text=True, check=False, env=os.environ | environment)
