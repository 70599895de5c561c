"""Progress on stderr: a line for each step at a terminal while it lasts, lines for a pipe, or JSON for machines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from lake.progress import Step

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

Usual = Callable[[str], Mapping[str, float]]
"""The seconds that a verb took last, by its subject."""

COLOURS: Final = {"lake:": "red", "warning": "yellow", "failed": "red"}
"""Of what a line begins with; other verbs are cyan."""
SILENT: Final = frozenset({"check", "settle"})
"""Verbs of which nothing else says what they have done."""
AT_ONCE: Final = frozenset({"load", "start"})
"""Verbs that are shown when they begin: a person waits for them before anything else is done."""
SHORT: Final = 0.5
"""Seconds; another step that takes less is not shown."""


def stderr_is_terminal() -> bool:
    """Whether a person watches, at a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def coloured(line: str) -> str:
    """A line for stderr, its first word in a colour at a terminal where colours are wanted."""
    if not stderr_is_terminal() or os.environ.get("NO_COLOR"):
        return line
    word, space, rest = line.partition(" ")
    return click.style(word, fg=COLOURS.get(word, "cyan"), bold=word == "lake:") + space + rest


class Lines:
    """For a pipe: what verbs have done, most of which say so themselves, and first that Spark is loaded and started."""

    def say(self, line: str) -> None:
        """Prints a line."""
        click.echo(line, err=True)

    def warn(self, line: str) -> None:
        """Prints a warning."""
        self.say(line)

    def begun(self, step: Step) -> None:
        if step.verb in AT_ONCE:
            self.say(f"{step.verb:<7} {step.subject}")

    def advanced(self, step: Step) -> None:
        """Prints nothing: a pipe is told of no step's progress."""

    def ended(self, step: Step) -> None:
        """Prints one line of a verb that says nothing of what it has done itself."""
        if step.verb in SILENT and not step.failed:
            rows = "" if step.rows is None else f"{step.rows} rows "
            self.say(f"{step.verb:<7} {step.subject}: {rows}in {step.seconds:.1f} s")

    def stop(self) -> None:
        """Nothing is drawn from now on."""


class Records(Lines):
    """For machines: one JSON object a line, with `at` (UTC), `event`, and what belongs to it."""

    def record(self, event: str, **more: Any) -> None:
        """Prints one record."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        click.echo(json.dumps({"at": at, "event": event, **more}, default=str), err=True)

    def say(self, line: str) -> None:
        """Prints a line as a record."""
        self.record("message", text=line)

    def warn(self, line: str) -> None:
        """Prints a warning as a record."""
        self.record("warning", text=line)

    def begun(self, step: Step) -> None:
        self.record("begin", verb=step.verb, subject=step.subject)

    def advanced(self, step: Step) -> None:
        self.record("progress", verb=step.verb, subject=step.subject, bytes=step.done, of=step.total)

    def ended(self, step: Step) -> None:
        outcome = "failed" if step.failed else "done"
        seconds = round(step.seconds, 3)
        self.record("end", verb=step.verb, subject=step.subject, outcome=outcome, seconds=seconds, rows=step.rows)


class Live(Lines):
    """For a terminal: a line for each step at work, below what has been said; gone when it has ended."""

    def __init__(self, usual: Usual, console: Console | None = None) -> None:
        self.usual = usual
        self._known: dict[str, Mapping[str, float]] = {}
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[Step, TaskID] = {}

    def say(self, line: str) -> None:
        """Prints a line above those of the steps at work."""
        if self._progress is None:
            click.echo(coloured(line), err=True)
        else:
            from rich.text import Text

            self._progress.console.print(Text.from_ansi(coloured(line)), soft_wrap=True)

    def begun(self, step: Step) -> None:
        progress = self._begin()
        if step.verb not in self._known:
            self._known[step.verb] = {} if step.verb in AT_ONCE else self.usual(step.verb)
        seconds = self._known[step.verb].get(step.subject)
        visible = step.verb in AT_ONCE
        self._tasks[step] = progress.add_task(step.subject, total=None, visible=visible, step=step, usual=seconds)

    def ended(self, step: Step) -> None:
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


def note(step: Step, elapsed: float, usual: float | None) -> str:
    """How far a step is, and how long it will take, as far as that is known."""
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
    """Lines at the terminal that is stderr now, whatever a JVM that starts meanwhile is given as its own."""
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task
    from rich.text import Text

    class Line(ProgressColumn):
        """What is at work, how long for, and for how long still."""

        def render(self, task: Task) -> Text:
            step: Step = task.fields["step"]
            elapsed = time.monotonic() - step.began
            remark = note(step, elapsed, task.fields["usual"])
            shown = "".join(c if c.isprintable() else "?" for c in step.subject)
            return Text.assemble(
                (f"{step.verb:<7} ", "cyan"),
                shown,
                (f"  {elapsed:.0f} s", "dim"),
                (f"  {remark}" if remark else "", "dim"),
            )

    class Shown(Progress):
        """Steps that take a while."""

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
