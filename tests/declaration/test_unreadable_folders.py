"""Folders of declarations that cannot be listed: they are reported, and do not look empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from lake.cli import Shell, lake
from lake.config import Settings, load_settings
from lake.contracts import declared_files
from lake.contracts.contract import streams_of
from lake.contracts.declared_files import DeclaredFolder
from lake.errors import DeclarationError
from lake.ops.scaffold import init
from tests.permissions import forbidden


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    init(tmp_path / "shop")
    return tmp_path / "shop"


@pytest.mark.parametrize("folder", ["schemas", "jobs", "jobs/silver", "jobs/gold", "quality"])
def test_folder_that_may_not_be_read_is_reported(shop: Path, folder: str) -> None:
    with forbidden(shop / folder):
        result = CliRunner().invoke(lake, ["plan", "--project", str(shop)], obj=Shell())
    assert f"cannot be read: Permission denied ({shop / folder}" in str(result.exception)


@pytest.mark.parametrize("kind", [declared_files.sources, declared_files.sinks, declared_files.alerts])
def test_folder_of_toml_files_that_may_not_be_read_is_reported(
    shop: Path, kind: Callable[[Settings], DeclaredFolder]
) -> None:
    folder = kind(load_settings(shop))
    folder.path.mkdir()
    with forbidden(folder.path), pytest.raises(DeclarationError, match="cannot be read: Permission denied"):
        folder.sound(lambda file: file.name)
    folder.path.rmdir()
    assert folder.names == []


def test_file_in_place_of_a_folder_of_declarations_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.lake]\n")
    (tmp_path / "schemas").touch()
    with pytest.raises(DeclarationError, match="cannot be read: Not a directory"):
        streams_of(load_settings(tmp_path))
