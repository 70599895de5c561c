"""Declarations in TOML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake.contracts.declared_files import DeclaredFile, DeclaredFolder
from lake.errors import DeclarationError


def test_environment_is_read_at_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPIC", "flights")
    options = {"a": "env:TOPIC", "b": ["env:TOPIC", 1], "c": {"d": [{"e": "env:TOPIC"}, ["env:TOPIC"]]}}
    expected = {"a": "flights", "b": ["flights", 1], "c": {"d": [{"e": "flights"}, ["flights"]]}}
    assert DeclaredFile("a", options, "sources/a.toml").values == expected


def test_unset_variable_in_a_list_is_reported_with_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPIC", raising=False)
    with pytest.raises(DeclarationError, match=r"topics comes from the environment variable TOPIC, which is not set"):
        _ = DeclaredFile("a", {"topics": ["env:TOPIC"]}, "sources/a.toml").values


def test_declarations_report_a_folder_with_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "sources/orders.toml").mkdir(parents=True)
    (tmp_path / "sources/flights.toml").write_text('kind = "kafka"')
    folder = DeclaredFolder("a source", "docs/how-to/sources.md", tmp_path / "sources", tmp_path)
    valid, faults = folder.sound(lambda file: file.options)
    assert valid == {"flights": {"kind": "kafka"}}
    assert [text.name for text in folder.texts] == ["flights"]
    assert str(faults["orders"]).startswith("the declaration cannot be read: Is a directory (sources/orders.toml)")
