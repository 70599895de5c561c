"""Signals that end a command and its Spark jobs; the exit code is 128 plus the signal.

Python raises an exception wherever the main thread is, even in a callback that ignores it. So the signal is recorded,
and a command that continues after some attempts is ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE: Final = 5.0  # seconds
INTERRUPT_ATTEMPTS: Final = 4
"""Interrupts sent to Spark before the process exits regardless."""


class CommandSignal(KeyboardInterrupt):
    """A received signal."""

    def __init__(self, number: int, interrupter: threading.Thread) -> None:
        super().__init__(number)
        self.number = number
        self.interrupter = interrupter


class _SignalState:
    """State of the process: in a `shell`, SIGINT ends only the query; `final` is the signal that ends the command."""

    shell = False
    final: CommandSignal | None = None


def install_handlers() -> None:
    """Make each signal end the command, except ignored ones (nohup)."""
    for number in ENDING:
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _handle_signal)


def interrupt_queries_only() -> None:
    """Make SIGINT end the current query instead of the shell."""
    _SignalState.shell = True


def exit_code(error: BaseException) -> int | None:
    """Wait until Spark has cancelled its jobs; return the exit code, or None without a signal."""
    ended = _SignalState.final or next((cause for cause in _causes(error) if isinstance(cause, CommandSignal)), None)
    if ended is None:
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else None
    ended.interrupter.join(PATIENCE)
    return 128 + ended.number


def _causes(error: BaseException) -> list[BaseException]:
    causes = [error]
    for cause in causes:
        for before in (cause.__cause__, cause.__context__):
            if before is not None and all(before is not one for one in causes):
                causes.append(before)
    return causes


def _handle_signal(number: int, _: FrameType | None) -> None:
    only_query = number == signal.SIGINT and _SignalState.shell
    interrupter = threading.Thread(target=_interrupt, daemon=True)  # this thread may be inside a Spark call
    interrupter.start()
    ended = CommandSignal(number, interrupter)
    if not only_query:
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
