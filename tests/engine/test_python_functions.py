"""Python UDFs of jobs: their workers get the code of the job, whatever session evaluates them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.errors import LakeError
from lake.ops import pipeline
from lake.session.spark_session import first_line
from lake.testing import Commands, Lakehouse
from tests.shop import new_shop, order

JOB = '''
from pyspark.sql import functions as F

from jobs.names import ending
from lake import Latest, log, table


def loud(text):
    return {value}


@table(Latest("order_id", sequence="changed_at"), log("orders"))
def current_order(orders):
    """An order as it stands, of a customer in capitals."""
    shout = F.udf(lambda text: loud(text), "string")
    return orders.select("order_id", shout("customer").alias("customer"), "status", "amount", "placed_at", "changed_at")
'''
RIGHT = "text.upper() + ending()"


def write(shop: Lakehouse, *, value: str = RIGHT, ending: str = "!") -> None:
    jobs = shop.source.project / "jobs"
    (jobs / "silver/current_order.py").write_text(JOB.format(value=value))
    (jobs / "names.py").write_text(f"def ending():\n    return {ending!r}\n")


def customers(commands: Commands, shop: Lakehouse) -> list[str]:
    done = commands.lake("sql", "select customer from current_order order by order_id", "--json", at=shop)
    return [row["customer"] for row in json.loads(done.out)]


def test_python_function_uses_current_helpers_of_the_project(tmp_path: Path, commands: Commands) -> None:
    shop = new_shop(tmp_path)
    shop.land("orders", order(1, "ada"), order(2, "eve"))
    for number, ending in enumerate("!?"):
        write(shop, ending=ending)
        done = commands.lake("deploy" if number else "run", at=shop)
        assert done.code == 0, done.err
        assert customers(commands, shop) == [f"ADA{ending}", f"EVE{ending}"]


def test_failing_python_function_is_reported_with_its_event(
    tmp_path: Path, commands: Commands, spark: SparkSession
) -> None:
    shop = new_shop(tmp_path)
    shop.land("orders", order(1, "7"), order(2, "eve"))
    write(shop, value="str(int(text))")
    done = commands.lake("run", at=shop)
    reported = "current_order: its rows cannot be evaluated: ValueError: invalid literal for int() with base 10: 'eve'"
    assert (done.code, reported in done.err) == (1, True), done.err
    with pytest.raises(LakeError, match=r"invalid literal for int.*; the event is orders 1:"):
        pipeline.run(shop.settings, lambda: spark, print)


@pytest.mark.parametrize(
    "between", [": ", ". Please see the stack trace below.\n[PYTHON_EXCEPTION] from the Python worker: "]
)
@pytest.mark.parametrize("cause", ["", "Traceback (most recent call last):\n  File x\nKeyError: 1\n\nDuring it:\n\n"])
def test_line_of_a_worker_is_that_of_its_last_exception(between: str, cause: str) -> None:
    last = "Traceback (most recent call last):\n  File y\n\n    f()\nValueError: no\n SQLSTATE: 38000\n"
    assert (
        first_line(Exception(f"An exception was thrown from the Python worker{between}{cause}{last}"))
        == "ValueError: no"
    )
