"""Rows that nested values identify, explained and compared between editions."""

from __future__ import annotations

from typing import Final

import pytest
from pyspark.sql import SparkSession

from lake.engine.explain.edition_diff import diff_editions
from lake.engine.explain.explain import explain
from lake.engine.explain.render import as_data, as_tree, diff_data, diff_tree
from lake.testing import Lakehouse
from tests.shop import contract, declare, empty, job

pytestmark = pytest.mark.long

KEYS: Final = {
    "of_struct": ("named_struct('a', a, 'b', b)", "{'a': 1, 'b': 1}"),
    "of_list": ("array(a, b)", "[1, 1]"),
    "of_nested": ("named_struct('a', array(named_struct('b', b)), 'c', a)", "{'a': [{'b': 1}], 'c': 1}"),
    "of_null_part": ("named_struct('a', a, 'b', b)", "{'a': 1, 'b': NULL}"),
    "of_null": ("if(a = 0, null, array(b))", "null"),
    "of_nan": ("if(a = 0, double('NaN'), double(a))", "nan"),
}
"""{table: SQL of its key `k` over an event, a key as text}."""


def jobs_of(name: str, key: str) -> dict[str, str]:
    """Return a table by key from the log, the newest row of each key, and rows by `a` that the key identifies too."""
    returns = "rows.select('k', 'a', 'n')"
    counted = f'rows.selectExpr("a", "{key} as k")'
    return {
        name: job(name, "Aggregate(('k', 'a'), {'n': Count()})", "log('pairs')", returns=counted),
        f"newest_{name}": job(f"newest_{name}", "Latest('k', sequence='a')", name, returns=returns),
        f"groups_{name}": job(f"groups_{name}", "View('a', identity=('a', 'k'))", name, returns=returns),
    }


JOBS: Final = {file: text for name, (key, _) in KEYS.items() for file, text in jobs_of(name, key).items()}
PAIRS: Final = [(0, None), (0, 1), (1, None), (1, 1), (2, 2)]


@pytest.fixture(scope="module")
def pairs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return a lakehouse of two editions; each key has an event in both."""
    of = contract("pairs", {"a": "int", "b": "int?", "cycle": "int"}, id=["a", "b", "cycle"])
    made = declare(empty(tmp_path_factory.mktemp("pairs")), of, jobs=JOBS)
    for cycle in (1, 2):
        made.land("pairs", *({"a": a, "b": b, "cycle": cycle} for a, b in PAIRS))
        made.run()
    return made


@pytest.mark.parametrize("table", JOBS)
def test_changes_of_rows_with_a_nested_identity_have_their_causes(pairs: Lakehouse, table: str) -> None:
    found = diff_editions(pairs.project, lambda: pairs.spark, table, old=1, new=2)
    assert found.sample
    assert all(side.count for row in found.sample for side in row.sides)
    assert diff_data(found)
    assert diff_tree(found).children


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("table", ["newest", "groups"])
def test_rows_with_a_nested_identity_are_explained(pairs: Lakehouse, table: str, name: str) -> None:
    text = f"k={KEYS[name][1]}" if table == "newest" else "a=0"
    found = explain(pairs.project, lambda: pairs.spark, f"{table}_{name}", [text])
    assert found.count == (2 if table == "groups" and name not in {"of_null", "of_nan"} else 1)
    causes = [cause for row in found.rows for side in row.sides for cause in side.causes]
    assert causes
    assert all(cause.row is not None and cause.row.sides[0].count for cause in causes)
    assert as_data(found)["count"] == found.count
    assert as_tree(found).children
