"""Signals that end a command: its Spark jobs end with it; its exit code is 128 plus the signal, as shells have it."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE: Final = 5.0
"""Seconds to wait for Spark to cancel its jobs."""


class Ended(KeyboardInterrupt):
    """A signal has come."""

    def __init__(self, number: int, telling: threading.Thread) -> None:
        super().__init__(number)
        self.number = number
        self.telling = telling


def catch() -> None:
    """Makes each signal end the command, except one that is ignored, as by nohup."""
    for number in ENDING:
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, _end)


def exit_code(error: BaseException) -> int:
    """The exit code of a command that was interrupted, once Spark has cancelled its jobs."""
    ended = error if isinstance(error, Ended) else error.__cause__
    if not isinstance(ended, Ended):
        return 128 + signal.SIGINT
    ended.telling.join(PATIENCE)
    return 128 + ended.number


def _end(number: int, _: FrameType | None) -> None:
    if number != signal.SIGINT:  # which may end one query of a shell after another
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    telling = threading.Thread(target=_interrupt, daemon=True)  # this one may be within a call of Spark
    telling.start()
    raise Ended(number, telling)


def _interrupt() -> None:
    session = sys.modules.get("lake.session")  # else no Spark was ever started
    if session is not None:
        session.interrupt()
