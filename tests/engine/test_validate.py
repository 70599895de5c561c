"""Declaration faults that only a session shows: reported with their line, before any data is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.engine import analysis
from lake.engine.advance import advance_all
from lake.engine.engines import duckdb_may_refuse
from lake.engine.inputs import Inputs
from lake.errors import DeclarationError
from lake.project.declaration import Declaration
from lake.project.project import load
from lake.publish.cut import cut
from lake.session.in_process.mode import Unsupported
from lake.testing import Lakehouse
from tests import shop

EVENT_LOG = "log('events')"
WITH_FUNCTIONS = f"from pyspark.sql import functions as F\n{shop.HEAD}"
FIELDS = {"id": "long", "at": "timestamp", "size": "double", "note": "string"}
EVENTS = shop.contract("events", FIELDS, time="at")


def declare(settings: Settings, kind: str, *inputs: str, returns: str = "rows", head: str = shop.HEAD) -> Lakehouse:
    text = shop.job("t", kind, *(inputs or [EVENT_LOG]), returns=returns, head=head)
    return shop.declare(settings, EVENTS, jobs={"t": text})


def analyse(inputs: Inputs, declaration: Declaration) -> None:
    """Analyse by Spark, after DuckDB has refused a declaration with faults."""
    with pytest.raises(Unsupported), duckdb_may_refuse():
        analysis.analyse(inputs.in_process, declaration)
    analysis.analyse(inputs, declaration)


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("Latest('key')", "no column 'key' (key)"),
        ("Latest('id', sequence='moment')", "no column 'moment' (sequence)"),
        ("Latest('id', deletes=\"op = 'd'\")", "no column 'op'"),
        ("History('id', sequence='at', track='color')", "no column 'color' (track)"),
        ("Aggregate('id', {'n': Sum('weight')})", "no column 'weight'"),
        ("Aggregate('id', {'n': Sum('size')})", "n adds up a double"),
        ("Aggregate('id', {'n': Count()}, window=Tumbling(length=timedelta(hours=1), on='when'))", "no column 'when'"),
        ("Fold('id', state='n int', start={'n': 0}, step={'n': 'state.n + event.weight'})", "`weight`"),
        (
            "Pattern('id', sequence='at', steps=[Step('big', 'weight > 1')], measures={'n': Count()})",
            "no column 'weight'",
        ),
    ],
)
def test_unknown_column_is_reported_with_its_line(spark: SparkSession, project: Settings, kind: str, told: str) -> None:
    declare(project, kind)
    loaded = load(project)
    with pytest.raises(DeclarationError) as error:
        analyse(Inputs(lambda: spark, loaded, cut(loaded)), loaded.tables["t"])
    assert told in str(error.value)
    assert "jobs/silver/t.py:4" in str(error.value)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("Fold('id', state='n int', step={'n': '1'})", "_at"),
        ("History('id', sequence='at')", "valid_from"),
    ],
)
def test_column_created_by_the_kind_is_rejected(spark: SparkSession, project: Settings, kind: str, column: str) -> None:
    declare(project, kind, returns=f"rows.selectExpr('*', '1 as {column}')")
    loaded = load(project)
    with pytest.raises(DeclarationError, match=rf"t: the function returns a column '{column}', which .*t\.py:4"):
        analyse(Inputs(lambda: spark, loaded, cut(loaded)), loaded.tables["t"])


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("kind", "returns", "told"),
    [
        ("Enrich('id', AsOf('id', time='at'), time='at')", "rows, rows1", "'note' is a column of two inputs"),
        ("Enrich('id', AsOf('id', time='since'), time='at')", "rows, rows1", "no column 'since' for events"),
        ("Enrich('id', AsOf('id', time='at'), time='at')", "rows", "returns 1 frames, but its Enrich has 2 inputs"),
        ("Join('id', left='line')", "rows, rows1", "no column 'line' for events (identity)"),
        ("View('id', identity=('id', 'line'))", "rows", "no column 'line' (identity)"),
    ],
)
def test_fault_between_inputs_is_reported_with_its_line(
    spark: SparkSession, project: Settings, kind: str, returns: str, told: str
) -> None:
    declare(project, kind, EVENT_LOG, EVENT_LOG, returns=returns)
    loaded = load(project)
    with pytest.raises(DeclarationError) as error:
        analyse(Inputs(lambda: spark, loaded, cut(loaded)), loaded.tables["t"])
    assert told in str(error.value)
    assert "jobs/silver/t.py:4" in str(error.value)


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    "returns",
    [
        """rows.where("note = 'see now()'")""",
        """rows.where("note = 'it\\\\'s uuid()' -- rand()")""",
        """rows.withColumn("copy", F.lit("see now()"))""",
        """rows.where(F.col("note") == "uuid()").selectExpr("id as `now()`").selectExpr("`now()` as id")""",
    ],
)
def test_plan_with_a_text_that_looks_like_a_call_is_accepted(
    spark: SparkSession, project: Settings, returns: str
) -> None:
    declare(project, "Latest('id')", returns=returns, head=WITH_FUNCTIONS)
    loaded = load(project)
    analysis.analyse(Inputs(lambda: spark, loaded, cut(loaded)), loaded.tables["t"])


def test_plan_with_a_computed_call_is_rejected(spark: SparkSession, project: Settings) -> None:
    returns = """rows.where("note = 'see now()'").where("{}() > at".format("now"))"""
    declare(project, "Latest('id')", returns=returns)
    loaded = load(project)
    with pytest.raises(DeclarationError, match="now is not deterministic"):
        analysis.analyse(Inputs(lambda: spark, loaded, cut(loaded)), loaded.tables["t"])


KEPT = f"""
from functools import cache, lru_cache
{WITH_FUNCTIONS}
class Kept:
    column = None

    @classmethod
    def made(cls):
        cls.column = F.col("size") > 1 if cls.column is None else cls.column
        return cls.column

@cache
def cached():
    return F.col("size") > 1

@lru_cache(maxsize=9)
def above(least):
    return F.col("size") > least
"""


@pytest.mark.turns(2)
@pytest.mark.parametrize("is_spark_first", [True, False])
@pytest.mark.parametrize("column", ["cached()", "above(1)", "cached() & above(2)"])
def test_column_of_a_cached_function_is_made_for_each_engine(
    spark: SparkSession, project: Settings, column: str, is_spark_first: bool
) -> None:
    declare(project, "Latest('id')", returns=f"rows.where({column})", head=KEPT)
    loaded = load(project)
    inputs = Inputs(lambda: spark, loaded, cut(loaded))
    if is_spark_first:
        analysis.analyse(inputs, loaded.tables["t"])
    with duckdb_may_refuse():
        analysis.analyse(replace(inputs.in_process, analysed={}), loaded.tables["t"])
    analysis.analyse(replace(inputs, analysed={}), loaded.tables["t"])


@pytest.mark.parametrize(
    "returns",
    [
        "rows.where(Kept.made())",
        "rows.withColumn('big', Kept.made())",
        "rows.where(Kept.made() & (F.col('id') > 0))",
        "rows.where((F.col('id') > 0) & Kept.made())",
        "rows.withColumn('big', F.when(Kept.made(), 1))",
        "rows.select('*', F.struct(Kept.made()).alias('big'))",
    ],
)
def test_column_kept_by_the_module_is_reported_with_its_line(
    spark: SparkSession, project: Settings, returns: str
) -> None:
    declare(project, "Latest('id')", returns=returns, head=KEPT)
    loaded = load(project)
    inputs = Inputs(lambda: spark, loaded, cut(loaded))
    with duckdb_may_refuse():
        analysis.analyse(replace(inputs.in_process, analysed={}), loaded.tables["t"])
    with pytest.raises(DeclarationError, match="an expression of columns that an earlier call has made") as error:
        analysis.analyse(inputs, loaded.tables["t"])
    assert "make it in the function" in str(error.value)


def test_faulty_declaration_reads_nothing_and_stops_no_other_table(spark: SparkSession, project: Settings) -> None:
    declare(project, "Latest('id', deletes='gone')")
    lakehouse = shop.declare(project, jobs={"good": shop.job("good", "Latest('id')", EVENT_LOG)})
    lakehouse.land("events", {"id": 1, "at": "2024-01-01T00:00:00Z", "size": 1.5})
    with pytest.raises(DeclarationError, match="no column 'gone'"):
        lakehouse.run()
    inputs = Inputs(lambda: spark, lakehouse.project, cut(lakehouse.project))
    assert [done.verb for done in advance_all(inputs, ["good"], on_progress=lambda _: None)] == ["none"]


@pytest.mark.long
def test_python_reducer_error_is_reported_in_one_line_with_its_place(spark: SparkSession, project: Settings) -> None:
    step = "\ndef step(state, event):\n    return {'n': 1 // state['n']}\n\n"
    fold = "Fold('id', state='n int', start={'n': 0}, step=step)"
    lakehouse = declare(project, fold, head=shop.HEAD + step)
    lakehouse.land("events", {"id": 7, "at": "2024-01-01T00:00:00Z", "size": 1.5})
    with pytest.raises(DeclarationError) as error:
        lakehouse.run()
    assert "t: reducer step: ZeroDivisionError" in str(error.value)
    assert "id=7" in str(error.value)
    assert "t.py:4" in str(error.value)
