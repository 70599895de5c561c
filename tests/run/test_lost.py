"""What is done where the newest commits of logs, tables and books were cut short, or are gone. No JVM."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

import lake as public
from lake.config import load_settings
from lake.project import Project, load
from lake.run.inputs import Inputs
from lake.store import delta
from lake.store.delta import Position
from lake.store.lease import lease
from lake.store.meta import Cut
from lake.store.tables import FeedGap
from lake.store.torn import commit_file

TEMPLATE = Path(public.__file__).parent / "templates/project"
ORDER, DAILY = "current_order", "customer_daily"


@pytest.fixture
def shop(tmp_path) -> Project:
    """The project of `lake init`."""
    shutil.copytree(TEMPLATE, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    return load(load_settings(tmp_path / "shop"))


def tear(path: Path) -> None:
    """Cuts the newest commit of the table at `path` short."""
    file = commit_file(path, delta.version(path))
    file.write_bytes(file.read_bytes()[:100])
    delta._kept.clear()


def advanced(shop: Project, name: str, cut: int, **inputs: int) -> Position:
    """Commits a row to the table as of `cut`."""
    table = shop.table(shop.tables[name])
    homes = {each: each for each in inputs if each in shop.tables}
    with lease(shop.settings, table.lease):
        position = (table.position() or delta.start(table.app)).next(cut=cut, voids=0, inputs=inputs, homes=homes)
        delta.append(table.path, "order_id BIGINT", [[cut]], position)
        return table.position()


def at(shop: Project, number: int, voids: int = 0, **batches: int) -> Inputs:
    return Inputs(lambda: pytest.fail("no JVM"), shop, Cut(number, batches, voids, datetime.now(UTC)))


def test_a_table_reads_anew_an_input_that_lost_the_commit_it_was_derived_from(shop):
    advanced(shop, ORDER, 1, orders=1)
    lost = advanced(shop, ORDER, 2, orders=2)
    daily = advanced(shop, DAILY, 2, current_order=lost.version)
    [source] = shop.tables[DAILY].inputs
    assert at(shop, 2, orders=2).changes(source, daily) is None
    tear(shop.table(shop.tables[ORDER]).path)
    with pytest.raises(FeedGap, match="lost what was read"):
        at(shop, 1, orders=1).changes(source, daily)
    assert advanced(shop, ORDER, 3, orders=3).version == lost.version
    with pytest.raises(FeedGap, match="lost what was read"):
        at(shop, 3, orders=3).changes(source, daily)
