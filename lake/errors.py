"""Exceptions of Headwater. The type shows who has to act, and determines the exit code.

LakeError
├── DeclarationError, StartOver                                      exit 2
├── ContractError, QualityError, Refused, LawError, StorageError     exit 1
└── Unavailable                                                      exit 75
    └── Busy
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from typing import ClassVar, Final


class LakeError(Exception):
    """Fault reported to a person: what was found, where, and how to fix it. `causes` are the errors that it joins."""

    exit_code: ClassVar[int] = 1
    causes: tuple[LakeError, ...] = ()

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    @classmethod
    def joined(cls, errors: Iterable[LakeError]) -> LakeError:
        """Return the only one of `errors`, or one that lists them: of this class, if they are of several kinds."""
        causes = tuple({str(cause): cause for error in errors for cause in error.causes or (error,)}.values())
        if len(causes) == 1:
            return causes[0]
        faults = [cause for cause in causes if isinstance(cause, DeclarationError)]
        if len(faults) == len(causes):
            return DeclarationError.all(faults)
        kinds = (QualityError, Unavailable)
        kind = next((kind for kind in kinds if all(isinstance(cause, kind) for cause in causes)), cls)
        joined = kind("\n".join(map(str, causes)))
        joined.causes = causes
        return joined

    @property
    def lists_faults(self) -> bool:
        """True if it lists several faults, each with a place and a fix of its own."""
        return "\n" in self.what

    @property
    def record(self) -> dict[str, str | int]:
        return {"what": self.what, "where": self.where, "fix": self.fix, "exit_code": self.exit_code}

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{self.what}{where}{fix}"


class DeclarationError(LakeError):
    """Raised for a wrong job, contract, expectation, setting or command line; no data was touched."""

    exit_code = 2

    @classmethod
    def all(cls, faults: Iterable[DeclarationError]) -> DeclarationError:
        faults = list(faults)
        if len(faults) == 1:
            return faults[0]
        return cls(f"{len(faults)} faults:\n" + "\n".join(f"- {fault}" for fault in faults))

    @classmethod
    def raise_any(cls, faults: Iterable[DeclarationError | tuple[str, str]], where: str = "") -> None:
        """Raise one error with all `faults`, if there are any. A pair is what is wrong at `where`, and its fix."""
        errors = (
            fault if isinstance(fault, DeclarationError) else cls(fault[0], where=where, fix=fault[1])
            for fault in faults
        )
        if found := [*errors]:
            raise cls.all(found)


class ContractError(LakeError):
    """Raised if events break their contract, or a log breaks its own promises."""


class QualityError(LakeError):
    """Raised if a quality gate stopped, or too many records were rejected."""


class Refused(LakeError):
    """Raised if a Fold rejects an event, or a key has changed since the sender read it: nothing was stored."""


class LawError(LakeError):
    """Raised if a table and its recomputation from the log differ."""


class StorageError(LakeError):
    """Raised if files of the warehouse are damaged, missing, or cannot be read."""


class StartOver(LakeError):
    """Raised if a consumer is behind every kept edition: a snapshot has to replace all its data."""

    exit_code = 2


class Unavailable(LakeError):
    """Raised if another process holds the lease, or storage or the cluster does not respond; try again later."""

    exit_code = 75


class Busy(Unavailable):
    """Raised if another process does work of the same kind, and records it."""


def install(extra: str) -> str:
    """Return the command that installs an extra from where Headwater came, as it is in no package index."""
    with suppress(PackageNotFoundError):
        origin = json.loads(distribution("headwater").read_text("direct_url.json") or "{}").get("url")
        if origin:
            return f'pip install "headwater[{extra}] @ {origin}"'
    return f'pip install "headwater[{extra}] @ file:///path/to/headwater"'


NO_ROOM: Final = ("No space left on device", "File too large", "Disk quota exceeded", "disk is full", "disk I/O error")
"""Messages of the kernel in errors of any library; the last two are SQLite's."""


def full(error: BaseException, *, where: str = "") -> Unavailable | None:
    """Return the error to raise if `error`, of any library, means that a disk is full.

    `where` is used if the error itself names no file.
    """
    reason, path = _reason_and_file(error, NO_ROOM)
    if not reason:
        return None
    return Unavailable(
        f"disk full: {reason}",
        where=path or where,
        fix="free some space and try again: nothing uncommitted is visible, and lake maintain clears it away",
    )


def unwritten(error: OSError, *, where: str, device: bool = False) -> LakeError:
    """Return the error to raise if an answer cannot be written to the file or `device` at `where`."""
    is_full = full(error) is not None
    what = "the device is full" if device and is_full else "the answer cannot be written"
    fix = "free some space there, or name another file" if is_full else "name a file that this user can write"
    return LakeError(f"{what}: {error.strerror}", where=where, fix=fix)


NO_MEMORY: Final = ("MemoryError", "annot allocate memory")
"""Words in errors of Python, Arrow, Java and the kernel."""


def out_of_memory(error: BaseException) -> Unavailable | None:
    """Return the error to raise if `error`, of any library, means that this machine or a Spark task lacks memory."""
    reason, _ = _reason_and_file(error, NO_MEMORY)
    if not reason and not isinstance(error, MemoryError):
        return None
    line = next((line for line in str(error).splitlines() if not reason or reason in line), "")
    return Unavailable(
        f"not enough memory{line and f': {line.strip()[:300]}'}",
        fix="free some and try again, if need be with a smaller `batch_files`; committed work is kept",
    )


FORBIDDEN: Final = ("Read-only file system", "Permission denied", "Operation not permitted", "readonly database")
"""Messages of the kernel in errors of any library; the last is SQLite's."""


def forbidden(error: BaseException, *, where: str = "") -> DeclarationError | None:
    """Return the error to raise if `error`, of any library, means that access is denied; `where` as for `full`."""
    reason, path = _reason_and_file(error, FORBIDDEN)
    if not reason:
        return None
    fix = "mount it for writing, let this user read and write it, or set another folder in [tool.lake]"
    return DeclarationError(f"no access: {reason[0].lower()}{reason[1:]}", where=path or where, fix=fix)


_OF_DATA: Final = re.compile(r"(?:Conversion|Out of Range|Constraint) Error: ")
"""Beginning of DuckDB's messages about values."""


def _system_message(error: BaseException) -> str:
    """Return the error's message; "" if it is about a value, as it may quote any words."""
    is_of_data = isinstance(error, ArithmeticError | LookupError | TypeError | ValueError) or _OF_DATA.match(str(error))
    return "" if is_of_data and not isinstance(error, OSError) else str(error)


def _reason_and_file(error: BaseException, reasons: Iterable[str]) -> tuple[str, str]:
    """Return the first of `reasons` in the error's message, and the file that it names; "" if there is none."""
    message = _system_message(error)
    reason = next((reason for reason in reasons if reason in message), "")
    path = re.search(r"(?<![\w:/])/[^\s:'\"()]+", message)
    return reason, path[0] if path else ""


DELETED: Final = re.compile(r"Object at location .* not found|FILE_NOT_EXIST|java\.io\.FileNotFoundException")
"""Messages of delta-rs and Spark about a missing file."""
EXPIRED: Final = "run the command again: lake maintain deletes what is older than keep_days; raise it for longer reads"
UNREACHED: Final = re.compile(
    r"Generic \w+ error|error sending request|onnection (?:reset|refused|closed|was forcibly closed|aborted)"
    r"|[Tt]imed out|[Tt]imeout|java\.net\.|InterruptedIOException"
)
"""Messages of object_store, Python and Java's sockets."""


def unreached(error: BaseException, *, where: str = "") -> Unavailable | None:
    line = next((line for line in _system_message(error).splitlines() if UNREACHED.search(line)), None)
    if line is None:
        return None
    return Unavailable(
        f"the storage does not answer: {line.strip()[:300]}",
        where=where,
        fix="try again: what was committed is kept, and the command goes on from there",
    )


def did_you_mean(name: str, names: Iterable[str], others: Iterable[str] = (), *, otherwise: str = "") -> str:
    """Return a hint for a mistyped name: the nearest known one, or a list of them without the `others`.

    Without a near one, the hint is also what to do `otherwise`.
    """
    names = sorted(names)
    close = get_close_matches(name, [*names, *others], n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    known = f"known: {', '.join(names)}" if names else ""
    return ", or ".join(filter(None, (known, otherwise))) or "there are none yet"
