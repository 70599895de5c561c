"""`lake run --follow`: cycles in one warm process; those without news cost little and write nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from lake.config import Settings
from lake.errors import LakeError, Unavailable
from lake.ingest.landing import backlog
from lake.ops.idle import RunInputs
from lake.ops.maintenance import Policy, maintain
from lake.ops.pipeline import Cycle, run
from lake.progress import OnProgress, delayed
from lake.project.project import load
from lake.session import SessionFactory
from lake.session.spark_session import first_line, free_jvm_objects, started
from lake.store.locks import activity
from lake.store.process import end_signals_handled, fault_of

IDLE_SECONDS: Final = 60
"""Time after which a cycle runs although no file has changed: connectors may retry, and jobs import other modules."""


def follow(settings: Settings, spark: SessionFactory, on_progress: OnProgress, *, every: float) -> None:
    """Run a cycle every `every` seconds until SIGTERM or SIGINT, which end it after the current cycle.

    A cycle takes one batch of each stream and one delivery of each source, so that readers see events soon; while more
    records are pending, the next cycle follows without a pause. Failures are retried in the next cycle.

    Raises Unavailable if the session is gone.
    """
    stop, cycles, following = threading.Event(), 0, _Following(settings, spark, on_progress)

    def end(_: int) -> None:
        on_progress("stopping after this cycle")
        stop.set()

    with end_signals_handled(end):
        while not stop.is_set():
            activity.renew(settings)
            is_behind = False
            try:
                done = following.cycle()
                if done is not None:
                    is_behind = _is_behind(settings, done, on_progress)
                    cycles += 1
                    if settings.maintain_every and cycles % settings.maintain_every == 0:
                        _maintain(settings, spark, on_progress)
                    done.raise_held()
            except LakeError as error:
                on_progress(f"cycle failed: {error}")
                if isinstance(error, Unavailable):
                    _check_session(spark)
            except Exception as error:
                on_progress(f"cycle failed: {fault_of(error, settings) or first_line(error)}")
                _check_session(spark)
            stop.wait(0 if is_behind else every)


@dataclass
class _Following:
    """`idle_inputs`: those of a cycle that found nothing, `at` that time. `ended_inputs`: those at its end."""

    settings: Settings
    spark: SessionFactory
    on_progress: OnProgress
    idle_inputs: RunInputs | None = None
    ended_inputs: RunInputs | None = None
    at: float = 0.0

    def cycle(self) -> Cycle | None:
        """Return None, without a cycle, if nothing can be new. A cycle that finds nothing new is not reported."""
        began, reports, is_idle = RunInputs.now(self.settings), list[Callable[[], None]](), False
        if began == self.idle_inputs and time.monotonic() - self.at < IDLE_SECONDS:
            return None
        may_be_idle = began == self.ended_inputs

        def delay(line: str) -> None:
            reports.append(partial(self.on_progress, line))

        try:
            with delayed(reports) if may_be_idle else nullcontext():
                done = run(self.settings, self.spark, delay if may_be_idle else self.on_progress, batches=1)
            is_first, self.ended_inputs = self.ended_inputs is None, RunInputs.now(self.settings)
            is_idle = began == self.ended_inputs and done.is_complete
        finally:
            for report in () if is_idle else reports:
                report()
        self.idle_inputs, self.at = None if done.must_ask or not is_idle else began, time.monotonic()
        free_jvm_objects(keep=is_first)
        return done


def _is_behind(settings: Settings, done: Cycle, on_progress: OnProgress) -> bool:
    left = {stream: backlog(settings, stream) for stream in done.streams}
    for stream, (files, size) in left.items():
        if files:
            on_progress(f"behind  {stream}: {files} files, {size:,} bytes still to ingest")
    for source in done.more:
        on_progress(f"behind  {source}: more is waiting there")
    return bool(done.more) or any(files and done.streams[stream].read for stream, (files, _) in left.items())


def _maintain(settings: Settings, spark: SessionFactory, on_progress: OnProgress) -> None:
    done = maintain(load(settings), spark, Policy.of(settings), on_progress)
    files = sum(place.files for place in done.places)
    on_progress(f"maintain {len(done.expired)} editions expired, {files} files deleted")


def _check_session(spark: SessionFactory) -> None:
    if not started():
        return
    try:
        spark().range(1).count()
    except Exception as error:
        raise Unavailable("the Spark session has ended", fix="restart lake run --follow") from error
