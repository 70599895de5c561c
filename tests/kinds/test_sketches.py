"""Error of sketches over many groups, sizes, signs and magnitudes."""

from __future__ import annotations

import math
import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lake import Aggregate, ApproxDistinct, CountDistinct, Quantile
from lake.kinds.columns import ORDER, SIGN
from tests.checks import present

GROUPS = 60


@pytest.mark.long
@pytest.mark.parametrize("size", [30, 600, 2500, 12000])
def test_approx_distinct_keeps_its_standard_error(spark: SparkSession, size: int) -> None:
    """Sizes below, around and above the number of registers."""
    precision = 10
    rows = spark.range(GROUPS * size).selectExpr(f"id div {size} as key", "id * 7919 as x")
    rows = rows.withColumns({SIGN: F.lit(1), ORDER: F.struct("x")})
    table = Aggregate("key", {"n": ApproxDistinct("x", precision=precision)}).evaluate(rows)
    errors = [row.n / size - 1 for row in table.select("n").collect()]
    assert math.sqrt(sum(e * e for e in errors) / GROUPS) <= 1.2 * 1.04 / math.sqrt(2**precision)
    assert abs(sum(errors) / GROUPS) <= 0.015


def test_distinct_counts_repeated_values_once(spark: SparkSession) -> None:
    rows = spark.range(10_000).selectExpr("id", "id % 100 as x").withColumns({SIGN: F.lit(1), ORDER: F.struct("id")})
    kind = Aggregate((), {"exact": CountDistinct("x"), "about": ApproxDistinct("x", precision=14)})
    found = kind.evaluate(rows).head()
    assert present(found).exact == 100
    assert abs(present(found).about - 100) <= 2


@pytest.mark.turns
@pytest.mark.parametrize("error", [0.001, 0.01, 0.1])
def test_quantile_keeps_its_relative_error(spark: SparkSession, error: float) -> None:
    chance = random.Random(7)
    values = [chance.choice([-1, 1, 1]) * chance.lognormvariate(0, 6) for _ in range(4000)] + [0.0] * 300
    values += [1e-300, -1.5e308, 1.5e308]
    quantiles = (0.0, 0.01, 0.25, 0.33, 0.5, 0.9, 0.999, 1.0)
    odd = [float("nan"), float("inf"), float("-inf"), None]
    rows = spark.createDataFrame(list(enumerate(values + odd)), "n int, x double")
    rows = rows.withColumns({SIGN: F.lit(1), ORDER: F.struct("n")})
    found = present(Aggregate((), {"q": Quantile("x", quantiles, error=error)}).evaluate(rows).head()).q
    ordered = sorted(values)
    for q, estimate in zip(quantiles, found, strict=True):
        truth = ordered[math.floor(q * (len(values) - 1))]
        assert abs(estimate - truth) <= error * 1.0000001 * abs(truth), q
