"""Fixture of a test database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.servers.postgres import Postgres
from tests.sources.shop import PASSWORD, READER, VARIABLE, Shop

ROLE = f"""DO $$ BEGIN
    CREATE ROLE {READER} LOGIN REPLICATION PASSWORD '{PASSWORD}';
EXCEPTION WHEN duplicate_object THEN NULL; END $$"""


def new_database(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Return a new database with read rights for the reader role."""
    shop = Shop(server, server.database())
    shop.execute(ROLE, f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {READER}")
    monkeypatch.setenv(VARIABLE, shop.reader_dsn)
    return shop


@pytest.fixture
def shop(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Database on the server of the run."""
    with database(postgres, monkeypatch) as shop:
        yield shop


@contextmanager
def database(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Create a database for the block and drop its slots afterwards, because a server has few."""
    shop = new_database(server, monkeypatch)
    yield shop
    shop.close()
    shop.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()",
    )
