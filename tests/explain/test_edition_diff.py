"""Rows changed between two editions, without Spark."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from lake.config import Settings
from lake.engine.explain.edition_diff import EditionDiff, diff_editions
from lake.errors import LakeError
from lake.project.project import load
from lake.store.comparison import comparison_key
from lake.store.ledger import editions
from tests.shop import contract, declare
from tests.warehouse import publish, write

JOB = '''
from lake import Latest, log, table


@table(Latest("k"), log("things"))
def thing(things):
    """A thing."""
    return things.select("k", "v")
'''
CONTRACT = contract("things", {"k": "int", "v": "string"}, id="content")


@pytest.fixture
def things(project: Settings) -> Settings:
    declare(project, CONTRACT, jobs={"thing": JOB})
    return project


def _differ(settings: Settings, old: int = 1, new: int = 2, **options: Any) -> EditionDiff:
    return diff_editions(load(settings), None, "thing", old=old, new=new, **options)


def _path(settings: Settings) -> Path:
    return settings.warehouse_path / "silver/thing"


def test_edition_diff_reads_no_file_shared_by_both(things: Settings) -> None:
    write(things, "silver", "thing", "SELECT range::INT AS k, 'same' AS v, 1 AS _state FROM range(100)")
    [shared] = DeltaTable(str(_path(things))).file_uris()
    publish(
        things,
        1,
        thing=(
            "silver",
            write(things, "silver", "thing", "FROM (VALUES (200, 'a', 1), (201, 'b', 1)) t(k, v, _state)"),
        ),
    )
    table = DeltaTable(str(_path(things)))
    table.update(predicate="k = 200", updates={"v": "'new'", "_state": "2"})
    table.update(predicate="k = 201", updates={"_state": "2"})
    publish(
        things,
        2,
        thing=("silver", write(things, "silver", "thing", "SELECT 300 AS k, NULL::VARCHAR AS v, 1 AS _state")),
    )
    Path(shared).unlink()
    found = _differ(things)
    assert (found.counts.inserted, found.counts.updated, found.counts.deleted) == (1, 1, 0)
    assert [(row.change, row.identity, row.columns) for row in found.sample] == [
        ("update", {"k": 200}, {"v": ("a", "new")}),
        ("insert", {"k": 300}, {}),
    ]
    assert found.notes == ()
    back = _differ(things, 2, 1)
    assert (back.counts.inserted, back.counts.updated, back.counts.deleted) == (0, 1, 1)
    assert "earlier cut" in back.notes[0]


def test_edition_diff_samples_each_change_within_its_limit(things: Settings) -> None:
    publish(
        things, 1, thing=("silver", write(things, "silver", "thing", "SELECT range::INT AS k, 'x' AS v FROM range(9)"))
    )
    version = write(things, "silver", "thing", "SELECT range::INT AS k, 'y' AS v FROM range(5, 14)", mode="overwrite")
    publish(things, 1, thing=("silver", version))
    found = _differ(things, limit=2)
    assert (found.counts.inserted, found.counts.updated, found.counts.deleted) == (5, 4, 5)
    assert [(row.change, row.identity["k"]) for row in found.sample] == [
        ("update", 5),
        ("update", 6),
        ("insert", 9),
        ("insert", 10),
        ("delete", 0),
        ("delete", 1),
    ]
    assert found.notes == ("both are of cut 1: the table was rebuilt in between",)


def test_edition_diff_compares_the_common_columns(things: Settings) -> None:
    write(things, "silver", "thing", "SELECT 1 AS k, 'a' AS v, 7 AS size, 'old' AS gone")
    write(things, "silver", "other", "SELECT 1 AS k, 'a' AS v, '8' AS size, true AS fresh")
    publish(things, 1, thing=("silver", 0))
    entry = editions.EditionTable("silver", "silver/other", 0, "g")
    editions.record_edition(things, 2, {"thing": entry})
    found = _differ(things)
    assert (found.columns.added, found.columns.removed) == (("fresh",), ("gone",))
    assert found.columns.retyped == {"size": ("INTEGER", "VARCHAR")}
    assert [row.columns for row in found.sample] == [{"size": ("7", "8")}]
    assert found.notes == ("its definition changed between them (f, then g)",)


@pytest.mark.parametrize("seed", range(4))
def test_edition_diff_of_a_changed_identity_has_all_rows(things: Settings, seed: int) -> None:
    """Each side may have several rows of what identifies those of the other."""
    dice = Random(seed)
    sides = [
        [(dice.randrange(3), dice.choice(["'a'", "'b'", "NULL"])) for _ in range(dice.randrange(1, 9))] for _ in "ab"
    ]
    for number, rows in enumerate(sides):
        values = ", ".join(f"({k}, {v}, {at})" for at, (k, v) in enumerate(rows))
        write(things, "silver", f"thing{number}", f"FROM (VALUES {values}) t(k, v, at{number})")
        entry = editions.EditionTable("silver", f"silver/thing{number}", 0, "fg"[number], identity=("k", f"at{number}"))
        editions.record_edition(things, number + 1, {"thing": entry})
    before, after = map(Counter, sides)
    found = _differ(things, limit=20)
    assert (found.counts.inserted, found.counts.updated, found.counts.deleted) == (
        (after - before).total(), 0, (before - after).total()
    )  # fmt: skip
    listed = Counter((row.change, row.identity["k"], row.identity["v"]) for row in found.sample)
    text = {"NULL": None, "'a'": "a", "'b'": "b"}
    changed = [
        (kind, k, v)
        for kind, some in (("insert", after - before), ("delete", before - after))
        for k, v in some.elements()
    ]
    assert listed == Counter((kind, k, text[v]) for kind, k, v in changed)
    assert "compared as a whole" in found.notes[-1]


def test_edition_diff_compares_complete_rows_without_a_job(things: Settings) -> None:
    publish(things, 1, thing=("silver", write(things, "silver", "thing", "SELECT 1 AS k, 'a' AS v")))
    publish(things, 2, thing=("silver", write(things, "silver", "thing", "SELECT 1 AS k, 'b' AS v", mode="overwrite")))
    things.path("jobs/silver/thing.py").unlink()
    found = _differ(things)
    assert (found.counts.inserted, found.counts.updated, found.counts.deleted) == (1, 0, 1)
    assert found.notes[-2].startswith("its job was removed")


def test_edition_diff_reports_a_table_that_it_cannot_compare(things: Settings) -> None:
    version = write(things, "silver", "thing", "SELECT 1 AS k, 'a' AS v")
    publish(things, 1, thing=("silver", version))
    publish(things, 2, thing=("silver", version), other=("silver", version))
    assert _differ(things).notes == ("both editions have the same version of the table",)
    publish(things, 3, other=("silver", version))
    for pair, told in {(1, 3): "edition 3 has no table 'thing'", (1, 9): "editions 1 to 3 exist"}.items():
        with pytest.raises(LakeError, match=told):
            _differ(things, *pair)


def test_keys_of_nested_values_have_the_order_and_equality_of_sql() -> None:
    ordered = [
        *(None, {"a": None, "b": 1}, {"a": [], "b": 0}, {"a": [None], "b": 0}, {"a": [1.5], "b": None}),
        *({"a": [1.5], "b": 0}, {"a": [1.5, None], "b": 0}, {"a": [float("nan")], "b": None}),
    ]
    keys = [comparison_key(value) for value in ordered]
    assert sorted(keys) == keys
    assert len(
        {*keys, *map(comparison_key, deepcopy(ordered)), comparison_key({"a": [float("nan")], "b": None})}
    ) == len(keys)
