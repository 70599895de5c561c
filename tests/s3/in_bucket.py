"""Pytest plugin for tests with warehouses in buckets: `pytest -p tests.s3.in_bucket …`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake.config import Settings
from lake.session import spark_session as session
from lake.testing import Lakehouse

if TYPE_CHECKING:
    from tests.servers.s3 import S3


@pytest.fixture(scope="session", autouse=True)
def _all_in_buckets(s3_server: S3) -> Iterator[None]:
    """Let the session of the run commit to buckets, and give every Lakehouse one."""
    conf, made = session.embedded_conf, Lakehouse.__init__

    def embedded_conf(settings: Settings) -> dict[str, str]:
        return conf(replace(settings, warehouse="s3://any/w", storage=s3_server.storage))

    def init(house: Lakehouse, project: Path, home: Path) -> None:
        made(house, project, home)
        house.settings = replace(house.settings, warehouse=f"{s3_server.bucket()}/w", storage=s3_server.storage)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment.items():
            patch.setenv(name, value)
        patch.setattr(session, "embedded_conf", embedded_conf)
        patch.setattr(Lakehouse, "__init__", init)
        yield


@pytest.fixture(autouse=True)
def _one_in_a_bucket(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every project whose settings are read a warehouse in a new bucket."""
    assert os.environ["AWS_ACCESS_KEY_ID"]
    monkeypatch.setenv("LAKE_WAREHOUSE", f"{s3_server.bucket()}/w")
