"""Waiting for tokens, to read your own writes, and reports of why a batch is not visible."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from lake.cli import Shell, queries
from lake.config import Settings, load_settings
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.ops.scaffold import TEMPLATE
from lake.read.wait import wait
from lake.store import duckdb_tables
from lake.store.ledger import cuts, editions
from lake.store.log import Log
from lake.store.warehouse import Warehouse
from tests.judgements import record_check
from tests.processes import PATIENCE


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Project of `lake init`, whose log of orders has three batches, with a cut and an edition of two."""
    settings = replace(load_settings(TEMPLATE), warehouse=tmp_path / "warehouse")
    for batch in (1, 2, 3):
        head = Log(settings, "orders").head()
        said: dict[str, Any] = {"offsets": {}, "watermark": None, "counts": {}, "files": [], "contract": 1, "at": ""}
        duckdb_tables.append(Warehouse(settings).log("orders").path, "n BIGINT", [(batch,)], head.next(**said))
    publish(settings, 2)
    return settings


def publish(settings: Settings, batch: int) -> editions.Edition:
    cut = cuts.record_cut(settings, {"orders": batch}, 0)
    return editions.record_edition(settings, cut.number, {})


def test_wait_returns_at_once_for_a_visible_batch(settings: Settings) -> None:
    assert wait(settings, ["orders@1", "orders@2", "orders@2"], timeout=0).number == 1


def test_wait_ends_when_the_batch_is_published(settings: Settings) -> None:
    publisher = threading.Thread(target=publish, args=(settings, 3))
    publisher.start()
    assert wait(settings, ["orders@1", "orders@3"], timeout=PATIENCE).cut == 2
    publisher.join()


def test_wait_reports_the_missing_step_when_it_times_out(settings: Settings) -> None:
    def missing(*words: str) -> None:
        with pytest.raises(Unavailable, match=".*".join(words)):
            wait(settings, ["orders@2", "orders@3"], timeout=0)

    missing("orders@3: not published after 0 s", r"edition 1 \(cut 1\) has orders up to batch 2", "no cut has it yet")
    cuts.record_cut(settings, {"orders": 3}, 0)
    missing("cut 2 has it and is not published yet")
    record_check(
        settings,
        "current_order",
        home="current_order",
        scope="diff",
        cut=2,
        version=None,
        suite="",
        outcome="stopped",
        results=[],
    )
    missing("the gate stopped current_order at cut 2")
    editions.pin_edition(settings, 1)
    editions.record_edition(settings, 2, {})
    missing("readers are pinned to edition 1; the newest is 2, of cut 2")


def test_wait_reports_that_no_edition_is_published_yet(settings: Settings) -> None:
    bare = replace(settings, warehouse=settings.warehouse_path.parent / "other")
    duckdb_tables.append(Warehouse(bare).log("orders").path, "n BIGINT", [], Log(settings, "orders").head().position)
    with pytest.raises(Unavailable, match="nothing has been published yet; no cut has it yet"):
        wait(bare, ["orders@3"], timeout=0)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("orders", "'orders' is not a valid token"),
        ("orders@", "is not a valid token"),
        ("orders@-1", "is not a valid token"),
        ("@3", "is not a valid token"),
        ("order@3", "did you mean 'orders'"),
        ("orders@4", "the log of orders has no batch 4: its newest batch is 3"),
    ],
)
def test_wait_rejects_an_impossible_token_at_once(settings: Settings, token: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        wait(settings, ["orders@1", token], timeout=PATIENCE)


def test_query_after_a_token_reads_the_current_edition(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shell, "settings", settings)
    context = click.Context(queries.sql, obj=Shell())
    with context, pytest.raises(DeclarationError, match="--after waits for the current edition"):
        queries.sql.main(["--after", "orders@1", "--cut", "1", "from x"], standalone_mode=False, obj=Shell())


@pytest.mark.parametrize(("progress", "error"), [({"lsn": "0/16"}, DeclarationError), ({"upto": 1}, Unavailable)])
def test_token_of_a_source_that_is_not_declared_is_resolved_by_the_log(
    settings: Settings, progress: dict[str, Any], error: type[LakeError]
) -> None:
    log, head = Warehouse(settings).log("orders"), Log(settings, "orders").head()
    source = {"delivery": 1, "streams": ["orders"], "progress": progress, "batch": 4}
    said: dict[str, Any] = {"offsets": {}, "watermark": None, "counts": {}, "files": [], "contract": 1, "at": ""}
    duckdb_tables.append(log.path, "n BIGINT", [(4,)], head.next(**said, sources={"shop": source}))
    with pytest.raises(error):
        wait(settings, ["orders@shop:1:0"], timeout=0)
