"""Targets of `make`: those named in pages exist, each has a description, and each does its work. Targets that need
the network, hours or another machine run dry: the programs accept their arguments.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from argparse import ArgumentParser
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.request import urlopen

import pytest

from tests import servers
from tests.processes import LOOPBACK, PATIENCE, free_port, listening, make, until
from tests.servers.kafka import installed
from tests.servers.postgres import binaries as programs

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
VENV = Path(sys.prefix)
TARGETS = dict(re.findall(r"^([a-z][a-z0-9-]*):(?!=)(.*)$", MAKEFILE, re.MULTILINE))
RUN_HERE = {"help", "setup", "demo", "docs", "audit", "lock", "clean"}
"""Targets of which a test below, or one of tests/docs, runs the recipe."""
PAGES = (
    "*.md",
    "docs/**/*.md",
    "infra/**/*.md",
    "infra/**/*.toml",
    *(f"{each}/**/*.py" for each in ("infra", "lake", "tests")),
)
COMMAND = re.compile(
    r"(?:^ *|[`(]|: )make ([a-z][a-z0-9-]*)((?: [A-Z]+=(?:'[^']*'|[^\s`'\")#]+))*)(?= *(?:[`\")#]|$| fetches))", re.M
)
"""A command in a page, a docstring or a message: the target, and what it is given."""
VARIABLES = {
    "S": {"demo", "test", "long", "server"},
    "W": {"soak", "bench"},
    "DAYS": {"demo"},
    "ARGS": {"test", "bench"},
}
"""The targets that use a variable."""
PLACEHOLDERS = {"NAME", "<name>", "{of.name}", "{name}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the Makefile, and with this environment."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv").symlink_to(VENV)
    return tmp_path


def commands() -> dict[tuple[str, str], Path]:
    """Return the `make` commands of pages, docstrings and messages, as target and variables, with a file for each."""
    files = [file for pattern in PAGES for file in ROOT.glob(pattern) if "fixtures" not in file.parts]
    texts = {file: file.read_text("utf-8") for file in files if file != Path(__file__)}
    return {found: file for file, text in texts.items() for found in COMMAND.findall(text)}


def test_make_commands_named_in_pages_exist() -> None:
    named = commands()
    assert {target for target, _ in named} >= {"setup", "demo", "quick", "test", "laws", "soak", "bench", "server"}
    assert [(target, file) for (target, _), file in named.items() if target not in TARGETS] == []
    for (target, variables), file in named.items():
        given = dict(word.partition("=")[::2] for word in shlex.split(variables))
        assert all(target in VARIABLES[name] for name in given), file
        if given and not PLACEHOLDERS & {*given.values()}:
            shown = make("--dry-run", target, *(f"{name}={value}" for name, value in given.items()))
            assert (shown.returncode, shown.stderr) == (0, ""), file
    assert "exec make test\n" in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize("given", ["demo S", "test S", "soak W", "bench W", "server S"])
def test_make_lists_the_names_when_one_is_unknown(given: str) -> None:
    shown = make("--dry-run", *f"{given}=x".split())
    assert shown.returncode == 2
    [listed] = re.findall(rf"\*\*\* {given[-1]}=x is not known. It is one of: (.*)\.  Stop", shown.stderr)
    assert sorted(listed.split()) == sorted(names(given))


def test_make_server_lists_the_servers_when_none_is_named() -> None:
    assert "name a server: S=kafka, or another of: " in make("--dry-run", "server").stderr


def test_make_targets_are_phony_and_documented() -> None:
    assert [name for name, rest in TARGETS.items() if " ## " not in rest] == []
    [phony] = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert phony.split() == list(TARGETS)
    shown = [line for line in make("help").stdout.splitlines() if line.startswith("  make ")]
    assert [line.split()[1] for line in shown] == list(TARGETS)
    assert all(line.split(maxsplit=2)[2:] for line in shown)
    assert len(TARGETS) == 15


def names(given: str) -> list[str]:
    """Return the names that `make help` lists for `test S`, `soak W` …."""
    [line] = re.findall(rf"^ +{given}= +(.*)$", make("help").stdout, re.MULTILINE)
    return str(line).split()


class Taken(Exception):
    """Raised instead of the program, after its arguments are parsed."""


def test_programs_accept_the_arguments_of_the_makefile(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = ArgumentParser.parse_args

    def taken(parser: ArgumentParser, *_: object) -> NoReturn:
        parse(parser)
        raise Taken

    monkeypatch.setattr(ArgumentParser, "parse_args", taken)
    modules = []
    parts = [f"{given}={name}" for given in ("soak W", "bench W", "server S") for name in names(given)]
    for command in [*(TARGETS.keys() - RUN_HERE - {"server"}), *parts]:
        shown = make("--dry-run", *command.split())
        assert (shown.returncode, shown.stderr) == (0, "")
        for line in shown.stdout.splitlines():
            program, *words = shlex.split(line)
            assert (ROOT / program).exists(), line
            if words[:1] == ["-m"] and program.endswith("python"):
                modules.append(words[1])
                module: Any = import_module(words[1])
                module = module if hasattr(module, "main") else import_module(f"{words[1]}.__main__")
                monkeypatch.setattr("sys.argv", words[1:])
                with pytest.raises(Taken):
                    module.main()
    started = {"infra.kafka.broker", "infra.opensearch.server", "infra.s3.server", "infra.bench"}
    assert {*modules} == {
        *started,
        *(f"infra.bench.{name}" for name in names("bench W")),
        *(f"tests.{name}" for name in names("soak W")),
    }


def test_marks_selected_by_make_exist() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    marks = {text.partition(":")[0] for text in options["markers"]}
    chosen = re.findall(r'-m "([^"]*)"', MAKEFILE) + re.findall(r"-m '([^']*)'", options["addopts"])
    assert {word for words in chosen for word in words.split()} <= marks | {"not", "and", "or"}


SLOW: Final = frozenset({"cluster"})
"""Servers whose first answer takes longer than a smoke test may: `make test` asks them nothing."""


def test_server_has_a_target_and_one_smoke_test_per_folder() -> None:
    texts = {file: file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py")}
    first = re.compile(r"^from tests\.servers\.(\w+) import", re.MULTILINE)  # A file may use others besides
    over = re.compile(r"smoke=\{(.+)\}")  # in a test of several servers
    for name in servers.NAMES:
        assert make("--dry-run", "test", f"S={name}").stdout.splitlines()[-1].strip() == f".venv/bin/pytest -m {name}"
        asking = [file for file, text in texts.items() if (server := first.search(text)) and server[1] == name]
        smoke = [file.parent for file in asking for _ in range(texts[file].count("@pytest.mark.smoke\n"))]
        smoke += [file.parent for file, text in texts.items() for some in over.findall(text) if f'"{name}"' in some]
        assert bool(smoke) == (name not in SLOW), name
        assert len(smoke) == len(set(smoke)), name


JARS = ("lake/jars.txt", "lake/session/jars.py")


def test_setup_does_nothing_when_it_is_newer_than_its_lists(folder: Path) -> None:
    for name in ("requirements.lock", "pyproject.toml", "infra/bootstrap.lock", *JARS):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / ".venv").unlink()
    (folder / ".venv").mkdir()
    for stamp in (".packages", ".headwater", ".jars"):
        (folder / ".venv" / stamp).touch()
    done = subprocess.run(
        ["make", "--no-print-directory", "setup"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""
    later = time.time() + 10
    os.utime(folder / "lake/jars.txt", (later, later))
    command = ["make", "--no-print-directory", "--dry-run", "setup"]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert shown.stdout == ".venv/bin/lake setup\ntouch .venv/.jars\n:\n"


def test_clean_removes_generated_files_only(folder: Path) -> None:
    (folder / ".venv").unlink()
    made = (".venv/bin/python", ".lake/warehouse/x", "landing/flights/a.jsonl", "lake.egg-info/x", ".mypy_cache/x")
    own = ("pyproject.toml", "jobs/silver/flight.py", "schemas/flights.avsc", ".gitignore")
    for name in (*made, *own):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert make("clean", folder=folder).returncode == 0
    left = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert left == {"Makefile", *own}


def wheel(folder: Path, name: str) -> None:
    """Write an empty package."""
    about = f"{name}-1.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as file:
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")


def test_lock_pins_each_package_with_its_hash_and_no_address(folder: Path) -> None:
    """From a folder of packages in place of a registry."""
    (folder / "infra/sharing").mkdir(parents=True)
    (folder / "infra/sharing/requirements.in").write_text("setuptools\nuv\n")
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["setuptools"]\n'
        '[project.optional-dependencies]\ndev = ["uv"]\n'
    )
    for name in ("setuptools", "uv"):
        wheel(folder, name)
    done = make("lock", folder=folder, UV_OFFLINE="1", UV_FIND_LINKS=str(folder), UV_CACHE_DIR=str(folder / "cache"))
    assert done.returncode == 0, done.stderr
    for lock in ("requirements.lock", "infra/bootstrap.lock", "infra/sharing/requirements.lock"):
        text = (folder / lock).read_text()
        assert re.findall(r"^(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE) == [
            "setuptools==1",
            "uv==1",
        ]
        assert str(folder) not in text


@pytest.mark.slow
def test_audit_reports_an_unreachable_database_and_succeeds() -> None:
    nowhere = "http://127.0.0.1:9"
    done = make("audit", HTTPS_PROXY=nowhere, https_proxy=nowhere, NO_PROXY="", no_proxy="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("skip  vulnerabilities  the database cannot be reached")
    assert "ok    jars" in done.stdout


@pytest.mark.long
def test_demo_publishes_a_league_of_carriers(folder: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("infra", "jobs", "schemas", "quality"):
        shutil.copytree(ROOT / name, folder / name)
    done = make("demo", "DAYS=3", folder=folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ *rank +carrier|^rank", done.stdout, re.MULTILINE), done.stdout


def test_airflow_exits_with_75_if_its_port_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = make("server", "S=airflow", AIRFLOW__API__PORT=port, AIRFLOW_HOME=str(tmp_path / "airflow"))
    assert f"airflow: port {port} is in use" in done.stderr
    assert "Error 75" in done.stderr


@pytest.mark.airflow
def test_airflow_answers_until_it_is_interrupted(tmp_path: Path) -> None:
    port = str(free_port())
    environment = os.environ | {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__API__PORT": port}
    command = ["make", "--old-file=setup", "server", "S=airflow"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True) as run:
        try:
            until(lambda: answers(f"http://127.0.0.1:{port}/api/v2/version"))
            assert set().union(*map(listening, members(run.pid))) <= LOOPBACK
        finally:
            os.killpg(run.pid, signal.SIGINT)
            run.wait(timeout=PATIENCE)
    assert not members(run.pid)


@pytest.mark.kafka
def test_kafka_listens_on_loopback_until_it_is_interrupted(tmp_path: Path) -> None:
    installed()
    port = str(free_port())
    environment = os.environ | {"KAFKA_HOME": str(tmp_path / "kafka")}
    command = ["make", "--old-file=setup", "--old-file=.venv/.kafka", "server", "S=kafka", f"ARGS=--port {port}"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True) as run:
        try:
            until(lambda: accepts(int(port)))
            assert set().union(*map(listening, members(run.pid))) <= LOOPBACK
        finally:
            os.killpg(run.pid, signal.SIGINT)
            run.wait(timeout=PATIENCE)
    assert not members(run.pid)


@pytest.mark.postgres
def test_postgres_answers_until_it_is_interrupted(tmp_path: Path) -> None:
    """Under root, which may not run it, its files are in a folder of another user."""
    import psycopg

    programs()
    port = str(free_port())
    data = Path(tempfile.mkdtemp(prefix="headwater-postgres-", dir="/tmp"))
    data.chmod(0o711)
    names = ("POSTGRES_PORT", "POSTGRES_DATA", "POSTGRES_DSN")
    named = dict(zip(names, (port, str(data / "data"), str(tmp_path / "dsn")), strict=True))
    with subprocess.Popen(
        ["make", "--old-file=setup", "--old-file=.venv/.postgres", "server", "S=postgres"], cwd=ROOT,
        env=os.environ | named, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as run:  # fmt: skip
        try:
            until(lambda: connects(tmp_path / "dsn"))
            with psycopg.connect((tmp_path / "dsn").read_text()) as connection:
                assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
            assert set().union(*map(listening, members(run.pid))) <= LOOPBACK
            assert (tmp_path / "dsn").stat().st_mode & 0o077 == 0
            taken = make("server", "S=postgres", folder=ROOT, **named)
            assert f"postgres: port {port} is in use" in taken.stderr
            assert "Error 75" in taken.stderr
        finally:
            os.killpg(run.pid, signal.SIGINT)
            run.wait(timeout=PATIENCE)
    assert not members(run.pid)
    shutil.rmtree(data)


@pytest.mark.kafka
def test_demo_kafka_gives_the_tables_of_the_files(tmp_path: Path) -> None:
    installed()
    demo: list[str | Path] = [
        sys.executable,
        "-m",
        "infra.kafka.demo",
        "--days",
        "3",
        "--home",
        tmp_path,
        "--compare",
    ]
    done = subprocess.run([*demo, "--port", str(free_port())], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  the same\n") == 14
    assert re.search(r"^flights .* [1-9][0-9,]* aborted$", done.stdout, re.MULTILINE)


def accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
        return True
    return False


def connects(file: Path) -> bool:
    import psycopg

    with suppress(psycopg.OperationalError, FileNotFoundError), psycopg.connect(file.read_text()):
        return True
    return False


def answers(address: str) -> bool:
    with suppress(OSError), urlopen(address, timeout=PATIENCE):
        return True
    return False


def members(session: int) -> list[int]:
    """Return the processes of a session."""
    stats = {int(entry.name): entry / "stat" for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = []
    for pid, stat in stats.items():
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(pid)
    return found
