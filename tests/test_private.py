"""Private files: readable by the owner, or by a group; secrets are in no list, message or setting."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings, load_settings
from lake.errors import DeclarationError
from lake.ingest.append import keep_stdin
from lake.read.sql import reader
from lake.session import file_modes
from lake.session.spark_session import embedded_conf, jvm_stderr_to, submitted_with
from lake.store.locks import activity
from lake.store.locks.lease import lease
from tests.processes import LOOPBACK, listening, other_process, until
from tests.shop import contract, declare
from tests.warehouse import publish, write

ROOT = Path(__file__).parents[1]
USABLE = grp.getgrall() if os.geteuid() == 0 else [grp.getgrgid(number) for number in os.getgroups()]
GROUPS = [each.gr_name for each in USABLE if each.gr_gid != os.getegid()]


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """Set the umask of most machines: files that everybody can read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def lake(settings: Settings, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from lake.cli import main; main()", *arguments]
    return subprocess.run(
        [*command, "--project", str(settings.project)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def exposed_files(settings: Settings) -> list[Path]:
    """Return files that others than the owner can access."""
    return [path for path in settings.path(".lake").rglob("*") if path.lstat().st_mode & 0o077]


def test_warehouse_created_by_a_program_is_private(project: Settings) -> None:
    with lease(project, "log.x"):
        pass
    assert {mode(project.path(each)) for each in (".lake", ".lake/warehouse", ".lake/warehouse/locks")} == {0o700}


def test_open_warehouse_is_made_private(project: Settings) -> None:
    project.warehouse_path.mkdir(parents=True)
    assert mode(project.warehouse_path) == 0o755
    with lease(project, "log.x"):
        pass
    assert (mode(project.path(".lake")), mode(project.warehouse_path)) == (0o700, 0o700)


def test_warehouse_elsewhere_is_private_and_its_parents_stay(project: Settings, tmp_path: Path) -> None:
    there = tmp_path / "srv"
    there.mkdir(mode=0o755)
    with lease(replace(project, warehouse=there / "data/warehouse"), "log.x"):
        pass
    assert [mode(each) for each in (there, there / "data", there / "data/warehouse")] == [0o755, 0o700, 0o700]


@pytest.mark.slow
def test_files_of_a_command_are_private(project: Settings, land: Callable[..., Path]) -> None:
    declare(project, contract("orders", {"k": "string"}))
    assert lake(project, "cut").returncode == 0
    assert (project.warehouse_path / "meta/cuts/_delta_log").is_dir()
    assert exposed_files(project) == []


def test_scratch_files_are_private(project: Settings, land: Callable[..., Path], tmp_path: Path) -> None:
    with (tmp_path / "in").open("wb+") as stream:
        stream.write(b"{}\n")
        stream.seek(0)
        keep_stdin(project, stream)
    land("readings", "sp ace.jsonl", "{}")
    with submitted_with(project, {"spark.a": "b"}) as written:
        assert mode(written) == 0o600
    assert not written.exists()
    assert {mode(project.path(f".lake/{each}")) for each in ("", "staging", "spark")} == {0o700}


@pytest.mark.skipif(not GROUPS, reason="this user is in one group alone")
def test_group_may_read_and_not_write(project: Settings) -> None:
    project = replace(project, group=GROUPS[0])
    number = grp.getgrnam(GROUPS[0]).gr_gid
    file_modes.begin(project)
    with lease(project, "log.x"):
        write(project, "gold", "t", "SELECT 1 AS a")
        publish(project, t=("gold", 0))
    activity.begin(project, "lake sql")
    file_modes.scratch(project, "spark")
    top = [project.path(".lake"), project.warehouse_path, project.warehouse_path / "locks"]
    assert [mode(each) for each in top] == [0o2750] * 3
    assert mode(project.path(".lake/spark")) & 0o077 == 0
    listed = project.warehouse_path / "locks/reads"
    assert mode(listed) == 0o2770
    for path in [*project.warehouse_path.rglob("*")]:
        assert path.stat().st_gid == number, path
        assert mode(path) & 0o007 == 0, path
        assert path == listed or not mode(path) & 0o020, path
        assert mode(path) & 0o040, path
    activity.end()


@pytest.mark.slow
def test_reader_without_write_access_is_registered(project: Settings) -> None:
    """Otherwise lake maintain could delete files that a member of the group reads."""
    with lease(project, "log.x"), other_process(project, "reading"):
        [one] = activity.others(project)
    assert one.command == "lake sql"


@pytest.mark.slow
def test_missing_group_is_reported(project: Settings) -> None:
    told = lake(project, "status", LAKE_GROUP="nobody-at-all")
    assert (told.returncode, "no group 'nobody-at-all' on this machine" in told.stderr) == (2, True)


def test_reader_keeps_the_umask_of_its_program(project: Settings) -> None:
    write(project, "gold", "t", "SELECT 1 AS a")
    publish(project, t=("gold", 0))
    reader(load_settings(project.project)).relation("FROM t").fetchall()
    assert os.umask(0o022) == 0o022


def test_hadoop_uses_the_umask_of_the_project(project: Settings) -> None:
    jars = project.path("jars")
    jars.mkdir()
    (jars / "a.jar").touch()
    for group, said in (("", "077"), ("data", "027")):
        conf = embedded_conf(replace(project, jars=jars, group=group))
        assert conf["spark.hadoop.fs.permissions.umask-mode"] == said


def test_java_properties_escape_settings(project: Settings) -> None:
    """Escapes of Java: a newline in a value must not begin another setting."""
    conf = {"spark.a": "x\nspark.ui.enabled true", "spark.b": " p:a=s#s!\\n ", "spark.c": "é"}
    with submitted_with(project, conf) as file:
        lines = file.read_text("utf-8").splitlines()
    assert lines == [
        "spark.a x\\nspark.ui.enabled\\ true",
        "spark.b \\ p\\:a\\=s\\#s\\!\\\\n\\ ",
        "spark.c é",
    ]


def test_jvm_has_no_settings_on_its_command_line_and_listens_on_loopback(spark: SparkSession) -> None:
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    line = Path(f"/proc/{jvm}/cmdline").read_text().split("\0")
    assert "--properties-file" in line
    assert "--conf" not in line
    assert spark.conf.get("spark.master") not in line
    assert listening(jvm) <= LOOPBACK
    assert listening(os.getpid()) <= LOOPBACK


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LAKE_SPARK__CONF", '{"spark.hadoop.fs.s3a.secret.key": "hush"'),
        ("LAKE_SPARK__CONF", '{"a": ["hush"]}'),
        ("LAKE_SPARK", '{"conf": {"a": "hush"}}'),
    ],
)
def test_error_hides_a_setting_that_may_be_secret(
    project: Settings, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(DeclarationError, match="a table") as told:
        load_settings(project.project)
    assert "hush" not in str(told.value)


@pytest.mark.slow
def test_error_hides_a_token_in_an_address(project: Settings) -> None:
    told = lake(project, "status", "--json", SPARK_REMOTE="sc://localhost:1/;token=hush")
    told_too = lake(project, "doctor", SPARK_REMOTE="sc://localhost:1/;token=hush")
    assert "hush" not in told.stdout + told.stderr + told_too.stdout + told_too.stderr


def test_log_of_a_jvm_continues_at_its_beginning_after_truncation(project: Settings) -> None:
    log, emptied = file_modes.scratch(project, "spark") / "connect.log", project.path("emptied")
    script = f"echo first >&2; while ! test -e {emptied}; do sleep 0.02; done; echo second >&2; exec sleep 60"
    with jvm_stderr_to(log):
        jvm = subprocess.Popen(["sh", "-c", script])
    try:
        until(lambda: log.read_text() == "first\n")
        os.truncate(log, 0)
        emptied.touch()
        until(lambda: log.read_text() == "second\n")
    finally:
        jvm.kill()
        jvm.wait()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AIRFLOW__API__HOST", "0.0.0.0", "serves 127.0.0.1 only"),
        ("AIRFLOW_PUBLISHED", "0.0.0.0:8080", "is published on 127.0.0.1 only"),
    ],
)
def test_airflow_rejects_addresses_beyond_loopback(variable: str, value: str, said: str) -> None:
    environment = {**os.environ, variable: value}
    run = subprocess.run(
        ["bash", str(ROOT / "infra/airflow.sh")], env=environment, capture_output=True, text=True, check=False
    )
    assert (run.returncode, said in run.stderr) == (2, True)


def test_airflow_script_prints_the_place_of_the_password() -> None:
    script = (ROOT / "infra/airflow.sh").read_text()
    assert "umask 077" in script
    assert 'echo "airflow: $public  user admin  password in $passwords"' in script
