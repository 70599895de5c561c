"""Installed packages that declare connectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, entry_points: Mapping[str, Mapping[str, str]], name: str = "fake"
) -> None:
    """Install a distribution without modules, with {group: {name: object}} as its entry points."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{n} = {of}\n" for n, of in names.items()) for group, names in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(folder)
