"""Figures of a benchmark in a JSON file, for `make bench W=compare`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

Figures = Mapping[str, Mapping[str, float | None]]
"""Numbers by row and column; None if the command failed."""


def write(file: Path | None, figures: Figures) -> None:
    """Write the figures with the number of this machine's cores. Without a file do nothing."""
    if file is not None:
        file.write_text(json.dumps({"cores": os.cpu_count(), "rows": figures}, indent=2) + "\n")


def read(file: Path) -> Figures:
    rows: Figures = json.loads(file.read_text())["rows"]
    return rows
