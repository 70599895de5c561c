"""The key store and its secret, which outlives it. No JVM."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lake.config import Settings
from lake.errors import DeclarationError
from lake.store.keys import open_store, secret_file


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path)


def test_a_store_that_is_made_anew_tells_people_by_the_same_tokens(settings: Settings) -> None:
    before = open_store(settings, make=True)
    kept = secret_file(settings.keys_path)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert {*kept.parent.iterdir()} == {kept, settings.keys_path}
    settings.keys_path.unlink()
    after = open_store(settings, make=True)
    assert after.id != before.id
    assert (after.token("orders", "ada"), after.fingerprint) == (before.token("orders", "ada"), before.fingerprint)


def test_a_store_without_such_a_file_goes_on_and_gets_one(settings: Settings) -> None:
    before = open_store(settings, make=True)
    secret_file(settings.keys_path).unlink()
    assert open_store(settings) == before
    assert bytes.fromhex(secret_file(settings.keys_path).read_text()) == before.secret


def test_the_secret_in_the_store_is_what_counts(settings: Settings) -> None:
    before = open_store(settings, make=True)
    secret_file(settings.keys_path).write_text("00" * 32)
    assert open_store(settings) == before


def test_with_both_gone_tokens_are_others(settings: Settings) -> None:
    before = open_store(settings, make=True)
    for file in (settings.keys_path, secret_file(settings.keys_path)):
        file.unlink()
    assert open_store(settings, make=True).fingerprint != before.fingerprint


@pytest.mark.parametrize("text", ["", "no digits", "00"])
def test_a_secret_that_cannot_be_read_is_told_and_not_replaced(settings: Settings, text: str) -> None:
    settings.keys_path.parent.mkdir(parents=True)
    secret_file(settings.keys_path).write_text(text)
    with pytest.raises(DeclarationError, match="the secret of the key store cannot be read"):
        open_store(settings, make=True)
    assert secret_file(settings.keys_path).read_text() == text


def test_the_keys_of_some_people_are_those_that_are_asked_for(settings: Settings) -> None:
    store = open_store(settings, make=True)
    store.make("orders", ["a", "b", "c"])
    store.make("parcels", ["a"])
    store.destroy("orders", ["b"])
    every = store.living("orders").to_pylist()
    assert [row["_subject"] for row in every] == ["a", "c"]
    assert store.living("orders", ["c", "b", "d"]).to_pylist() == every[1:]
    assert store.living("orders", []).num_rows == 0
