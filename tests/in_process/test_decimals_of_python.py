"""Decimals of Python are of the same type by DuckDB and by the session of Spark that it replaces."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.session import SparkSession as ConnectSession

from lake.session.in_process.mode import by_duckdb
from lake.store.scan import Scan, to_frame
from tests import shop
from tests.in_process.rows import in_process

NUMBERS = ("1.50", "0", "0.00", "-0.01", "12345678901", "1E+3", "1E-20", "99999999999.9", "1E-38", "0E-12", "9" * 38)
ROWS = pa.table({"id": [1]})
HEAD = f"from decimal import Decimal\nfrom pyspark.sql import functions as F\n{shop.HEAD}"


def types(rows: DataFrame) -> list[str]:
    numbers = {f"x{place}": F.lit(Decimal(number)) for place, number in enumerate(NUMBERS)}
    products = {f"by_{name}": F.col("id") * value for name, value in numbers.items() if name in {"x0", "x2", "x3"}}
    made = rows.select(*(value.alias(name) for name, value in (numbers | products).items()))
    return [field.dataType.simpleString() for field in made.schema]


def test_decimals_are_of_the_type_of_an_embedded_session(spark: SparkSession) -> None:
    with by_duckdb():
        mine = types(to_frame(in_process(), ROWS))
    assert mine == types(to_frame(spark, ROWS))


def test_decimals_are_of_the_type_of_a_server(spark: SparkSession) -> None:
    port, token = (spark.conf.get(f"spark.connect.{name}") for name in ("grpc.binding.port", "authenticate.token"))
    served = ConnectSession.builder.remote(f"sc://localhost:{port}/;token={token}").create()
    with by_duckdb(server=True):
        mine = types(to_frame(in_process(), ROWS))
        theirs = types(served.createDataFrame(ROWS))
    served.client.close()
    assert mine == theirs


@pytest.mark.parametrize(("remote", "type_"), [("", "decimal128(3, 2)"), ("sc://localhost:1", "decimal128(10, 2)")])
@pytest.mark.parametrize("variable", [False, True])
def test_column_by_duckdb_is_of_the_type_of_the_session_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: str, type_: str, *, variable: bool
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", remote if variable else "")
    project = shop.empty(tmp_path / "project", "" if variable else f'[tool.lake.spark]\nremote = "{remote}"\n')
    returns = 'rows.withColumn("rate", F.lit(Decimal("1.50")))'
    job = shop.job("rated", 'Latest("name")', 'log("things")', returns=returns, head=HEAD)
    here = shop.declare(project, shop.contract("things", {"name": "string"}), jobs={"rated": job})
    here.land("things", {"name": "a"}).run()
    rows = Scan(here.project.table(here.project.tables["rated"]).path).arrow()
    assert str(rows.schema.field("rate").type) == type_
    assert rows["rate"].to_pylist() == [Decimal("1.50")]
