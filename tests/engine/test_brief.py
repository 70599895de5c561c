"""Short runs: compiler options of the JVM, and the pending work that selects them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.config import Settings
from lake.engine.advance import advance_all
from lake.engine.inputs import Inputs
from lake.ingest.ingest import ingest
from lake.ingest.landing import backlog
from lake.ops import pipeline
from lake.ops.pipeline import is_short_run, run
from lake.project.project import load
from lake.publish.cut import cut
from lake.session import spark_session as session
from lake.store.ledger.editions import latest_edition
from lake.store.log import Log
from tests.checks import present
from tests.shop import new_shop, order

pytestmark = pytest.mark.slow


def test_run_has_little_to_do_if_little_is_pending_and_published(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = new_shop(tmp_path)
    assert not is_short_run(load(shop.settings))
    shop.land_samples().run()
    assert is_short_run(load(shop.settings))
    tables = present(latest_edition(shop.settings)).tables.values()
    rows = Log(shop.settings, "orders").head().events + sum(present(table.rows) for table in tables)
    shop.land("orders", order(9))
    waiting = backlog(shop.settings, "orders")[1]
    for name, enough in (("BRIEF_ROWS", rows), ("BRIEF_BYTES", waiting)):
        for most in (enough, enough - 1):
            with monkeypatch.context() as patch:
                patch.setattr(cost, name, most)
                assert is_short_run(load(shop.settings)) == (most == enough)
    ingest(shop.settings, lambda: spark, shop.project.contracts)
    assert is_short_run(load(shop.settings))
    cut(shop.project)
    assert is_short_run(load(shop.settings))
    shop.run()
    assert is_short_run(load(shop.settings))
    source = shop.settings.path("sources/orders.toml")
    source.parent.mkdir(exist_ok=True)
    source.write_text("")
    assert not is_short_run(load(shop.settings))
    source.unlink()
    job = next(shop.settings.path("jobs/gold").glob("*.py"))
    text = job.read_text()
    job.unlink()
    assert not is_short_run(load(shop.settings))
    job.write_text(text)
    assert is_short_run(load(shop.settings))
    for file in (shop.settings.warehouse_path / "meta/editions/_delta_log").iterdir():
        file.unlink()
    assert not is_short_run(load(shop.settings))


class Started(BaseException):
    """A session would start now: the rest of the run is of no interest."""


@pytest.mark.parametrize("follows", [False, True])
def test_short_run_announces_itself_before_its_session_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, follows: bool
) -> None:
    shop = new_shop(tmp_path).land_samples().run()
    shop.land("orders", order(9))
    said: list[str] = []

    def start() -> SparkSession:
        said.append("started")
        raise Started

    shop.settings = replace(shop.settings, in_process_rows=0)
    monkeypatch.setattr(pipeline, "started", lambda: False)
    monkeypatch.setattr(pipeline, "expect_short_run", lambda: said.append("little"))
    with pytest.raises(Started):
        run(shop.settings, start, lambda _: None, batches=1 if follows else None)
    assert said == [*([] if follows else ["little"]), "started"]


def test_short_run_sets_compiler_options_of_the_jvm(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session._Started, "is_short_run", False)
    options = "spark.driver.extraJavaOptions"
    usual = session.embedded_conf(project)[options]
    session.expect_short_run()
    assert session.embedded_conf(project)[options] == usual + session.FAST_COMPILER


def spark_interprets(spark: SparkSession) -> bool:
    """Return whether the session of all tests generates no code."""
    return spark.conf.get("spark.sql.codegen.wholeStage") == "false"


@pytest.mark.turns
@pytest.mark.parametrize(("most", "interprets"), [(cost.INTERPRETED_ROWS, True), (-1, False)])
def test_cycle_of_few_events_generates_no_code(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, *, interprets: bool
) -> None:
    shop = new_shop(tmp_path).land_samples().run()
    usual = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    of_cycle = usual if spark_interprets(spark) else session.INTERPRETED
    monkeypatch.setattr("lake.ops.pipeline.INTERPRETED", of_cycle)
    before = {key: spark.conf.get(key) for key in of_cycle}
    seen: list[bool] = []

    def watched(inputs: Inputs, **options: Any) -> Any:
        try:
            return advance_all(inputs, **options)
        finally:
            seen.append({key: inputs.spark.conf.get(key) for key in of_cycle} == of_cycle)

    monkeypatch.setattr(pipeline, "advance_all", watched)
    monkeypatch.setattr(cost, "INTERPRETED_ROWS", most)
    shop.land("orders", order(9)).run()
    assert seen == [interprets]
    assert {key: spark.conf.get(key) for key in of_cycle} == before
