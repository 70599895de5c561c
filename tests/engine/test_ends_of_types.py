"""Numbers at the ends of their types: one table, or one fault that names the key, in any slicing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild_all
from lake.engine.verify import verify_all
from lake.errors import LakeError
from lake.kinds.measures.measure import Totals
from lake.publish.cut import pick_cut
from lake.store.log import Log
from lake.store.scan import Scan
from lake.testing import Lakehouse
from tests import shop

MOST = 2**63 - 1
PAYMENTS = shop.contract("pay", {"id": "int", "n": "int", "x": "long"}, id=["n"])
TOTAL = 'Aggregate("id", {"total": Sum("x"), "mean": Avg("x")})'
NUMBERS = shop.contract(
    "numbers", {"id": "int", "n": "int", "x": "double?", "y": "float?", "more": "double?"}, id=["n"]
)
MOST_OF = """Aggregate("id", {"most": Max("x"), "least": Min("y"), "text": Max("cast(x as string)")})"""
FOLDED = {"x": "-coalesce(event.x, 0D)", "text": "concat_ws(' ', state.text, cast(state.x as string))"}
HEAD = f"""{shop.HEAD}

def turned(state, event):
    return {{"x": -(event["x"] or 0.0), "text": f"{{state['text']}} {{state['x']}}"}}


"""


def of_numbers(name: str, kind: str, *columns: str) -> str:
    returns = f"rows.selectExpr({', '.join(map(repr, ('id', *columns)))})"
    return shop.job(name, kind, 'log("numbers")', returns=returns, head=HEAD)


JOBS = {
    "most": shop.job("most", MOST_OF, 'log("numbers")'),
    "text": shop.job(
        "text", 'Latest("id")', "most", returns='rows.selectExpr("id", "cast(most as string) as m", "text")'
    ),
    "last": of_numbers("last", 'Latest("id")', "-x as x", "array(-y) as a", "struct(x, struct(y) as s) as s"),
    "versions": of_numbers("versions", 'History("id", sequence="n", track=["x"])', "n", "x"),
    "by_x": of_numbers("by_x", 'Aggregate("x", {"n": Count()})', "-x as x"),
    "folded": of_numbers("folded", f'Fold("id", state="x double, text string", step={FOLDED})', "x"),
    "in_python": of_numbers("in_python", 'Fold("id", state="x double, text string", step=turned)', "x"),
}


def verdicts(lakehouse: Lakehouse) -> set[str]:
    found = verify_all(lambda: lakehouse.spark, lakehouse.project, on_progress=lambda _: None)
    return {f"{verdict.table}: {verdict.verdict} {verdict.why}".strip() for verdict in found}


@pytest.mark.long
def test_sum_overflow_is_one_fault_in_run_rebuild_and_verify(spark: SparkSession, project: Settings) -> None:
    jobs = {"totals": shop.job("totals", TOTAL, 'log("pay")'), "seen": shop.job("seen", 'Latest("id")', 'log("pay")')}
    pay = shop.declare(project, PAYMENTS, jobs=jobs)
    pay.land("pay", *({"id": k, "n": 10 * k, "x": x} for k, x in enumerate([5, MOST, -MOST - 1, 0]))).run()
    pay.land("pay", {"id": 1, "n": 11, "x": -1}, {"id": 2, "n": 21, "x": 1}).run()
    pay.land("pay", {"id": 1, "n": 12, "x": 1}).run()
    rows = {row["id"]: row for row in pay.table("totals")}
    assert (rows[1]["total"], rows[1]["mean"]) == (MOST, (Decimal(MOST) / 3).quantize(Decimal("0.000001")))
    told = "totals: total of id=1, or a sum that it is made of, does not fit bigint"
    pay.land("pay", {"id": 1, "n": 13, "x": 1}, {"id": 3, "n": 31, "x": 7})
    with pytest.raises(LakeError) as stopped:
        pay.run()
    assert (stopped.value.what, stopped.value.exit_code) == (told, 1)
    assert verdicts(pay) == {"totals: identical", "seen: identical"}
    assert [row["x"] for row in pay.table("seen")] == [5, 1, 1, 7]
    inputs = Inputs(lambda: pay.spark, pay.project, pick_cut(pay.project, None))
    with pytest.raises(LakeError) as stopped:
        rebuild_all(inputs, ["totals"], on_progress=lambda _: None)
    assert (stopped.value.what, stopped.value.exit_code) == (told, 1)
    pay.land("pay", {"id": 1, "n": 14, "x": -2}).run()
    assert [row["total"] for row in pay.table("totals")] == [5, MOST - 1, -MOST, 7]


@pytest.mark.long
def test_verify_names_table_measure_and_key_when_a_sum_overflows(
    spark: SparkSession, project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay = shop.declare(project, PAYMENTS, jobs={"totals": shop.job("totals", TOTAL, 'log("pay")')})
    with monkeypatch.context() as unchecked:
        unchecked.setattr(Totals, "_checked", lambda self, value, *_: value)
        pay.land("pay", {"id": 1, "n": 1, "x": MOST}, {"id": 1, "n": 2, "x": 1}, {"id": 2, "n": 3, "x": 1}).run()
    assert [row["total"] for row in pay.table("totals")] == [None, 1]
    (verdict,) = verdicts(pay)
    assert verdict.startswith("totals: unknown totals: total of id=1, or a sum that it is made of, does not fit bigint")


def written(lakehouse: Lakehouse) -> dict[str, str]:
    """Return the rows of each table; 0.0 differs from -0.0."""
    return {name: repr(lakehouse.table(name)) for name in JOBS}


def event(number: int, zero: float) -> dict[str, Any]:
    return {"id": 1, "n": number, "x": zero, "y": zero, "more": zero}


@pytest.mark.long
def test_tables_of_signed_zeros_are_equal_in_any_order(spark: SparkSession, project: Settings) -> None:
    numbers = shop.declare(project, NUMBERS, jobs=JOBS)
    numbers.land("numbers", event(1, -0.0)).run()
    first = written(numbers)
    numbers.land("numbers", event(2, 0.0), event(1, -0.0), {"id": 2, "n": 3}).run()
    numbers.land("numbers", event(4, -0.0), event(5, 0.0)).run()
    log = Scan(Log(numbers.settings, "numbers").path).arrow().to_pylist()
    assert "-0.0" not in f"{log} {first} {written(numbers)}"
    assert verdicts(numbers) == {f"{name}: identical" for name in JOBS}


@pytest.mark.long
def test_event_with_the_other_zero_is_a_duplicate(spark: SparkSession, project: Settings) -> None:
    numbers = shop.declare(project, NUMBERS, jobs={})
    numbers.land("numbers", event(1, -0.0)).run()
    numbers.land("numbers", event(1, 0.0)).run()
    numbers.land("numbers", event(1, -0.0)).run()
    head = Log(numbers.settings, "numbers").head()
    assert (head.events, head.counts["duplicates"], head.counts["quarantined"]) == (1, 1, 0)
