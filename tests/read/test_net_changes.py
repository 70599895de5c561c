"""Net changes of a table's rows between two editions, in any way that one follows the other."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from lake import cost
from lake.config import Settings
from lake.errors import StorageError
from lake.read.net_changes import NetChange, net_changes
from lake.store.comparison import proven_feed
from lake.store.ledger.editions import Edition, EditionTable, get_edition, record_edition
from tests.read.things import NAME, Things
from tests.warehouse import write

pytestmark = pytest.mark.slow


@pytest.fixture
def things(project: Settings) -> Things:
    return Things(project)


def changes_between(things: Things, old: int | None, new: int) -> list[NetChange]:
    before = None if old is None else get_edition(things.settings, old)
    return list(net_changes(things.settings, NAME, before, get_edition(things.settings, new)))


def outline(changes: list[NetChange]) -> list[tuple[str, int | None]]:
    return [(change.change, change.key["k"]) for change in changes]


def edition(settings: Settings, cut: int, home: str, *identity: str, query: str) -> Edition:
    version = write(settings, "silver", home, query, mode="overwrite", merge=True)
    return record_edition(
        settings, cut, {NAME: EditionTable("silver", f"silver/{home}", version, "f", identity=identity)}
    )


def test_net_changes_are_inserts_updates_and_deletes_in_order_of_keys(things: Things) -> None:
    things.change({3: 1, 1: 2, None: 3, 2: 4})
    things.change({3: 1, 1: 3, 5: 0, None: 4})
    found = changes_between(things, 1, 2)
    assert outline(found) == [("update", 1), ("delete", 2), ("insert", 5), ("update", None)]
    update, delete, insert, _ = found
    assert update.before is not None
    assert update.after is not None
    assert (update.before["amount"], update.after["amount"]) == (Decimal("0.50"), Decimal("0.75"))
    assert list(update.after) == ["k", "amount", "ratio", "word", "part", "at"], "no state is shown"
    assert (delete.after, insert.before) == (None, None)
    assert outline(changes_between(things, 2, 1)) == [("update", 1), ("insert", 2), ("delete", 5), ("update", None)]


def test_snapshot_is_all_rows_as_inserts(things: Things) -> None:
    things.change({2: 1, 1: 7})
    found = changes_between(things, None, 1)
    assert outline(found) == [("insert", 1), ("insert", 2)]
    assert {change.key["k"]: change.after for change in found} == things.as_of(1)


def test_same_rows_written_again_are_no_change(things: Things) -> None:
    things.change(dict.fromkeys(range(20), 5) | {None: 5} | {n: n for n in range(20)})
    things.publish()
    things.home = "thing@2"
    things.publish()
    assert [changes_between(things, old, new) for old, new in ((1, 2), (2, 3), (1, 3), (3, 1))] == [[], [], [], []]


def test_files_shared_by_two_versions_are_not_read(things: Things) -> None:
    settings = things.settings
    write(settings, "silver", NAME, "SELECT range AS k, 'same' AS v FROM range(100)")
    [shared] = DeltaTable(str(settings.warehouse_path / "silver" / NAME)).file_uris()
    entries = [
        EditionTable(
            "silver",
            f"silver/{NAME}",
            write(settings, "silver", NAME, f"SELECT {k} AS k, 'x' AS v"),
            "f",
            identity=["k"],
        )
        for k in (200, 201)
    ]
    for cut, entry in enumerate(entries, start=1):
        record_edition(settings, cut, {NAME: entry})
    Path(shared).unlink()
    assert outline(changes_between(things, 1, 2)) == [("insert", 201)]
    with pytest.raises(StorageError, match="edition 2 cannot be read: a file is gone"):
        changes_between(things, None, 2)


@pytest.mark.parametrize("rows", [0, 10**6])
def test_large_table_is_compared_by_its_feed_with_the_same_result(
    things: Things, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(cost, "FEED_ROWS", rows)
    things.change({n: n for n in range(50)})
    things.change({n: n + (n == 7) for n in range(1, 50)} | {None: 1})
    things.publish()
    things.change({n: n for n in range(1, 51)})
    settings, first, second = things.settings, get_edition(things.settings, 1), get_edition(things.settings, 2)
    with duckdb.connect() as con:
        assert proven_feed(con, things.path, first.tables[NAME], second.tables[NAME]) is (rows == 0)
    assert outline(list(net_changes(settings, NAME, first, second))) == [("delete", 0), ("update", 7), ("insert", None)]
    assert outline(list(net_changes(settings, NAME, second, first))) == [("insert", 0), ("update", 7), ("delete", None)]
    assert outline(changes_between(things, 1, 4)) == [("delete", 0), ("insert", 50)]
    assert changes_between(things, 2, 3) == []


def test_incomplete_feed_is_not_used(things: Things, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "FEED_ROWS", 0)
    things.change({1: 1, 2: 2})
    things.change({1: 1, 2: 3, 3: 3})
    old, new = (get_edition(things.settings, number).tables[NAME] for number in (1, 2))
    with duckdb.connect() as con:
        assert not proven_feed(con, things.path, replace(old, content=new.content), new)
    for file in (things.settings.warehouse_path / "silver" / NAME / "_change_data").iterdir():
        file.unlink()
    with duckdb.connect() as con:
        assert not proven_feed(con, things.path, old, new)
    assert outline(changes_between(things, 1, 2)) == [("update", 2), ("insert", 3)]


def test_table_that_joins_an_edition_is_inserted_and_a_retired_one_deleted(things: Things) -> None:
    things.rows = {1: 1}
    things.publish(without=True)
    things.publish()
    assert outline(changes_between(things, 1, 2)) == [("insert", 1)]
    assert outline(changes_between(things, 2, 1)) == [("delete", 1)]
    things.publish(without=True)
    assert changes_between(things, 1, 3) == []


def test_changed_columns_update_every_row_that_stays(things: Things) -> None:
    things.change({1: 2, 2: 2})
    things.deploy()
    found = changes_between(things, 1, 2)
    assert outline(found) == [("update", 1), ("update", 2)]
    assert [set(change.after or {}) - set(change.before or {}) for change in found] == [{"more"}, {"more"}]


def test_changed_identity_deletes_and_inserts_every_row(project: Settings) -> None:
    old = edition(project, 1, NAME, "k", query="SELECT 1 AS k, 'b' AS v UNION ALL SELECT 2, 'a'")
    new = edition(project, 2, "thing@2", "v", query="SELECT 1 AS k, 'b' AS v UNION ALL SELECT 1, 'a'")
    found = list(net_changes(project, NAME, old, new))
    keys = [("delete", {"k": 1}), ("delete", {"k": 2}), ("insert", {"v": "a"}), ("insert", {"v": "b"})]
    assert [(change.change, change.key) for change in found] == keys
    text = edition(project, 3, "thing@3", "k", query="SELECT '1' AS k, 'b' AS v")
    assert [change.change for change in net_changes(project, NAME, old, text)] == ["delete", "delete", "insert"]


def test_rows_are_matched_by_all_columns_when_an_edition_has_no_identity(project: Settings) -> None:
    old = edition(project, 1, NAME, query="SELECT 1 AS k, 'a' AS v")
    new = edition(project, 2, NAME, query="SELECT 1 AS k, 'b' AS v")
    found = list(net_changes(project, NAME, old, new))
    assert [(change.change, change.key) for change in found] == [
        ("delete", {"k": 1, "v": "a"}),
        ("insert", {"k": 1, "v": "b"}),
    ]


def test_map_and_its_values_are_compared(project: Settings) -> None:
    first, same, other = (
        edition(project, n, NAME, "k", query=f"SELECT 1 AS k, MAP {{'a': {value}}} AS m")
        for n, value in enumerate(("1.50::DECIMAL(5, 2)", "1.5::DECIMAL(5, 2)", "NULL::DECIMAL(5, 2)"), start=1)
    )
    assert list(net_changes(project, NAME, first, same)) == []
    [change] = net_changes(project, NAME, same, other)
    assert (change.before, change.after) == ({"k": 1, "m": {"a": Decimal("1.50")}}, {"k": 1, "m": {"a": None}})


def test_nan_equals_nan_and_differs_from_all_numbers(project: Settings) -> None:
    rows = "SELECT * FROM (VALUES (1, 'nan'::DOUBLE), (2, {}), (3, {})) t(k, v)"
    few, many, none = (
        edition(project, n, f"thing@{n}", "k", query=rows.format(*values))
        for n, values in enumerate(((2.0, 3.0), (50.0, 60.0), ("'nan'", 3.0)), start=1)
    )
    assert outline(list(net_changes(project, NAME, few, many))) == [("update", 2), ("update", 3)]
    assert outline(list(net_changes(project, NAME, few, none))) == [("update", 2)]
    assert outline(list(net_changes(project, NAME, none, few))) == [("update", 2)]
    keyed = [replace(side, tables={NAME: replace(side.tables[NAME], identity=["v"])}) for side in (few, many)]
    kinds = [change.change for change in net_changes(project, NAME, *keyed)]
    assert kinds == ["delete", "delete", "insert", "insert"], "1 is the same row"


def test_large_net_changes_come_in_batches_of_rows(project: Settings) -> None:
    big = edition(project, 1, NAME, "k", query="SELECT range AS k, 'v' || range AS v FROM range(25000)")
    batches = [batch.num_rows for batch in net_changes(project, NAME, None, big).arrow() if batch.num_rows]
    assert sum(batches) == 25000
    assert max(batches) <= 10_000
