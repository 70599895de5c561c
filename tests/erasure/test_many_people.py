"""More people than keys are held in memory at once: keys in parts, equal tables, equal erasures."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lake import cost
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild_all
from lake.engine.verify import verify_all
from lake.errors import DeclarationError
from lake.ingest import field_encryption
from lake.ops.pipeline import catch_up
from lake.privacy.forget import LostKeysResult, forget, give_up
from lake.publish.cut import cut
from lake.store import log as logs
from lake.store import scan
from lake.testing import Lakehouse
from tests.shop import new_shop, order

PEOPLE = 12
NEW = 6
FORGOTTEN = "person 5"


def land_orders(shop: Lakehouse, first: int) -> None:
    """Land orders of all people and some new ones: some repeated, one with other content, one rejected."""
    orders = [order(number, f"person {number % PEOPLE}", note=f"to {number}") for number in range(first, first + 30)]
    orders += [order(first + 100 + number, f"new {first + number}") for number in range(NEW)]
    broken = order(999, "person 1") | {"amount": "a lot"}
    shop.land("orders", *orders, *orders[:5], orders[7] | {"amount": "1.00"}, broken)


def project_state(shop: Lakehouse) -> list[Any]:
    """Return the rows of the tables, and the log."""
    head = logs.Log(shop.settings, "orders").head()
    return [*(shop.table(name) for name in shop.project.tables), head.offsets, head.counts, head.keys["subjects"]]


def story(shop: Lakehouse) -> Iterator[Any]:
    """Return the state of the project after each step with the keys of its people."""

    def spark() -> SparkSession:
        return shop.spark

    land_orders(shop, 0)
    shop.run()
    yield project_state(shop)
    older = shop.settings.keys_path.read_bytes()
    forget(shop.project, spark, "orders", FORGOTTEN)
    catch_up(shop.project, spark, lambda _: None)
    yield project_state(shop)
    for first in (20, 40):
        land_orders(shop, first)
        shop.run()
        yield project_state(shop)
    rebuild_all(Inputs(spark, shop.project, cut(shop.project)), (), on_progress=lambda _: None)
    yield project_state(shop)
    yield {each.verdict for each in verify_all(spark, shop.project, on_progress=lambda _: None)}
    shop.settings.keys_path.write_bytes(older)
    with pytest.raises(DeclarationError) as lost:
        logs.Log(shop.settings, "orders").key_store()
    yield lost.value.what
    yield give_up(shop.project, "orders")
    catch_up(shop.project, spark, lambda _: None)
    yield project_state(shop)


@pytest.fixture(scope="module")
def story_at_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the story with all keys in memory at once."""
    del spark
    return [*story(new_shop(tmp_path_factory.mktemp("within")))]


@pytest.mark.long
@pytest.mark.parametrize("most", [1, 5, 12, 14])
def test_tables_are_equal_for_keys_loaded_at_once_or_in_parts(
    story_at_once: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    parts: Counter[str] = Counter()

    def counted(where: str) -> Any:
        def spooled(spark: SparkSession, tables: Iterator[pa.Table]) -> DataFrame:
            def each() -> Iterator[pa.Table]:
                for number, table in enumerate(tables, 1):
                    # The digits of a token select a part of a batch: about as many people in each.
                    assert where == "log" or table.num_rows <= 4 * most + 4
                    parts[where] = max(parts[where], number)
                    yield table

            return scan.spooled(spark, each())

        return spooled

    monkeypatch.setattr(logs, "spooled", counted("log"))
    monkeypatch.setattr(field_encryption, "spooled", counted("batch"))
    monkeypatch.setattr(cost, "PEOPLE_AT_ONCE", most)
    monkeypatch.setattr(cost, "SCAN_ROWS", 5)
    assert [*story(new_shop(tmp_path))] == story_at_once
    assert min(parts["log"], parts["batch"]) > 1
    assert story_at_once[5] == {"identical"}
    assert story_at_once[-3:-1] == [
        "the keys of 12 people of orders are not in the key store",
        LostKeysResult(12, renamed=False),
    ]
    shutil.rmtree(tmp_path)
