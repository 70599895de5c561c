"""A PostgreSQL of a run's own, whose log can be decoded; each test gets a database of its own in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes import PATIENCE, ROOT, children, free_port, until
from tests.servers import needed

BINARIES: Final = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
NUMBERS: Final = count(1)


def binaries() -> Path:
    """The folder of PostgreSQL's programs; skips a test where there is none, or no client."""
    needed(find_spec("psycopg"), "the extra `postgres` is not installed: make setup")
    found = BINARIES[-1] if BINARIES else None
    on_path = shutil.which("postgres")
    return needed(found or (Path(on_path).parent if on_path else None), "PostgreSQL is missing: make test S=postgres")


@dataclass
class Postgres:
    """A server over the files in `home`, a folder that a user who is not root may use."""

    home: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def dsn(self) -> str:
        """How its superuser connects to the database `postgres`."""
        return (self.home / "dsn").read_text().strip()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        options = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        environment = os.environ | {
            "POSTGRES_DATA": str(self.data),
            "POSTGRES_DSN": str(self.home / "dsn"),
            "POSTGRES_PORT": str(self.port),
        }
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [ROOT / "infra/postgres/server.sh", "-c", "fsync=off", *options],
                env=environment,
                stdout=log,
                stderr=log,
            )
        until(self.answers)

    def answers(self) -> bool:
        import psycopg

        assert self.process is not None
        assert self.process.poll() is None, (self.home / "log").read_text()
        with suppress(psycopg.OperationalError, FileNotFoundError), psycopg.connect(self.dsn):
            return True
        return False

    def stop(self, by: signal.Signals = signal.SIGINT) -> None:
        """Ends it: by SIGINT orderly and at once, by SIGQUIT or SIGKILL as a crash."""
        if self.process is not None:
            self.process.send_signal(by)
            self.process.wait(timeout=PATIENCE)
            until(lambda: not (self.data / "postmaster.pid").exists() or by is not signal.SIGINT)
            self.process = None

    def kill(self) -> None:
        """Kills all of its processes at once, whatever they are at, and starts it again."""
        assert self.process is not None
        pids = [self.process.pid, *children(self.process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=PATIENCE)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self.start()

    def crash(self) -> None:
        """Ends it as a loss of power would, and starts it again."""
        self.stop(signal.SIGQUIT)
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self.start()

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """What a statement that stands alone gives."""
        import psycopg

        with psycopg.connect(f"{self.dsn} dbname={database}", autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def database(self) -> str:
        """How its superuser connects to a new, empty database."""
        name = f"db{next(NUMBERS)}"
        self.execute(f"CREATE DATABASE {name}")
        return f"{self.dsn} dbname={name}"


def url(dsn: str) -> str:
    """A connection string of the form host=… as a URL."""
    said = dict(word.split("=", 1) for word in dsn.split())
    return "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**said)


def home() -> Path:
    """A new folder that the user of a server may use: what pytest makes is for its own user alone."""
    return Path(tempfile.mkdtemp(prefix="headwater-postgres-"))


def remove(folder: Path) -> None:
    """Removes it with all that a server left in it."""
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The one server of a run."""
    binaries()
    server = Postgres(home())
    server.home.chmod(0o711)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        remove(server.home)
