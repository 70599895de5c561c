"""A sink that takes rows of any shape gets the rows that a deploy of another type changed, of any two types."""

from __future__ import annotations

from typing import Final

import pytest

from lake.config import Settings
from lake.read.net_changes import NetChanges, TableInEdition
from lake.sinks.condition import condition_of
from lake.sinks.kind import DeclaredTable
from lake.sinks.plan import DeclaredChanges
from lake.store.ledger.editions import EditionTable, get_edition, record_edition
from tests.shop import empty
from tests.warehouse import write

VALUES: Final = {
    "INTEGER": "1",
    "BIGINT": "1",
    "DOUBLE": "1.5",
    "FLOAT": "0.1",
    "DECIMAL(10,2)": "1.25",
    "DECIMAL(38,2)": "123456789012345678901234567890123456.78",
    "VARCHAR": "'1'",
    "BOOLEAN": "true",
    "DATE": "'2024-01-01'",
    "TIMESTAMPTZ": "'2024-01-01 00:00:00+00'",
    "BLOB": "'ab'",
    "INTEGER[]": "[1, NULL]",
    "STRUCT(a INTEGER)": "{'a': 1}",
    "STRUCT(a INTEGER, b VARCHAR)": "{'a': 1, 'b': NULL}",
    "MAP(VARCHAR, INTEGER)": "MAP {'a': 1}",
}
ALIKE: Final = {"INTEGER", "BIGINT"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Return a warehouse with an edition for each type, in order: a table of two rows, the second without a value."""
    settings = empty(tmp_path_factory.mktemp("retyped") / "project")
    for number, (kind, value) in enumerate(VALUES.items(), 1):
        write(settings, "silver", f"thing{number}", f"FROM (VALUES (1, {value}::{kind}), (2, NULL)) t(k, v)")
        entry = EditionTable("silver", f"silver/thing{number}", 0, f"{number}", identity=("k",))
        record_edition(settings, number, {"thing": entry})
    return settings


@pytest.mark.parametrize("before", ["INTEGER", *(pytest.param(kind, marks=pytest.mark.long) for kind in [*VALUES][1:])])
def test_sink_gets_the_updates_of_a_retyped_column(settings: Settings, before: str) -> None:
    numbers, table = [*VALUES], DeclaredTable("thing", "thing", shaped=False, condition=condition_of([], "", "x"))
    for after in VALUES:
        was, now = (
            TableInEdition.of(settings, "thing", get_edition(settings, numbers.index(kind) + 1))
            for kind in (before, after)
        )
        assert now
        rows = DeclaredChanges(NetChanges(settings, was, now), table).batches().read_all().to_pylist()
        changed = [] if {before, after} <= ALIKE or before == after else [1]
        assert [row["after"]["k"] for row in rows] == changed, (before, after)
        assert {row["change"] for row in rows} <= {"update"}
