"""Files of service managers: systemd verifies its units; files of containers name existing things. No JVM."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from shutil import which

import pytest
from click.testing import CliRunner

from infra.container.with_secrets import CLUSTER
from lake.cli import lake
from lake.config import GROUPS, load_settings
from lake.connect.s3.place import S3Settings
from lake.ops.scaffold import init
from lake.session.remote import is_local
from tests.containers import CONTAINERFILE, FOLDER, Service, compose, image, instructions, services
from tests.processes import ROOT
from tests.servers import needed

UNITS = sorted((ROOT / "infra/systemd").glob("*.service"))
BIN = Path(sys.executable).parent
GIVEN = {"PROJECT": "/srv/shop"}


def names() -> Iterator[str]:
    """Yield the names of all settings."""
    yield from (
        prefix + setting.name for group, prefix in (*GROUPS, (S3Settings, "storage.")) for setting in fields(group)
    )


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    needed(which("systemd-analyze"), "systemd is missing: apt install systemd")
    text = unit.read_text().replace("/opt/headwater/bin/lake", sys.executable)
    instance = tmp_path / unit.name.replace("@", "@shop")
    instance.write_text(text.replace("User=headwater", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", instance], capture_output=True, text=True, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if instance.name in line]) == (0, [])


def commands() -> list[list[str]]:
    """Return the words after `lake` that systemd and containers start: services and health checks."""
    started = re.compile(r"^Exec\w+=/opt/headwater/bin/lake (.+)$", re.MULTILINE)
    of_units = [shlex.split(line) for line in started.findall("\n".join(unit.read_text() for unit in UNITS))]
    of_containers = [line for each in services(**GIVEN).values() for line in (each.command, each.health)]
    return of_units + [line[line.index("lake") + 1 :] for line in of_containers if "lake" in line]


def test_services_use_options_of_the_commands() -> None:
    assert len(commands()) == 6
    for words in commands():
        given = [word for word in words if word.startswith("--")]
        verbs = [word for word in words[:2] if not word.startswith("--")]
        told = CliRunner().invoke(lake, [*verbs, "--help"]).output
        assert [option for option in given if option not in told] == [], words


def test_image_copies_existing_files_and_pins_its_packages() -> None:
    copied = image().copied
    assert {"requirements.lock", "lake", "dags/lake_airflow", "infra/airflow.sh"} <= set(copied.values())
    assert [name for name in copied.values() if not (ROOT / name).exists()] == []
    assert image().user == "headwater"
    runs = [rest for word, rest in instructions() if word == "RUN"]
    assert [line for line in runs if "install" in line and "pip" in line and "--require-hashes" not in line] == [
        line for line in runs if "--no-deps --no-build-isolation --compile-bytecode ." in line
    ]
    for line in (line for line in runs if "apt-get" in line):
        assert "apt-get update" in line
        assert "--no-install-recommends" in line
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert bases == ["${BASE}", "base", "base"]
    assert compose(**GIVEN, BASE="debian@sha256:0")["services"]["cluster"]["build"]["args"]["BASE"] == "debian@sha256:0"


@pytest.mark.parametrize("service", services(**GIVEN).values(), ids=lambda service: service.name)
def test_service_uses_the_image_and_starts_a_program_of_it(service: Service) -> None:
    build = service.says["build"]
    assert ((FOLDER / build["context"]).resolve() / build["dockerfile"]).samefile(CONTAINERFILE)
    programs, modules = ["lake", "spark-class", "python", "bash"], re.compile(r"infra\.[\w.]+")
    for line in (service.command, service.health):
        assert not line or line[0] in programs or line[0] in image().copied
        started = [word for word in line if word.startswith("/opt/") or modules.fullmatch(word)]
        for word in started:
            there = word if word.startswith("/") else f"/opt/{word.replace('.', '/')}.py"
            assert any(there == copied or there.startswith(f"{copied}/") for copied in image().copied), word
            assert (ROOT / "infra" / there.removeprefix("/opt/infra/")).is_file()
    assert (BIN / "spark-class").is_file()  # The one of the pinned PySpark, as in the image


def test_services_use_existing_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init(tmp_path / "shop")
    known = {f"LAKE_{name.upper().replace('.', '__')}" for name in names()}
    for service in services(**GIVEN).values():
        own = {name: value for name, value in service.environment.items() if name.startswith("LAKE_")}
        assert set(own) <= known
        with monkeypatch.context() as there:
            for name, value in own.items():
                there.setenv(name, value)
            settings = load_settings(tmp_path / "shop")
        of_a_cluster = service.name.startswith("cluster")
        warehouse = settings.urls.get("warehouse", "")
        assert (warehouse, is_local(settings)) == (("s3://lake/warehouse", False) if of_a_cluster else ("", True))
        if of_a_cluster:
            assert isinstance(settings.storage, S3Settings)
            assert settings.storage.endpoint == "http://s3:9000"
            assert settings.spark.master in services(**GIVEN)["worker"].command
            assert settings.spark.conf["spark.pyspark.python"] == "/opt/headwater/bin/python"


def test_amazon_s3_needs_no_endpoint() -> None:
    own = services(**GIVEN, S3_ENDPOINT="", S3_REGION="eu-central-1", WAREHOUSE="s3://acme/shop")["cluster"].environment
    assert [own[f"LAKE_{name}"] for name in ("STORAGE__ENDPOINT", "STORAGE__REGION", "WAREHOUSE")] == [
        "",
        "eu-central-1",
        "s3://acme/shop",
    ]


def test_ports_are_published_on_loopback_only() -> None:
    published = [port for each in services(**GIVEN).values() for port in each.says.get("ports", ())]
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert [each.name for each in services(**GIVEN).values() if "network_mode" in each.says] == ["airflow"]


def test_secrets_are_files_only() -> None:
    declared = compose(**GIVEN, SECRETS="/safe")["secrets"]
    assert declared == {
        name: {"file": f"/safe/{name}"} for name in ("aws_access_key_id", "aws_secret_access_key", CLUSTER)
    }
    for service in services(**GIVEN).values():
        assert set(service.secrets) <= set(declared)
        said = json.dumps(service.environment).lower()
        assert [word for word in ("secret", "aws_", "password", "authenticate") if word in said] == []
        assert ("infra.container.with_secrets" in service.command) == bool(service.secrets)
    assert services(**GIVEN)["master"].secrets == [CLUSTER]
    assert CLUSTER not in services(**GIVEN)["s3"].secrets


def test_cluster_services_have_no_privileges_and_a_health_check() -> None:
    cluster = {name: each for name, each in services(**GIVEN).items() if name not in ("follow", "airflow")}
    assert set(cluster) == {"s3", "master", "worker", "cluster", "cluster-airflow"}
    for service in cluster.values():
        assert service.says["read_only"] is True
        assert service.says["cap_drop"] == ["ALL"]
        assert service.says["security_opt"] == ["no-new-privileges:true"]
        assert "user" not in service.says  # The user of the image
        assert service.health
        assert [word for word in service.health if " " in word] == []  # Podman 4 splits words at spaces
        for other, how in service.waits_for.items():
            assert how["condition"] == "service_healthy"
            together = set(service.says["profiles"]) <= set(cluster[other].says["profiles"])
            assert together != (how.get("required") is False), (service.name, other)
    assert [cluster[name].says["stop_grace_period"] for name in ("cluster", "cluster-airflow")] == ["15m", "15m"]


def with_secrets(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the secrets of a folder."""
    there = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "SECRETS": str(folder), **environment}
    line = [sys.executable, "-m", "infra.container.with_secrets", *command]
    return subprocess.run(line, env=there, capture_output=True, text=True, check=False)


def test_secrets_wrapper_reads_secrets_from_files(tmp_path: Path) -> None:
    (tmp_path / "pgpassword").write_text("opensesame\n")
    (tmp_path / CLUSTER).write_text("0123456789abcdef")
    (tmp_path / "..data").mkdir()
    done = with_secrets(tmp_path, "env", LAKE_SPARK__CONF='{"spark.cores.max": "2"}')
    had = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (had["PGPASSWORD"], "SECRETS" in had, "SPARK_SECRET" in had) == ("opensesame", False, False)
    assert json.loads(had["LAKE_SPARK__CONF"]) == {
        "spark.cores.max": "2",
        "spark.authenticate": "true",
        "spark.authenticate.secret": "0123456789abcdef",
        "spark.network.crypto.enabled": "true",
    }
    daemon = tmp_path / "conf"
    had = dict(
        line.split("=", 1) for line in with_secrets(tmp_path, "env", SPARK_CONF_DIR=str(daemon)).stdout.splitlines()
    )
    assert "LAKE_SPARK__CONF" not in had
    file = daemon / "spark-defaults.conf"
    assert "spark.authenticate.secret 0123456789abcdef\n" in file.read_text()
    assert (daemon.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("", "expected one line"),
        ("short", "expected one line"),
        ("two\nlines and more", "expected one line"),
        ("back\\slashes", "expected one line"),
        ("schlüssel-zum-tor", "expected one line"),
        (None, "cannot be read: Is a directory"),
    ],
)
def test_secrets_wrapper_names_an_invalid_file_without_its_content(
    tmp_path: Path, secret: str | None, said: str
) -> None:
    file = tmp_path / "pgpassword"
    if secret is None:
        file.mkdir()
    else:
        file.write_text(secret)
    done = with_secrets(tmp_path, "env")
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert str(file) in done.stderr
    assert not secret or secret not in done.stderr
    assert "fix:" in done.stderr


def test_secrets_wrapper_reports_a_missing_command_and_invalid_conf(tmp_path: Path) -> None:
    (tmp_path / CLUSTER).write_text("0123456789abcdef")
    assert "no command" in with_secrets(tmp_path).stderr
    assert "No such file or directory: no-such" in with_secrets(tmp_path, "no-such").stderr
    assert "no JSON object" in with_secrets(tmp_path, "env", LAKE_SPARK__CONF="[1]").stderr
