"""Fingerprints in PostgreSQL by the SQL of the documentation."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from lake.store.proof.fingerprints import of_arrow
from tests.docs.pages import DOCS
from tests.servers.postgres import Postgres
from tests.store.test_fingerprints import TYPES, expected, value

ROWS = 1100
PRICE = pa.struct([("currency", pa.string()), ("amount", pa.decimal128(9, 2))])
NAMES = {
    **{"flag": "boolean", "tiny": "smallint", "small": "smallint", "int": "integer", "long": "bigint"},
    **{"dec_3_3": "numeric(3, 3)", "dec_12_2": "numeric(12, 2)", "dec_38_0": "numeric(38, 0)"},
    **{"dec_38_38": "numeric(38, 38)", "single": "real", "double": "double precision", "day": "date"},
    **{"instant": "timestamptz", "local": "timestamp", "text": "text", "bytes": "bytea", "odd 'name'\\": "text"},
    **{"array": "text[]", "numbers": "bigint[]", "doubles": "double precision[]", "struct": "price"},
    **{"structs": "price[]", "é": "text"},
}
KINDS = {
    **{name: kind for name, kind in TYPES.items() if name in NAMES},
    "numbers": pa.list_(pa.int64()),
    "doubles": pa.list_(pa.float64()),
    "struct": PRICE,
    "structs": pa.list_(PRICE),
    "é": pa.string(),
}


def without_nul(it: Any) -> Any:
    """Return the value with NUL replaced, which PostgreSQL cannot store."""
    if isinstance(it, str):
        return it.replace("\0", "z")
    if isinstance(it, dict):
        return {name: without_nul(each) for name, each in it.items()}
    return [without_nul(each) for each in it] if isinstance(it, list) else it


def as_sql(kind: pa.DataType, it: Any) -> tuple[str, list[Any]]:
    """Return a value as SQL and its parameters."""
    if it is not None and pa.types.is_struct(kind):
        return "row(%s, %s)::price", [it["amount"], it["currency"]]
    if it is not None and pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        parts = [as_sql(kind.value_type, each) for each in it]
        return f"array[{', '.join(part for part, _ in parts)}]::price[]", [each for _, more in parts for each in more]
    return "%s", [it]


def in_sql(title: str) -> bytes:
    [found] = re.findall(rf'^```sql title="{title}"\n(.*?)^```$', (DOCS / "fingerprints.md").read_text(), re.M | re.S)
    return str(found).encode()


@pytest.fixture
def rows() -> pa.Table:
    chance = Random(16)
    columns = {name: [without_nul(value(kind, chance)) for _ in range(ROWS)] for name, kind in KINDS.items()}
    return pa.table({"n": range(ROWS), **columns}, schema=pa.schema([("n", pa.int64()), *KINDS.items()]))


def test_postgresql_finds_the_fingerprint_by_the_documented_sql(postgres: Postgres, rows: pa.Table) -> None:
    names = sorted({"n": "", **NAMES})
    parts = [sql.SQL("lake_named({}, {})").format(name, sql.Identifier(name)) for name in names]
    text = sql.SQL("concat({})").format(sql.SQL(", ").join(parts))
    declared = [sql.SQL("{} " + kind).format(sql.Identifier(name)) for name, kind in NAMES.items()]
    with psycopg.connect(postgres.database()) as connection:
        connection.execute(in_sql("postgresql"))
        connection.execute(in_sql("struct"))
        connection.execute(sql.SQL("create table t (n bigint, {})").format(sql.SQL(", ").join(declared)))
        for row in rows.select(["n", *NAMES]).to_pylist():
            values = [as_sql(rows.schema.field(name).type, it) for name, it in row.items()]
            query = f"insert into t values ({', '.join(text for text, _ in values)})"
            connection.execute(query.encode(), [each for _, more in values for each in more])
        found = connection.execute(sql.SQL("select {} from t order by n").format(text)).fetchall()
        whole = sql.SQL("select lake_fingerprint(count(*), sum(lake_hash({}))) from t").format(text)
        [fingerprint] = connection.execute(whole).fetchone() or [None]
        [nothing] = connection.execute("select lake_fingerprint(0, null)").fetchone() or [None]
    for (it,), wanted in zip(found, expected(rows), strict=True):
        assert it == wanted
    assert (fingerprint, nothing) == (str(of_arrow(rows)), "0-0000000000000000")


@pytest.mark.parametrize("of", ["array[array[1]]", "json '{}'", "interval '1 day'"])
def test_postgresql_rejects_a_type_that_has_no_fingerprint(postgres: Postgres, of: str) -> None:
    with psycopg.connect(postgres.database()) as connection:
        connection.execute(in_sql("postgresql"))
        with pytest.raises((psycopg.errors.RaiseException, psycopg.errors.UndefinedFunction)):
            connection.execute(f"select lake_named('a', {of})".encode())
