"""The key store, in a file and in a database, and its secret. No JVM."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lake import cost
from lake.config import Settings, load_settings
from lake.errors import DeclarationError, Unavailable
from lake.store.keys import (
    ACCESS,
    Identity,
    KeyStore,
    _home,
    copied_store,
    has_store,
    open_store,
    restore_store,
    secret_file,
)
from tests.permissions import forbidden
from tests.servers.postgres import Postgres, url
from tests.shop import all_keys


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path)


@pytest.fixture(params=["file", pytest.param("database", marks=pytest.mark.postgres)])
def keys_settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    """Project without a key store, whose setting names a file or a database."""
    if request.param == "file":
        return settings
    return replace(settings, keys=url(request.getfixturevalue("postgres").database()))


def fill(settings: Settings) -> KeyStore:
    store = open_store(settings, make=True)
    store.make("orders", ["c", "a", "b"])
    store.make("parcels", ["a"])
    store.destroy("orders", ["b", "e"])
    return store


def content(store: KeyStore) -> list[Any]:
    streams = ("orders", "parcels", "others")
    return [
        store.id,
        store.secret,
        [(all_keys(store, each), known(store, each), store.destroyed(each)) for each in streams],
    ]


def known(store: KeyStore, stream: str) -> list[str]:
    return [token for part in store.tokens(stream) for token in part.column("_subject").to_pylist()]


def test_recreated_key_store_makes_the_same_tokens(settings: Settings) -> None:
    before = open_store(settings, make=True)
    kept = secret_file(settings.keys_path)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert {*kept.parent.iterdir()} == {kept, settings.keys_path}
    settings.keys_path.unlink()
    after = open_store(settings, make=True)
    assert after.id != before.id
    assert (after.token("orders", "ada"), after.fingerprint) == (before.token("orders", "ada"), before.fingerprint)


def test_key_store_writes_its_secret_file_again_when_missing(settings: Settings) -> None:
    before = open_store(settings, make=True)
    secret_file(settings.keys_path).unlink()
    assert open_store(settings) == before
    assert bytes.fromhex(secret_file(settings.keys_path).read_text()) == before.secret


def test_secret_in_the_store_overrides_the_secret_file(settings: Settings) -> None:
    before = open_store(settings, make=True)
    secret_file(settings.keys_path).write_text("00" * 32)
    assert open_store(settings) == before


def test_tokens_change_when_store_and_secret_file_are_gone(settings: Settings) -> None:
    before = open_store(settings, make=True)
    for file in (settings.keys_path, secret_file(settings.keys_path)):
        file.unlink()
    assert open_store(settings, make=True).fingerprint != before.fingerprint


@pytest.mark.parametrize("text", ["", "no digits", "00"])
def test_unreadable_secret_is_reported_and_not_replaced(settings: Settings, text: str) -> None:
    settings.keys_path.parent.mkdir(parents=True)
    secret_file(settings.keys_path).write_text(text)
    with pytest.raises(DeclarationError, match="the secret of the key store cannot be read"):
        open_store(settings, make=True)
    assert secret_file(settings.keys_path).read_text() == text


@pytest.mark.parametrize("make", [False, True])
@pytest.mark.parametrize("reason", ["permission denied", "is a directory", "not a directory"])
def test_key_store_that_cannot_be_opened_is_not_reported_as_lost(settings: Settings, reason: str, make: bool) -> None:
    fill(settings)
    file = settings.keys_path
    denied = forbidden(file) if reason == "permission denied" else nullcontext()
    keys = {"is a directory": file.parent, "not a directory": file / "keys"}.get(reason)
    with denied, pytest.raises(DeclarationError, match=f"the key store cannot be opened: {reason}") as raised:
        open_store(replace(settings, keys=keys), make=make)
    assert raised.value.fix == ACCESS


def test_key_store_in_a_folder_that_cannot_be_entered_is_not_reported_as_lost(settings: Settings) -> None:
    fill(settings)
    for look_up in (has_store, open_store):
        with (
            forbidden(settings.keys_path.parent),
            pytest.raises(DeclarationError, match="cannot be opened: permission denied"),
        ):
            look_up(settings)


def test_key_store_that_stays_locked_is_not_reported_as_lost(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fill(settings).home
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda file, timeout, **other: connect(file, timeout=0, **other))
    with (
        home.transaction(writes=True),
        pytest.raises(Unavailable, match="locked by another process"),
        home.transaction(writes=True),
    ):
        pass


def test_key_store_can_be_made_after_a_crash_of_its_making(settings: Settings) -> None:
    settings.keys_path.parent.mkdir(parents=True)
    settings.keys_path.touch()
    with pytest.raises(DeclarationError, match="the key store is empty"):
        open_store(settings)
    assert open_store(settings, make=True) == open_store(settings)


def test_key_is_made_once_and_destroyed_for_good(keys_settings: Settings) -> None:
    assert not has_store(keys_settings)
    with pytest.raises(DeclarationError, match="there is no key store"):
        open_store(keys_settings)
    store = fill(keys_settings)
    assert has_store(keys_settings)
    assert open_store(keys_settings) == open_store(keys_settings, make=True) == store
    every = all_keys(store)
    assert [*every] == ["a", "c"]
    assert {len(key) for key in every.values()} == {32}
    assert store.keys_of("orders", ["c", "b", "d"]).to_pylist() == [{"_subject": "c", "_key": every["c"]}]
    assert store.keys_of("orders", []).num_rows == 0
    assert (known(store, "orders"), store.destroyed("orders")) == (["a", "b", "c", "e"], {"b", "e"})
    assert [store.has_token("orders", token) for token in "abde"] == [True, True, False, True]
    assert not store.has_token("parcels", "b")
    assert store.people() == {"orders": 4, "parcels": 1}
    assert (store.count("orders"), store.count("others")) == (4, 0)
    store.make("orders", ["a", "b", "e"])
    store.make("orders", [])
    assert all_keys(store) == every, "no key is made anew"
    store.home.must_be_whole()


@pytest.mark.parametrize("people", [0, 6, 7, 8, 100])
def test_keys_are_read_in_parts_each_key_once(
    keys_settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, people: int
) -> None:
    monkeypatch.setattr(cost, "PEOPLE_AT_ONCE", 7)
    store = open_store(keys_settings, make=True)
    tokens = [f"{number:03}" for number in range(people)]
    store.make("orders", tokens)
    store.make("parcels", ["000", "x"])
    assert [*all_keys(store)] == known(store, "orders") == tokens
    assert {part.num_rows for part in store.all_keys("orders")} <= {7, people % 7}
    assert store.keys_of("orders", tokens[::2]).column("_subject").to_pylist() == tokens[::2]
    with copied_store(keys_settings, tmp_path / "copy.sqlite"):
        pass
    assert content(
        restore_store(replace(keys_settings, keys=tmp_path / "other.sqlite"), tmp_path / "copy.sqlite")
    ) == content(store)


def test_key_store_makes_keys_while_others_are_read_in_parts(
    keys_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "PEOPLE_AT_ONCE", 2)
    store = fill(keys_settings)
    parts = store.tokens("orders")
    first = next(parts)
    store.make("orders", ["d", "aa"])
    store.destroy("orders", ["c"])
    assert [token for part in (first, *parts) for token in part.column("_subject").to_pylist()] == [
        "a",
        "b",
        "c",
        "d",
        "e",
    ]


def test_concurrent_makers_get_the_same_store_and_keys(keys_settings: Settings) -> None:
    people = [str(number) for number in range(50)]

    def work(_: int) -> list[Any]:
        store = open_store(keys_settings, make=True)
        store.make("orders", people)
        return [store.id, store.secret, store.keys_of("orders", people)]

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(work, range(8))
    assert others == [first] * 7


def test_copied_and_restored_key_stores_equal_the_original(keys_settings: Settings, tmp_path: Path) -> None:
    store = fill(keys_settings)
    copy = tmp_path / "safe/keys.sqlite"
    with copied_store(keys_settings, copy):
        pass
    assert copy.stat().st_mode & 0o077 == secret_file(copy).stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError), copied_store(keys_settings, copy):
        pass
    with pytest.raises(DeclarationError, match="there is a key store already"):
        restore_store(keys_settings, copy)
    elsewhere = replace(keys_settings, keys=tmp_path / "other.sqlite")
    assert content(restore_store(elsewhere, copy)) == content(open_store(elsewhere)) == content(store)


@pytest.mark.postgres
def test_key_store_moves_from_a_file_into_a_database(settings: Settings, postgres: Postgres, tmp_path: Path) -> None:
    store = fill(settings)
    there = replace(settings, keys=url(postgres.database()))
    assert content(restore_store(there, settings.keys_path)) == content(open_store(there)) == content(store)
    for name, written, what in (
        ("none", None, "there is no key store"),
        ("empty", b"", "the key store is empty"),
        ("text", b"no database, but long enough to be looked at" * 99, "the key store cannot be read"),
        ("half", settings.keys_path.read_bytes()[:6000], "the key store cannot be read"),
    ):
        file, other = tmp_path / name, replace(settings, keys=url(postgres.database()))
        if written is not None:
            file.write_bytes(written)
        with pytest.raises(DeclarationError, match=what):
            restore_store(other, file)
        assert not has_store(other)


def test_copy_that_fails_leaves_no_key_store(keys_settings: Settings) -> None:
    def rows() -> Iterator[list[tuple[Any, ...]]]:
        yield [("orders", "a", b"1")]
        raise InterruptedError

    home = _home(keys_settings)
    with pytest.raises(InterruptedError):
        home.make(Identity("id", b"secret"), rows())
    with pytest.raises(DeclarationError, match=r"the key store is empty|there is no key store"):
        home.identity()
    assert home.make().id != "id"


@pytest.mark.postgres
def test_destroyed_key_is_gone_from_the_files_of_a_database(settings: Settings, postgres: Postgres) -> None:
    there = replace(settings, keys=url(postgres.database()))
    store = open_store(there, make=True)
    store.make("orders", ["a", "b"])
    key, kept = all_keys(store).values()
    assert (is_in_tables(postgres, key), is_in_tables(postgres, kept)) == (True, True)
    store.destroy("orders", ["a"])
    assert (is_in_tables(postgres, key), is_in_tables(postgres, kept)) == (False, True)


def is_in_tables(postgres: Postgres, key: bytes) -> bool:
    """Return whether a table file of the database contains a key."""
    postgres.execute("CHECKPOINT")
    return any(key in file.read_bytes() for file in (postgres.data / "base").rglob("*") if file.is_file())


@pytest.mark.postgres
def test_database_errors_are_reported_without_the_password(settings: Settings, postgres: Postgres) -> None:
    there = url(postgres.database())
    postgres.execute("CREATE ROLE reader LOGIN PASSWORD 'hidden words'")
    role = "postgresql://reader:hidden%20words@" + there.rpartition("@")[2]
    secret = there.partition("@")[0].rpartition(":")[2]
    host, _, name = there.rpartition("@")[2].rpartition("/")
    wrong = (
        (role, DeclarationError, "the key store cannot be read: permission denied for database"),
        (there.replace(secret, "wrong"), DeclarationError, "PostgreSQL refused: .*password authentication failed"),
        (there.replace(f"/{name}", "/nowhere"), DeclarationError, 'database "nowhere" does not exist'),
        (there.replace(host, "127.0.0.1:1"), Unavailable, "PostgreSQL does not answer: .*Connection refused"),
    )
    for given, error, what in wrong:
        with pytest.raises(error, match=what) as caught:
            open_store(replace(settings, keys=given), make=True)
        told = str(caught.value)
        assert secret not in told
        assert "hidden" not in told
        assert "wrong" not in told


@pytest.mark.parametrize(
    ("written", "environment", "what"),
    [
        ("postgresql://me:secret@db/keys", None, "setting 'keys': it has a password"),
        ("postgresql://db/keys?user=me&password=secret", None, "setting 'keys': it has a password"),
        ("mysql://db/keys", None, "setting 'keys': mysql://db/keys names no key store"),
        ("keys.sqlite", "s3://me:secret@bucket/keys", "setting 'keys': s3://bucket/keys names no key store"),
    ],
)
def test_invalid_keys_setting_is_reported_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, environment: str | None, what: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.lake]\nkeys = "{written}"\n')
    if environment:
        monkeypatch.setenv("LAKE_KEYS", environment)
    with pytest.raises(DeclarationError, match=what) as caught:
        load_settings(tmp_path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://db.example.com:5432/keys", "postgresql://db.example.com:5432/keys"),
        ("postgresql://me@db/keys?sslmode=verify-full", "postgresql://db/keys"),
        (f"postgres://me:{quote('a/b@c:d?', safe='')}@db/keys", "postgres://db/keys"),
        ("postgres://me:a/b@c@db/keys", "postgres://db/keys"),
    ],
)
def test_database_is_shown_without_role_and_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, shown: str
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.lake]\n")
    monkeypatch.setenv("LAKE_KEYS", given)
    settings = load_settings(tmp_path)
    assert (settings.keys_url, settings.keys_name) == (given, shown)
    assert not settings.keys_path.exists()
