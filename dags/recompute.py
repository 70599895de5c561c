"""Full recomputation, started by hand: tables are recomputed from their inputs, verified and published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import steps
from airflow.sdk import Param, TriggerRule, XComArg, dag, task
from airflow.sdk.exceptions import AirflowSkipException

PARAMS = {
    "tables": Param(
        [],
        type="array",
        items={"type": "string", "enum": [table["name"] for table in steps.tables()]},
        uniqueItems=True,
        title="Tables",
        description="Which tables to recompute from their inputs (default: all).",
    ),
    "cut": Param(None, type=["null", "integer"], minimum=1, title="Cut", description="The cut (default: a new one)."),
    "yes": Param(
        False,
        type="boolean",
        title="Allow dropped columns",
        description="Allow published columns to be dropped or to change their type; otherwise the task fails.",
    ),
    "dry_run": Param(
        False, type="boolean", title="Dry run", description="Show what would change, without changing anything."
    ),
}


def chosen() -> list[str]:
    """The tables to recompute in this run."""
    return list(steps.params()["tables"]) or [table["name"] for table in steps.tables()]


@task
def plan(number: int) -> Any:
    """Compares the definitions of the chosen tables with those that built them; a dry run shows what would change."""
    told = {"plan": steps.lake("plan", *chosen())["tables"]}
    if steps.params()["dry_run"]:
        told["rebuild"] = steps.lake("rebuild", *chosen(), "--cut", str(number), "--dry-run")["tables"]
    print(json.dumps(told, indent=2))
    return told


@task.short_circuit
def in_earnest() -> bool:
    """A dry run ends here."""
    return not steps.params()["dry_run"]


def rebuild(table: Mapping[str, Any], number: XComArg) -> XComArg:
    """The task that evaluates one table, if it was chosen.

    A table that was not chosen is skipped if it is at the cut already; if not, it advances, because the tables derived
    from it are evaluated at the cut and published with it. A skipped table does not block those derived from it. A
    table that a micro-batch has advanced beyond the cut is evaluated at its own cut.
    """
    asset, name = steps.asset(table), table["name"]

    @task(task_id=name, outlets=[asset], trigger_rule=TriggerRule.NONE_FAILED)
    def work(number: int, *, outlet_events: Any = None) -> dict[str, Any]:
        verb = "rebuild" if name in chosen() else "advance"
        options = ["--yes"] if verb == "rebuild" and steps.params()["yes"] else []
        there = {each["name"]: each["cut"] or 0 for each in steps.lake("status")["tables"]}
        (done,) = steps.lake(verb, name, "--cut", str(max(number, there[name])), *options)["tables"]
        if verb == "advance" and done["verb"] == "none":
            raise AirflowSkipException(f"{name} was not chosen and is already at cut {number}")
        outlet_events[asset].extra = steps.changes(done)
        return steps.changes(done)

    return work(number)


@task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
def verify() -> Any:
    """Proves that the chosen tables equal their recomputation; fails with the first differing keys."""
    return steps.lake("verify", *chosen())["tables"]


@dag(schedule=None, params=PARAMS, **steps.RUNS)
def recompute() -> None:
    """Plan, rebuild the chosen tables in the order of the graph, verify, check, publish."""
    number = steps.cut()
    earnest = in_earnest()
    work = steps.per_table(lambda table: rebuild(table, number))
    plan(number) >> earnest >> work
    work >> verify() >> steps.check(number) >> steps.publish(number)


recompute()
