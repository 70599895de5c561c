"""Singer tap as a source: any program that writes SCHEMA, RECORD and STATE messages to stdout. See docs/how-to/taps.md
and https://hub.meltano.com/singer/spec.

A delivery has the rows up to a STATE, which is passed to the next run. If the tap dies, rows after the last STATE are
read again; if it ends successfully, they are delivered with that STATE.

Progress is {"state": the STATE's value, null before the first; "run": start of the run}. If Python would change the
value, such as a number with more digits than a double has, "state" is null and "text" is the value's JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Final

from lake.config import Settings
from lake.errors import DeclarationError, LakeError, Unavailable, did_you_mean
from lake.lazy import SparkSession
from lake.records.raw_values import NO_CHARACTER
from lake.session import file_modes
from lake.sources.declared import DeclaredSource
from lake.sources.json_text import InvalidJson, is_json, members, parse
from lake.sources.source import Lag, Progress, SourceDeclaration, SourceFact, SourceKind, SourceRecord, Spool

if TYPE_CHECKING:
    from lake.ingest.batch_counts import BatchCounts

KEYS: Final = ("command", "every", "records", "streams")
RECORDS: Final = 100_000
MEMORY_BYTES: Final = 16 << 20
"""Bytes of rows since a STATE that are kept in memory; more are on disk."""
LINE_BYTES: Final = 64 << 20
TERMINATE_SECONDS: Final = 10.0
MEMBERS: Final[Mapping[str, frozenset[str]]] = {
    "RECORD": frozenset({"stream", "record"}),
    "STATE": frozenset({"value"}),
    "SCHEMA": frozenset(),
    "ACTIVATE_VERSION": frozenset(),
}
"""Required members by type of message. The last two types are ignored."""
FACTS: Final = (
    SourceFact("singer.time_extracted", "timestamp-micros", "when the tap read the row"),
    SourceFact("singer.version", "long", "the version of the row's table"),
)
NAMES_STREAM: Final = re.compile(r'"stream"\s*:\s*"([^"\\]*)"')
BROKEN_BYTE: Final = re.compile("[\udc80-\udcff]")
QUOTED_CHARACTERS: Final = 200


@dataclass(frozen=True)
class Tap:
    """`streams` maps the tap's names to the project's; the name None stands for the tap's only stream."""

    name: str
    command: tuple[str, ...]
    streams: Mapping[str | None, str]
    folder: Path
    scratch: Path
    every: float = 0.0
    records: int = RECORDS
    where: str = ""


@dataclass
class TapSource:
    tap: Tap
    more: bool = False
    _run: _Run | None = None
    _is_over: bool = False
    _fault: LakeError | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.tap.streams.values()))

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        if self._is_over or (self._run is None and self._is_too_soon()):
            return None
        if self._run is None or self._run.progress != after:
            self.close()
            self.tap.scratch.mkdir(mode=0o700, exist_ok=True)
            self._run = _Run(self.tap, after)
        run = self._run
        try:
            done = run.deliver(spool)
        except LakeError as fault:
            self._end()
            if run.progress == after:
                raise
            self._fault = fault
            return run.progress
        self.more = not done
        if done:
            self._end()
            (self.tap.scratch / "ended").touch()
        return run.progress if run.delivered or run.progress != after else None

    def acknowledge(self, upto: Progress) -> None: ...

    def lag(self, after: Progress | None) -> Lag:
        return Lag()

    def skip_gap(self, after: Progress | None) -> Progress:
        raise DeclarationError(f"nothing of {self.tap.name} is gone", fix=f"lake ingest {self.tap.name}")

    def close(self) -> None:
        if self._run is not None:
            self._run.close()
        self._run, self._is_over, self._fault = None, False, None

    def check_program(self) -> None:
        program = self.tap.command[0]
        path = str(self.tap.folder / program) if os.sep in program else program
        if shutil.which(path) is None:
            raise _cannot_run(self.tap, "there is no such program")

    def _end(self) -> None:
        fault = self._fault
        self.close()
        self._is_over, self._fault = True, fault

    def _is_too_soon(self) -> bool:
        ended = self.tap.scratch / "ended"
        return self.tap.every > 0 and ended.exists() and time.time() - ended.stat().st_mtime < self.tap.every


class _Run:
    def __init__(self, tap: Tap, after: Progress | None) -> None:
        self._tap, self.progress, self.delivered = tap, after, 0
        self._state = _state_of(after)
        self._began, self._line = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"), 0
        self._names = dict(tap.streams)
        command = list(tap.command)
        if self._state != NO_STATE:
            file = tap.scratch / "state.json"
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as new:
                new.write(self._state.get("text") or json.dumps(self._state["state"]))
            command += ["--state", str(file)]
        log = tap.scratch / "log"
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as errors:
            try:
                self._process = subprocess.Popen(
                    command, cwd=tap.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
                )
            except OSError as error:
                raise _cannot_run(tap, str(error.strerror)) from None

    def deliver(self, spool: Spool) -> bool:
        """Spool the rows up to a STATE, at least `records` rows. Return whether the tap has ended successfully.

        If this raises, the spooled rows are those up to the last STATE.
        """
        self.delivered = 0
        with SpooledTemporaryFile(MEMORY_BYTES, mode="w+b", dir=str(self._tap.scratch)) as rows:
            for kind, parts in self._messages():
                if kind == "RECORD":
                    rows.write(json.dumps(self._row(parts)).encode() + b"\n")
                elif kind == "STATE":
                    self._state = _state(parts["value"])
                    self._put(rows, spool)
                    if self.delivered >= self._tap.records:
                        return False
            if code := self._process.wait():
                raise Unavailable(
                    f"{self._tap.command[0]} ended with exit code {code}",
                    where=str(self._tap.scratch / "log"),
                    fix="see its log there, then try again: it continues at its last STATE",
                )
            self._put(rows, spool)
        return True

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(TERMINATE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _put(self, rows: IO[bytes], spool: Spool) -> None:
        rows.seek(0)
        for row in rows:
            stream, text, place, facts = json.loads(row)
            spool.put(stream, SourceRecord(text, place, facts))
            self.delivered += 1
        rows.seek(0)
        rows.truncate()
        if self.delivered or self._state != _state_of(self.progress):
            self.progress = {**self._state, "run": self._began}

    def _messages(self) -> Iterator[tuple[str, dict[str, str]]]:
        while line := self._next_line():
            self._line += 1
            text = BROKEN_BYTE.sub(NO_CHARACTER, line.decode("utf-8", "surrogateescape")).strip()
            if not text:
                continue
            try:
                parts = dict(members(text)) if isinstance(parse(text, loose=True), dict) else {}
                kind = _string(parts.get("type", "null"))
            except InvalidJson:
                if not line.endswith(b"\n") and self._process.wait():
                    return  # it died within a line
                yield "RECORD", {"stream": self._stream_named_in(text), "record": text}
                continue
            if not _is_known(kind, parts):
                raise self._fault("is not a known Singer message", text)
            yield kind, parts

    def _next_line(self) -> bytes:
        output = self._process.stdout
        assert output is not None
        line = rest = output.readline(LINE_BYTES)
        while len(rest) == LINE_BYTES and not rest.endswith(b"\n"):
            rest = output.readline(LINE_BYTES)
        return line if line is rest else line + b"\n"

    def _stream_named_in(self, text: str) -> str:
        named = NAMES_STREAM.search(text)
        name = named[1] if named and named[1] in self._names else None
        if name is None and len(self._names) > 1:
            raise self._fault("is not JSON", text)
        return json.dumps(name if name is not None else next(iter(self._names)))

    def _fault(self, what: str, text: str) -> DeclarationError:
        return DeclarationError(
            f"line {self._line} of the output of {self._tap.command[0]} {what}: {text[:QUOTED_CHARACTERS]}",
            where=self._tap.where,
            fix="run it by itself: its stdout must have SCHEMA, RECORD and STATE alone, a line each",
        )

    def _row(self, parts: Mapping[str, str]) -> tuple[str, str, str, dict[str, str]]:
        name = json.loads(parts["stream"])
        if None in self._names:
            self._names = {name: self._names[None]}
        if name not in self._names:
            raise DeclarationError(
                f"{self._tap.command[0]} has rows of {name!r}, which no stream takes",
                where=self._tap.where,
                fix=f'add it below [streams], as in orders = "{name}", or deselect it in the tap',
            )
        texts = {fact.name: parts.get(fact.name.removeprefix("singer."), "null") for fact in FACTS}
        facts = {name: _string(text) if _is_string(text) else text for name, text in texts.items() if text != "null"}
        return self._names[name], parts["record"], f"{self._began}:{self._line}", facts


NO_STATE: Final[Progress] = {"state": None}


def _state(text: str) -> Progress:
    """Return the progress, without the run, that stores the JSON of a STATE's value."""
    with suppress(ValueError):  # a whole number of too many digits
        value = json.loads(text)
        if text in {json.dumps(value), json.dumps(value, separators=(",", ":"))}:
            return {"state": value}
    return {"state": None, "text": text}


def _state_of(progress: Progress | None) -> Progress:
    return NO_STATE if progress is None else {name: value for name, value in progress.items() if name != "run"}


def _is_known(kind: str, parts: Mapping[str, str]) -> bool:
    if kind not in MEMBERS or not MEMBERS[kind] <= parts.keys():
        return False
    return (kind != "RECORD" or _is_string(parts["stream"])) and (kind != "STATE" or is_json(parts["value"]))


def _is_string(text: str) -> bool:
    return text.startswith('"')


def _string(text: str) -> str:
    """Return the content of a JSON string, "" of another value."""
    return str(parse(text)) if _is_string(text) else ""


def _cannot_run(tap: Tap, why: str) -> DeclarationError:
    return DeclarationError(
        f"{tap.command[0]} cannot be run: {why}",
        where=tap.where,
        fix="install it, in an environment of its own, and name it by its path",
    )


def _open(declaration: SourceDeclaration) -> TapSource:
    options, contracts, where = declaration.options, declaration.contracts, declaration.where
    faults = [(f"unknown key {key!r}", did_you_mean(key, KEYS)) for key in options.keys() - {*KEYS}]
    command, streams = options.get("command"), options.get("streams", {stream: stream for stream in contracts})
    if not isinstance(command, list) or not command or not all(isinstance(word, str) and word for word in command):
        fix = 'write a list of words, as in command = ["tap-x", "--config", "x.json"]'
        faults.append((f"invalid command: {command!r}", fix))
    elif "--state" in command:
        faults.append(("the command has --state", "leave it out: it is added"))
    if not isinstance(streams, Mapping) or not all(isinstance(name, str) for name in streams.values()) or not streams:
        fix = 'write below [streams] a line for each: orders = "what the tap calls it"'
        faults.append((f"invalid streams: {streams!r}", fix))
    elif len(set(streams.values())) < len(streams):
        faults.append(("two streams take the same rows", "name each once"))
    for key in ("every", "records"):
        if isinstance(value := options.get(key, 1), bool) or not isinstance(value, int) or value < 0:
            faults.append((f"invalid {key}: {value!r}", "use a whole number of at least 0"))
    DeclarationError.raise_any(faults, where)
    assert isinstance(command, list)
    by_name: dict[str | None, str] = {tap_name: stream for stream, tap_name in streams.items()}
    every, records = float(options.get("every", 0)), int(options.get("records", RECORDS))
    name, settings = declaration.name, declaration.settings
    scratch = file_modes.scratch(settings, "tap") / name
    return TapSource(Tap(name, tuple(command), by_name, settings.project, scratch, every, records, where))


KIND: Final = SourceKind(_open, facts=FACTS, members=("state", "run"))


def append_tapped(
    settings: Settings, spark: Callable[[], SparkSession], stream: str, command: Sequence[str]
) -> BatchCounts:
    from lake.ingest.source_ingestion import append_source

    source = command_line_tap(settings, f"tap_{stream}", stream, command)
    source.check_program()
    return append_source(
        settings, spark, DeclaredSource(source.tap.name, "tap", (stream,), "lake tap", lambda: source), verb="tap"
    )


def command_line_tap(settings: Settings, name: str, stream: str, command: Sequence[str]) -> TapSource:
    scratch = file_modes.scratch(settings, "tap") / name
    return TapSource(Tap(name, tuple(command), {None: stream}, settings.project, scratch, where="lake tap"))
