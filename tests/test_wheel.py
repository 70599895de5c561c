"""Wheel as installed: all that commands need, with types. No JVM."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
TYPED = """
import lake
from lake_airflow import dags
reveal_type(lake.open)
lake.open("shop").nothing()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel; all other packages are those of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("lake", "dags/lake_airflow"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    build: list[str | Path] = [UV, "build", "--wheel", "--offline", "--no-build-isolation", "--quiet", folder]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env/bin/python"
    install: list[str | Path] = [UV, "pip", "install", "--offline", "--no-deps", "--quiet", "--python", python, wheel]
    subprocess.run(install, check=True, capture_output=True)
    (packages,) = (folder / "env/lib").glob("python3*/site-packages")
    theirs = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (packages / "others.pth").write_text(f"{theirs}\n")  # Without the path of this project's folder
    return folder / "env"


@pytest.mark.long
def test_wheel_installs_a_project_and_its_list_of_jars(environment: Path, tmp_path: Path) -> None:
    def lake(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [environment / "bin/lake", *arguments, "--json"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    made = lake("init", "shop")
    assert made.returncode == 0, made.stderr
    assert "next: cd shop && lake setup && lake run" in made.stderr
    assert {"dags/dags.py", "dags/graph.json", ".gitignore"} <= set(json.loads(made.stdout)["files"])
    jars = lake("setup", "--no-archive", "--from", sys.prefix + "/share/headwater/jars")
    assert (jars.returncode, json.loads(jars.stdout)["jars"]) == (0, str(environment / "share/headwater/jars"))
    graph = lake("graph", "--project", "shop")
    assert json.loads((tmp_path / "shop/dags/graph.json").read_text()) == json.loads(graph.stdout)
    module: list[str | Path] = [environment / "bin/python", "-c", "import lake; print(lake.__file__)"]
    where = subprocess.run(module, cwd=tmp_path, env={}, capture_output=True, text=True, check=True).stdout
    assert Path(where.strip()).is_relative_to(environment)


@pytest.mark.long
def test_type_checker_sees_the_names_that_jobs_import(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(TYPED)
    python = environment / "bin/python"
    command: list[str | Path] = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "job.py"]
    told = subprocess.run(command, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=False).stdout
    assert 'note: Revealed type is "def (project: pathlib.Path | str | None =, *' in told
    assert 'job.py:5: error: "Lakehouse" has no attribute "nothing"' in told
    assert told.splitlines()[-1].startswith("Found 1 error")
