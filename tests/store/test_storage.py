"""Storage requests. No JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lake.store.storage import LOCAL as FOLDER
from lake.store.storage import Address, Storage
from tests.store.memory import Bucket
from tests.store.storage_contract import CONTRACT


@pytest.fixture
def folder(tmp_path: Path) -> Address:
    return Address(str(tmp_path))


@pytest.mark.parametrize("storage", [FOLDER, None], ids=["folder", "memory"])
@pytest.mark.parametrize("part", CONTRACT, ids=lambda part: part.__name__)
def test_storage_keeps_its_contract(part: Callable[[Address], None], storage: Storage | None, tmp_path: Path) -> None:
    part(Address(str(tmp_path), storage or Bucket()))


def test_listing_of_a_folder_has_links_but_does_not_follow_them(folder: Address) -> None:
    (folder / "z").put_if_absent(b"z")
    (folder / "link").local.symlink_to("z")
    assert [entry.name for entry in folder.list()] == ["link", "z"]
    assert [entry.name for entry in folder.list(deep=True)] == ["z"]


def test_address_has_names_and_an_order() -> None:
    root = Address("/data/warehouse")
    table = root / "silver" / "flight"
    assert (str(table), table.name, str(table.parent)) == ("/data/warehouse/silver/flight", "flight", f"{root}/silver")
    assert (table.relative_to(root), table.url) == ("silver/flight", "/data/warehouse/silver/flight")
    assert sorted([table, root]) == [root, table]
    with pytest.raises(ValueError, match="is not in"):
        root.relative_to(table)
