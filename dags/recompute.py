"""Full recomputation, by hand: tables are evaluated from their inputs again, proved, and published."""

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
        description="Which tables to evaluate from their inputs again; none stands for all.",
    ),
    "cut": Param(None, type=["null", "integer"], minimum=1, title="Cut", description="A new one unless given."),
    "yes": Param(
        False,
        type="boolean",
        title="Columns may go",
        description="Let columns that readers have go, or change their type; else the task of such a table fails.",
    ),
    "dry_run": Param(False, type="boolean", title="Dry run", description="Show what would change, and change nothing."),
}


def chosen() -> list[str]:
    """The tables that this run was asked for."""
    return list(steps.params()["tables"]) or [table["name"] for table in steps.tables()]


@task
def plan(number: int) -> Any:
    """Says how the chosen tables' definitions stand to those that built them; in a dry run, what would change."""
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

    One that was not is skipped where it is at the cut already. Where it is not, it follows, because what is derived
    from it is evaluated at the cut, and published with it. A skipped table holds up none that is derived from it. One
    that a micro-batch has brought beyond the cut is evaluated where it is.
    """
    asset, name = steps.asset(table), table["name"]

    @task(task_id=name, outlets=[asset], trigger_rule=TriggerRule.NONE_FAILED)
    def work(number: int, *, outlet_events: Any = None) -> dict[str, Any]:
        verb = "rebuild" if name in chosen() else "advance"
        options = ["--yes"] if verb == "rebuild" and steps.params()["yes"] else []
        there = {each["name"]: each["cut"] or 0 for each in steps.lake("status")["tables"]}
        (done,) = steps.lake(verb, name, "--cut", str(max(number, there[name])), *options)["tables"]
        if verb == "advance" and done["verb"] == "none":
            raise AirflowSkipException(f"{name} was not chosen, and is at cut {number}")
        outlet_events[asset].extra = steps.changes(done)
        return steps.changes(done)

    return work(number)


@task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
def verify() -> Any:
    """Proves that the chosen tables equal their recomputation; fails with the first keys of one that differs."""
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
