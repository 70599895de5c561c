"""A `lake` command that is killed when it is about to send something, or just has: `python -m tests.examples.dying`.

Whatever client a target has, it sends by a socket.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import count
from typing import Any, Final, Literal

from lake.cli import main
from tests.processes import ROOT

Moment = Literal["before", "after"]
SETTLE_SECONDS: Final = 0.05
"""So long has the other side to do what it was told, before who told it is gone."""


def arm(nth: int, moment: Moment) -> None:
    """Has this process die before or after the `nth` time that it sends."""
    sent = count(1)

    def dying(send: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(send)
        def followed(*args: Any, **options: Any) -> Any:
            dies = next(sent) == nth
            if dies and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = send(*args, **options)
            if dies:
                time.sleep(SETTLE_SECONDS)
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return followed

    for name in ("send", "sendall"):
        setattr(socket.socket, name, dying(getattr(socket.socket, name)))


def killed(words: list[str], nth: int, moment: Moment, environment: Mapping[str, str]) -> bool:
    """Has a process do a command that is killed there; False where it has ended before."""
    call = [sys.executable, "-m", "tests.examples.dying", str(nth), moment, *words]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | environment)
    assert done.returncode in {0, -signal.SIGKILL}, done.stdout + done.stderr
    return done.returncode != 0


if __name__ == "__main__":
    arm(int(sys.argv[1]), sys.argv[2])  # type: ignore[arg-type]  # one of both
    sys.argv[1:] = sys.argv[3:]
    main()
