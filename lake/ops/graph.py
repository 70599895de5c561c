"""Graph of the derivation of tables from streams and from each other: as data, as a tree, as Mermaid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lake.project.project import Project
from lake.sinks import kind as sinks


@dataclass(frozen=True)
class Node:
    """Stream (its layer is `log`) or table. `inputs` are names of nodes, `doc` describes an event or a row."""

    name: str
    layer: str
    kind: str = ""
    key: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    doc: str = ""

    @property
    def title(self) -> str:
        return self.name if self.layer == "log" else f"{self.layer}.{self.name}"

    @property
    def subtitle(self) -> str:
        """`Aggregate by carrier, day`; `log` for a stream."""
        if self.layer == "log":
            return "log"
        return f"{self.kind} by {', '.join(self.key)}" if self.key else self.kind


@dataclass(frozen=True)
class Graph:
    """Streams by name, then tables in the order of their dependencies."""

    streams: tuple[Node, ...]
    tables: tuple[Node, ...]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tables that are published together, if the settings name groups."""
    sinks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tables that each sink delivers."""

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in (*self.streams, *self.tables)}

    @cached_property
    def depths(self) -> dict[str, int]:
        """Length of the longest path from a stream to each node."""
        depths = dict[str, int]()
        for name, node in self.nodes.items():
            depths[name] = max((1 + depths[source] for source in node.inputs), default=0)
        return depths

    def readers(self, name: str) -> list[Node]:
        return [table for table in self.tables if name in table.inputs]

    def data(self) -> dict[str, Any]:
        return {
            "streams": [stream.name for stream in self.streams],
            "tables": [
                {
                    "name": table.name,
                    "layer": table.layer,
                    "kind": table.kind,
                    "key": list(table.key),
                    "inputs": list(table.inputs),
                }
                for table in self.tables
            ],
            "docs": {name: node.doc for name, node in self.nodes.items()},
            **({"groups": {group: list(names) for group, names in self.groups.items()}} if self.groups else {}),
            **({"sinks": {sink: list(names) for sink, names in self.sinks.items()}} if self.sinks else {}),
        }


def graph(project: Project) -> Graph:
    return Graph(
        tuple(Node(name, "log", doc=contract.doc) for name, contract in sorted(project.contracts.items())),
        tuple(
            Node(
                table.name,
                table.layer,
                table.kind.name,
                tuple(table.kind.key),
                tuple(source.name for source in table.inputs),
                table.doc,
            )
            for table in project.tables.values()
        ),
        {group: [table.name for table in members] for group, members in project.groups.items()}
        if project.settings.publish.groups
        else {},
        sinks.tables(project.settings),
    )


def as_tree(graph: Graph) -> Iterator[str]:
    """Yield a tree per stream. A table of several inputs is shown in full under one of them, which names the others."""
    width = max((len(node.title) + 4 * graph.depths[node.name] for node in graph.nodes.values()), default=0) + 2
    for stream in graph.streams:
        yield stream.name
        yield from _branches(graph, stream.name, "", width)


def _branches(graph: Graph, name: str, indent: str, width: int) -> Iterator[str]:
    below = graph.readers(name)
    for table in below:
        last = table is below[-1]
        line = f"{indent}{'└── ' if last else '├── '}{table.title}"
        home = max(table.inputs, key=graph.depths.__getitem__)
        if name != home:
            yield f"{line}, under {graph.nodes[home].title}"
            continue
        others = ", ".join(source for source in table.inputs if source != name)
        yield f"{line.ljust(width)}  {table.subtitle}{f'; also from {others}' if others else ''}"
        yield from _branches(graph, table.name, indent + ("    " if last else "│   "), width)


def as_mermaid(graph: Graph) -> Iterator[str]:
    yield "flowchart LR"
    for layer in dict.fromkeys(node.layer for node in graph.nodes.values()):
        yield f"  subgraph {layer}_ [{layer}]"
        for node in graph.nodes.values():
            if node.layer == layer:
                shape = (
                    f'[("{node.name}")]' if layer == "log" else f'["{node.name}<br/><small>{node.subtitle}</small>"]'
                )
                yield f"    {_id(node)}{shape}"
        yield "  end"
    for table in graph.tables:
        for name in table.inputs:
            yield f"  {_id(graph.nodes[name])} --> {_id(table)}"


def as_dot(graph: Graph) -> Iterator[str]:
    """Language of Graphviz: https://graphviz.org/doc/info/lang.html."""
    yield "digraph tables {"
    yield "  rankdir=LR; node [shape=box];"
    for node in graph.nodes.values():
        shape = "shape=cylinder, " if node.layer == "log" else ""
        yield f'  {_id(node)} [{shape}label="{node.title}\\n{node.subtitle}"];'
    for table in graph.tables:
        yield from (f"  {_id(graph.nodes[name])} -> {_id(table)};" for name in table.inputs)
    yield "}"


def _id(node: Node) -> str:
    return f"{node.layer}_{node.name}"
