"""A power cut: what the disk has of a folder if nothing counts that was not flushed.

`Disk` follows the system calls of every process that strace recorded, the JVM's and those of Rust as well. A file
written after its last fsync is empty; a name made after the last fsync of its folder is not there. What was removed or
renamed away is gone, flushed or not: that is the worst that a disk may do.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

COPY: Final = "copy_file_range"
WRITES: Final = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fallocate", "sendfile", COPY)
NAMES: Final = ("open", "openat", "creat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat")
FOLDERS: Final = ("mkdir", "mkdirat", "unlink", "unlinkat", "rmdir", "truncate")
FLUSHES: Final = ("fsync", "fdatasync")
SENDS: Final = ("sendto", "sendmsg")
CALLS: Final = ",".join((*WRITES, *NAMES, *FOLDERS, *FLUSHES, *SENDS))
LINE: Final = re.compile(r"(\d+) +(.*)")
UNFINISHED: Final = " <unfinished ...>"
RESUMED: Final = re.compile(r"<\.\.\. \w+ resumed>(.*)")
CALL: Final = re.compile(r"(\w+)\((.*)\) += (-?\d+).*")
DESCRIPTOR: Final = re.compile(r"^\d+<(/[^>]*)>")
PATH: Final = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"([^"]*)"')
POINT: Final = re.compile(r'"\{\\"point\\": \\"([\w.]+)\\"')


def recorded(trace: Path) -> list[str]:
    """How a process is started so that its system calls, and those of its children, are recorded in `trace`."""
    return ["strace", "-f", "--seccomp-bpf", "-y", "-s", "300", "-e", f"trace={CALLS}", "-o", str(trace)]


@dataclass
class File:
    """What several names may stand for: `written` and `flushed` are the ordinals of the last such calls."""

    written: int = 0
    flushed: int = 0


@dataclass
class Disk:
    """The disk under the folder `root`, all of which was flushed when the recording began.

    `points` are what was not on the disk when a process passed a point of lake.testing.fault_injection, pass by pass;
    `sent` are the texts that were sent to sockets after the last point, by point.
    """

    root: Path
    files: dict[Path, File] = field(default_factory=dict)
    made: dict[Path, int] = field(default_factory=dict)
    flushed: dict[Path, int] = field(default_factory=dict)
    points: list[tuple[str, list[Path]]] = field(default_factory=list)
    sent: list[tuple[str, str]] = field(default_factory=list)
    calls: int = 0

    @classmethod
    def of(cls, root: Path) -> Disk:
        """The disk before the recording."""
        return cls(root, {path: File() for path in root.rglob("*") if not path.is_dir()})

    def follow(self, trace: Path) -> Disk:
        """Has all calls of a recording made."""
        for began, self.calls, name, arguments, result in _calls(trace.read_text(errors="replace").splitlines()):
            if name in WRITES + SENDS and (point := POINT.search(arguments)):
                self.points.append((point[1], self.lacking()))
            elif name in SENDS or ((name in WRITES and "<socket:" in arguments[:40]) or "<TCP" in arguments[:40]):
                self.sent.append((self.points[-1][0] if self.points else "", arguments))
            elif result >= 0:
                self._make(began, name, arguments)
        return self

    def _make(self, began: int, name: str, arguments: str) -> None:
        if name in FLUSHES and (path := self._described(arguments)):
            self.flushed[path] = began
            if path in self.files:
                self.files[path].flushed = began
        elif name in WRITES and (path := self._described(arguments.split(", ", 2)[2 * (name == COPY)])):
            self._file(path).written = self.calls
        elif name in NAMES + FOLDERS:
            self._name(name, arguments, [Path(at or "/") / path for at, path in PATH.findall(arguments)])

    def _name(self, name: str, arguments: str, paths: list[Path]) -> None:
        if name in {"open", "openat", "creat"}:
            if self._is_ours(paths[0]) and (name == "creat" or "O_CREAT" in arguments or "O_TRUNC" in arguments):
                new = paths[0] not in self.files
                file = self._file(paths[0])
                if new or name == "creat" or "O_TRUNC" in arguments:
                    file.written = self.calls
        elif name.startswith("rename"):
            self._renamed(*paths)
        elif name in {"link", "linkat"}:
            if self._is_ours(paths[1]):
                self.files[paths[1]] = self._file(paths[0]) if self._is_ours(paths[0]) else File(self.calls)
                self.made[paths[1]] = self.calls
        elif name in {"mkdir", "mkdirat", "symlink", "symlinkat"}:
            if self._is_ours(paths[-1]):
                self.made[paths[-1]] = self.calls
        elif name in {"unlink", "unlinkat", "rmdir"}:
            self.files.pop(paths[0], None)
            self.made.pop(paths[0], None)
        elif self._is_ours(paths[0]):
            self._file(paths[0]).written = self.calls

    def _renamed(self, source: Path, target: Path) -> None:
        _move(self.files, source, target)
        _move(self.made, source, target)
        _move(self.flushed, source, target)
        if self._is_ours(target):
            self.made[target] = self.calls
        else:
            self.files = {path: file for path, file in self.files.items() if self._is_ours(path)}
            self.made = {path: made for path, made in self.made.items() if self._is_ours(path)}

    def _described(self, arguments: str) -> Path | None:
        """The path of the first argument, a descriptor, if it is below the folder."""
        found = DESCRIPTOR.match(arguments)
        return Path(found[1]) if found and self._is_ours(Path(found[1])) else None

    def _file(self, path: Path) -> File:
        if path not in self.files:
            self.files[path] = File()
            self.made[path] = self.calls
        return self.files[path]

    def _is_ours(self, path: Path) -> bool:
        return path.is_absolute() and path.is_relative_to(self.root)

    def _is_named(self, path: Path) -> bool:
        """Whether the folders above have the name of a file or folder, and theirs, on the disk."""
        every = [path, *(above for above in path.parents if above.is_relative_to(self.root))]
        return all(self.made.get(each, -1) < self.flushed.get(each.parent, 0) for each in every)

    def lacking(self) -> list[Path]:
        """The files and folders that the disk lacks, and the files that it has without their content."""
        unnamed = {path for path in (*self.files, *self.made) if not self._is_named(path)}
        return sorted(unnamed | {path for path, file in self.files.items() if file.written > file.flushed})

    def cut(self, target: Path) -> Path:
        """Copies the folder as the disk has it after a power cut."""
        lacking = self.lacking()
        shutil.copytree(self.root, target, symlinks=True)
        for path in lacking:
            copy = target / path.relative_to(self.root)
            if self._is_named(path):
                copy.write_bytes(b"")
            elif copy.is_dir():
                shutil.rmtree(copy)
            else:
                copy.unlink(missing_ok=True)
        return target


def _move(known: dict[Path, Any], source: Path, target: Path) -> None:
    for path in [path for path in known if path.is_relative_to(source)]:
        known[target / path.relative_to(source)] = known.pop(path)


def _calls(lines: list[str]) -> Iterator[tuple[int, int, str, str, int]]:
    """The calls that have ended, in the order in which they did: begin, end, name, arguments, result."""
    begun = dict[str, tuple[int, str]]()
    for number, line in enumerate(lines, 1):
        found = LINE.match(line)
        if found is None:
            continue
        process, text = found.groups()
        if text.endswith(UNFINISHED):
            begun[process] = number, text.removesuffix(UNFINISHED)
            continue
        at = number
        if resumed := RESUMED.match(text):
            at, before = begun.pop(process)
            text = before + resumed[1]
        if call := CALL.fullmatch(text):
            yield at, number, call[1], call[2], int(call[3])
