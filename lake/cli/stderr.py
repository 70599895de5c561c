"""Standard error: progress as live lines at a terminal, plain lines in a pipe, or JSON Lines; and a filter.

The filter drops Rust panics, which delta-rs prints besides raising an error. Output of libraries and child processes
passes through a pipe and a thread. It is lost if the process is killed or aborts; --debug disables the filter.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import click

from lake.progress import ProgressStep, Watcher

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

DurationLookup = Callable[[str], Mapping[str, float]]

COLOURS: Final = {"lake:": "red", "warning": "yellow", "failed": "red"}
REPORTED_HERE: Final = frozenset({"check", "settle"})
"""Verbs whose result nothing else reports."""
SHOWN_AT_ONCE: Final = frozenset({"load", "start"})
SHORT: Final = 0.5  # seconds; shorter steps are not shown
PANIC: Final = re.compile(rb"thread '[^']*'(?: \([0-9]+\))? panicked at ")
PANIC_DETAILS: Final = re.compile(rb"stack backtrace:|note: |\s+[0-9]+: |\s+at |\s*$")
END_MARK: Final = b"\0the end of what is printed\n"
PATIENCE: Final = 5.0  # seconds


def stderr_is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def coloured(line: str) -> str:
    if not stderr_is_terminal() or os.environ.get("NO_COLOR"):
        return line
    word, space, rest = line.partition(" ")
    return click.style(word, fg=COLOURS.get(word, "cyan"), bold=word == "lake:") + space + rest


class LineProgress(Watcher):
    def report(self, line: str) -> None:
        click.echo(line, err=True)

    def report_warning(self, line: str) -> None:
        self.report(line)

    def begun(self, step: ProgressStep) -> None:
        if step.verb in SHOWN_AT_ONCE:
            self.report(f"{step.verb:<7} {step.subject}")

    def ended(self, step: ProgressStep) -> None:
        if step.verb in REPORTED_HERE and not step.failed:
            rows = "" if step.rows is None else f"{step.rows} rows "
            self.report(f"{step.verb:<7} {step.subject}: {rows}in {step.seconds:.1f} s")

    def stop(self) -> None:
        pass


class JsonProgress(LineProgress):
    """One JSON object per line, with `at` (UTC) and `event`."""

    def record(self, event: str, **more: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        click.echo(json.dumps({"at": at, "event": event, **more}, default=str), err=True)

    def report(self, line: str) -> None:
        self.record("message", text=line)

    def report_warning(self, line: str) -> None:
        self.record("warning", text=line)

    def begun(self, step: ProgressStep) -> None:
        self.record("begin", verb=step.verb, subject=step.subject)

    def advanced(self, step: ProgressStep) -> None:
        self.record("progress", verb=step.verb, subject=step.subject, bytes=step.done, of=step.total)

    def ended(self, step: ProgressStep) -> None:
        outcome = "failed" if step.failed else "done"
        seconds = round(step.seconds, 3)
        self.record("end", verb=step.verb, subject=step.subject, outcome=outcome, seconds=seconds, rows=step.rows)


class LiveProgress(LineProgress):
    def __init__(self, last_durations: DurationLookup, console: Console | None = None) -> None:
        self._last_durations = cache(last_durations)
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[ProgressStep, TaskID] = {}

    def report(self, line: str) -> None:
        if self._progress is None:
            click.echo(coloured(line), err=True)
        else:
            from rich.text import Text

            self._progress.console.print(Text.from_ansi(coloured(line)), soft_wrap=True)

    def begun(self, step: ProgressStep) -> None:
        progress = self._begin()
        visible = step.verb in SHOWN_AT_ONCE
        seconds = None if visible else self._last_durations(step.verb).get(step.subject)
        self._tasks[step] = progress.add_task(step.subject, total=None, visible=visible, step=step, usual=seconds)

    def ended(self, step: ProgressStep) -> None:
        task = self._tasks.pop(step, None)
        if self._progress is not None and task is not None:
            self._progress.remove_task(task)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self._tasks.clear()

    def _begin(self) -> Progress:
        if self._progress is None:
            self._progress = _progress(self._console)
            self._progress.start()
        return self._progress


def remaining_note(step: ProgressStep, elapsed: float, usual: float | None) -> str:
    if step.total:
        from rich.filesize import decimal

        if not 0 < step.done < step.total:
            return decimal(step.total)
        left = elapsed * (step.total - step.done) / step.done
        return f"{decimal(step.done)} of {decimal(step.total)}, {_about(left)} left"
    if usual is None or usual < SHORT:
        return ""
    return f"{_about(usual - elapsed)} left" if usual > elapsed else f"took {_about(usual)} last time"


def _about(seconds: float) -> str:
    if seconds < 60:
        return f"about {max(seconds, 1):.0f} s"
    return f"about {seconds / 60:.0f} min"


def _progress(console: Console | None) -> Progress:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task
    from rich.text import Text

    class Line(ProgressColumn):
        def render(self, task: Task) -> Text:
            step: ProgressStep = task.fields["step"]
            elapsed = time.monotonic() - step.began
            remark = remaining_note(step, elapsed, task.fields["usual"])
            shown = "".join(c if c.isprintable() else "?" for c in step.subject)
            return Text.assemble(
                (f"{step.verb:<7} ", "cyan"),
                shown,
                (f"  {elapsed:.0f} s", "dim"),
                (f"  {remark}" if remark else "", "dim"),
            )

    class Shown(Progress):
        def get_renderables(self) -> Any:
            now = time.monotonic()
            for task in self.tasks:
                task.visible = task.visible or now - task.fields["step"].began > SHORT
            return super().get_renderables()

    return Shown(
        SpinnerColumn(),
        Line(),
        console=console or Console(file=os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8"), highlight=False),
        transient=True,
        refresh_per_second=4,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextmanager
def without_panics() -> Iterator[None]:
    own, python = os.dup(2), sys.stderr
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)
    sys.stderr = os.fdopen(own, "w", 1, "utf-8", "backslashreplace", closefd=False)
    copier = Thread(target=_copy_lines, args=(read_end, own), daemon=True)
    copier.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.write(2, END_MARK)
        copier.join(PATIENCE)
        os.dup2(own, 2)
        sys.stderr = python


def _copy_lines(read_end: int, own: int) -> None:
    lines, rest = _PanicFilter(), b""
    while part := os.read(read_end, 1 << 16):
        *whole, rest = (rest + part).split(b"\n")
        kept = b"".join(lines.kept(line + b"\n") for line in whole)
        if rest and not lines.may_begin_panic(rest):
            kept, rest = kept + lines.waiting() + rest, b""
        _write(own, kept)
        if lines.is_at_end:
            return


class _PanicFilter:
    """An empty line waits for the next one, because it is dropped before a panic.

    `_after` is 0 outside of a panic, 1 after its first line, 2 within its details.
    """

    def __init__(self) -> None:
        self.is_at_end, self._after, self._empty = False, 0, b""

    def kept(self, line: bytes) -> bytes:
        if line.endswith(END_MARK):
            self.is_at_end = True
            return self._empty + line.removesuffix(END_MARK)
        if PANIC.match(line):
            self._after, self._empty = 1, b""
            return b""
        if self._after == 1 or (self._after and PANIC_DETAILS.match(line)):
            self._after = 2
            return b""
        self._after = 0
        if line == b"\n":
            before, self._empty = self._empty, line
            return before
        return self.waiting() + line

    def waiting(self) -> bytes:
        before, self._empty = self._empty, b""
        return before

    def may_begin_panic(self, part: bytes) -> bool:
        return bool(self._after) or b"thread '".startswith(part[:8]) or b"\0" in part


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]
