"""What is tried alike with every target whose rows are read back: `lake verify --sink` has to find them identical."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.read.sql import reader
from lake.sinks.deliver import deliver, preview
from lake.sinks.kind import DeclaredSink
from lake.sinks.plan import DeliveryPlan
from lake.sinks.verify import verify_sink
from tests.read.things import NAME, Things
from tests.sinks.killed import kill
from tests.sinks.trips import Moment, killed
from tests.sinks.walks import CALL, edition, every_type


def identical(settings: Settings, sink: DeclaredSink) -> int:
    """The edition that the sink has, whose tables have to be identical."""
    number, verdicts = verify_sink(settings, sink)
    assert [verdict.verdict for verdict in verdicts] == ["identical"] * len(sink.tables), verdicts
    return number


def whatever_happens(settings: Settings, sink: DeclaredSink, seed: int, *, steps: int = 25) -> None:
    """Editions come and go in any way; what was delivered is the one that readers see."""
    chance, things = random.Random(seed), Things(settings)
    things.change({1: 1, 2: 2, None: 3})
    for _ in range(steps):
        things.step(chance)
        if NAME not in reader(settings).edition.tables:
            with pytest.raises(DeclarationError, match="no table 'thing' in edition"):
                deliver(settings, sink)
        elif chance.random() < 0.7:
            expected = preview(settings, sink)
            done = deliver(settings, sink)
            assert [(one.inserted, one.updated, one.deleted) for one in expected.tables] == [
                (one.inserted, one.updated, one.deleted) for one in done.tables
            ]
            assert identical(settings, sink) == done.edition == reader(settings).edition.number
            assert not deliver(settings, sink).changed


def each_trip_dies(settings: Settings, sink: DeclaredSink, moment: Moment, *, first: int = 1, step: int = 1) -> int:
    """A deliverer dies at each of its trips, and the edition that the next brings may be a later one; how many died.

    What is half there of the edition that it died of must not be left under the later one.
    """
    for number, nth in enumerate(count(first, step)):
        cut = 3 * number
        for shift in (1, 2):
            words = f"SELECT range AS id, 'w' || range * {shift} AS word FROM range({20 + number})"
            edition(settings, cut + shift, "id", one=every_type(30 + number % 7, shift=shift + number), two=words)
            if shift == 1 and number:
                deliver(settings, sink)
        if not killed(settings, sink.name, nth, moment):
            return number
        if number % 2:
            words = f"SELECT range AS id, 'w' || range AS word FROM range({20 + number})"
            edition(settings, cut + 3, "id", one=every_type(30 + number % 7, shift=1 + number), two=words)
        deliver(settings, sink)
        assert identical(settings, sink) == reader(settings).edition.number
    raise AssertionError


def each_point_kills(settings: Settings, sink: DeclaredSink, point: str, *, times: int = 6) -> None:
    """A deliverer is killed at a point again and again: what is there is an edition, and the next goes on."""
    for number in range(1, times + 1):
        words = f"SELECT range AS id, 'w' || range * {number} AS word FROM range({30 + 3 * number})"
        edition(settings, number, "id", one=every_type(30 + 5 * number, shift=number), two=words)
        kill(settings, sink.name, point)
        has = number if point in {"after", "noted"} else number - 1
        if has:
            assert identical(settings, sink) == has
        assert deliver(settings, sink).edition == number
        assert identical(settings, sink) == number


def of_two_one_is_refused(settings: Settings, sink: DeclaredSink) -> None:
    """By our lease the second waits; by the target's position, where it has another warehouse's lease."""
    edition(settings, 1, "id", one=every_type(10))
    deliver(settings, sink)
    edition(settings, 2, "id", one=every_type(12))
    with closing(sink.open()) as slow:
        late = DeliveryPlan(settings, sink, slow.position(), reader(settings).edition).delivery()
        edition(settings, 3, "id", one=every_type(14))
        assert deliver(settings, sink).edition == 3
        with pytest.raises(Unavailable, match="brought to another position meanwhile: it has edition 3"):
            slow.deliver(late)
    assert identical(settings, sink) == 3
    edition(settings, 4, "id", one=every_type(16))
    call = [*CALL, "deliver", sink.name, "--project", str(settings.project)]
    processes = [subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert identical(settings, sink) == 4


def overtaken(
    send: Callable[..., Any], trips: Iterator[int], nth: int, other: Callable[[], Any], *args: Any, **options: Any
) -> Any:
    """Sends, once another has delivered where it is the nth time."""
    if next(trips) == nth:
        other()
    return send(*args, **options)
