"""What service managers read: units of systemd are verified by it, the container's files name what is there. No JVM."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
import yaml
from click.testing import CliRunner

from lake.cli import lake
from tests.servers import needed

ROOT = Path(__file__).parents[1]
UNITS = sorted((ROOT / "infra/systemd").glob("*.service"))
CONTAINER = ROOT / "infra/container"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_one_for_systemd(unit: Path, tmp_path: Path) -> None:
    needed(which("systemd-analyze"), "systemd is missing: apt install systemd")
    text = unit.read_text().replace("/opt/headwater/bin/lake", sys.executable)
    instance = tmp_path / unit.name.replace("@", "@shop")
    instance.write_text(text.replace("User=headwater", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", instance], capture_output=True, text=True, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if instance.name in line]) == (0, [])


def commands() -> list[str]:
    """The lines that start `lake`, by systemd and in the container."""
    started = re.compile(r"^Exec\w+=/opt/headwater/bin/lake (.+)$", re.MULTILINE)
    words = re.findall(r"^CMD (.+)$", (CONTAINER / "Containerfile").read_text(), re.MULTILINE)
    return [
        *started.findall("\n".join(unit.read_text() for unit in UNITS)),
        *(shlex.join(json.loads(w)) for w in words),
    ]


def test_options_that_services_give_are_those_of_the_commands() -> None:
    assert len(commands()) == 4
    for line in commands():
        given = [word for word in shlex.split(line) if word.startswith("--")]
        verbs = [word for word in shlex.split(line)[:2] if not word.startswith("--")]
        told = CliRunner().invoke(lake, [*verbs, "--help"]).output
        assert [option for option in given if option not in told] == [], line


def test_the_container_is_made_of_what_is_there() -> None:
    text = (CONTAINER / "Containerfile").read_text().replace("\\\n", " ")
    copied = [word for line in re.findall(r"^COPY (.+)$", text, re.M) for word in line.split()[:-1]]
    assert {"requirements.lock", "lake", "dags/lake_airflow"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    services = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]
    assert set(services) == {"follow", "airflow"}
    for service in services.values():
        build = service["build"]
        assert ((CONTAINER / build["context"]).resolve() / build["dockerfile"]).samefile(CONTAINER / "Containerfile")
        assert service["volumes"][0].endswith(":/project")
    assert services["airflow"]["entrypoint"] == ["/opt/headwater/airflow.sh"]
