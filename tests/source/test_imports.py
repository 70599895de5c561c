"""Packages that code imports: `pyproject.toml` declares them, and no others."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.source.trees import tree

ROOT = Path(__file__).parents[2]
EXTRAS = {
    "airflow": ("dags/lake_airflow/",),
    "kafka": ("lake/connect/kafka/",),
    "opensearch": ("lake/connect/opensearch/",),
    "polars": ("lake/read/open.py",),
    "postgres": ("lake/connect/postgres/",),
    "redis": ("lake/connect/redis/",),
    "s3": ("lake/connect/s3/", "lake/store/storage/ranged.py"),
    "serve": ("lake/serve/",),
    "shell": ("lake/read/shell.py",),
    "webhook": ("lake/connect/webhook/",),
}
"""Of each extra that code needs, where the code is that needs it."""
NOT_IMPORTED = {
    "apache-airflow": "what runs the DAGs",
    "delta-spark": "its version is that of the jars",
    "httptools": "uvicorn imports it",
}
OURS = {"lake", "lake_airflow"}


def _normal(name: str) -> str:
    """Return the name of a package as registries compare it, without extras and versions."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[=<>!~; ]", name)[0]).lower()


def _declared() -> dict[str, set[str]]:
    """Return the packages that each extra declares; those of every installation have the empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: set(map(_normal, names)) for extra, names in groups.items()}


def _imported() -> Iterator[tuple[str, str]]:
    """Yield each file of the wheel with each foreign module that it imports, anywhere in the file."""
    for file in (file for folder in ("lake", "dags/lake_airflow") for file in (ROOT / folder).rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        if path.startswith("lake/templates/"):
            continue  # A project's own
        for node in ast.walk(tree(file)):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            tops = {name.partition(".")[0] for name in names}
            yield from ((path, top) for top in tops - sys.stdlib_module_names - OURS)


def test_imported_packages_are_declared_by_the_right_extra() -> None:
    declared, packages = _declared(), packages_distributions()
    imported = {(path, module, frozenset(map(_normal, packages[module]))) for path, module in _imported()}
    missing = {
        f"{path} imports {module}, of {', '.join(sorted(names))}"
        for path, module, names in imported
        if not names & declared[""]
        and not any(names & declared[extra] for extra, places in EXTRAS.items() if path.startswith(places))
    }
    assert not missing
    used = frozenset[str]().union(*(names for *_, names in imported))
    needless = {name for extra in ("", *EXTRAS) for name in declared[extra]} - used - set(NOT_IMPORTED)
    assert not needless, "declared, and imported nowhere"
