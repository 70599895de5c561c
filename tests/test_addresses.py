"""Passwords in addresses: whatever signs they have, files are refused with them, and no message shows them."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lake.config import Settings, load_settings
from lake.contracts.declared_files import FromEnvironment
from lake.errors import DeclarationError, LakeError
from lake.sinks.server import SinkServer
from lake.store.keys import has_store
from tests.servers import needed

LOGINS = [
    *(f"me:xyz{sign}zyx" for sign in "/?#[]@:%&+ "),
    *(f"m{sign}e:xyzzyx" for sign in "/?#[]@%&+ "),
    "me:12/xyz?zyx",
]
"""Users and passwords with each reserved sign."""
SERVER: dict[str, Any] = {"username": "", "password": "", "certificates": "", "seconds": 1}


def server(kind: str) -> type[SinkServer]:
    package = {"redis": "redis", "opensearch": "opensearchpy"}[kind]
    needed(find_spec(package), f"the extra `{kind}` is not installed: make setup")
    if kind == "redis":
        from lake.connect.redis import RedisServer

        return RedisServer
    from lake.connect.opensearch.server import OpenSearchServer

    return OpenSearchServer


def shows_password(text: str) -> bool:
    return "xyz" in text or "zyx" in text


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("setting", ["keys", "warehouse", "landing", "archive", "cold"])
def test_setting_with_a_password_is_refused(tmp_path: Path, setting: str, login: str) -> None:
    scheme = "postgresql" if setting == "keys" else "s3"
    (tmp_path / "pyproject.toml").write_text(f'[tool.lake]\n{setting} = "{scheme}://{login}@place/lake"\n')
    with pytest.raises(DeclarationError, match=f"setting '{setting}': it has a password") as error:
        load_settings(tmp_path)
    assert not shows_password(str(error.value))


@pytest.mark.skipif(not find_spec("psycopg"), reason="the extra `postgres` is not installed: make setup")
@pytest.mark.parametrize("login", LOGINS)
def test_key_database_is_named_without_its_password(project: Settings, login: str) -> None:
    settings = replace(project, keys=f"postgresql://{login}@127.0.0.1:1/keys")
    with pytest.raises(LakeError) as error:
        has_store(settings)
    assert not shows_password(str(error.value))
    assert not shows_password(settings.keys_name)


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("kind", ["redis", "opensearch"])
def test_sink_with_a_password_is_refused(kind: str, login: str) -> None:
    options = {**SERVER, "url": f"{server(kind).tls}://{login}@127.0.0.1:1"}
    with pytest.raises(DeclarationError, match="url: it has a password") as error:
        server(kind).of(options, "sinks/far.toml")
    assert not shows_password(str(error.value))


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("kind", ["redis", "opensearch"])
def test_sink_is_named_without_its_password(kind: str, login: str) -> None:
    options = {**SERVER, "url": FromEnvironment(f"{server(kind).tls}://{login}@127.0.0.1:1")}
    try:
        shown = server(kind).of(options, "sinks/far.toml").place
    except DeclarationError as error:
        shown = str(error)
    assert "127.0.0.1:1" in shown or "url: it cannot be read" in shown
    assert not shows_password(shown)


@pytest.mark.parametrize("address", ["db:5432/keys", "db/keys?sslmode=require", "me@db:5432/keys"])
def test_key_database_without_a_password_is_accepted(tmp_path: Path, address: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.lake]\nkeys = "postgresql://{address}"\n')
    assert load_settings(tmp_path).keys_url == f"postgresql://{address}"
