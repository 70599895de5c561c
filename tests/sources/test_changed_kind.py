"""A source declared with the name of an ingested source of another kind is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from lake.cli import lake
from lake.config import Settings
from lake.errors import DeclarationError
from lake.serve.source import intake_writer
from lake.store import duckdb_tables
from lake.store.log import Log
from tests.shop import contract, declare, empty

TEXTS: Final = {
    "kafka": 'bootstrap = "127.0.0.1:1"\n[streams]\norders = { topic = "orders" }\n',
    "postgres": 'dsn = "host=127.0.0.1 port=1"\npublication = "p"\n[streams]\norders = "public.orders"\n',
    "http": "",
    "tap": 'command = ["true"]\n[streams]\norders = "orders"\n',
}
POSITIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "kafka": {"cluster": "c", "topics": {"orders": {"id": "i", "ranges": {"0": [0, 2]}}}},
    "postgres": {
        "system": "1",
        "timeline": 1,
        "era": 0,
        "slot": "s",
        "from": "0/1",
        "to": "0/2",
        "at": "2026-01-02T00:00:00+00:00",
        "tables": {},
    },
    "http": {"spool": "s", "upto": 3},
    "tap": {"state": {"n": 1}, "run": "20260102T000000.000000Z"},
}
CHANGES: Final = [(before, now) for before in POSITIONS for now in TEXTS if before != now]


def ingested(folder: Path, before: str, now: str) -> Settings:
    """Return a project whose source `shop` was of the kind `before` and is declared with the kind `now`."""
    fields = {"id": "int", "lsn": ("long", {"from": "source.lsn"}), "op": ("string", {"from": "op"})}
    about = {"envelope": "debezium", "id": ["lsn"]} if now == "postgres" else {}
    settings = empty(folder)
    declare(settings, contract("orders", fields if about else {"id": "int"}, **about))
    (settings.project / "sources").mkdir()
    (settings.project / "sources/shop.toml").write_text(f'kind = "{now}"\n{TEXTS[now]}')
    log = Log(settings, "orders")
    source = {"delivery": 1, "streams": ["orders"], "progress": POSITIONS[before], "batch": 1}
    said: dict[str, Any] = {"offsets": {}, "watermark": None, "counts": {}, "files": [], "contract": 1, "at": ""}
    duckdb_tables.append(log.path, "n BIGINT", [(4,)], log.head().next(**said, sources={"shop": source}))
    return settings


@pytest.mark.parametrize(("before", "now"), CHANGES)
def test_source_with_the_name_of_one_of_another_kind_is_refused(tmp_path: Path, before: str, now: str) -> None:
    settings = ingested(tmp_path / "shop", before, now)
    for words in (["ingest", "shop"], ["ingest", "shop", "--give-up"]):
        done = CliRunner().invoke(lake, [*words, "--project", str(settings.project)], standalone_mode=False)
        said = done.stderr + str(done.exception or "")
        assert "shop was read as a source of another kind" in said, said
        assert "give the new source another name" in said
    status = CliRunner().invoke(lake, ["status", "--json", "--project", str(settings.project)])
    assert status.exit_code == 0, status.exception
    [source] = json.loads(status.stdout)["sources"]
    assert "shop was read as a source of another kind" in source["error"]


@pytest.mark.parametrize("before", sorted(POSITIONS.keys() - {"http"}))
def test_server_is_refused_for_the_name_of_a_source_of_another_kind(tmp_path: Path, before: str) -> None:
    settings = ingested(tmp_path / "shop", before, "http")
    with pytest.raises(DeclarationError, match="shop was read as a source of another kind"):
        intake_writer(settings, "shop")


@pytest.mark.parametrize("kind", sorted(TEXTS.keys() - {"http"}))
def test_source_of_another_kind_has_no_tokens_before_its_first_record(tmp_path: Path, kind: str) -> None:
    settings = ingested(tmp_path / "shop", "http", kind)
    (settings.project / "sources/shop.toml").rename(settings.project / "sources/next.toml")
    words = ["wait", "orders@next:1:0", "--timeout", "0", "--project", str(settings.project)]
    done = CliRunner().invoke(lake, words)
    assert "next takes no posted events" in str(done.exception)
