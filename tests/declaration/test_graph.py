from __future__ import annotations

import pytest

from lake.config import load_settings
from lake.ops.graph import Graph, Node, as_dot, as_mermaid, as_tree
from lake.project.project import load


@pytest.fixture
def graph() -> Graph:
    """Return a graph with an unread log, a table of two inputs, and an edge that passes a column."""
    return Graph(
        (Node("airlines", "log"), Node("flights", "log"), Node("planes", "log")),
        (
            Node("flight", "silver", "Latest", ("leg_id",), ("flights",)),
            Node("carrier_daily", "gold", "Aggregate", ("carrier", "day"), ("flight",)),
            Node("league", "gold", "View", (), ("carrier_daily", "airlines")),
        ),
    )


def test_graph_is_exported_as_data(graph: Graph) -> None:
    assert graph.data()["streams"] == ["airlines", "flights", "planes"]
    assert graph.data()["tables"][1] == {
        "name": "carrier_daily",
        "layer": "gold",
        "kind": "Aggregate",
        "key": ["carrier", "day"],
        "inputs": ["flight"],
    }


def test_project_lists_the_dependents_of_a_table_and_of_a_stream(request: pytest.FixtureRequest) -> None:
    project = load(load_settings(request.config.rootpath))
    assert project.below("carrier_daily") == ["carrier_league"]
    assert project.below("carrier_daily", including=["carrier_daily"]) == ["carrier_daily", "carrier_league"]
    assert project.below("carrier_league") == []
    assert {"flight", "carrier_daily", "carrier_league"} < set(project.below("flights"))


def test_tree_shows_each_table_in_full_once(graph: Graph) -> None:
    assert [*as_tree(graph)] == [
        "airlines",
        "└── gold.league, under gold.carrier_daily",
        "flights",
        "└── silver.flight             Latest by leg_id",
        "    └── gold.carrier_daily    Aggregate by carrier, day",
        "        └── gold.league       View; also from airlines",
        "planes",
    ]


def test_depth_of_a_long_chain_of_joins_is_known_at_once() -> None:
    tables = [Node("t1", "silver", inputs=("events",)), Node("t2", "silver", inputs=("events", "t1"))]
    tables += [Node(f"t{n}", "silver", inputs=(f"t{n - 1}", f"t{n - 2}")) for n in range(3, 200)]
    graph = Graph((Node("events", "log"),), tuple(tables))
    assert graph.depths["t199"] == 199


def test_mermaid_names_every_node_and_edge(graph: Graph) -> None:
    text = "\n".join(as_mermaid(graph))
    assert text.startswith("flowchart LR\n  subgraph log_ [log]\n")
    assert 'gold_carrier_daily["carrier_daily<br/><small>Aggregate by carrier, day</small>"]' in text
    assert "  log_airlines --> gold_league" in text
    assert text.count("-->") == 4


def test_dot_names_every_node_and_edge(graph: Graph) -> None:
    lines = [*as_dot(graph)]
    assert lines[0] == "digraph tables {"
    assert '  gold_carrier_daily [label="gold.carrier_daily\\nAggregate by carrier, day"];' in lines
    assert '  log_planes [shape=cylinder, label="planes\\nlog"];' in lines
    assert [line for line in lines if "->" in line][-1] == "  log_airlines -> gold_league;"
    assert lines[-1] == "}"


def test_empty_graph_is_drawn() -> None:
    assert [*as_tree(Graph((), ()))] == []
    assert [*as_dot(Graph((), ()))][-1] == "}"
