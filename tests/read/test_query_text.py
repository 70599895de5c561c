"""Text of queries in the ledger of reads: it has no value of any node of DuckDB's grammar."""

from __future__ import annotations

import json
import re
from typing import Any

import duckdb
import pytest

from lake.read.sandbox import without_values

pytestmark = pytest.mark.slow

NAME, NUMBER = "lovelace", "4711"
EXPRESSIONS = """
'lovelace'
4711
47.11e3
-4711
$$lovelace$$
E'lovelace'
X'4711'
DATE '4711-01-01'
INTERVAL 4711 DAY
INTERVAL '4711' DAY
TIMESTAMP '4711-01-01 00:00:00'
'lovelace'::BLOB
true
NULL
{'lovelace': 4711}
{lovelace: 4711}
{'a': {'lovelace': 1}}
[4711, 'lovelace']
('lovelace', 4711)
MAP {'lovelace': 4711}
struct_pack(lovelace := 4711)
struct_insert(s, lovelace := 1)
s['lovelace']
union_value(lovelace := 1)
j ->> '$.lovelace'
x[4711:4711]
CAST(x AS DECIMAL(18, 11))
x::INT[4711]
x::STRUCT(lovelace INT)
x::STRUCT("lovelace" STRUCT(lovelace INT))
x::ENUM('lovelace', 'b')
x IN ('lovelace', 4711)
x LIKE '%lovelace'
x NOT SIMILAR TO 'lovelace'
x BETWEEN 4711 AND 4711
CASE x WHEN 'lovelace' THEN 4711 ELSE 4711 END
list_transform([4711], lambda y: y + 4711)
COLUMNS('lovelace')
count(*) FILTER (WHERE x = 'lovelace')
string_agg(x, 'lovelace' ORDER BY 4711)
(SELECT 'lovelace')
sum(x) OVER (ORDER BY x ROWS BETWEEN 4711 PRECEDING AND 4711 FOLLOWING)
lag(x, 4711, 'lovelace') OVER ()
EXISTS (FROM t WHERE x = 'lovelace')
extract('year' FROM x)
'lovelace'.upper()
[y + 4711 FOR y IN [4711]]
x AT TIME ZONE 'lovelace'
TRY_CAST('lovelace' AS INT)
'żółć 🌊 lovelace'
f(x, lovelace => 4711)
""".strip().splitlines()
CLAUSES = """
FROM t USING SAMPLE 47.11% (bernoulli, 4711)
FROM t USING SAMPLE reservoir(4711 ROWS) REPEATABLE (4711)
FROM t TABLESAMPLE 11% (system, 4711)
FROM t TABLESAMPLE reservoir(20 ROWS) REPEATABLE (4711)
FROM t LIMIT 4711 OFFSET 4711
FROM t LIMIT 47.11 PERCENT
FROM t ORDER BY x = 'lovelace' LIMIT (SELECT 4711)
VALUES (4711, 'lovelace')
FROM (VALUES ('lovelace')) v(n)
FROM range(4711)
FROM generate_series(1, 4711)
PIVOT t ON x IN ('lovelace', 4711) USING sum(y)
FROM t PIVOT (sum(y) FOR x IN ('lovelace'))
SELECT DISTINCT ON (x = 'lovelace') x FROM t
SELECT 1 FROM t GROUP BY x, y = 4711 HAVING max(x) > 4711
SELECT * REPLACE (4711 AS x) FROM t
FROM t QUALIFY row_number() OVER (ORDER BY x) = 4711
WITH RECURSIVE c(n) AS (SELECT 4711 UNION ALL SELECT n + 4711 FROM c WHERE n < 4711) FROM c
FROM t ASOF JOIN u ON t.x >= u.x AND t.y = 'lovelace'
FROM t JOIN u ON (t.x = 'lovelace')
FROM t AT (VERSION => 4711)
FROM t AT (TIMESTAMP => '4711-01-01')
SUMMARIZE SELECT 'lovelace'
DESCRIBE SELECT 4711
SELECT 4711 UNION SELECT 'lovelace'
FROM unnest([4711, 4711]) u(v)
""".strip().splitlines()
PLACES = """
SELECT {} FROM t
SELECT 1 FROM t WHERE f({})
FROM t ORDER BY f({})
WITH c AS (SELECT {} AS a FROM t) FROM c
SELECT f(g({})) FROM t GROUP BY ALL
""".strip().splitlines()


def parsed(query: str) -> dict[str, Any]:
    with duckdb.connect() as con:
        row = con.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
    assert row is not None
    tree: dict[str, Any] = json.loads(row[0])
    assert not tree["error"], (query, tree)
    return tree


@pytest.mark.turns
@pytest.mark.parametrize("place", PLACES)
def test_values_of_an_expression_are_not_kept(place: str) -> None:
    for expression in EXPRESSIONS:
        if not expression.startswith("sum(") or "SELECT {}" in place:
            check_no_values(place.format(expression))


def test_values_of_a_clause_are_not_kept() -> None:
    for query in CLAUSES:
        check_no_values(query)


def check_no_values(query: str) -> None:
    text = without_values(parsed(query))
    assert text, query
    assert not re.search(f"{NAME}|47|11|(?<![\\w$])[0-9]", text.replace("count_star", "")), (query, text)


def test_names_are_kept() -> None:
    query = 'SELECT x AS "é a", s.a FROM gold.t AS u(x, s) WHERE x = \'ż\' AND u."y z" > 1.5 -- a comment'
    assert without_values(parsed(query)) == (
        "SELECT x AS \"é a\", s.a FROM gold.t AS u(x, s) WHERE ((x = '?') AND (u.\"y z\" > '?'))"
    )
