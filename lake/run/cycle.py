"""Run: ingest, cut, advance, check, publish; once, or again and again in one warm process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from lake.config import Settings
from lake.errors import LakeError, Unavailable
from lake.project import load
from lake.run import gate
from lake.run.advance import Advanced, advance_all
from lake.run.append import BatchCounts
from lake.run.cut import cut
from lake.run.ingest import ingest
from lake.run.inputs import Inputs
from lake.run.publish import publish
from lake.store import reads
from lake.store.editions import Edition, pinned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Cycle:
    """What one cycle did: rows by stream, tables, and the edition readers now see (None while one is pinned)."""

    cut: int
    streams: dict[str, Any]
    tables: list[Advanced]
    edition: Edition | None
    failures: dict[str, LakeError]


def run(settings: Settings, spark: Callable[[], SparkSession], tell: Tell) -> Cycle:
    """One cycle. A source that fails is told and left for the next cycle; the others go on.

    Raises what a table or a gate raises; the last edition then stays in place.
    """
    project = load(settings)
    gate.warm_up()
    session = spark()
    failures: dict[str, LakeError] = {}

    def failed(stream: str, failure: LakeError) -> None:
        failures[stream] = failure
        tell(f"ingest  {stream} failed: {failure}")

    streams = ingest(settings, session, project.contracts, on_failure=failed)
    for stream, counts in streams.items():
        tell(f"ingest  {stream}: {_counted(counts)}")
    now = cut(project)
    tell(f"cut     {now.number}")
    advanced = advance_all(Inputs(spark, project, now), tell=lambda done: tell(line(done)))
    if (pin := pinned(settings)) is not None:
        tell(f"publish readers stay at edition {pin} until `lake publish --resume`")
        return Cycle(now.number, streams, advanced, None, failures)
    edition = publish(project, now, spark)
    tell(f"publish edition {edition.number}")
    return Cycle(now.number, streams, advanced, edition, failures)


def follow(settings: Settings, spark: Callable[[], SparkSession], tell: Tell, *, every: float) -> None:
    """Cycles `every` so many seconds until SIGTERM or SIGINT, which end it after the cycle at work.

    What fails is told and tried again in the next cycle. Raises Unavailable when the session is gone.
    """
    stop = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        tell("stopping after this cycle")
        stop.set()

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not stop.is_set():
            reads.renew(settings)
            try:
                run(settings, spark, tell)
            except LakeError as error:
                tell(f"cycle failed: {error}")
                if isinstance(error, Unavailable):
                    _must_answer(spark)
            except Exception as error:
                tell(f"cycle failed: {type(error).__name__}: {str(error).splitlines()[0]}")
                _must_answer(spark)
            stop.wait(every)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _must_answer(spark: Callable[[], SparkSession]) -> None:
    try:
        spark().range(1).count()
    except Exception as error:
        raise Unavailable("the Spark session is gone", fix="start lake run --follow again") from error


def line(done: Advanced) -> str:
    """One line of talk about one table."""
    if done.verb == "none":
        return f"advance {done.table}: already at cut {done.cut}"
    changed = f"+{done.inserted} ~{done.updated} -{done.deleted}"
    return f"{done.verb:<7} {done.table}: {changed} in {done.seconds:.1f} s"


def _counted(counts: BatchCounts) -> str:
    if not counts.read:
        return "nothing new"
    refused = f", {counts.duplicates} duplicates, {counts.quarantined} to quarantine"
    refused += f", {counts.control} control messages" if counts.control else ""
    return f"batch {counts.batch}, {counts.accepted} events of {counts.read} records{refused}"
