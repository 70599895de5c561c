"""Tables that begin anew and keep nothing of their past, also when interrupted. No JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lake.store import delta, duckdb_tables
from lake.store.delta import Position, start
from lake.store.storage import Address
from lake.store.table_logs import FolderLog, invalidate
from lake.store.upkeep import vacuum
from tests.checks import present

pytestmark = pytest.mark.slow

APP = "table:guest"
NAME = "margaret hamilton"


@pytest.fixture(params=[1, 23])
def guests(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """Table whose last commit has removed a person."""
    position, guests = start(APP), Address(str(tmp_path / "guest"))
    for _ in range(request.param):
        position = Position(APP, position.txn + 1, {"cut": 1, "verb": "advance"})
        duckdb_tables.append(guests, "who VARCHAR", [[NAME]], position)
    DeltaTable(str(guests)).delete()
    return guests


def files_with_name(path: Address) -> list[Path]:
    return [file for file in path.local.rglob("*") if file.is_file() and NAME.encode() in file.read_bytes()]


def test_history_restart_is_repeated_when_killed_before_its_checkpoint(
    guests: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: DeltaTable) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(DeltaTable, "create_checkpoint", dies)
        with pytest.raises(KeyboardInterrupt):
            vacuum.begin_anew(guests, delta.head(guests, APP), purge=1)
    head = delta.head(guests, APP)
    assert present(head).data["purge"] == 1
    assert delta.newest_checkpoint(guests) < present(head).version
    assert files_with_name(guests)
    version = vacuum.begin_anew(guests, head, purge=1)
    assert delta.newest_checkpoint(guests) == version == present(delta.head(guests, APP)).version
    vacuum.truncate(guests)
    assert files_with_name(guests) == []


def test_history_restart_repeats_only_the_definition_of_an_older_build(tmp_path: Path) -> None:
    path = Address(str(tmp_path / "t"))
    build = start(APP).next(definition={"kind": "Latest"}, content="1-aa")
    for position in (build, build.next(cut=2)):  # the newer one, as Spark commits it, has no fingerprint
        duckdb_tables.append(path, "a BIGINT", [[1]], position)
    vacuum.begin_anew(path, delta.head(path, APP), purge=1)
    data = present(delta.head(path, APP)).data
    assert data == {"cut": 2, "definition": {"kind": "Latest"}, "origin": 1, "purge": 1, "repeated": True}


@pytest.mark.parametrize("by_other_process", [False, True])
def test_truncated_table_has_no_positions_before_its_checkpoint(guests: Address, by_other_process: bool) -> None:
    version = vacuum.begin_anew(guests, delta.head(guests, APP), purge=1)
    assert len([*delta.positions(guests, APP)]) > 1
    with pytest.MonkeyPatch.context() as patch:
        if by_other_process:
            patch.setattr(FolderLog, "forget", lambda _: None)
        vacuum.truncate(guests)
    invalidate(guests)
    assert [position.version for position in delta.positions(guests, APP)] == [version]


def test_truncated_note_of_the_newest_checkpoint_is_ignored(guests: Address) -> None:
    vacuum.begin_anew(guests)
    (guests / "_delta_log/_last_checkpoint").local.write_text('{"version":')
    assert delta.newest_checkpoint(guests) == -1


def test_published_version_stays_when_the_table_has_a_newer_checkpoint(guests: Address) -> None:
    published = vacuum.begin_anew(guests, delta.head(guests, APP), purge=1)
    for number in range(25):
        head = delta.head(guests, APP)
        duckdb_tables.append(
            guests, "who VARCHAR", [[f"guest {number}"]], Position(APP, present(head).txn + 1, present(head).data)
        )
        DeltaTable(str(guests)).delete()
    DeltaTable(str(guests)).create_checkpoint()
    assert delta.newest_checkpoint(guests) > published
    assert vacuum.truncate(guests, upto=published) > 0
    assert duckdb_tables.rows(guests, "SELECT * FROM t", version=published) == []
    assert duckdb_tables.rows(guests, "SELECT * FROM t", version=published + 1) == [{"who": "guest 0"}]
    assert files_with_name(guests) == []
    with pytest.raises(DeltaError):
        DeltaTable(str(guests), version=published - 1)
