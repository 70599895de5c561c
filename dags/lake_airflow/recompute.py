"""Full recomputation, started by hand: tables are recomputed from their inputs, verified and published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, XComArg, dag, task
from airflow.sdk.exceptions import AirflowSkipException

from lake_airflow import steps
from lake_airflow.project import Project, task_id


def recompute(project: Project) -> DAG:
    """Plan, rebuild the chosen tables in the order of the graph, verify, check, publish."""

    @task
    def plan(number: Any) -> Any:
        """Compares the chosen tables' definitions with those that built them; a dry run shows what would change."""
        tables = chosen(project)
        answer = {"plan": project.call("plan", *tables)["tables"]}
        if steps.params()["dry_run"]:
            answer["rebuild"] = project.call("rebuild", *tables, "--cut", str(number), "--dry-run")["tables"]
        print(json.dumps(answer, indent=2))
        return answer

    @task.short_circuit
    def in_earnest() -> bool:
        """A dry run ends here."""
        return not steps.params()["dry_run"]

    @task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
    def verify() -> Any:
        """Proves that the chosen tables equal their recomputation; fails with the first differing keys."""
        return project.call("verify", *chosen(project))["tables"]

    @dag(project.dag_id("recompute"), schedule=None, params=_params(project), doc_md=recompute.__doc__, **project.runs)
    def made() -> None:
        number = steps.cut(project)
        earnest = in_earnest()
        work = project.per_table(lambda table: rebuild(project, table, number))
        plan(number) >> earnest >> work
        work >> verify() >> steps.check(project, number) >> steps.publish(project, number)

    return made()


def chosen(project: Project) -> list[str]:
    """The tables to recompute in this run."""
    return list(steps.params()["tables"]) or [table["name"] for table in project.tables]


def rebuild(project: Project, table: Mapping[str, Any], number: XComArg) -> XComArg:
    """The task that evaluates one table, if it was chosen.

    A table that was not chosen is skipped if it is at the cut already; if not, it advances, because the tables derived
    from it are evaluated at the cut and published with it. A skipped table does not block those derived from it. A
    table that a micro-batch has advanced beyond the cut is evaluated at its own cut.
    """
    name = table["name"]

    @task(
        task_id=task_id(name),
        doc_md=project.doc(name),
        inlets=project.inlets(table),
        trigger_rule=TriggerRule.NONE_FAILED,
    )
    def work(number: Any) -> Any:
        verb = "rebuild" if name in chosen(project) else "advance"
        options = ["--yes"] if verb == "rebuild" and steps.params()["yes"] else []
        cuts = {each["name"]: each["cut"] or 0 for each in project.call("status")["tables"]}
        (done,) = project.call(verb, name, "--cut", str(max(number, cuts[name])), *options)["tables"]
        if verb == "advance" and done["verb"] == "none":
            raise AirflowSkipException(f"{name} was not chosen and is already at cut {number}")
        return done

    return work(number)


def _params(project: Project) -> dict[str, Param]:
    return {
        "tables": Param(
            [],
            type="array",
            items={"type": "string", "enum": [table["name"] for table in project.tables]},
            uniqueItems=True,
            title="Tables",
            description="Which tables to recompute from their inputs (default: all).",
        ),
        "cut": Param(
            None, type=["null", "integer"], minimum=1, title="Cut", description="The cut (default: a new one)."
        ),
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
