from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from lake.drawing import as_svg, lay_out
from lake.graph import Graph, Node, as_mermaid, as_tree

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def graph() -> Graph:
    """A log that nothing reads, a table of two inputs, and an edge that passes a column."""
    return Graph(
        (Node("airlines", "log"), Node("flights", "log"), Node("planes", "log")),
        (
            Node("flight", "silver", "Latest", ("leg_id",), ("flights",)),
            Node("carrier_daily", "gold", "Aggregate", ("carrier", "day"), ("flight",)),
            Node("league", "gold", "View", (), ("carrier_daily", "airlines")),
        ),
    )


def test_the_graph_is_data(graph: Graph) -> None:
    assert graph.data()["streams"] == ["airlines", "flights", "planes"]
    assert graph.data()["tables"][1] == {
        "name": "carrier_daily",
        "layer": "gold",
        "kind": "Aggregate",
        "key": ["carrier", "day"],
        "inputs": ["flight"],
    }


def test_the_graph_knows_what_depends_on_a_table(graph: Graph) -> None:
    assert graph.below("flight") == ["carrier_daily", "league"]
    assert graph.below("carrier_daily", including=["carrier_daily"]) == ["carrier_daily", "league"]
    assert graph.below("planes") == []


def test_a_tree_tells_each_table_in_full_once(graph: Graph) -> None:
    assert [*as_tree(graph)] == [
        "airlines",
        "└── gold.league, under gold.carrier_daily",
        "flights",
        "└── silver.flight             Latest by leg_id",
        "    └── gold.carrier_daily    Aggregate by carrier, day",
        "        └── gold.league       View; also from airlines",
        "planes",
    ]


def test_mermaid_names_every_node_and_edge(graph: Graph) -> None:
    text = "\n".join(as_mermaid(graph))
    assert text.startswith("flowchart LR\n  subgraph log_ [log]\n")
    assert 'gold_carrier_daily["carrier_daily<br/><small>Aggregate by carrier, day</small>"]' in text
    assert "  log_airlines --> gold_league" in text
    assert text.count("-->") == 4


def test_the_drawing_is_well_formed_and_complete(graph: Graph) -> None:
    root = ET.fromstring("\n".join(as_svg(graph)))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"airlines", "gold.league", "Latest by leg_id"} <= set(texts)
    assert len([each for each in root.iter(f"{SVG}path") if each.get("class") == "edge"]) == 4


def test_the_drawing_puts_each_table_to_the_right_of_its_inputs(graph: Graph) -> None:
    layout = lay_out(graph)
    middles = layout.middles()
    assert all(middles[source][0] < middles[table.name][0] for table in graph.tables for source in table.inputs)
    assert len(set(middles.values())) == sum(map(len, layout.columns))
    assert [slot.name for slot in layout.columns[0]][-1] == "planes"


def test_an_empty_project_can_be_drawn() -> None:
    assert ET.fromstring("\n".join(as_svg(Graph((), ())))).tag == f"{SVG}svg"
