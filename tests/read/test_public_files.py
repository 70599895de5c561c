"""Public files: a table's own files, or copies without state columns, deleted in time. No JVM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lake.config import ServeSettings, Settings
from lake.errors import StorageError, Unavailable
from lake.read.public_files import PublicFiles
from lake.read.sql import EditionReader, reader
from lake.store import temporary_files
from lake.store.ledger import editions
from lake.store.warehouse import Warehouse
from tests.reading import append, publish, small
from tests.warehouse import write

STATEFUL = "SELECT i::BIGINT AS n, 'x' || i AS t, i AS _sum FROM range({rows}) r(i)"


def copies(settings: Settings) -> list[str]:
    return sorted(path.name for path in settings.path(".lake/copies").iterdir())


def old(settings: Settings) -> None:
    """Set the times of all copies to the epoch."""
    for path in settings.path(".lake/copies").iterdir():
        os.utime(path, (0, 0))


def rows(public_files: PublicFiles, edition: EditionReader, table: str) -> list[tuple[int, list[str]]]:
    found = [pq.read_table(public_files.path(part.place)) for part in public_files.parts(edition, table)]
    return [(table.num_rows, table.column_names) for table in found]


def test_own_files_of_a_table_are_public_without_state_columns(tmp_path: Path) -> None:
    settings = small(tmp_path / "shop")
    append(settings, 1000, 10)
    public_files, edition = PublicFiles(settings), reader(settings)
    assert rows(public_files, edition, "numbers") == [(10, ["n", "text"]), (1000, ["n", "text"])]
    assert all(part.place.startswith("w/gold/numbers/") for part in public_files.parts(edition, "numbers"))
    assert public_files.parts(edition, "nothing") == []
    assert not settings.path(".lake/copies").exists() or copies(settings) == []


def test_files_written_before_a_new_column_are_copied(tmp_path: Path) -> None:
    settings = small(tmp_path / "shop")
    version = write(settings, "gold", "numbers", "SELECT 5::BIGINT AS n, '5' AS text, 1.5 AS more", merge=True)
    publish(settings, numbers=version)
    public_files = PublicFiles(settings)
    assert rows(public_files, reader(settings), "numbers") == [(1001, ["n", "text", "more"])]
    assert rows(public_files, reader(settings, 1), "numbers") == [(1000, ["n", "text"])]


def test_concurrent_readers_get_one_copy(tmp_path: Path) -> None:
    settings = small(tmp_path / "shop")
    public_files, edition = PublicFiles(settings), reader(settings)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: public_files.parts(edition, "types"), range(16)))
    assert len({tuple(parts) for parts in found}) == 1
    assert len(copies(settings)) == 1
    assert {path.stat().st_mode & 0o077 for path in settings.path(".lake/copies").rglob("*")} == {0}


def test_copy_is_deleted_when_no_edition_and_no_reader_uses_it(tmp_path: Path) -> None:
    settings = small(tmp_path / "shop")
    public_files, soon = PublicFiles(settings), datetime.now(UTC) + timedelta(seconds=60)
    public_files.parts(reader(settings), "types")
    publish(settings, types=write(settings, "gold", "types", "SELECT 9::BIGINT AS id, 1 AS _state", merge=True))
    public_files.parts(reader(settings), "types")
    first, second = copies(settings)
    public_files.sweep(before=soon)
    assert copies(settings) == [first, second]
    editions.expire_editions(settings, [1])
    public_files.sweep(before=datetime.now(UTC) - timedelta(seconds=60))
    assert copies(settings) == [first, second]
    public_files.sweep(before=soon)
    assert copies(settings) == [second]


def test_copies_left_by_a_server_are_deleted_by_maintenance(tmp_path: Path) -> None:
    settings = small(tmp_path / "shop")
    PublicFiles(settings).parts(reader(settings), "types")
    assert temporary_files.leftover_files(settings, datetime.now(UTC) - timedelta(days=1)) == []
    old(settings)
    temporary_files.delete_files(temporary_files.leftover_files(settings, datetime.now(UTC) - timedelta(days=1)))
    assert copies(settings) == []


def test_copies_not_used_recently_are_deleted_to_make_room(tmp_path: Path) -> None:
    settings = small(tmp_path / "shop")
    write(settings, "silver", "local", STATEFUL.format(rows=1000), mode="overwrite", merge=True)
    publish(settings, local=1)
    edition = reader(settings)
    size = max(sum(Path(file).stat().st_size for file in edition.table(name).files) for name in ("types", "local"))
    tight = replace(settings, serve=ServeSettings(copies_bytes=size + 10))
    public_files, tight_edition = PublicFiles(tight), reader(tight)
    public_files.parts(tight_edition, "types")
    with pytest.raises(Unavailable, match=r"no room for a copy of silver\.local"):
        public_files.parts(tight_edition, "local")
    old(settings)
    public_files.parts(tight_edition, "local")
    assert [name.rpartition(".")[0] for name in copies(settings)] == ["silver.local.1"]


def test_copy_that_another_process_deletes_meanwhile_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def and_deleted(found: Callable[..., Iterator[Path]]) -> Callable[..., list[Path]]:
        def listed(folder: Path, *pattern: str) -> list[Path]:
            deleted = [folder / "gold.types.7.deleted"] if folder.name == "copies" else []
            return [*found(folder, *pattern), *deleted]

        return listed

    settings, now = small(tmp_path / "shop"), datetime.now(UTC)
    public_files, edition = PublicFiles(settings), reader(settings)
    for listing in ("iterdir", "glob"):
        monkeypatch.setattr(Path, listing, and_deleted(getattr(Path, listing)))
    assert public_files.parts(edition, "types")
    public_files.sweep(before=now + timedelta(days=1))
    assert temporary_files.leftover_files(settings, now - timedelta(days=1)) == []


def test_copy_that_another_process_deletes_before_its_use_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_first(folder: Path) -> None:
        monkeypatch.undo()
        shutil.rmtree(folder)
        os.utime(folder)

    settings = small(tmp_path / "shop")
    public_files, edition = PublicFiles(settings), reader(settings)
    before = rows(public_files, edition, "types")
    monkeypatch.setattr(os, "utime", delete_first)
    assert rows(public_files, edition, "types") == before


def test_damaged_file_leaves_no_copy(tmp_path: Path) -> None:
    settings = small(tmp_path / "shop")
    edition = reader(settings)
    [file] = edition.table("types").files
    content = Path(file).read_bytes()
    Path(file).write_bytes(content[:100] + bytes(200) + content[300:])
    with pytest.raises(StorageError):
        PublicFiles(settings).parts(edition, "types")
    assert copies(settings) == []
    assert Warehouse(settings).root.local.is_dir()
