"""Set-up: landing files of the example, lock, jars, `lake init` and `lake doctor`. No JVM."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest
from click.testing import CliRunner

from lake.cli import lake
from lake.config import Settings, load_settings
from lake.contracts.contract import load_contracts
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.ops import doctor
from lake.ops.scaffold import init
from lake.project.project import load
from lake.session import class_archive, jars
from lake.store import delta, delta_writer
from lake.store.keys import open_store
from lake.store.log import Log
from tests.permissions import forbidden

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "infra/bootstrap.lock")


@pytest.fixture(scope="module")
def landing_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the landing files of three days."""
    folder = tmp_path_factory.mktemp("landing")
    write_flights(folder, "--days", "3")
    return folder


def write_flights(folder: Path, *options: str) -> str:
    command: list[str | Path] = [sys.executable, ROOT / "infra/flights.py", folder, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def records(*files: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def digests(folder: Path) -> dict[str, str]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def scheduled(flight: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(flight["time_hour"]) + timedelta(minutes=flight["minute"])


@pytest.mark.long
def test_flights_of_three_days_have_the_documented_digests(landing_files: Path) -> None:
    assert {name: digest[:16] for name, digest in digests(landing_files).items()} == {
        "airlines/airlines.csv": "162551bd3401a12d",
        "airports/airports.parquet": ANY,  # Contains the version of DuckDB
        "flights/2013-01-01.jsonl": "f678f4f87953c5fb",
        "flights/2013-01-02.jsonl": "91a75dcb23e7b242",
        "flights/2013-01-02.redelivered-made.jsonl": "bb7d05c85e366fb2",
        "flights/2013-01-03.broken-made.jsonl": "d3d2b610e8f633fa",
        "flights/2013-01-03.jsonl": "ffbc517bc124a046",
        "planes/planes.jsonl": "f177a9e3e3fb37e4",
        "weather/2013-01.jsonl": "43df6454fc6f35c8",
    }
    assert len(records(*landing_files.glob("flights/2013-01-0?.jsonl"))) == 2355
    assert len(records(landing_files / "planes/planes.jsonl")) == 3322


@pytest.mark.long
def test_flight_is_identified_by_carrier_number_origin_and_hour(landing_files: Path) -> None:
    flights = records(*landing_files.glob("flights/2013-01-0?.jsonl"))
    ids = {(flight["carrier"], flight["flight"], flight["origin"], flight["time_hour"]) for flight in flights}
    assert len(ids) == len(flights)


@pytest.mark.long
def test_flight_hour_is_that_of_new_york(landing_files: Path) -> None:
    for flight in records(landing_files / "flights/2013-01-02.jsonl"):
        local = datetime.fromisoformat(flight["time_hour"]) - timedelta(hours=5)
        assert (local.month, local.day, local.hour) == (flight["month"], flight["day"], flight["hour"])
        assert flight["sched_dep_time"] == flight["hour"] * 100 + flight["minute"]


def test_flights_are_written_in_order_of_arrival(landing_files: Path) -> None:
    """In cities on New York's time, the clock alone shows whether an arrival is of this UTC day."""
    flights = records(landing_files / "flights/2013-01-02.jsonl")
    clocks = [
        flight["arr_time"]
        for flight in flights
        if flight["arr_time"] and flight["dest"] in {"BOS", "ATL", "MIA", "DCA"}
    ]
    arrivals = [(clock // 100 * 60 + clock % 100 + 5 * 60) % (24 * 60) for clock in clocks]
    assert len(arrivals) > 100
    assert arrivals == sorted(arrivals)
    assert [scheduled(flight) for flight in flights] != sorted(scheduled(flight) for flight in flights)


def test_flight_file_contains_events_known_on_its_utc_day(landing_files: Path) -> None:
    cancelled = [flight for flight in records(landing_files / "flights/2013-01-02.jsonl") if flight["dep_time"] is None]
    assert cancelled
    assert {scheduled(flight).astimezone(UTC).date().isoformat() for flight in cancelled} == {"2013-01-02"}


def test_generated_files_are_marked_and_have_the_announced_rows(landing_files: Path) -> None:
    again = (landing_files / "flights/2013-01-02.redelivered-made.jsonl").read_text().splitlines()
    assert again == (landing_files / "flights/2013-01-02.jsonl").read_text().splitlines()[:25]
    assert len((landing_files / "flights/2013-01-03.broken-made.jsonl").read_text().splitlines()) == 6


@pytest.mark.long
def test_repeated_call_writes_the_same_bytes(landing_files: Path, tmp_path: Path) -> None:
    write_flights(tmp_path, "--days", "3")
    assert digests(tmp_path) == digests(landing_files)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.*")}
    said = write_flights(tmp_path, "--days", "3", "--no-made")
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.*")} == before
    assert "made" not in said


def test_landing_files_have_the_fields_of_their_contracts(landing_files: Path) -> None:
    contracts = load_contracts(load_settings(ROOT))
    for stream in ("flights", "weather", "planes"):
        file = min((landing_files / stream).glob("*.jsonl"))
        assert tuple(records(file)[0]) == tuple(field.name for field in contracts[stream].fields)


def test_locked_packages_have_a_version_and_hashes_and_no_address() -> None:
    for lock in LOCKS:
        text = (ROOT / lock).read_text()
        packages = re.findall(r"^\S.*(?:\n {4}.*)*", text, re.MULTILINE)
        assert packages
        assert all(re.match(r"[a-z0-9._-]+(\[[a-z,-]+\])?==\S+ ", package) for package in packages)
        assert all("--hash=sha256:" in package for package in packages)
        assert "://" not in text


def test_bootstrap_lock_is_part_of_the_lock() -> None:
    lock, bootstrap = (set(re.findall(r"^\S+==\S+", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS)
    assert bootstrap <= lock


def test_repository_names_no_machine_and_no_registry() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    unwanted = re.compile(r"pypi\.org|pythonhosted|maven\.org|maven2|/work/|/root/|/home/[a-z]")
    lines = [
        f"{name}:{number}: {line}"
        for name in listed.splitlines()
        if (file := ROOT / name).is_file() and file != Path(__file__)
        for number, line in enumerate(file.read_text("utf-8", errors="replace").splitlines(), 1)
        if unwanted.search(line)
    ]
    assert lines == []


def test_init_creates_a_project_that_loads(tmp_path: Path) -> None:
    files = init(tmp_path / "shop")
    assert {"pyproject.toml", ".gitignore", "schemas/orders.avsc", "tests/test_tables.py"} <= set(files)
    project = load(load_settings(tmp_path / "shop"))
    assert list(project.tables) == ["current_order", "customer_daily"]
    assert set(project.contracts) == {"orders"}


def test_init_leaves_existing_files_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(DeclarationError, match="not empty"):
        init(tmp_path)
    with pytest.raises(DeclarationError, match="not a folder"):
        init(tmp_path / "mine")
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_init_prints_its_files_and_the_next_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(lake, ["init", str(tmp_path / "shop"), "--json"])
    assert json.loads(result.stdout)["project"] == str(tmp_path / "shop")
    assert "lake run" in result.stderr


def test_doctor_succeeds_on_this_machine() -> None:
    result = CliRunner().invoke(lake, ["doctor", "--project", str(ROOT)])
    assert result.exit_code == 0, result.output
    assert {line[:4] for line in result.stdout.splitlines()} == {"ok  "}


def findings(project: Path) -> dict[str, doctor.Diagnosis]:
    return {finding.subject: finding for finding in doctor.examine(project)}


def test_doctor_reports_a_faulty_java(project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    missing = findings(project.project)["java"]
    assert not missing.ok
    assert "unset JAVA_HOME" in missing.fix
    java = tmp_path / "old/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    old = findings(project.project)["java"]
    assert (old.ok, old.found.split()[0]) == (False, "1.8.0_392")


def test_doctor_reports_whether_the_key_store_can_be_read(project: Settings) -> None:
    log = Log(project, "orders")
    assert findings(project.project)["keys"].found.startswith("none yet")
    store = open_store(project, make=True)
    assert findings(project.project)["keys"] == doctor.Diagnosis("keys", f"{project.keys_path} can be read")
    with forbidden(project.keys_path):
        assert "permission denied" in findings(project.project)["keys"].found
    head = {"batch": 1, "offsets": {}, "watermark": None, "counts": {}, "files": 1, "contract": 1, "at": ""}
    position = delta.start(log.app).next(**head, keys={"store": store.id, "subjects": 0})
    delta_writer.write(log.path, pa.table({"_subject": pa.array([], pa.string())}), position)
    project.keys_path.unlink()
    assert "there is no key store" in findings(project.project)["keys"].found


@pytest.fixture
def jar_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the two jars of a test list, in place of the real one."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    lines = ["# sums"]
    for name in ("a", "b"):
        (folder / f"{name}-1.jar").write_text(name)
        lines.append(f"{hashlib.sha256(name.encode()).hexdigest()}  org.example:{name}:1  Apache-2.0")
    (folder / "jars.txt").write_text("\n".join(lines))
    monkeypatch.setattr(jars, "LIST", folder / "jars.txt")
    monkeypatch.setattr(jars.listed, "__defaults__", (folder / "jars.txt",))
    monkeypatch.setenv("LAKE_JARS", str(tmp_path / "jars"))
    (tmp_path / "pyproject.toml").write_text("[tool.lake]\n")
    monkeypatch.chdir(tmp_path)
    return folder


def test_doctor_reports_missing_damaged_and_unknown_jars(jar_folder: Path, tmp_path: Path) -> None:
    none = findings(tmp_path)["jars"]
    assert (none.found, none.fix.split(", ")[0]) == (f"none in {tmp_path}/jars", "lake setup fetches and verifies them")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/a-1.jar").write_text("not it")
    (tmp_path / "jars/c-1.jar").write_text("unknown")
    missing, wrong, unknown = findings(tmp_path)["jars"].found.split(", ", 2)
    assert (missing, wrong[:20]) == ("b-1.jar is missing", "a-1.jar has SHA-256 ")
    assert unknown.endswith("c-1.jar is not on the list")


def test_broker_names_its_missing_jar_with_the_fix(tmp_path: Path) -> None:
    file = ROOT / "infra/kafka/jars.txt"
    first, *others = jars.listed(file)
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in (first, *others))
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "infra.kafka.broker",
        "--jars",
        tmp_path,
        "--home",
        tmp_path / "home",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"kafka: {first.file} is missing ({tmp_path})\n  fix: python -m infra.kafka.broker --fetch"
    )
    assert not (tmp_path / "home").exists()


def test_second_list_of_jars_is_provided_separately(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/a-1.jar").write_text("a")
    digest = hashlib.sha256(b"a").hexdigest()
    (tmp_path / "list.txt").write_text(f"{digest}  org.example:a:1  MIT\n")
    put = [jars.provide(tmp_path / "to", print, file=tmp_path / "list.txt", source=tmp_path / "from") for _ in range(2)]
    assert (put, jars.faults(tmp_path / "to", jars.listed(tmp_path / "list.txt"))) == ([1, 0], [])


def setup(*arguments: str) -> Any:
    return CliRunner().invoke(lake, ["setup", "--no-archive", *arguments, "--json"])


def test_setup_installs_the_jars_of_the_list(jar_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "jars"
    target.mkdir()
    (target / "a-0.jar").write_text("of an earlier list")
    same = f"{hashlib.sha256(b'b').hexdigest()}  org.example:b:1  MIT"
    (target / "jars.txt").write_text(f"{'0' * 64}  org.example:a:0  Apache-2.0\n{same}")
    assert json.loads(setup("--from", str(jar_folder)).stdout) == {
        "jars": str(target),
        "listed": 2,
        "fetched": 2,
        "archived": False,
    }
    assert {file.name for file in target.iterdir()} == {"a-1.jar", "b-1.jar", "jars.txt"}
    assert json.loads(setup("--from", str(tmp_path)).stdout)["fetched"] == 0, "what is in place needs no source"
    assert findings(tmp_path)["jars"].ok
    (target / class_archive.ARCHIVE).write_text("1234")
    (target / class_archive.RECORD).write_text('{"bytes": 4}')
    assert json.loads(setup().stdout)["archived"], "the archive of an earlier setup stays"
    (target / "mine.jar").touch()
    assert "they would be loaded too: mine.jar" in str(setup("--from", str(jar_folder)).exception)
    assert (target / "mine.jar").exists()


@pytest.mark.parametrize("is_of_earlier_list", [False, True])
def test_setup_fetches_nothing_for_jars_in_place_beside_another(
    jar_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_of_earlier_list: bool
) -> None:
    target = tmp_path / "jars"
    setup("--from", str(jar_folder))
    (target / "c-1.jar").touch()
    if is_of_earlier_list:
        (target / "jars.txt").write_text(f"{(target / 'jars.txt').read_text()}\n{'0' * 64}  org.example:c:1  MIT")
    monkeypatch.setattr(jars, "java", lambda: "/nowhere/java")
    done = setup()
    others = "" if is_of_earlier_list else "not on the list, and they would be loaded too: c-1.jar"
    assert str(done.exception or "").startswith(others)
    assert done.exit_code == bool(others)
    assert (target / "c-1.jar").exists() != is_of_earlier_list
    assert jars.listed(target / "jars.txt") == jars.listed(jar_folder / "jars.txt")


@pytest.mark.parametrize("record", ['{"bytes": 4}', '{"bytes": 2}', "{}", "[]", "{", None])
def test_jvm_uses_an_archive_of_classes_only_if_it_is_whole(tmp_path: Path, record: str | None) -> None:
    (tmp_path / class_archive.ARCHIVE).write_text("1234")
    if record is not None:
        (tmp_path / class_archive.RECORD).write_text(record)
    options = class_archive.java_options(tmp_path)
    assert ("SharedArchiveFile" in options) == (record == '{"bytes": 4}')


def writing_archive(program: str) -> tuple[str, ...]:
    """Return a command that writes an archive where the JVM of `lake run` would, and then runs `program`."""
    option = "shlex.split(json.loads(os.environ['LAKE_SPARK__CONF'])['spark.driver.defaultJavaOptions'])"
    return (sys.executable, "-c", f"import json, os, shlex; [o] = {option}; open(o.partition('=')[2], 'w'); {program}")


def test_archive_of_classes_is_made_in_a_folder_with_blanks_and_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'a "good" \\ place'
    folder.mkdir()
    monkeypatch.setattr(class_archive, "LAKE", writing_archive("pass"))
    assert class_archive.make(folder, print)
    assert (
        shlex.split(class_archive.java_options(folder))[0] == f"-XX:SharedArchiveFile={folder / class_archive.ARCHIVE}"
    )
    assert sorted(file.name for file in folder.iterdir()) == [class_archive.ARCHIVE, class_archive.RECORD]


def test_make_setup_left_an_archive_of_classes() -> None:
    folder = Path(sys.prefix) / "share/headwater/jars"
    if not folder.is_dir():
        pytest.skip("this environment is not of make setup: it has no jars")
    assert class_archive.java_options(folder)


@pytest.mark.parametrize("folder", [".", "none"])
def test_setup_only_reports_that_classes_were_not_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(class_archive, "LAKE", (sys.executable, "-c", "import sys; sys.exit('no Java')"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir("/")  # no folder is above a relative program here
    told: list[str] = []
    assert not class_archive.make(tmp_path / folder, told.append)
    fault = {".": "lake run of a new project wrote none; see lake doctor", "none": "No such file or directory"}
    assert told == ["archiving the classes of the JVM ...", f"no archive of classes: {fault[folder]}"]
    assert not [*tmp_path.iterdir()]


def test_archive_that_another_setup_made_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / class_archive.ARCHIVE).write_text("1234")
    record = tmp_path / class_archive.RECORD
    write = f"open({str(record)!r}, 'w').write('{{\"bytes\": 4}}'); os.remove(o.partition('=')[2])"
    monkeypatch.setattr(class_archive, "LAKE", writing_archive(write))
    assert class_archive.make(tmp_path, print)


@pytest.mark.long
def test_setup_archives_classes_again_if_java_or_jars_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(Settings.jars, tmp_path / "jars"))
    for name in (class_archive.ARCHIVE, class_archive.RECORD):
        (folder / name).unlink(missing_ok=True)
    messages: list[str] = []
    with monkeypatch.context() as patch:
        patch.setenv("LAKE_WAREHOUSE", str(tmp_path / "warehouse"))
        assert class_archive.make(folder, messages.append)
    options = class_archive.java_options(folder)
    assert class_archive.make(folder, messages.append)
    assert len(messages) == 1
    project = tmp_path / "shop"
    init(project)
    conf = '{"spark.driver.defaultJavaOptions": "-Xlog:class+load"}'
    spark_only = {"LAKE_IN_PROCESS_ROWS": "0", "LAKE_SPARK__CONF": conf}
    environment = os.environ | {"LAKE_JARS": str(folder)} | spark_only
    command = [*class_archive.LAKE, "run", "--project", str(project)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "source: shared objects file (top)" in done.stdout
    with (folder / "jars.txt").open("a") as file:
        file.write("# changed\n")
    assert class_archive.make(folder, messages.append)
    assert len(messages) == 2
    assert class_archive.java_options(folder) == options
    assert {file.name for file in folder.glob("*[!r]") if file.is_file()} == {
        class_archive.ARCHIVE,
        class_archive.RECORD,
        "jars.txt",
    }
    assert not [*folder.glob(".*")]
    assert not (tmp_path / "warehouse").exists()


def test_setup_makes_its_files_readable_for_services(
    jar_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in jar_folder.iterdir():
        file.chmod(0o600)
    monkeypatch.setenv("LAKE_JARS", "new/jars")
    before = os.umask(0o077)
    try:
        assert setup("--from", str(jar_folder)).exit_code == 0
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    new = tmp_path / "new"
    open_to_all = {"new": 0o755, "jars": 0o755} | dict.fromkeys(("a-1.jar", "b-1.jar", "jars.txt"), 0o644)
    assert {path.name: path.stat().st_mode & 0o777 for path in (new, *new.rglob("*"))} == open_to_all
    (new / "jars/a-1.jar").chmod(0o600)  # An earlier file
    (new / "jars").chmod(0o700)
    assert json.loads(setup("--from", str(jar_folder)).stdout)["fetched"] == 0
    assert {path.name: path.stat().st_mode & 0o777 for path in (new, *new.rglob("*"))} == open_to_all


@pytest.mark.parametrize(
    "arguments", ["--from elsewhere", "--from jars", "--from elsewhere --ivy-settings elsewhere/jars.txt"]
)
def test_setup_keeps_existing_jars_when_the_source_is_invalid(jar_folder: Path, tmp_path: Path, arguments: str) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/b-1.jar").write_text("b")
    (jar_folder / "b-1.jar").write_text("other")
    assert isinstance(setup(*arguments.split()).exception, LakeError)
    assert [(file.name, file.read_text()) for file in (tmp_path / "jars").iterdir()] == [("b-1.jar", "b")]


@pytest.mark.long
def test_setup_fetches_jars_by_ivy_settings(jar_folder: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    for name in ("a", "b"):
        (mirror / "org/example" / name).mkdir(parents=True)
        (jar_folder / f"{name}-1.jar").rename(mirror / f"org/example/{name}/{name}-1.jar")
    pattern = f"{mirror}/[organisation]/[module]/[artifact]-[revision].[ext]"
    (tmp_path / "ivysettings.xml").write_text(
        f"""<ivysettings><settings defaultResolver="mirror"/><resolvers>
        <filesystem name="mirror" m2compatible="true"><artifact pattern="{pattern}"/></filesystem>
        </resolvers></ivysettings>"""
    )
    done = setup("--ivy-settings", "ivysettings.xml")
    assert json.loads(done.stdout)["fetched"] == 2
    assert {file.name for file in (tmp_path / "jars").iterdir()} == {"a-1.jar", "b-1.jar", "jars.txt"}
    (tmp_path / "jars/a-1.jar").unlink()
    (mirror / "org/example/a/a-1.jar").unlink()
    fault = setup("--ivy-settings", "ivysettings.xml").exception
    assert isinstance(fault, Unavailable)
    assert "the jars could not be fetched: " in fault.what
    assert "org.example#a;1" in fault.what


def test_doctor_reports_a_warehouse_that_is_not_writable(project: Any, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.lake]\nwarehouse = "/proc/warehouse"\n')
    assert not findings(tmp_path)["warehouse"].ok


def test_doctor_reports_a_remote_file_system(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_file_system", lambda folder: "nfs4")
    assert "local disk" in findings(project.project)["file system"].fix


def test_doctor_reports_another_version_of_a_pinned_package(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "4.0.1")
    assert findings(project.project)["pyspark"].fix == "install pyspark==4.2.0: headwater was tested with it"


def test_doctor_reports_faulty_settings_and_examines_the_machine(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.lake]\nwarehose = 1\n")
    subjects = findings(tmp_path)
    assert "unknown setting 'warehose'" in subjects["project"].found
    assert subjects["project"].fix == "did you mean 'warehouse'?"
    assert subjects["python"].ok


def test_doctor_exits_with_1_for_a_failed_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = CliRunner().invoke(lake, ["doctor", "--json", "--project", str(ROOT)])
    assert isinstance(result.exception, LakeError)
    assert result.exception.exit_code == 1
    assert [finding["subject"] for finding in json.loads(result.stdout) if not finding["ok"]] == ["java"]
