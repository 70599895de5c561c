"""Functions, pragmas, settings and types of the installed DuckDB, used by a remote reader. No JVM, no server."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb
import pytest

from lake.errors import DeclarationError
from lake.read.sandbox import check_query, function_lists
from lake.read.sql import EditionReader, reader
from tests.reading import publish
from tests.shop import contract, declare, empty
from tests.warehouse import write

pytestmark = pytest.mark.slow

WITHIN: Final = ("scalar", "aggregate", "macro", "window")
FORMS: Final = (
    "SELECT {}(1)",
    "SELECT DISTINCT ON ({}('x')) id FROM types",
    "SELECT main.{}(), id FROM types",
    "SELECT system.main.{}(id) FROM types",
    "SELECT id.{}() FROM types",
    "SELECT (id + 1).{}('x').abs() FROM types",
    "SELECT {}(id) OVER (ORDER BY id) FROM types",
    "SELECT count(*) FILTER ({}(id) IS NULL) FROM types",
    "SELECT sum({}(id) ORDER BY id) FROM types",
    "SELECT list_transform([1], lambda x: {}(x))",
    "SELECT [{}(x) FOR x IN [1] IF {}(x)]",
    "SELECT COLUMNS(lambda c: {}(c) = 'id') FROM types",
    "SELECT * REPLACE ({}(id) AS id) FROM types",
    "SELECT CASE WHEN id = 1 THEN {}(1) END FROM types",
    "SELECT 1 WHERE EXISTS (SELECT 1 WHERE {}(1) = 1)",
    "WITH a AS (SELECT {}(1) AS b) SELECT count(*) FROM a",
    "WITH RECURSIVE a AS (SELECT 1 AS b UNION ALL SELECT {}(b) FROM a WHERE b < 3) FROM a",
    "SELECT 1 FROM types GROUP BY ALL HAVING {}(1) = 1",
    "SELECT id FROM types QUALIFY row_number() OVER (PARTITION BY {}(id)) = 1",
    "SELECT id FROM types ORDER BY {}(id)",
    "FROM types LIMIT (SELECT {}(1))",
    "VALUES (1), ({}(1))",
    "FROM types JOIN local ON {}(1) = 1",
    "FROM types, LATERAL (SELECT {}(types.id))",
    "FROM range({}(1))",
    "FROM unnest([{}(1)])",
    "FROM types PIVOT ({}(id) FOR id IN (1))",
    "PIVOT types ON {}(id) IN (1) USING count(*)",
    "SELECT 1 UNION ALL SELECT {}(1)",
    "SELECT CAST({}(1) AS VARCHAR) || 'x'",
    "SELECT {{'a': [{}(1)]}}",
    "DESCRIBE SELECT {}(1)",
    "SUMMARIZE SELECT {}(1)",
)
"""Places of a call."""
VOLATILE: Final = re.findall(
    r"\w+",
    """ago age random uuid uuidv4 uuidv7 gen_random_uuid now get_current_time get_current_timestamp today
    current_localtime current_localtimestamp transaction_timestamp reservoir_quantile""",
)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> list[EditionReader]:
    """Two editions with equal public data: paths, settings, state columns and other tables differ."""
    return [_world(tmp_path_factory.mktemp("world") / str(number), number) for number in (1, 2)]


def _world(folder: Path, number: int) -> EditionReader:
    project = empty(folder)
    declare(project, contract("orders", {"order_id": "long"}))
    write(project, "gold", "numbers", f"SELECT 1::BIGINT AS n, 'x' AS text, 'state of {number}' AS _state")
    write(project, "gold", "types", "SELECT 1::BIGINT AS id")
    write(project, "silver", "local", f"SELECT 1::BIGINT AS id, 'other of {number}' AS text")
    publish(project, numbers=0, types=0, local=0)
    return reader(project)


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as con:
        yield con


def names(duck: duckdb.DuckDBPyConnection, *kinds: str) -> set[str]:
    """Return the functions of these kinds, in lower case."""
    query = "SELECT lower(function_name) FROM duckdb_functions() WHERE function_type IN (SELECT unnest($1))"
    return {name for (name,) in duck.execute(query, [list(kinds)]).fetchall()}


def test_functions_and_types_of_duckdb_are_all_judged(duck: duckdb.DuckDBPyConnection) -> None:
    types = duck.execute("SELECT lower(unnest([type_name, logical_type])) FROM duckdb_types()").fetchall()
    there = {
        "function": names(duck, *WITHIN) | {"unnest"},
        "from": names(duck, "table", "table_macro"),
        "type": {name for (name,) in types},
    }
    for kind, of_duckdb in there.items():
        allowed, reasons = function_lists(kind)
        others = of_duckdb - allowed
        assert allowed <= of_duckdb
        assert {name for pattern in reasons for name in fnmatch.filter(others, pattern)} == others, (
            "judge them in functions.toml"
        )
        assert [pattern for pattern in reasons if not fnmatch.filter(others, pattern)] == []


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_forbidden_function_is_rejected_in_every_place(
    worlds: list[EditionReader], duck: duckdb.DuckDBPyConnection, every: int
) -> None:
    refused = sorted(names(duck, *WITHIN) - function_lists("function")[0])[::every]
    for number, name in enumerate(refused):
        places = FORMS if name in {"current_setting", "json_serialize_plan"} else FORMS[number % 11 :: 11]
        for place in places:
            for called in (f'"{name}"', f'"{name.upper()}"'):
                with pytest.raises(DeclarationError, match=r"is not allowed|syntax error"):
                    check_query(worlds[0], place.format(*[called] * place.count("{}")))


def test_places_of_a_call_pass_with_an_allowed_function(worlds: list[EditionReader]) -> None:
    for place in FORMS:
        check_query(worlds[0], place.format(*["abs"] * place.count("{}")))


def test_forbidden_table_function_is_rejected_in_every_place(
    worlds: list[EditionReader], duck: duckdb.DuckDBPyConnection
) -> None:
    for name in sorted(names(duck, "table", "table_macro") - function_lists("from")[0]):
        for query in (
            f"FROM {name}()",
            f"""FROM types, main."{name.upper()}"('x')""",
            f"SELECT (SELECT count(*) FROM {name}(1, a := 2))",
        ):
            with pytest.raises(DeclarationError, match=f"(?i)function {name} in a FROM is not allowed"):
                check_query(worlds[0], query)


def test_pragma_or_call_is_rejected_as_a_query(worlds: list[EditionReader], duck: duckdb.DuckDBPyConnection) -> None:
    for name in sorted(names(duck, "table", "table_macro", "pragma")):
        with pytest.raises(DeclarationError):
            check_query(worlds[0], f'SHOW "{name}"')
        for query in (f"CALL {name}()", f"PRAGMA {name}", f"PRAGMA {name}('types')", f"PRAGMA {name} = 1"):
            serialized = duck.execute("SELECT json_serialize_sql($1::VARCHAR)->'error'", [query]).fetchone()
            assert serialized == ("true",), query
    for query in ("CALL pragma_version()", "PRAGMA show_tables", "PRAGMA table_info('types')"):
        with pytest.raises(DeclarationError):
            check_query(worlds[0], query)


def test_setting_is_neither_read_nor_set(worlds: list[EditionReader], duck: duckdb.DuckDBPyConnection) -> None:
    aliases = duck.execute("SELECT name FROM duckdb_settings() UNION SELECT unnest(aliases) FROM duckdb_settings()")
    for (name,) in [*aliases.fetchall(), ("databases",), ("schemas",), ("variables",)]:
        for query in (
            f"SHOW {name}",
            f"FROM (SHOW {name})",
            f'SHOW "{name}"',
            f"SELECT current_setting('{name}')",
        ):
            with pytest.raises(DeclarationError):
                check_query(worlds[0], query)
        for query in (f"SET {name} = 1", f"RESET {name}", f"PRAGMA {name}"):
            serialized = duck.execute("SELECT json_serialize_sql($1::VARCHAR)->'error'", [query]).fetchone()
            assert serialized == ("true",), query
        if name not in function_lists("function")[0]:
            assert _outcome(duck, name, "range(1)")[0] == "error"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 'x'::ENUM('x')",
        "SELECT CAST(NULL AS STRUCT(a GEOMETRY))",
        "SELECT TRY_CAST('{}' AS MAP(VARCHAR, \"type\"[]))",
        "SELECT NULL::gold.types",
        "SELECT $1",
        "SELECT nosuch(1)",
    ],
)
def test_type_parameter_or_unknown_name_is_rejected(worlds: list[EditionReader], query: str) -> None:
    with pytest.raises(DeclarationError, match=r"is not allowed"):
        check_query(worlds[0], query)


def test_types_of_tables_pass(worlds: list[EditionReader]) -> None:
    for name in sorted(function_lists("type")[0] - {"array", "list", "map", "struct", "row", "union", "tuple", "null"}):
        check_query(worlds[0], f"SELECT CAST(NULL AS {name})")
    check_query(worlds[0], "SELECT NULL::STRUCT(a DECIMAL(38, 2)[], b MAP(VARCHAR, DOUBLE PRECISION), c INT[3])")


def test_allowed_functions_give_the_same_answer_in_two_worlds(
    worlds: list[EditionReader], duck: duckdb.DuckDBPyConnection
) -> None:
    [file] = worlds[0].table("numbers").files
    texts = (f"SELECT max(_state) FROM '{file}'",)
    calls = [call for text in texts for call in _calls(duck, text)]
    query = "FROM numbers"
    with worlds[0].connect(query) as one, worlds[1].connect(query) as other:
        for refused in ("current_setting('temp_directory')", f"json_serialize_plan($${texts[0]}$$, optimize := true)"):
            assert _outcome(one, refused) != _outcome(other, refused)
        for call in calls:
            assert _outcome(one, call) == _outcome(other, call)


def _calls(duck: duckdb.DuckDBPyConnection, text: str) -> Iterator[str]:
    """Yield a call of each allowed function per number of arguments, with `text` for every text."""
    allowed = function_lists("function")[0].difference(VOLATILE)
    query = """SELECT DISTINCT ON (function_name, len(parameter_types)) function_name, parameter_types
               FROM duckdb_functions() WHERE function_type IN (SELECT unnest($1)) AND len(parameter_types) < 6
               ORDER BY function_name, len(parameter_types), list_contains(parameter_types, 'VARCHAR') DESC"""
    quoted = "'" + text.replace("'", "''") + "'"
    values = {
        "BIGINT": "n",
        "INTEGER": "1",
        "DOUBLE": "1.5",
        "BOOLEAN": "true",
        "VARCHAR[]": f"[{quoted}]",
        "BLOB": "'a'::BLOB",
    }
    for name, kinds in duck.execute(query, [list(WITHIN)]).fetchall():
        if name.lower() in allowed and name[0].isalpha() and " " not in name:
            yield f"{name}({', '.join(values.get(kind, quoted) for kind in kinds)})"


def _outcome(con: duckdb.DuckDBPyConnection, call: str, source: str = "numbers") -> tuple[str, str]:
    try:
        return "answer", repr(con.execute(f"SELECT {call} FROM {source}").fetchall())
    except duckdb.Error as error:
        return "error", str(error)
