"""`lake init`: a new project that runs at once, and in Airflow beside others."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.errors import DeclarationError
from lake.ops.graph import graph
from lake.project.project import load
from lake.session.file_modes import check_new_or_empty

TEMPLATES: Final = Path(__file__).parents[1] / "templates"
TEMPLATE: Final = TEMPLATES / "project"
EXAMPLES: Final = {"social": "timeline"}
"""Examples, each with the table to look at first."""

LONGEST_NAME: Final = 100
"""Maximum length of a project's name in Airflow's ids."""


def init(folder: Path, example: str | None = None) -> list[str]:
    """Create a project, or the `example`, in `folder`, which must be empty or absent; return its files.

    Raises DeclarationError if something is in the way.
    """
    check_new_or_empty(folder)
    try:
        template = TEMPLATES / example if example else TEMPLATE
        shutil.copytree(template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise DeclarationError(f"cannot be written: {reason}", where=str(folder), fix="name another folder") from None
    (folder / "gitignore").rename(folder / ".gitignore")
    _name_dags(folder)
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(str(file) for file in files if "__pycache__" not in file.parts)  # of jobs imported for the graph


def _name_dags(folder: Path) -> None:
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", folder.resolve().name)[:LONGEST_NAME] or "lake"
    file = folder / "dags/dags.py"
    file.write_text(file.read_text("utf-8").replace('"project"', json.dumps(name)), "utf-8")
    lineage = graph(load(Settings(project=folder.resolve()))).data()
    (folder / "dags/graph.json").write_text(json.dumps(lineage, indent=2) + "\n", "utf-8")
