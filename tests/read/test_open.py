from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

import lake
from lake.config import Settings
from lake.errors import DeclarationError
from tests.warehouse import publish, write


def test_a_table_is_a_spark_frame_at_the_edition(project: Settings, spark: SparkSession) -> None:
    write(project, "gold", "total", "SELECT 'AA' AS carrier, 1.50::DECIMAL(18, 2) AS fare, 7 AS _state")
    publish(project, total=("gold", 0))
    write(project, "gold", "total", "SELECT 'UA' AS carrier, 2.50::DECIMAL(18, 2) AS fare, 8 AS _state")
    found = lake.open(project.project).table("total")
    assert found.columns == ["carrier", "fare"]
    assert [tuple(row) for row in found.collect()] == [("AA", Decimal("1.50"))]


def test_an_unknown_table_is_told_before_spark_starts(project: Settings) -> None:
    write(project, "gold", "total", "SELECT 1 AS a")
    publish(project, total=("gold", 0))
    with pytest.raises(DeclarationError, match=r"no table 'totals' in edition 1(.|\n)*did you mean 'total'"):
        lake.open(project.project).table("totals")
