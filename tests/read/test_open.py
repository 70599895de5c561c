from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

import lake
from lake.config import Settings
from lake.errors import DeclarationError
from tests.warehouse import publish, write


def test_table_of_an_open_edition_is_a_spark_frame(project: Settings, spark: SparkSession) -> None:
    write(project, "gold", "total", "SELECT 'AA' AS carrier, 1.50::DECIMAL(18, 2) AS fare, 7 AS _state")
    publish(project, total=("gold", 0))
    write(project, "gold", "total", "SELECT 'UA' AS carrier, 2.50::DECIMAL(18, 2) AS fare, 8 AS _state")
    found = lake.open(project.project).table("total")
    assert found.columns == ["carrier", "fare"]
    assert [tuple(row) for row in found.collect()] == [("AA", Decimal("1.50"))]


def test_unknown_table_is_reported_before_spark_starts(project: Settings) -> None:
    write(project, "gold", "total", "SELECT 1 AS a")
    publish(project, total=("gold", 0))
    with pytest.raises(DeclarationError, match=r"no table 'totals' in edition 1(.|\n)*did you mean 'total'"):
        lake.open(project.project).table("totals")


def test_notebook_shows_the_first_rows_as_an_escaped_table(project: Settings) -> None:
    write(project, "gold", "total", "SELECT 'AA' AS carrier, 1.50::DECIMAL(18, 2) AS fare")
    publish(project, total=("gold", 0))
    opened = lake.open(project.project)
    assert repr(opened) == f"Lakehouse({str(project.project)!r}, edition 1 at cut 1, 1 table)"
    html = opened.sql("SELECT '<script>' AS \"<b>\", 1.50 AS fare, NULL AS nothing")._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html
    assert '<td style="text-align: right">1.50</td>' in html
    assert "NULL" in html
    assert opened.sql("FROM range(21)")._repr_html_().count("<tr>") == 21
    assert opened.sql("FROM range(21)")._repr_html_().endswith("<p>the first 20 rows</p>")
