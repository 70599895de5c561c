"""Missing packages of an extra: one line that names it, for every command. No JVM."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lake.serve import PACKAGES
from tests.warehouse import published

ROOT: Final = Path(__file__).parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]
ENTRY_POINTS: Final[dict[str, dict[str, str]]] = PROJECT["entry-points"]
NO_COMMANDS: Final = {"airflow", "demo", "dev", "docs"}
"""Extras of which no command of `lake` needs anything."""
HIDING: Final = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {packages!r} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""
OPTIONS: Final = {"kafka": 'bootstrap = "127.0.0.1:1"\n[streams]\norders = { topic = "orders" }'}
"""What a declaration must say, where that is looked at before the packages are."""
POLARS: Final = "import lake; lake.open('.').sql('select 1').polars()"


def extras(group: str) -> Iterator[tuple[str, str]]:
    """Yield the connectors of a group that need an extra."""
    for name, place in ENTRY_POINTS[group].items():
        if extra := re.search(r"\[(\w+)\]", place):
            yield name, extra[1]


def declarations() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield extra, file and text of a declaration that needs it, and the words of a command that reads it."""
    for kind, extra in extras("lake.sources"):
        if kind != "http":  # Posted records are read without the server
            yield extra, "sources/one.toml", f'kind = "{kind}"\n{OPTIONS.get(kind, "")}', ["status"]
    for kind, extra in extras("lake.sinks"):
        text = f'kind = "{kind}"\n{OPTIONS.get(kind, "")}\n[tables.current_order]'
        yield extra, "sinks/one.toml", text, ["deliver"]
        yield extra, "sinks/one.toml", text, ["status"]
    yield "webhook", "alerts/one.toml", 'table = "current_order"', ["alert"]
    yield "webhook", "alerts/one.toml", 'table = "current_order"', ["status"]
    yield "serve", "sources/web.toml", 'kind = "http"', ["serve", "http"]


def packages(extra: str) -> set[str]:
    """Return the modules that an extra installs."""
    names = {re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-") for requirement in EXTRAS[extra]}
    return {
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if names & {one.lower().replace("_", "-") for one in distributions}
    }


def run_without(extra: str, folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a project without an extra."""
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(HIDING.format(packages=packages(extra)))
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder / "shop",
        env=os.environ | {"PYTHONPATH": f"{hidden}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize(
    ("extra", "file", "text", "words"),
    [pytest.param(*one, id=f"{one[0]}: {' '.join(one[3])}") for one in declarations()],
)
def test_missing_extra_is_named_in_one_line(tmp_path: Path, extra: str, file: str, text: str, words: list[str]) -> None:
    published(tmp_path / "shop")
    (tmp_path / "shop" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "shop" / file).write_text(text)
    done = run_without(extra, tmp_path, "from lake.cli import main; main()", *words)
    told = [line for line in (done.stdout + done.stderr).splitlines() if f"headwater[{extra}]" in line]
    assert len(told) == 1, done
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if words == ["status"] else 2)


@pytest.mark.slow
def test_bucket_warehouse_names_its_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(tmp_path / "shop")
    monkeypatch.setenv("LAKE_WAREHOUSE", "s3://bucket/shop")
    done = run_without("s3", tmp_path, "from lake.cli import main; main()", "sql", "select 1")
    told = [line for line in done.stderr.splitlines() if "headwater[s3]" in line]
    assert len(told) == 1, done
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.mark.long
def test_polars_table_names_its_missing_extra(tmp_path: Path) -> None:
    published(tmp_path / "shop")
    done = run_without("polars", tmp_path, POLARS)
    assert 'pip install "headwater[polars] @ file:///' in done.stderr.splitlines()[-1]


def test_serve_packages_equal_those_of_its_extra() -> None:
    assert sorted(PACKAGES) == sorted(EXTRAS["serve"])


def test_extras_named_in_messages_exist() -> None:
    texts = "".join(file.read_text("utf-8") for file in (ROOT / "lake").rglob("*.py"))
    named = {*re.findall(r"headwater\[(\w+)\]", texts)}
    named |= {extra for group in ENTRY_POINTS for _, extra in extras(group)}
    assert named <= EXTRAS.keys() - NO_COMMANDS
