"""Decimals in tables: exact, or rejected with the column; nothing is rounded unless declared."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.engine.verify import verify_all
from lake.errors import DeclarationError
from tests import shop

pytestmark = pytest.mark.long

NUMBERS = {"wide": (38, 10), "narrow": (20, 10), "places": (38, 30), "money": (18, 4)}
CONTRACT = shop.contract("sums", {"k": "string"} | {name: f"decimal{digits}?" for name, digits in NUMBERS.items()})
HEAD = """from decimal import Decimal
from lake import Aggregate, Avg, Fold, In, Min, Pattern, Step, Stddev, Sum, Variance, log, table


def added(state, event):
    total = state["total"] + (event["wide"] or 0)
    return {"total": total, "mean": ((total + 1) / 3).quantize(Decimal("0.0000000001"))}


def shared(state, event):
    return {"share": event["wide"] / 3}


"""
RIGHT = {
    "in_python": """Fold("k", state="total decimal(38, 10), mean decimal(38, 10)", step=added,
        start={"total": Decimal("0.0000000001")})""",
    "in_sql": """Fold("k", state="total decimal(30, 10), n int",
        step={"total": "coalesce(state.total, 0) + coalesce(event.narrow, 0)", "n": "coalesce(state.n + 1, 1)"})""",
    "measured": """Aggregate("k", {"sum": Sum("wide"), "product": Sum("cast(money as decimal(12, 4)) * 2"),
        "mean": Avg("money", scale=16), "spread": Variance("cast(money as decimal(17, 3))"),
        "share": Avg("places", scale=20)})""",
}
WRONG = {
    "sum_in_sql": (
        """Fold("k", state="total decimal(38, 10)",
        step={"total": "coalesce(state.total + event.wide, event.wide)"})""",
        "total would lose decimal places: Spark keeps 9 of the 10 of state.total + event.wide",
    ),
    "product_in_sql": (
        """Fold("k", state="total decimal(38, 10)", step={"total": "cast(-(event.wide * event.narrow) + 1 as int)"})""",
        "total would lose decimal places: Spark keeps 6 of the 20 of event.wide * event.narrow",
    ),
    "narrowed": (
        """Fold("k", state="last array<decimal(10, 2)>", step={"last": "array(event.money)"})""",
        "last would lose decimal places: array(event.money) is a array<decimal(18,4)>, last a array<decimal(10,2)>",
    ),
    "truncated": (
        """Fold("k", state="n int", step={"n": "coalesce(state.n, 0) + event.money"})""",
        "n would lose all decimal places",
    ),
    "start": (
        """Fold("k", state="total decimal(10, 2), n int", step={"n": "1"}, start={"total": 0.125})""",
        "start has 0.125 for total, a decimal(10, 2)",
    ),
    "either": (
        """Fold("k", state="total decimal(38, 10)", step={"total": "coalesce(event.places, event.wide)"})""",
        "total would lose decimal places: Spark keeps 10 of the 30 of coalesce(event.places, event.wide)",
    ),
    "beside_a_division": (
        """Fold("k", state="total decimal(38, 10)",
        step={"total": "cast(state.total + event.wide / 2 as decimal(38, 10))"})""",
        "total would lose decimal places: Spark keeps 9 of the 10 of state.total + event.wide / 2",
    ),
    "compared": (
        """Fold("k", state="n int", step={"n": "nullif(1, 2)"}, refuse="if(event.wide = event.places, 'no', null)")""",
        "refuse would lose decimal places: Spark compares 10 of the 30 of event.wide = event.places",
    ),
    "floats": (
        """Fold("k", state="total decimal(38, 10)",
        step={"total": "cast(coalesce(event.wide, 0D) as decimal(38, 10))"})""",
        "total would lose decimal places: Spark makes floats of coalesce(event.wide, 0D)",
    ),
    "of_some": (
        """Aggregate("k", {"sum": Sum("narrow", where="array(wide)[0] in (places, 1)")})""",
        "sum would lose decimal places: Spark compares 10 of the 30 of array(wide)[0] in (places, 1)",
    ),
    "negated": (
        """Aggregate("k", {"least": Min("-wide")})""",
        "least would lose decimal places: Spark keeps 34 of the 38 digits of -wide",
    ),
    "product": (
        """Aggregate("k", {"sum": Sum("narrow * places", where="narrow > 0")})""",
        "sum would lose decimal places: Spark keeps 19 of the 40 of narrow * places",
    ),
    "squares": (
        """Aggregate("k", {"spread": Variance("money")})""",
        "spread squares money, which has 4 decimal places, so Spark would round the squares",
    ),
    "deviation": (
        """Pattern("k", sequence="narrow", steps=[Step("a")], measures={"spread": In("a", Stddev("money"))})""",
        "spread squares money, which has 4 decimal places, so Spark would round the squares",
    ),
}
WIDE = "1234567890123456789012345678.0123456789"


def job(name: str, kind: str) -> str:
    return shop.job(name, kind, 'log("sums")', head=HEAD)


def test_decimal_keeps_every_digit(spark: SparkSession, project: Settings) -> None:
    sums = shop.declare(project, CONTRACT, jobs={name: job(name, kind) for name, kind in RIGHT.items()})
    small = {"wide": "-0.0000000002", "narrow": "0.0000000001", "money": "0.0001", "places": "-0.333333333333333333335"}
    sums.land("sums", {"k": "a", "wide": WIDE, "narrow": "9999999999.9999999999", "money": "1.0000"}).run()
    sums.land("sums", {"k": "a"} | small).run()
    [folded], [in_sql], [measured] = (sums.table(name) for name in RIGHT)
    total = Decimal("1234567890123456789012345678.0123456788")
    assert folded["total"] == total
    assert folded["mean"] == Decimal("411522630041152263004115226.3374485596")
    assert (in_sql["total"], in_sql["n"]) == (Decimal("10000000000.0000000000"), 2)
    assert measured["sum"] == Decimal("1234567890123456789012345678.0123456787")
    assert measured["mean"] == Decimal("0.50005")
    assert measured["share"] == Decimal("-0.33333333333333333334")
    verdicts = verify_all(lambda: sums.spark, sums.project, on_progress=lambda _: None)
    assert {each.verdict for each in verdicts} == {"identical"}


def test_rounding_expression_is_rejected_before_reading_data(spark: SparkSession, project: Settings) -> None:
    sums = shop.declare(project, CONTRACT, jobs={name: job(name, kind) for name, (kind, _) in WRONG.items()})
    with pytest.raises(DeclarationError) as caught:
        sums.land("sums", {"k": "a"}).run()
    assert [name for name, (_, told) in WRONG.items() if f"{name}: {told}" not in caught.value.what] == []


def test_decimals_of_two_logs_without_a_common_type_are_rejected(spark: SparkSession, project: Settings) -> None:
    returns = 'rows.selectExpr("k", "narrow", "places as x"), rows1.selectExpr("k", "narrow", "wide as x")'
    kind = """Pattern("k", sequence="narrow", steps=[Step("a")], measures={"x": Min("x")})"""
    text = shop.job("both", kind, 'log("sums")', 'log("others")', head=HEAD, returns=returns)
    sums = shop.declare(project, CONTRACT, {**CONTRACT, "name": "others"}, jobs={"both": text})
    with pytest.raises(DeclarationError, match=r"x would lose decimal places: .* together it is a decimal\(38,10\)"):
        sums.land("sums", {"k": "a"}).land("others", {"k": "a"}).run()


def test_python_fold_rejects_a_value_that_does_not_fit_its_column(spark: SparkSession, project: Settings) -> None:
    text = job("shares", """Fold("k", state="share decimal(38, 18)", step=shared)""")
    sums = shop.declare(project, CONTRACT, jobs={"shares": text})
    with pytest.raises(DeclarationError, match=r"share: 4115226300\.3{30} … does not fit decimal\(38, 18\)"):
        sums.land("sums", {"k": "a", "wide": "12345678901"}).run()
