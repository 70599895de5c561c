"""Signals that end a command: its Spark jobs end with it; its exit code is 128 plus the signal, as shells have it.

Python raises an exception for one wherever the main thread is: within what wraps it in another error, or in a callback
that swallows it. So what a signal means is remembered beside the exception, and a command that goes on is ended.
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
PATIENCE: Final = 5.0
"""Seconds to wait for Spark to cancel its jobs."""
TURNS: Final = 4
"""So often Spark is asked, before the process ends whatever it is at: no commit needs more than the next run."""


class Ended(KeyboardInterrupt):
    """A signal has come."""

    def __init__(self, number: int, telling: threading.Thread) -> None:
        super().__init__(number)
        self.number = number
        self.telling = telling


class _Signals:
    """What has come in this process; in a `shell` SIGINT ends one query after another."""

    shell = False
    final: Ended | None = None


def catch() -> None:
    """Makes each signal end the command, except one that is ignored, as by nohup."""
    for number in ENDING:
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _end)


def in_shell() -> None:
    """Has SIGINT end what a shell is at, and not the shell."""
    _Signals.shell = True


def exit_code(error: BaseException) -> int | None:
    """The exit code of a command that a signal has ended, once Spark has cancelled its jobs; None where none has."""
    ended = _Signals.final or next((cause for cause in _causes(error) if isinstance(cause, Ended)), None)
    if ended is None:
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else None
    ended.telling.join(PATIENCE)
    return 128 + ended.number


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what led to it; an error may be among its own causes."""
    causes = [error]
    for cause in causes:
        for before in (cause.__cause__, cause.__context__):
            if before is not None and all(before is not one for one in causes):
                causes.append(before)
    return causes


def _end(number: int, _: FrameType | None) -> None:
    only_query = number == signal.SIGINT and _Signals.shell
    telling = threading.Thread(target=_interrupt, daemon=True)  # this one may be within a call of Spark
    telling.start()
    ended = Ended(number, telling)
    if not only_query:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        if _Signals.final is None:
            _Signals.final = ended
            threading.Thread(target=_insist, args=[number], daemon=True).start()
    raise ended


def _insist(number: int) -> None:
    for _ in range(TURNS):
        time.sleep(PATIENCE)
        _interrupt()
    os._exit(128 + number)


def _interrupt() -> None:
    session = sys.modules.get("lake.session")  # else no Spark was ever started
    if session is not None:
        session.interrupt()
