"""The seconds between what is sent and what comes of it, beside `lake run --follow`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from infra.bench.times import heading, line
from lake.config import Settings
from tests.processes import until


def delays(
    settings: Settings,
    title: str,
    send: Callable[[int], None],
    arrived: Callable[[int], bool],
    *,
    first: int,
    count: int,
) -> list[float]:
    """Prints the seconds until what was sent has arrived, of `count` numbers after `first`, which is there already."""
    seconds, dice = [], random.Random(1)
    with following(settings) as process:

        def wait_for(number: int) -> None:
            until(lambda: arrived(number) or process.poll() is not None, seconds=300)
            assert process.poll() is None, (settings.project / "follow.log").read_text()

        wait_for(first)
        for number in range(first + 1, first + 1 + count):
            time.sleep(dice.uniform(0.5, 1.5))  # at any moment of a cycle
            send(number)
            begun = time.monotonic()
            wait_for(number)
            seconds.append(time.monotonic() - begun)
    seconds.sort()
    heading(f"{title}, {count} times")
    line("median", seconds[count // 2], "")
    line("99th percentile", seconds[min(count - 1, count * 99 // 100)], "")
    return seconds


@contextmanager
def following(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """`lake run --follow`, without a pause between its cycles but the shortest."""
    command = [sys.executable, "-c", "from lake.cli import main; main()", "run", "--follow", "--every", "0.1s"]
    with (settings.project / "follow.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=settings.project, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
