"""Full recomputation, by hand: tables are evaluated from the first event again, proved, and published."""

from __future__ import annotations

from typing import Any

import steps
from airflow.sdk import AssetAlias, Param, dag, get_current_context, task

TABLES = [table["name"] for table in steps.tables()]
REBUILT = AssetAlias("rebuilt", group="headwater")


def chosen() -> list[str]:
    """The tables that this run was asked for; none stands for all."""
    return list(get_current_context()["params"]["tables"])


@task(outlets=[REBUILT])
def rebuild(number: int, *, outlet_events: Any = None) -> list[dict[str, Any]]:
    """Evaluates the chosen tables from their inputs and commits what differs."""
    done = steps.lake("rebuild", *(chosen() or ["--all"]), "--cut", str(number))["tables"]
    assets = {table["name"]: steps.asset(table) for table in steps.tables()}
    for each in done:
        outlet_events[REBUILT].add(assets[each["table"]], extra=steps.changes(each))
    return [{"table": each["table"], **steps.changes(each)} for each in done]


@task
def advance(number: int) -> list[dict[str, Any]]:
    """Brings the tables that were not chosen to the same cut, those derived from rebuilt ones among them."""
    done = steps.lake("advance", "--cut", str(number))["tables"]
    return [{"table": each["table"], **steps.changes(each)} for each in done]


@task
def verify() -> Any:
    """Proves that the chosen tables equal their recomputation from the log."""
    return steps.lake("verify", *chosen())["tables"]


@dag(
    schedule=None,
    params={
        "tables": Param(
            [],
            type="array",
            items={"type": "string", "enum": TABLES},
            uniqueItems=True,
            title="Tables",
            description="Which tables to evaluate from the first event; none stands for all.",
        )
    },
    **steps.RUNS,
)
def recompute() -> None:
    """Rebuild, advance what is derived from it, verify, check, publish."""
    number = steps.cut()
    rebuild(number) >> advance(number) >> verify() >> steps.check(number) >> steps.publish(number)


recompute()
