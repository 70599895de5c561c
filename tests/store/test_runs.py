"""The ledger of runs: results of streams, tables and editions."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.engine.verify import verify_all
from lake.errors import Busy, DeclarationError, LakeError, QualityError, Unavailable
from lake.ops.render import as_text
from lake.ops.status import status
from lake.project.project import load
from lake.store.ledger import runs
from lake.store.warehouse import Warehouse
from tests.shop import contract, declare, empty, job, new_shop, order


def outcomes(settings: Settings) -> dict[str, tuple[str, str]]:
    return {subject: (run.verb, run.outcome) for subject, run in runs.last_runs(settings).items()}


@pytest.mark.long
def test_run_ledger_records_successes_and_failures(spark: SparkSession, tmp_path: Path) -> None:
    shop = new_shop(tmp_path).land_samples().run()
    settings, quality = shop.settings, tmp_path / "shop/quality/customer_daily.json"
    done = {"orders": ("ingest", "done"), "current_order": ("build", "done"), "customer_daily": ("build", "done")}
    assert outcomes(settings) == done | {"edition": ("publish", "done")}
    assert runs.last_runs(settings)["orders"].counts["accepted"] == 6
    verify_all(lambda: spark, shop.project, on_progress=lambda _: None)
    assert {name: outcomes(settings)[name] for name in shop.project.tables} == dict.fromkeys(
        shop.project.tables, ("verify", "done")
    )

    sound = quality.read_text()
    stop = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "orders", "max_value": 0}}
    quality.write_text(json.dumps({"expectations": [stop | {"severity": "stop", "doc": "d"}]}))
    shop.land("orders", order(9))
    with pytest.raises(QualityError):
        shop.run()
    assert outcomes(settings)["customer_daily"] == ("advance", "failed")
    text = "\n".join(as_text(status(load(settings))))
    assert "failed   advance of customer_daily, " in text
    assert "ago: its expectations stopped it" in text
    quality.write_text(sound)
    shop.run()
    assert outcomes(settings)["customer_daily"] == ("advance", "done")
    assert "failed  " not in "\n".join(as_text(status(load(settings))))


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (LakeError("no field 'joan' for who=joan, \"joan\" `joan`\nmore"), "no field … for who=…"),
        (DeclarationError("no column 'b'", where="jobs/gold/t.py:7"), "no column … (jobs/gold/t.py:7)"),
        (QualityError("t: joan"), "its expectations stopped it"),
        (ValueError("x" * 999), "x" * runs.REASON_LENGTH),
        (
            LakeError("t: the value -4711L of 'INT' on 1988-05-17T10:00:00+01:00, not 1.5E10"),
            "t: the value … of … on …, not …",
        ),
        (LakeError("the store's keys of 'joan' are gone"), "the store's keys of … are gone"),
        (LakeError("t: the identity name=Joan Doe, born=1988-05-17: nothing"), "t: the identity name=…"),
        (
            LakeError("reducer step: ValueError: joan is 99 at id=1; the event is orders 3:0:12 (a/1988.jsonl:1)"),
            "reducer step: ValueError: …; the event is orders 3:0:12",
        ),
        (ValueError("[USER_RAISED_EXCEPTION] joan is too old SQLSTATE: P0001"), "[USER_RAISED_EXCEPTION] …"),
        (
            LakeError("t2: 3 of 40 records of batches 5 to 7 at cut 12 do not fit decimal(38,2)"),
            "t2: 3 of 40 records of batches 5 to 7 at cut 12 do not fit decimal(38,2)",
        ),
    ],
)
def test_run_ledger_keeps_no_value_of_an_event(project: Settings, error: Exception, kept: str) -> None:
    with pytest.raises(type(error)), runs.failing(project, "ingest", "orders"):
        raise error
    [run] = runs.last_runs(project).values()
    assert (run.verb, run.subject, run.outcome, dict(run.counts)) == ("ingest", "orders", "failed", {"error": kept})


@pytest.mark.long
@pytest.mark.parametrize(
    ("returns", "kept"),
    [
        (
            'rows.selectExpr("id", "person", "cast(card as tinyint) as card")',
            "The value … of the type … cannot be cast",
        ),
        ('rows.selectExpr("id", "person", "if(card > 0, raise_error(concat(card, born)), 0) as card")', "EXCEPTION] …"),
    ],
)
def test_run_keeps_no_personal_value_when_an_event_fails(
    spark: SparkSession, tmp_path: Path, returns: str, kept: str
) -> None:
    fields = {
        "id": "int",
        "person": "string",
        "card": ("int", {"personal": True}),
        "born": ("date", {"personal": True}),
    }
    settings = empty(tmp_path / "p")
    about = contract("thing", fields, subject="person")
    lakehouse = declare(settings, about, jobs={"one": job("one", 'Latest("id")', 'log("thing")', returns=returns)})
    lakehouse.land("thing", {"id": 1, "person": "joan", "card": 47114711, "born": "1988-05-17"})
    with pytest.raises(LakeError, match="47114711"):
        lakehouse.run()
    error = runs.last_runs(lakehouse.settings)["one"].counts["error"]
    assert kept in error
    assert error.endswith("; the event is thing 1:1:0 (jobs/silver/one.py:4)")
    assert not {"47114711", "1988", "joan"} & set(re.findall(r"\w+", error))


def test_failure_is_over_when_there_is_nothing_to_do(project: Settings) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    runs.record_nothing_to_do(project, "ingest", ["orders"])
    assert runs.last_runs(project) == {}, "an idle cycle books nothing"
    runs.record_outcome(project, "ingest", "orders", None, began, error="no luck")
    assert outcomes(project) == {"orders": ("ingest", "failed")}
    for _ in range(2):
        runs.record_nothing_to_do(project, "ingest", ["others", "orders"])
    assert runs.last_runs(project)["orders"].number == 2
    assert outcomes(project) == {"orders": ("ingest", "done")}


def test_busy_lease_of_another_process_is_not_recorded_as_failure(project: Settings) -> None:
    with pytest.raises(Busy), runs.failing(project, "ingest", "orders"):
        raise Busy("held")
    assert runs.last_runs(project) == {}
    with pytest.raises(Unavailable), runs.failing(project, "ingest", "orders"):
        raise Unavailable("no answer")
    assert runs.last_runs(project)["orders"].counts == {"error": "no answer"}


def test_mistyped_command_is_not_recorded_as_failure(project: Settings) -> None:
    with pytest.raises(DeclarationError), runs.recording(project, "void", "orders", but=DeclarationError):
        raise DeclarationError("no batch 7")
    assert runs.last_runs(project) == {}


def test_failure_lasts_until_the_same_work_succeeds(project: Settings) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)

    def failed() -> set[tuple[str, str]]:
        return {(run.verb, run.subject) for run in runs.newest_runs(project) if run.outcome == "failed"}

    for verb, subject in (("ingest", "a"), ("replay", "a"), ("publish", "edition"), ("verify", "t"), ("advance", "t")):
        runs.record_outcome(project, verb, subject, None, began, error="no luck")
    all_of_them = failed()
    assert len(all_of_them) == 5
    runs.record_outcome(project, "void", "a", None, began)
    assert failed() == all_of_them
    runs.record_outcome(project, "append", "a", None, began)
    runs.record_outcome(project, "deploy", "edition", 1, began)
    runs.record_nothing_to_do(project, runs.ADVANCE, ["t"])
    assert failed() == {("replay", "a"), ("verify", "t")}


def test_unwritable_run_ledger_hides_no_fault(project: Settings) -> None:
    Warehouse(project).book("runs").path.parent.local.mkdir(parents=True)
    Warehouse(project).book("runs").path.local.write_text("no folder")
    with pytest.raises(ValueError, match="what went wrong"), runs.failing(project, "ingest", "orders"):
        raise ValueError("what went wrong")


def test_background_entries_are_recorded_when_waited_for(project: Settings) -> None:
    with runs.background_recording():
        for number in range(5):
            runs.record_outcome(project, "deliver", str(number), 1, datetime.now(UTC), error="why")
        runs.wait_until_recorded()
        assert outcomes(project) == {str(number): ("deliver", "failed") for number in range(5)}
        runs.record_nothing_to_do(project, "deliver", ["1", "3"])
        runs.wait_until_recorded()
        assert {name for name, (_, outcome) in outcomes(project).items() if outcome == "done"} == {"1", "3"}
        runs.record_outcome(project, "deliver", "0", 2, datetime.now(UTC))
    assert outcomes(project)["0"] == ("deliver", "done")
    runs.wait_until_recorded()
