"""A first build by DuckDB stores what one by Spark does: rows, schema, meanings, and the record in the head."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from infra.bench import tables
from infra.bench.meters import FIELDS, Meters, append, contract
from lake import cost
from lake.config import Settings, load_settings
from lake.engine.advance import advance
from lake.engine.analysis import analyse
from lake.engine.engines import by_rows, duckdb_may_refuse
from lake.engine.inputs import Evaluation, Inputs
from lake.engine.rebuild import rebuild
from lake.ops.scaffold import init
from lake.project.jobfile import JobFile
from lake.project.project import Project, load
from lake.publish.cut import cut
from lake.session.in_process.mode import Unsupported
from lake.store import delta
from lake.store.ledger.cuts import Cut, latest_cut
from lake.store.ledger.runs import last_runs
from lake.store.table_head import DUCKDB, SPARK
from tests.checks import spark_forbidden
from tests.shop import HEAD, declare, empty, job
from tests.shop import contract as contract_of

ONLY_SPARK = {"current_search", "post_word", "search_match"}
"""Tables with patterns of letters by Unicode, whose versions differ, and what is made of them."""


AT = Cut(1, {}, 0, datetime(2024, 1, 1, tzinfo=UTC))


def meters(settings: Settings) -> Project:
    declared = {table.name: table for table in (tables.tariff, *tables.KINDS.values())}
    file = JobFile.read(Path(tables.__file__))
    files = {name: replace(file, path=file.path.with_stem(name)) for name in declared}
    return Project(settings, {stream: contract(stream) for stream in FIELDS}, declared, files)


def stored(project: Project, name: str) -> dict[str, Any]:
    """Return all that a table stores, except the time and the writer of its commits, and the engine."""
    table = project.table(project.tables[name])
    head = table.head()
    assert head is not None
    with delta.opened(table.path) as opened:
        metadata = delta.metadata_action(opened)["metaData"]
    kept = {part: metadata[part] for part in ("name", "description", "schemaString", "partitionColumns")}
    return {
        **{part: json.loads(json.dumps(value)) for part, value in head.to_json().items() if part != "engine"},
        **{"metadata": kept, "rows": table.content(head.version)},
    }


@pytest.fixture
def both(spark: SparkSession, tmp_path: Path) -> tuple[Project, Project]:
    """Return two projects of the same logs."""
    project = empty(tmp_path / "one")
    for stream in FIELDS:
        append(project, contract(stream), Meters(spark, 2000, 100).events(stream, 0, 2000, late=True))
    cut(meters(project))
    copytree(project.project, tmp_path / "other")
    return meters(project), meters(load_settings(tmp_path / "other"))


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every"])
def test_build_by_duckdb_stores_what_one_by_spark_does(
    spark: SparkSession, both: tuple[Project, Project], monkeypatch: pytest.MonkeyPatch, *, every: bool
) -> None:
    by_duckdb, other = both
    at = latest_cut(by_duckdb.settings)
    assert at is not None
    for name in by_duckdb.tables if every else ("aggregate", "fold_python"):
        declaration = by_duckdb.tables[name]
        assert advance(Inputs(spark_forbidden, by_duckdb, at), declaration).engine == DUCKDB, name
        with monkeypatch.context() as patch:
            patch.setattr("lake.engine.advance.by_rows", by_spark)
            assert advance(Inputs(lambda: spark, other, at), other.tables[name]).engine == SPARK
        assert stored(by_duckdb, name) == stored(other, name)
    runs = last_runs(by_duckdb.settings, "build")
    assert not [name for name, run in runs.items() if "not_by_duckdb" in run.counts]


def by_spark(evaluation: Evaluation, _: int, find: Any) -> Any:
    return by_rows(evaluation, sys.maxsize, find)


@pytest.mark.long
@pytest.mark.parametrize("name", ["latest", "history", "aggregate"])
def test_rebuild_by_duckdb_repairs_what_one_by_spark_does(
    spark: SparkSession, both: tuple[Project, Project], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    at = latest_cut(both[0].settings)
    assert at is not None
    repaired = []
    for project, connect in zip(both, (spark_forbidden, lambda: spark), strict=True):
        advance(Inputs(spark_forbidden, project, at), project.tables[name])
        path = project.table(project.tables[name]).path
        DeltaTable(path.url).delete("meter = 'M7'")
        DeltaTable(path.url).update(updates={"meter": "'nobody'"}, predicate="meter = 'M8'")
        with monkeypatch.context() as patch:
            if connect is not spark_forbidden:
                patch.setattr("lake.engine.rebuild.by_rows", by_spark)
            done = rebuild(Inputs(connect, project, at), project.tables[name])
        assert done.inserted
        assert done.deleted
        assert done.engine == (DUCKDB if connect is spark_forbidden else SPARK)
        repaired.append(((done.inserted, done.updated, done.deleted), stored(project, name)))
    assert repaired[0] == repaired[1]


@pytest.mark.turns
@pytest.mark.parametrize(
    ("limit", "name"),
    [
        ("IN_PROCESS_RESULT_BYTES", "latest"),
        ("IN_PROCESS_MAPPED_ROWS", "fold_python"),
    ],
)
def test_build_too_large_for_this_process_is_left_to_spark(
    spark: SparkSession, both: tuple[Project, Project], monkeypatch: pytest.MonkeyPatch, limit: str, name: str
) -> None:
    project, _ = both
    monkeypatch.setattr(cost, limit, 10)
    at = latest_cut(project.settings)
    assert at is not None
    assert advance(Inputs(lambda: spark, project, at), project.tables[name]).engine == SPARK
    [run] = last_runs(project.settings, "build").values()
    assert "so large a result" in str(run.counts) or "so many rows" in str(run.counts)


def project_of(folder: Path, name: str) -> Project:
    """Return the project of this repository, or an example."""
    if name == "flights":
        return load(replace(load_settings(Path(__file__).parents[2]), warehouse=folder / name))
    init(folder / name, None if name == "shop" else name)
    return load(load_settings(folder / name))


def compared(spark: SparkSession, project: Project) -> tuple[set[str], set[str]]:
    """Analyse all jobs by both engines; return those that DuckDB refuses, and those of which it reads more columns."""
    inputs, refused, wider = Inputs(lambda: spark, project, AT, recompute=True), set[str](), set[str]()
    for name, declaration in project.tables.items():
        try:
            with duckdb_may_refuse():
                by_duckdb = analyse(inputs.in_process, declaration)
        except Unsupported:
            refused.add(name)
            continue
        del inputs.analysed[name]
        by_spark = analyse(inputs, declaration)
        assert replace(by_duckdb, read=by_spark.read) == by_spark, name
        assert all(by_spark.read[source] <= read for source, read in by_duckdb.read.items()), name
        wider |= {name} if by_duckdb.read != by_spark.read else set()
    return refused, wider


@pytest.mark.turns
@pytest.mark.parametrize("name", ["shop", "social", "flights"])
def test_analysis_by_duckdb_equals_the_one_by_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    refused, wider = compared(spark, project_of(tmp_path, name))
    assert refused <= ONLY_SPARK
    assert not wider


TEXTS = (
    *(f"if({which}, {one}, b)" for which, one in (("e", "a"), ("true", "a"), ("1 > 2", "a"), ("e", "b"))),
    *(f"e {word} {other}" for word in ("and", "or") for other in ("f", "true", "e", "null", "(e or f)")),
    *("b = b", "b <=> a", "b <=> b", "a = 1 and a = 2", "a in (null)", "a in (1, 2)", "a + null", "not (e and false)"),
    *("coalesce(a, 1)", "coalesce(1, a)", "coalesce(null, a, b)", "nullif(a, a)", "nullif(a, b)", "if(e, 1, 2) = 3"),
    *("case when e then a end", "case when e then a when f then b else a end", "case when false then a else b end"),
    *("struct(a, b).a", "struct(a, b)", "array(a, b)[0]", "size(array(a, b))", "transform(array(a), b -> b + 1)"),
)
STEPS = {
    "unused": "rows.withColumn('x', F.col('a') + F.col('b')).select('id', 'c')",
    "renamed": "rows.withColumn('s', F.struct('a', 'b')).withColumnRenamed('s', 't').selectExpr('id', 't.a as x')",
    "filtered": "rows.withColumn('x', F.col('a') > 1).where('x').select('id', 'c')",
}
VIEWS = {
    "grouped": "rows.groupBy('id').agg(F.sum('a').alias('s'), F.max('b').alias('m')).select('id', 's')",
    "packed": "rows.groupBy('id').agg(F.max(F.struct('a', 'b')).alias('m')).selectExpr('id', 'm.a as x')",
    "windowed": "rows.withColumn('x', F.expr('max(a) over (partition by id, b)')).select('id', 'c').distinct()",
    "united": "rows.select('id', 'a', 'b').union(rows.select('id', 'b', 'a')).groupBy('id').agg(F.sum('a').alias('s'))",
    "joined": "rows.select('id', 'a').join(rows.select('id', 'b', 'c'), 'id').groupBy('id').agg(F.max('b').alias('m'))",
    "filled": "rows.fillna(0, ['b']).groupBy('id').agg(F.max('b').alias('m'))",
    "complete": "rows.dropna(subset=['b', 'c']).groupBy('id').agg(F.max('a').alias('m'))",
    "different": "rows.select('id', 'a', 'b').subtract(rows.where('f').select('id', 'a', 'b')).select('id', 'a')",
    "averaged": "rows.groupBy('id').agg(F.expr('avg(cast(a as decimal(9)))').alias('x'), F.max('b').alias('m'))",
    "of_different": "rows.groupBy('id').agg(F.countDistinct('b', 'c').alias('n'))",
    "split": "rows.withColumn('w', F.split('c', ' ')[0]).groupBy('id').agg(F.max('w').alias('w'))",
    "kept": "rows.join(rows.where('e').select('id'), 'id', 'left_semi').groupBy('id').agg(F.max('a').alias('m'))",
    "exploded": "rows.selectExpr('id', 'explode(array(a, b)) as x', 'c').groupBy('id').agg(F.max('c').alias('m'))",
    "counted": "rows.groupBy('id').agg(F.expr('count(*) filter (where b > 1)').alias('n'), F.count('c').alias('m'))",
}
QUERIES = {
    "chosen": "select r.id, b from {rows} r where a > 1",
    "grouped_by": "select id, max(b) + 1 as m from {rows} group by id, c having count(e) > 1",
    "matched": "with x as (select id, a, b from {rows} where f) select l.id, x.a from {rows} l join x on l.b = x.id",
    "both": "select id, a, c from {rows} union all select id, b, c from {rows}",
    "ranked": "select id, row_number() over (partition by id, a order by b) as n from (select * from {rows}) where e",
}
TYPES = {"id": "long", "at": "timestamp", "a": "int", "b": "int?", "c": "string?", "e": "boolean", "f": "boolean?"}


@pytest.mark.long
def test_analysis_by_duckdb_reads_at_least_the_columns_of_spark(spark: SparkSession, project: Settings) -> None:
    head = f"{HEAD}from pyspark.sql import functions as F\n"
    returned = {f"text{n}": f"rows.selectExpr('id', {f'{text} as x'!r})" for n, text in enumerate(TEXTS)}
    jobs = {
        name: job(name, "Latest('id')", "log('ev')", returns=r, head=head) for name, r in (returned | STEPS).items()
    }
    jobs |= {name: job(name, "View('id')", "log('ev')", returns=text, head=head) for name, text in VIEWS.items()}
    queries = {name: f"rows.sparkSession.sql({text!r}, rows=rows)" for name, text in QUERIES.items()}
    jobs |= {name: job(name, "View('id')", "log('ev')", returns=r, head=head) for name, r in queries.items()}
    refused, wider = compared(spark, declare(project, contract_of("ev", TYPES, time="at"), jobs=jobs).project)
    assert not refused
    assert "text1" in wider
    assert not wider & {*VIEWS, *QUERIES, "unused", "filtered", "text0", "text4"}
