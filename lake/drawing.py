"""The graph as a layered SVG drawing: streams at the left, each table to the right of all that it is derived from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from lake.graph import Graph, Node

HEIGHT: Final = 44
ROW: Final = 66
GAP: Final = 72
MARGIN: Final = 24
SWEEPS: Final = 8

FILL: Final[Mapping[str, str]] = {"log": "#e8eef7", "silver": "#eef0f2", "gold": "#fbf3dc"}
STROKE: Final[Mapping[str, str]] = {"log": "#5b7db1", "silver": "#8a939c", "gold": "#c79a2b"}

STYLE: Final = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2933; }
  .kind { font-size: 11px; fill: #5f6b76; }
  .edge { fill: none; stroke: #9aa5b1; stroke-width: 1.4; marker-end: url(#tip); }
  .node { stroke-width: 1.4; }"""


@dataclass(frozen=True)
class Slot:
    """A place in a column: a node, or a point through which an edge passes (`node` is None)."""

    name: str
    node: Node | None = None


@dataclass(frozen=True)
class Layout:
    """Columns from left to right, the links between neighbouring ones, and where each slot stands."""

    columns: Sequence[Sequence[Slot]]
    links: Sequence[tuple[str, str]]

    def width(self, column: int) -> int:
        """A column is as wide as its widest text (about 7 units a character)."""
        texts = [(s.node.title, s.node.subtitle) for s in self.columns[column] if s.node]
        return max((max(len(title) * 7.3, len(kind) * 6.1) for title, kind in texts), default=0).__ceil__() + 28

    def left(self, column: int) -> int:
        return MARGIN + sum(self.width(i) + GAP for i in range(column))

    @property
    def size(self) -> tuple[int, int]:
        tallest = max((len(column) for column in self.columns), default=0)
        return self.left(len(self.columns)) - GAP + MARGIN, tallest * ROW + 2 * MARGIN - (ROW - HEIGHT)

    def middles(self) -> dict[str, tuple[int, float]]:
        """Column and vertical middle of each slot; columns are centred."""
        height = self.size[1]
        return {
            slot.name: (i, height / 2 + (j - (len(column) - 1) / 2) * ROW)
            for i, column in enumerate(self.columns)
            for j, slot in enumerate(column)
        }


def as_svg(graph: Graph) -> Iterator[str]:
    """The drawing, line by line."""
    layout = lay_out(graph)
    width, height = layout.size
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    yield f"<style>{STYLE}\n</style>"
    yield '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    yield '<path d="M0 0.8 7 4 0 7.2z" fill="#9aa5b1"/></marker></defs>'
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield from _edges(graph, layout)
    yield from _boxes(layout)
    yield "</svg>"


def lay_out(graph: Graph) -> Layout:
    """Places nodes by their longest way from a stream, and orders columns so that edges cross little."""
    depth = {name: graph.depth(name) for name in graph.nodes}
    columns: list[list[Slot]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, node in graph.nodes.items():
        columns[depth[name]].append(Slot(name, node))
    links: list[tuple[str, str]] = []
    for table in graph.tables:
        for source in table.inputs:
            way = [source, *_passing(source, table.name, depth), table.name]
            for i, slot in enumerate(way[1:-1], depth[source] + 1):
                columns[i].append(Slot(slot))
            links += pairwise(way)
    for sweep in range(SWEEPS):
        _untangle(columns, links, rightwards=sweep % 2 == 0)
    return Layout(columns, links)


def _passing(source: str, target: str, depth: Mapping[str, int]) -> list[str]:
    """Names of the points where the edge passes the columns between its ends."""
    return [f"{source}→{target}@{i}" for i in range(depth[source] + 1, depth[target])]


def _untangle(columns: list[list[Slot]], links: Sequence[tuple[str, str]], *, rightwards: bool) -> None:
    """Orders each column by the mean place of its neighbours in the column before it; what has no link goes last."""
    linked = {name for link in links for name in link}
    order = range(1, len(columns)) if rightwards else range(len(columns) - 2, -1, -1)
    for i in order:
        before = _places(columns[i - 1 if rightwards else i + 1])
        wish = _places(columns[i])
        for name in wish:
            near = [before[a] for a, b in links if b == name and a in before]
            near += [before[b] for a, b in links if a == name and b in before]
            wish[name] = sum(near) / len(near) if near else wish[name]
        columns[i].sort(key=lambda slot: (slot.name not in linked, wish[slot.name]))


def _places(column: Sequence[Slot]) -> dict[str, float]:
    """Where each slot stands, counted from the middle."""
    return {slot.name: j - (len(column) - 1) / 2 for j, slot in enumerate(column)}


def _edges(graph: Graph, layout: Layout) -> Iterator[str]:
    middles = layout.middles()
    depth = {name: middles[name][0] for name in graph.nodes}
    for table in graph.tables:
        for source in table.inputs:
            i, y = middles[source]
            x = float(layout.left(i) + layout.width(i))
            path = f"M{x:g} {y:g}"
            for name in (*_passing(source, table.name, depth), table.name):
                j, to_y = middles[name]
                to_x = float(layout.left(j))
                bend = (to_x - x) / 2
                path += f" C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x:g} {to_y:g}"
                x, y = to_x, to_y
                if name != table.name:
                    x += layout.width(j)
                    path += f" H{x:g}"
            yield f'<path class="edge" d="{path}"/>'


def _boxes(layout: Layout) -> Iterator[str]:
    middles = layout.middles()
    for i, column in enumerate(layout.columns):
        for slot in column:
            if (node := slot.node) is None:
                continue
            x, y, width = layout.left(i), middles[slot.name][1], layout.width(i)
            fill, stroke = FILL[node.layer], STROKE[node.layer]
            round_ = HEIGHT / 2 if node.layer == "log" else 6
            yield (
                f'<rect class="node" x="{x}" y="{y - HEIGHT / 2:g}" width="{width}" height="{HEIGHT}" '
                f'rx="{round_:g}" fill="{fill}" stroke="{stroke}"/>'
            )
            yield f'<text x="{x + 14}" y="{y - 3:g}" font-weight="600">{escape(node.title)}</text>'
            yield f'<text class="kind" x="{x + 14}" y="{y + 13:g}">{escape(node.subtitle)}</text>'
