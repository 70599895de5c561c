"""The small projects that tests work in."""

from __future__ import annotations

from pathlib import Path

from lake.config import Settings, load_settings


def empty(folder: Path) -> Settings:
    """A project of nothing, in an empty folder."""
    (folder / "pyproject.toml").write_text("[tool.lake]\n")
    for name in ("schemas", "jobs/silver", "jobs/gold", "quality", "landing"):
        (folder / name).mkdir(parents=True)
    return load_settings(folder)
