"""A delivery that dies by SIGKILL at a point: `python -m tests.sinks.dying PROJECT SINK POINT NTH`.

`before` the target's transaction, `inside` it, at the nth thing that is sent, `after` it, before that is noted here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, Final

from lake.config import load_settings
from lake.sinks.declared import declared_sinks
from lake.sinks.deliver import deliver
from tests.processes import PATIENCE, ROOT

POINTS: Final = ("before", "inside", "after")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then(owner: Any, name: str, work: Callable[[Any], None]) -> None:
    """Has a method followed by some work, which is given its object."""
    own = getattr(owner, name)

    @wraps(own)
    def followed(self: Any, *args: Any, **options: Any) -> Any:
        done = own(self, *args, **options)
        work(self)
        return done

    setattr(owner, name, followed)


def kafka(point: str, nth: int) -> None:
    from lake.connect.kafka.sink.transaction import KafkaTransaction

    sent = count(1)

    def sending(transaction: Any) -> None:
        if next(sent) == nth:
            transaction._producer.flush(PATIENCE)
            die()

    match point:
        case "before":
            then(KafkaTransaction, "__enter__", lambda _: die())
        case "inside":
            then(KafkaTransaction, "send", sending)
        case "after":
            then(KafkaTransaction, "__exit__", lambda _: die())


def webhook(point: str, nth: int) -> None:
    from lake.connect.webhook.target import WebhookTarget

    told = count(1)
    match point:
        case "before":
            then(WebhookTarget, "_begun", lambda _: die())
        case "inside":
            then(WebhookTarget, "_window", lambda _: die() if next(told) == nth else None)
        case "after":
            then(WebhookTarget, "deliver", lambda _: die())


ARMED: Final = {"kafka": kafka, "webhook": webhook}


def killed(project: Path, sink: str, point: str, nth: int = 1) -> bool:
    """Whether a delivery, in a process of its own, died at the point."""
    command: list[str | Path] = [sys.executable, "-m", "tests.sinks.dying", project, sink, point, str(nth)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode != 0


def main(project: str, name: str, point: str, nth: str) -> None:
    settings = load_settings(Path(project))
    [sink] = declared_sinks(settings, [name])
    ARMED[sink.kind](point, int(nth))
    deliver(settings, sink)


if __name__ == "__main__":
    main(*sys.argv[1:])
