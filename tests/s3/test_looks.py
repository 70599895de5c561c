"""Lookups of a step in a bucket: another host may write meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.ingest.append import append
from lake.project.project import load
from lake.publish import cut as cut_module
from lake.publish.cut import cut
from lake.store.ledger import contract_versions
from lake.store.ledger.cuts import latest_cut
from lake.store.log_head import LogHead
from lake.store.view import view
from lake.store.voids import voids_head
from tests.servers.s3 import S3
from tests.shop import contract, empty

VOID = """
    from lake.store.voids import VOIDS
    values = [1, "orders", 1, 0, 0, None, "a fault", datetime.now(UTC), 1]
    VOIDS.append(settings, [values])"""
CONTRACT = """
    from lake.store.ledger.contract_versions import CONTRACTS
    CONTRACTS.append(settings, [("orders", 1, settings.path("schemas/orders.avsc").read_text())])"""


@pytest.fixture
def settings(s3: S3, tmp_path: Path) -> Settings:
    made = replace(empty(tmp_path), warehouse=f"{s3.bucket()}/lake", storage=s3.storage)
    made.path("schemas/orders.avsc").write_text(json.dumps(contract("orders", {"id": "long"}, id=["id"])))
    return made


@pytest.fixture
def another_host(s3: S3, settings: Settings) -> Callable[[str], None]:
    """Return a function that changes the warehouse in another process."""

    def do(what: str) -> None:
        code = f"""if True:
    from dataclasses import replace
    from datetime import UTC, datetime
    from pathlib import Path
    from lake.config import load_settings
    from lake.connect.s3.place import S3Settings
    settings = load_settings(Path({str(settings.project)!r}))
    storage = S3Settings(endpoint={s3.storage.endpoint!r}, region="us-east-1", path_style=True)
    settings = replace(settings, warehouse={settings.warehouse!r}, storage=storage)
    {what}"""
        subprocess.run([sys.executable, "-c", code], env=os.environ | s3.environment, check=True)

    return do


def test_cut_includes_a_void_recorded_while_logs_are_read(
    settings: Settings, another_host: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If events of its log are redelivered later, a cut of these includes the void."""
    heads = cut_module._heads

    def meanwhile(*looked: object) -> dict[str, LogHead]:
        another_host(VOID)
        return heads(*looked)  # type: ignore[arg-type]

    project = load(settings)
    assert (cut(project).voids, latest_cut(settings)) == (0, cut(project))
    with view():
        assert voids_head(settings) == 0
    monkeypatch.setattr(cut_module, "_heads", meanwhile)
    assert cut(project).voids == 1


def test_contract_registered_before_a_lease_is_visible_under_it(
    settings: Settings, another_host: Callable[[str], None]
) -> None:
    found: list[int] = []

    def deliver(_: LogHead) -> None:
        found.append(len(contract_versions.versions(settings, "orders")))

    def no_session() -> None:
        pytest.fail("nothing came")

    with view():
        for expected in (0, 1):
            assert append(settings, no_session, load_contracts(settings)["orders"], deliver).read == 0  # type: ignore[arg-type]
            assert found.pop() == expected
            if not expected:
                another_host(CONTRACT)
