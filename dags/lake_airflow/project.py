"""A project as Airflow knows it: its graph, the ids of its tasks, its assets and what all of its runs share."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from airflow.sdk import Asset, TaskGroup, XComArg

from lake_airflow.command import OnlyUnavailable, command, run

LONGEST_NAME: Final = 100
"""Most characters of a project's name; an id of Airflow has up to 250."""

LONGEST_TASK: Final = 200
"""Most characters of a table's name in the id of a task."""

GRAPH_FIX: Final = "lake graph --json > graph.json && mv graph.json dags/graph.json"


@dataclass(frozen=True)
class Project:
    """The project in `folder`. `name` comes first in the ids of its DAGs and in the names of its assets."""

    name: str
    folder: Path
    lake: str | Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}", self.name):
            raise ValueError(
                f"{self.name!r} is not fit for ids of Airflow: up to {LONGEST_NAME} letters, digits, _ and -"
            )

    @cached_property
    def graph(self) -> Mapping[str, Any]:
        """Output of `lake graph --json` when the tables last changed."""
        file = self.folder / "dags/graph.json"
        try:
            graph = json.loads(file.read_text("utf-8"))
            if not {"streams", "tables"} <= set(graph):
                raise ValueError("it has no streams and tables")
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"{file} is not the graph of a project: {error}\n  fix: {GRAPH_FIX}") from None
        return dict(graph)

    @property
    def tables(self) -> list[dict[str, Any]]:
        """The tables in the order of their dependencies."""
        return list(self.graph["tables"])

    @property
    def by_groups(self) -> bool:
        """Return whether tables are published in groups, each of which may be held alone."""
        return bool(self.graph.get("groups"))

    @property
    def sinks(self) -> Mapping[str, list[str]]:
        """The tables that each sink delivers."""
        return dict(self.graph.get("sinks", {}))

    def dag_id(self, name: str) -> str:
        return f"{self.name}.{name}"

    @property
    def runs(self) -> Mapping[str, Any]:
        """Arguments of all DAGs: one run at a time, and two tasks at once, as each may start a JVM."""
        return {
            "start_date": datetime(2013, 1, 1, tzinfo=UTC),
            "catchup": False,
            "max_active_runs": 1,
            "max_active_tasks": 2,
            "tags": ["headwater", self.name],
            "default_args": {
                "owner": self.name,
                "retries": 5,
                "retry_delay": timedelta(seconds=20),
                "retry_exponential_backoff": True,
                "max_retry_delay": timedelta(minutes=10),
                "retry_policy": OnlyUnavailable(),
            },
        }

    @cached_property
    def assets(self) -> Mapping[str, Asset]:
        """The streams and tables as assets, by their names: each with its sentence."""
        layers = dict.fromkeys(self.graph["streams"], "log")
        layers |= {table["name"]: table["layer"] for table in self.tables}
        docs = self.graph.get("docs", {})
        return {name: self._asset(name, layer, docs.get(name, "")) for name, layer in layers.items()}

    def _asset(self, name: str, layer: str, doc: str) -> Asset:
        path = f"{self.name}/{layer}/{quote(name)}"
        return Asset(name=path, uri=f"lake://{path}", group=self.name, extra={"description": doc})

    def sink(self, name: str) -> Asset:
        """Return the asset of a sink."""
        return self._asset(name, "sink", f"What sink {name} fills")

    def inlets(self, table: Mapping[str, Any]) -> list[Asset]:
        """Return the inputs of a table."""
        return [self.assets[name] for name in table["inputs"]]

    def doc(self, name: str) -> str:
        """The sentence of a stream or a table."""
        return str(self.graph.get("docs", {}).get(name, ""))

    def per_table(self, work: Callable[[Mapping[str, Any]], XComArg]) -> list[XComArg]:
        """The tasks that `work` makes, one per table; each depends on the tasks of its table's inputs."""
        with TaskGroup("tables"):
            made = {table["name"]: work(table) for table in self.tables}
        for table in self.tables:
            for name in table["inputs"]:
                if name in made:
                    made[name] >> made[table["name"]]
        return list(made.values())

    def call(self, *arguments: str, partly: str = "") -> Any:
        """The answer of `lake` about this project; see `lake_airflow.command.run`."""
        words = [*command(self.lake), *arguments, "--json", "--project", str(self.folder)]
        return run(words, self.environment, partly)


def task_id(table: str) -> str:
    """Return the id of a table's task: its name, shortened to the length of an id."""
    if len(table) <= LONGEST_TASK:
        return table
    return f"{table[:LONGEST_TASK]}-{hashlib.sha256(table.encode()).hexdigest()[:8]}"
