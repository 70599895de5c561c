"""`lake deliver` in a process that is killed at one point of its work, and no later: `python -m tests.sinks.killed`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from lake.config import Settings, load_settings
from lake.sinks import deliver as verb
from lake.sinks.declared import declared_sinks
from lake.sinks.sink import SinkDelivery, TableChanges

if TYPE_CHECKING:
    import pyarrow as pa

POINTS: Final = ("before", "begun", "inside", "read", "after", "noted")
"""Before the target is asked to deliver; at the first rows; within them; when all are read and nothing is committed;
when the target has committed; when the warehouse has noted it too."""


def die() -> None:
    """Ends this process as a loss of power would."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(project: str, name: str, point: str) -> None:
    """Delivers, and is killed."""
    settings = load_settings(Path(project))
    [sink] = declared_sinks(settings, [name])
    of_table, position = TableChanges.batches, SinkDelivery.position

    def batches(changes: TableChanges) -> Iterator[pa.RecordBatch]:
        if point == "begun":
            die()
        for batch in of_table(changes):
            half = batch.num_rows // 2
            yield batch.slice(0, half) if point == "inside" else batch
            if point == "inside":
                die()

    def all_read(delivery: SinkDelivery) -> Any:
        if point == "read":
            die()
        return position(delivery)

    monkey = pytest.MonkeyPatch()
    monkey.setattr(TableChanges, "batches", batches)
    monkey.setattr(SinkDelivery, "position", all_read)
    target = sink.open()
    deliver = target.deliver

    def delivered(delivery: SinkDelivery) -> Any:
        if point == "before":
            die()
        done = deliver(delivery)
        if point == "after":
            die()
        return done

    monkey.setattr(target, "deliver", delivered)
    verb.deliver(settings, replace(sink, make=lambda: target))
    if point == "noted":
        die()


def kill(settings: Settings, name: str, point: str) -> None:
    """Has a process deliver that is killed there: it has to be."""
    call = [sys.executable, "-m", __spec__.name if __spec__ else __name__, str(settings.project), name, point]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


if __name__ == "__main__":
    main(*sys.argv[1:])
