"""The steps of every run: cut, check, publish.

A DAG run works at one cut. The cut is recorded under the run's name, so that a task that is retried or cleared, this
year or next, works at the cut that the run had, finds its work done, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import XComArg, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from lake_airflow.command import TRY_AGAIN, fail, warn
from lake_airflow.project import GRAPH_FIX, Project


def params() -> Mapping[str, Any]:
    """The parameters of this run."""
    given: Mapping[str, Any] = get_current_context()["params"]
    return given


def cut(project: Project, when: str = "all_success") -> XComArg:
    """The task that takes this run's cut: the one given, else a new one; a dry run uses the newest.

    `when`: the trigger rule, what has to have become of the tasks before it.
    """

    @task(task_id="cut", trigger_rule=when)
    def work() -> int:
        must_be_of(project)
        context, asked = get_current_context(), params()
        if asked.get("cut"):
            return int(asked["cut"])
        if asked.get("dry_run") and (newest := project.call("status")["cut"]):
            return int(newest["number"])
        return int(project.call("cut", "--label", f"{context['dag'].dag_id} {context['run_id']}")["cut"])

    return work()


def must_be_of(project: Project) -> None:
    """Fails the task where the graph that the DAGs were made from is not the project's any more.

    It only warns if a description differs: the runs are right, and assets show the old one.
    """
    now = project.call("graph")
    if differing := list(stale(project.graph, now)):
        fail(f"dags/graph.json is stale: {'; '.join(differing)}", f"{GRAPH_FIX}, then run the DAG again")
    docs = project.graph.get("docs", {})
    if reworded := sorted(name for name, doc in now["docs"].items() if docs.get(name) != doc):
        warn(f"dags/graph.json has old descriptions of {', '.join(reworded)}, and so have the assets", GRAPH_FIX)


def stale(graph: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[str]:
    """How the tables and streams of a graph differ from those of the project as it is now."""
    before, after = ({table["name"]: table for table in each["tables"]} for each in (graph, now))
    gone, new = set(graph["streams"]) - set(now["streams"]), set(now["streams"]) - set(graph["streams"])
    yield from (f"stream {name} is new" for name in sorted(new))
    yield from (f"stream {name} is gone" for name in sorted(gone))
    yield from (f"table {name} is new" for name in sorted(after.keys() - before.keys()))
    yield from (f"table {name} is gone" for name in sorted(before.keys() - after.keys()))
    for name in sorted(before.keys() & after.keys()):
        if before[name]["inputs"] != after[name]["inputs"] or before[name]["layer"] != after[name]["layer"]:
            yield f"table {name} has other inputs"
    if graph.get("groups") != now.get("groups"):
        yield "tables are published in other groups"
    if graph.get("sinks") != now.get("sinks"):
        yield "sinks deliver other tables"


def must_be_newest(project: Project, number: int) -> None:
    """Skips the task if there is a later cut: tables may be beyond this one, and that run publishes them."""
    newest = project.call("status")["cut"]["number"]
    if newest > number:
        raise AirflowSkipException(f"cut {newest} is newer than cut {number}: its run checks and publishes")


def check(project: Project, number: XComArg, when: str = "all_success") -> XComArg:
    """The task that checks every table at the cut against its expectations; one of severity stop fails it.

    Where tables are published by groups, what stops one of them is left to the task that publishes the others.
    """

    @task(task_id="check", trigger_rule=when)
    def work(number: Any) -> Any:
        try:
            checks = project.call("check", "--cut", str(number))["checks"]
        except SystemExit as ended:
            must_be_newest(project, number)
            if not project.by_groups or ended.code == TRY_AGAIN:
                raise
            warn("not all tables may be published", "see the task publish: it says which groups are held")
            return []
        return [{name: each[name] for name in ("table", "outcome", "version")} for each in checks]

    return work(number)


def publish(project: Project, number: XComArg, when: str = "all_success") -> XComArg:
    """The task that publishes the cut, and updates the assets of the tables whose rows have changed with it.

    It is skipped while readers are pinned to an older edition, or see a later cut already. Where tables are published
    by groups, a task after it fails the run while one is held.
    """
    tables = [project.assets[table["name"]] for table in project.tables]
    streams = [project.assets[name] for name in project.graph["streams"]]

    @task(task_id="publish", inlets=streams, outlets=tables, trigger_rule=when)
    def work(number: Any, *, outlet_events: Any = None) -> Any:
        status = project.call("status")
        if status["pinned"] is not None:
            raise AirflowSkipException(
                f"readers are pinned to edition {status['pinned']} until `lake publish --resume`"
            )
        edition = status["edition"]
        if edition and edition["cut"] > number:
            raise AirflowSkipException(
                f"edition {edition['number']} is of cut {edition['cut']}, later than cut {number}"
            )
        done = project.call("publish", "--cut", str(number), partly="held" if project.by_groups else "")
        # A first try that crashed may have published without reporting it.
        is_new = edition is None or done["edition"] > edition["number"] or get_current_context()["ti"].try_number > 1
        facts = {"edition": done["edition"], "cut": done["cut"]}
        changed = {
            name: {**facts, "version": done["tables"][name], **counts}
            for name, counts in (done["changed"] if is_new else {}).items()
        }
        update(project, changed, outlet_events)
        held = {"held": done["held"]} if "held" in done else {}
        return {**facts, "changed": sorted(changed), **held}

    done = work(number)
    if project.by_groups:
        must_hold_none(done)
    return done


def must_hold_none(done: XComArg) -> XComArg:
    """The task that fails a run in which a group was held: `publish` itself has published the others."""

    @task(task_id="group_held")
    def work(done: Any) -> None:
        held = done.get("held", {})
        if held:
            reasons = "; ".join(f"{group}: {why}" for group, why in held.items())
            fail(f"held: {reasons}", "lake status says what holds them; the other groups are published")

    return work(done)


def update(project: Project, changed: Mapping[str, Mapping[str, Any]], outlet_events: Any) -> None:
    """Has the task that ends now update the assets of what has `changed`, with what is said of each, and no others.

    Airflow updates each outlet that a task has when it ends: those declared are the lineage, these the events.
    """
    outlets = get_current_context()["outlets"]
    outlets[:] = [project.assets[name] for name in changed]
    for name, extra in changed.items():
        outlet_events[project.assets[name]].extra = dict(extra)
