"""Declarations in TOML files."""

from __future__ import annotations

from pathlib import Path

from lake.contracts.declared_files import DeclaredFolder


def test_declarations_report_a_folder_with_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "sources/orders.toml").mkdir(parents=True)
    (tmp_path / "sources/flights.toml").write_text('kind = "kafka"')
    folder = DeclaredFolder("a source", "docs/how-to/sources.md", tmp_path / "sources", tmp_path)
    valid, faults = folder.sound(lambda file: file.options)
    assert valid == {"flights": {"kind": "kafka"}}
    assert [text.name for text in folder.texts] == ["flights"]
    assert str(faults["orders"]).startswith("the declaration cannot be read: Is a directory (sources/orders.toml)")
