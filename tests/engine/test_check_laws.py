"""Faults found by `check_laws`: tables that equal their recomputation and are wrong."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.errors import LawError
from tests.shop import contract, declare

SALES = contract("sales", {"shop": "string", "n": "int", "at": "int"}, id=["n"])  # Several may share a minute `at`
JOB = '''
from lake import View, log, table

@table(View("shop"{options}), log("sales"))
def shares(sales):
    """A shop's sales beside others'."""
    return sales.sparkSession.sql("""{query}""", s=sales)
'''
OF_ALL = "select shop, count(*) as sales, (select count(*) from {s}) as of_all from {s} group by shop"
TIED = "select shop, n, cast(row_number() over (partition by shop order by at) as int) as place from {s}"


NOT_LOCAL = JOB.format(options="", query=OF_ALL)
BY_CHANCE = JOB.format(options=', identity=("shop", "n")', query=TIED)


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "told"),
    [
        (NOT_LOCAL, "shares is not local to its key"),
        pytest.param(BY_CHANCE, "shares depends on how its rows are spread"),
    ],
    ids=["not local", "ties"],
)
def test_check_laws_reports_a_table_that_breaks_a_law(
    spark: SparkSession, project: Settings, job: str, told: str
) -> None:
    sales = [{"shop": f"s{n % 5}", "n": n, "at": 7} for n in range(60)]
    house = declare(project, SALES, jobs={"shares": job}).land("sales", *sales).run()
    with pytest.raises(LawError, match=told):
        house.check_laws(slices=0)
