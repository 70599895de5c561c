"""Cost of a command: CPU and memory of all processes that it starts."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import IO, Any, Final

ORPHANS_COME_TO_ME: Final = 36
"""Number of PR_SET_CHILD_SUBREAPER in prctl(2)."""


@dataclass(frozen=True)
class Used:
    """CPU and wall seconds; `peak` is the memory of the largest process in bytes, 0 if not measured."""

    cpu: float
    wall: float
    peak: int

    @staticmethod
    def median(used: Sequence[Used]) -> Used:
        cpu, wall, peak = (median(getattr(each, figure) for each in used) for figure in ("cpu", "wall", "peak"))
        return Used(cpu, wall, int(peak))


def measured(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Used:
    """Run a command; count also the processes that outlive it for a moment, such as its JVM.

    Raises CalledProcessError with the output of the command.
    """
    began, peaks = time.monotonic(), [0]
    cpu, wall = 0.0, 0.0
    with TemporaryFile() as output:
        process = _started(command, folder, environment, output)
        for pid, status, usage in _reaped(lambda: peaks.append(peak_of(os.getpid()))):
            if pid == process.pid:
                process.returncode, wall = os.waitstatus_to_exitcode(status), time.monotonic() - began
            cpu += usage.ru_utime + usage.ru_stime
        output.seek(0)
        printed = output.read().decode()
    if process.returncode != 0:
        error = subprocess.CalledProcessError(process.returncode, command, printed)
        error.add_note(printed[-4_000:])
        raise error
    return Used(cpu, wall, max(peaks))


def killed(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None, *, cpu: float) -> None:
    """Run a command and kill all its processes when they have used `cpu` seconds, if it has not ended before."""
    with TemporaryFile() as output:
        process = _started(command, folder, environment, output)
        while process.poll() is None and cpu_of(process.pid) < cpu:
            time.sleep(0.02)
        for pid in tree(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        [*_reaped()]


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process, its children and theirs, ended ones too."""
    stats = _stats()
    ticks = sum(sum(map(int, stats[each][11:15])) for each in tree(pid, stats) if each in stats)
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_of(pid: int) -> int:
    """Return the most memory that a process had so far: this one, its children or theirs, but not this process."""
    peak = 0
    for each in tree(pid) - {os.getpid()}:
        with suppress(OSError):  # ru_maxrss would include this process, which starts the others
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
            peak = max(peak, *(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)
    return peak


def tree(pid: int, stats: Mapping[int, Sequence[str]] | None = None) -> set[int]:
    """Return the process, its children and theirs."""
    parents = {child: int(fields[1]) for child, fields in (stats or _stats()).items()}
    found, size = {pid}, 0
    while len(found) > size:
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found


def _started(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None, output: IO[bytes]
) -> subprocess.Popen[bytes]:
    ctypes.CDLL(None).prctl(ORPHANS_COME_TO_ME, 1)
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _reaped(while_waiting: Callable[[], object] = bool) -> Iterator[tuple[int, int, Any]]:
    """Yield each child that ends, until there are none. Call `while_waiting` 20 times a second."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            yield pid, status, usage
        else:
            while_waiting()
            time.sleep(0.05)


def _stats() -> dict[int, list[str]]:
    """Return the fields of /proc/PID/stat that follow the name, of all processes."""
    stats = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            stats[int(file.parent.name)] = file.read_text().rpartition(")")[2].split()
    return stats
