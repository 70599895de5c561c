"""`lake deliver` in a process that is killed at one of its trips to the target: `python -m tests.sinks.trips`.

A trip is what is sent at once: to Redis a packed command or pipeline, to OpenSearch a request. A process dies before it
sends one, or once the server has had time to do what it says and nobody has read the answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal

from lake.config import Settings, load_settings
from lake.sinks.declared import declared_sinks
from lake.sinks.deliver import deliver

Moment = Literal["before", "after"]
SETTLE_SECONDS: Final = 0.05


def main(project: str, name: str, nth: str, moment: Moment) -> None:
    """Delivers, and is killed at the `nth` trip, where there are so many."""
    trips = 0

    def dying(send: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(send)
        def sent(*args: Any, **options: Any) -> Any:
            nonlocal trips
            trips += 1
            if trips == int(nth) and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = send(*args, **options)
            if trips == int(nth):
                time.sleep(SETTLE_SECONDS)
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return sent

    settings = load_settings(Path(project))
    [sink] = declared_sinks(settings, [name])
    if sink.kind == "redis":
        from redis.connection import AbstractConnection

        AbstractConnection.send_packed_command = dying(AbstractConnection.send_packed_command)  # type: ignore[method-assign]
    else:
        from urllib3.connectionpool import HTTPConnectionPool

        HTTPConnectionPool.urlopen = dying(HTTPConnectionPool.urlopen)  # type: ignore[method-assign]
    deliver(settings, sink)


def killed(settings: Settings, name: str, nth: int, moment: Moment) -> bool:
    """Has a process deliver that is killed there; False where it has ended before."""
    call = [sys.executable, "-m", "tests.sinks.trips", str(settings.project), name, str(nth), moment]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode in {0, -signal.SIGKILL}, done.stdout + done.stderr
    return done.returncode != 0


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
