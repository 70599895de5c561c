"""Runner of `lake` commands in forked processes, each of which can be killed at a point of `POINTS`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lake.testing.fault_injection import Kill
from lake.testing.lakehouse import Lakehouse


@dataclass(frozen=True)
class CommandResult:
    """Exit `code` of a command (-9: killed), its output, and how often it `passed` each point.

    `killed_at` is the path written at the point of the kill; None if the command did not reach that point.
    """

    code: int
    out: str
    err: str
    passed: Counter[str]
    killed_at: Path | None

    @property
    def landed(self) -> bool:
        """True if the command reached the point of its kill."""
        return self.killed_at is not None


class Commands:
    """Runner of `lake` commands, one at a time, in forks of a warm process: they start in 10 ms instead of 5 s.

    If `remote` is the address of a Spark Connect server, they start no JVM. `under` is the start of a command line that
    runs the warm process, such as `["prlimit", "--nofile=256"]`.
    """

    def __init__(self, remote: str = "", *, under: Sequence[str] = (), **environment: str) -> None:
        self.environment = {"SPARK_REMOTE": remote, **environment}
        self._folder = TemporaryDirectory(prefix="lake-commands-")
        self._process = subprocess.Popen(
            [*under, sys.executable, "-m", "lake.testing.fork"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ready = False
        self.pid = 0  # of the current or latest command

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its pipes, which ends it
            self._folder.cleanup()

    def lake(
        self,
        *arguments: str,
        at: Lakehouse,
        kill: Kill | None = None,
        file_bytes: int = 0,
        tuned: Mapping[str, Any] | None = None,
        **environment: str,
    ) -> CommandResult:
        """Run `lake` with `arguments` in the project of `at`, on its warehouse and landing folder.

        `kill=TRACE` only records points. `file_bytes` limits the size of files. `tuned` sets constants of modules, such
        as `{"lake.store.upkeep.compaction.EXCESS_FILES": 1}`.
        """
        folder = Path(self._folder.name)
        out, err, notes = (folder / name for name in ("out", "err", "notes"))
        notes.unlink(missing_ok=True)
        self._start(
            arguments=arguments,
            environment=self.environment | _variables(at) | environment,
            folder=str(at.source.project),
            warehouse=str(at.settings.warehouse_path),
            cold=at.settings.place(at.settings.cold),
            out=str(out),
            err=str(err),
            notes=str(notes) if kill else "",
            kill=asdict(kill) if kill else None,
            tuned=dict(tuned or {}),
            file_bytes=file_bytes,
        )
        code = int(self._read_line())
        passes = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
        fault_path = next((Path(entry["path"]) for entry in passes if entry["dies"]), None)
        reached = kill is not None and (code == -signal.SIGKILL or kill.victim != "python")
        passed = Counter(entry["point"] for entry in passes)
        return CommandResult(code, out.read_text(), err.read_text(), passed, fault_path if reached else None)

    def _start(self, **order: Any) -> None:
        if not self._ready:
            assert self._read_line() == "ready"
            self._ready = True
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self.pid = int(self._read_line())

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the process that forks commands has ended with exit code {self._process.wait()}")
        return line


def _variables(lakehouse: Lakehouse) -> dict[str, str]:
    settings = lakehouse.settings
    variables = {
        "LAKE_WAREHOUSE": settings.place(settings.warehouse),
        "LAKE_LANDING": settings.place(settings.landing),
        "LAKE_ARCHIVE": settings.place(settings.archive),
        "LAKE_COLD": settings.place(settings.cold),
    }
    return {name: value for name, value in variables.items() if value}
