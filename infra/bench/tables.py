"""One table of each kind, over the readings of meters and their tariffs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lake import (
    Aggregate,
    AsOf,
    Avg,
    Count,
    Enrich,
    First,
    FirstOf,
    Fold,
    History,
    Join,
    LastOf,
    Latest,
    Max,
    Pattern,
    Session,
    Step,
    Sum,
    Tumbling,
    View,
    log,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest("meter", sequence="at", deletes="_removed"), log("readings"))
def latest(readings: DataFrame) -> DataFrame:
    """A meter's newest reading; none if the meter was removed since."""
    return readings.selectExpr("meter", "at", "value", "mode", "removed as _removed")


@table(First("meter", sequence="at"), log("readings"))
def first(readings: DataFrame) -> DataFrame:
    """A meter's oldest reading."""
    return readings.select("meter", "at", "value", "mode")


@table(History("meter", sequence="at", track="mode"), log("readings"))
def history(readings: DataFrame) -> DataFrame:
    """A period in which a meter was in one mode."""
    return readings.select("meter", "at", "mode")


@table(
    Aggregate(
        "meter",
        {"readings": Count(), "total": Sum("value"), "mean": Avg("value"), "peak": Max("value")},
        window=Tumbling(length=timedelta(days=7), on="at", zone="UTC"),
    ),
    log("readings"),
)
def aggregate(readings: DataFrame) -> DataFrame:
    """A meter's readings of seven days."""
    return readings.select("meter", "at", "value")


@table(
    Aggregate("meter", {"readings": Count(), "total": Sum("value")}, window=Session(gap=timedelta(days=3), on="at")),
    log("readings"),
)
def session(readings: DataFrame) -> DataFrame:
    """A run of a meter's readings without three silent days."""
    return readings.select("meter", "at", "value")


STATE = "readings int, peak int, rises int, last int"
BEGIN = {"readings": 0, "peak": 0, "rises": 0, "last": None}
STEP = {
    "readings": "state.readings + 1",
    "peak": "greatest(state.peak, event.value)",
    "rises": "state.rises + if(event.value > state.last, 1, 0)",
    "last": "event.value",
}


@table(Fold("meter", sequence="at", state=STATE, start=BEGIN, step=STEP), log("readings"))
def fold(readings: DataFrame) -> DataFrame:
    """Number of rises of a meter's value, and the newest value."""
    return readings.select("meter", "at", "value")


def risen(state: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """STEP in Python."""
    value, last = event["value"], state["last"]
    return {
        "readings": state["readings"] + 1,
        "peak": max(state["peak"], value),
        "rises": state["rises"] + (last is not None and value > last),
        "last": value,
    }


@table(Fold("meter", sequence="at", state=STATE, start=BEGIN, step=risen), log("readings"))
def fold_python(readings: DataFrame) -> DataFrame:
    """As `fold`, by a Python function."""
    return readings.select("meter", "at", "value")


@table(History("meter", sequence="at", track="tariff"), log("tariffs"))
def tariff(tariffs: DataFrame) -> DataFrame:
    """A period in which a meter had one tariff."""
    return tariffs.select("meter", "at", "tariff")


@table(Enrich("number", AsOf("meter"), time="at"), log("readings"), tariff)
def enrich(readings: DataFrame, tariffs: DataFrame) -> tuple[DataFrame, ...]:
    """A reading with the tariff of its time, by the history of tariffs."""
    return readings.select("number", "meter", "at", "value"), tariffs.select(
        "meter", "valid_from", "valid_to", "tariff"
    )


@table(Enrich("number", AsOf("meter", time="since"), time="at"), log("readings"), log("tariffs"))
def enrich_log(readings: DataFrame, tariffs: DataFrame) -> tuple[DataFrame, ...]:
    """As `enrich`, straight from the log of tariffs."""
    return readings.select("number", "meter", "at", "value"), tariffs.selectExpr("meter", "at as since", "tariff")


@table(
    Join("meter", left="number", right="change", within=timedelta(hours=12), times=("at", "since")),
    log("readings"),
    log("tariffs"),
)
def join(readings: DataFrame, tariffs: DataFrame) -> tuple[DataFrame, ...]:
    """A reading and a change of the meter's tariff less than half a day from it."""
    changes = tariffs.selectExpr("meter", "number as change", "at as since", "tariff")
    return readings.select("meter", "number", "at", "value"), changes


@table(
    Pattern(
        "meter",
        sequence="at",
        steps=[Step("high", "value > 600", times="{3,}")],
        measures={"readings": Count(), "began_at": FirstOf("at"), "ended_at": LastOf("at"), "peak": Max("value")},
    ),
    log("readings"),
)
def pattern(readings: DataFrame) -> DataFrame:
    """Three or more consecutive readings of a meter above 600."""
    return readings.select("meter", "at", "value")


VIEW = """
    select meter, readings, modes, total, coalesce(changes, 0) as changes
    from (select meter, count(*) as readings, count(distinct mode) as modes, sum(value) as total
          from {readings} group by meter)
    left join (select meter, count(*) as changes from {tariffs} group by meter) using (meter)"""


@table(View("meter"), log("readings"), log("tariffs"))
def view(readings: DataFrame, tariffs: DataFrame) -> DataFrame:
    """A meter's readings and changes of tariff, counted."""
    return readings.sparkSession.sql(VIEW, readings=readings, tariffs=tariffs)


KINDS = {
    "Latest with deletes": latest,
    "First": first,
    "History": history,
    "Aggregate, tumbling": aggregate,
    "Aggregate, session": session,
    "Fold in SQL": fold,
    "Fold in Python": fold_python,
    "Enrich by a History": enrich,
    "Enrich by a log": enrich_log,
    "Join within a time": join,
    "Pattern": pattern,
    "View": view,
}
