"""Ends of a command: by a signal, with its Spark jobs (exit code 128 plus the signal), or by an error.

Python raises an exception wherever the main thread is, even in a callback that ignores it. So the signal is recorded,
and a command that continues after some attempts is ended.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from traceback import extract_tb, format_exception
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from lake.errors import DeclarationError, LakeError
from lake.text import printable, shortened

if TYPE_CHECKING:
    from lake.config import Settings

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE: Final = 5.0  # seconds
INTERRUPT_ATTEMPTS: Final = 4
LINE: Final = 100  # longest command line in a message


class CommandSignal(KeyboardInterrupt):
    def __init__(self, number: int, interrupter: threading.Thread) -> None:
        super().__init__(number)
        self.number = number
        self.interrupter = interrupter


class _SignalState:
    in_shell = False
    final: CommandSignal | None = None


def install_handlers() -> None:
    """Make each signal end the command, except ignored ones (nohup)."""
    for number in ENDING:
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _handle_signal)


def interrupt_queries_only() -> None:
    _SignalState.in_shell = True


def exit_code(error: BaseException) -> int | None:
    """Return the exit code after a signal, else None. Waits at most PATIENCE until Spark has cancelled its jobs."""
    ended = _SignalState.final or next((cause for cause in _causes(error) if isinstance(cause, CommandSignal)), None)
    if ended is None:
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else None
    ended.interrupter.join(PATIENCE)
    return 128 + ended.number


def _causes(error: BaseException) -> list[BaseException]:
    causes = [error]
    for cause in causes:
        for before in (cause.__cause__, cause.__context__):
            if before is not None and all(before is not known for known in causes):
                causes.append(before)
    return causes


def _handle_signal(number: int, _: FrameType | None) -> None:
    is_query_only = number == signal.SIGINT and _SignalState.in_shell
    interrupter = threading.Thread(target=_interrupt, daemon=True)  # this thread may be inside a Spark call
    interrupter.start()
    ended = CommandSignal(number, interrupter)
    if not is_query_only:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        if _SignalState.final is None:
            _SignalState.final = ended
            threading.Thread(target=_exit_after_attempts, args=[number], daemon=True).start()
    raise ended


def _exit_after_attempts(number: int) -> None:
    for _ in range(INTERRUPT_ATTEMPTS):
        time.sleep(PATIENCE)
        _interrupt()
    os._exit(128 + number)


def _interrupt() -> None:
    session = sys.modules.get("lake.session.spark_session")  # otherwise Spark was not started
    if session is not None:
        session.interrupt()


def stack_traces_wanted() -> bool:
    return "--debug" in sys.argv or bool(os.environ.get("LAKE_DEBUG"))


def as_fault(error: BaseException, *, settings: Settings | None) -> LakeError:
    if stack_traces_wanted():
        click.echo(printable("".join(format_exception(error)), keep="\n"), err=True, nl=False)
    if isinstance(error, click.ClickException):
        return _usage_fault(error)
    from lake.store.process import fault_of

    fault = fault_of(error, settings)
    if fault is None:
        return _unexpected_fault(error)
    if isinstance(fault, DeclarationError) and not fault.where and not fault.lists_faults:
        fault.where = _command_line()
    if not fault.fix and not fault.lists_faults:
        fault.fix = "--debug shows the stack trace"
    return fault


def _usage_fault(error: click.ClickException) -> DeclarationError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else " ".join(["lake", *sys.argv[1:2]])
    what = error.format_message().rstrip(".")
    return DeclarationError(what[:1].lower() + what[1:], where=_command_line(), fix=f"{command} --help")


def _unexpected_fault(error: BaseException) -> LakeError:
    from lake.session.spark_session import first_line

    return LakeError(
        f"unexpected error: {first_line(error)}",
        where=_place(error),
        fix="--debug shows the stack trace; committed work is kept, and the command can be run again",
    )


def _place(error: BaseException) -> str:
    package = Path(__file__).parents[1]
    frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(package)]
    if not frames:
        return ""
    return f"{Path(frames[-1].filename).relative_to(package.parent)}:{frames[-1].lineno}"


def _quoted(word: str) -> str:
    return f'"{word}"' if "'" in word and not set(word) & set('"\\$`!') else shlex.quote(word)


def _command_line() -> str:
    return shortened(" ".join(["lake", *map(_quoted, sys.argv[1:])]), LINE)
