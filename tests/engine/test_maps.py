"""Tables with maps, compared by Spark, whose SQL compares no maps."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lake.engine.inputs import Inputs
from lake.engine.pending_change import table_change
from lake.engine.rebuild import rebuild_all
from lake.engine.verify import verify_all
from lake.kinds.sql_errors import raise_sql, raised_facts
from lake.publish.cut import cut
from lake.testing import Lakehouse
from tests.shop import contract, declare, empty, job, optional

THING = contract(
    "thing", {"id": "int", "facts": optional({"type": "map", "values": "int"}), "at": "timestamp"}, id=["id"], time="at"
)
COLUMNS = {
    "plain": "{facts}",
    "in_array": "array({facts})",
    "in_struct": "named_struct(''one'', 1, ''of'', {facts})",
    "in_map": "map(''a'', {facts})",
}


def jobs(name: str, facts: str) -> dict[str, str]:
    """Return the job of a column that has the map `facts`."""
    of = COLUMNS[name].format(facts=facts).replace("''", "'")
    returns = f'rows.selectExpr("id", "at", "{of} as x")'
    return {name: job(name, 'Latest("id", sequence="at")', 'log("thing")', returns=returns)}


@pytest.mark.long
@pytest.mark.parametrize("name", [*COLUMNS][::-1])
def test_spark_compares_tables_with_maps(spark: SparkSession, tmp_path: Path, name: str) -> None:
    settings = empty(tmp_path / "shop", "in_process_rows = 0\n")
    shop = declare(settings, THING, jobs=jobs(name, "facts"))
    things = [{"id": n, "facts": facts} for n, facts in enumerate([{"a": 1, "b": 2}, {"a": 1}, {}, None])]
    shop.land("thing", *({**thing, "at": "2024-01-01T00:00:00Z"} for thing in things)).run()
    DeltaTable(str(shop.project.table(shop.project.tables[name]).path)).update(
        predicate="id = 1", updates={"at": "timestamp '2024-01-02 00:00:00Z'"}
    )
    verdicts = verify_all(lambda: spark, shop.project, on_progress=lambda _: None)
    assert [(verdict.verdict, verdict.differing) for verdict in verdicts] == [("differs", 1)]

    declare(settings, jobs=jobs(name, "if(id = 1, map('a', 9), map_from_entries(reverse(map_entries(facts))))"))
    shop = Lakehouse(settings.project, shop.home)
    inputs = Inputs(lambda: spark, shop.project, cut(shop.project))
    [done] = rebuild_all(inputs, [name], dry_run=True, on_progress=lambda _: None)
    assert [(row["id"], sorted(row["columns"])) for row in done.sample] == [(1, ["at", "x"])]
    change = table_change(lambda: spark, shop.project, shop.project.tables[name])
    assert [(column.column, column.rows) for column in change.columns] == [("at", 0), ("x", 1)]


@pytest.mark.parametrize("columns", [[], ["id"]])
def test_error_that_shows_a_plan_was_not_raised_by_it(columns: list[str]) -> None:
    error = ValueError(f"cannot resolve x: 'Filter {raise_sql('twice: ', columns, of='x')}")
    assert raised_facts("twice: ", error) is None
    assert raised_facts("twice: ", ValueError('twice: {"of": "x"}{"id": 1}')) == ({"of": "x"}, {"id": 1})
