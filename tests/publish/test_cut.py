"""Cut of logs with several sources: the greatest that splits no delivery, whichever source stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lake.config import Settings
from lake.publish import cut as cut_module
from lake.publish.cut import consistent_prefix
from lake.store import delta
from lake.store.delta import Position
from lake.store.log_head import LogHead

STREAMS = ("x", "y", "z")
SOURCES = ("a", "b", "c")
LANDED = ""

Step = tuple[str, tuple[str, ...], int]
"""A source, the streams of its next delivery, and how many of them get it: the source stops where that is not all."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from((*SOURCES, LANDED)),
        st.lists(st.sampled_from(STREAMS), min_size=1, unique=True).map(tuple),
        st.sampled_from((3, 3, 3, 2, 1)),
    ),
    max_size=12,
)


@dataclass
class Model:
    """Logs as described by their commits, and the batches of each delivery."""

    steps: list[Step]
    logs: dict[str, list[LogHead]] = field(
        default_factory=lambda: {stream: [head(stream, 0, {})] for stream in STREAMS}
    )
    deliveries: dict[tuple[str, int], tuple[tuple[str, ...], dict[str, int]]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """The streams of all batches, as they came."""

    def __post_init__(self) -> None:
        stopped, numbers = set(), dict.fromkeys(SOURCES, 0)
        for source, streams, most in self.steps:
            if source == LANDED:
                self.append(streams[0], {})
            elif source not in stopped:
                numbers[source] += 1
                said = {"delivery": numbers[source], "streams": sorted(streams), "progress": {}}
                batches = {stream: self.append(stream, {source: said}) for stream in streams[:most]}
                self.deliveries[source, numbers[source]] = streams, batches
                stopped |= {source} if len(batches) < len(streams) else set()

    def append(self, stream: str, said: Mapping[str, dict[str, Any]]) -> int:
        """Append a batch with these deliveries, and return its number."""
        last = self.logs[stream][-1]
        new = {name: {**one, "batch": last.batch + 1} for name, one in said.items()}
        self.logs[stream].append(
            head(stream, last.batch + 1, {**{name: one.as_json for name, one in last.sources.items()}, **new})
        )
        self.order.append(stream)
        return last.batch + 1

    def divides(self, cut: Mapping[str, int]) -> bool:
        """Return whether some delivery is in one of its logs and not in another."""
        return any(
            len({stream in batches and batches[stream] <= cut[stream] for stream in streams}) > 1
            for streams, batches in self.deliveries.values()
        )

    def greatest(self) -> dict[str, int]:
        """Return the greatest cut of all that splits no delivery."""
        cuts = product(*(range(len(self.logs[stream])) for stream in STREAMS))
        fine = [cut for numbers in cuts if not self.divides(cut := dict(zip(STREAMS, numbers, strict=True)))]
        greatest = {stream: max(cut[stream] for cut in fine) for stream in STREAMS}
        assert greatest in fine
        return greatest

    def cut(self) -> dict[str, int]:
        """Return the cut of the code."""
        newest = {stream: log[-1] for stream, log in self.logs.items()}
        return consistent_prefix(newest, lambda stream: reversed(self.logs[stream]))


@dataclass
class Growing:
    """Logs of a model that grow meanwhile: at each read, `pace` batches are added. A read log is cached, as in a store,
    until it is invalidated.
    """

    model: Model
    pace: Iterator[int]
    time: int = 0
    known: dict[str, LogHead] = field(default_factory=dict)

    def prefetch(self, paths: Iterable[str]) -> None:
        for stream in paths:
            if stream not in self.known:
                self.time += next(self.pace, 0)
                self.known[stream] = self.model.logs[stream][self.model.order[: self.time].count(stream)]

    def log(self, _: Settings, stream: str) -> Any:
        def head(*_: int) -> LogHead:
            self.prefetch([stream])
            return self.known[stream]

        return SimpleNamespace(stream=stream, path=stream, head=head, must_reach=head)

    def moved(self, path: str) -> None:
        self.known.pop(path, None)


def head(stream: str, batch: int, sources: Mapping[str, Any]) -> LogHead:
    return LogHead(stream, Position("log", batch, {"sources": sources}), batch)


BEHIND_A_HALF: list[Step] = [("b", ("x", "z"), 3), ("a", ("x", "y"), 1), ("b", ("x", "z"), 3), ("c", ("y", "z"), 3)]


@given(STEPS)
@example(BEHIND_A_HALF)
def test_cut_is_the_greatest_that_splits_no_delivery(steps: list[Step]) -> None:
    model = Model(steps)
    assert model.cut() == model.greatest()


@given(STEPS, st.lists(st.integers(0, 3), max_size=30))
@example([(LANDED, ("x",), 3), ("a", ("x", "y"), 3), ("a", ("y",), 3)], [1, 2, 0, 0, 1])
@example([("a", ("x", "y"), 3), ("a", ("y",), 3)], [0, 3])
def test_cut_splits_no_delivery_when_logs_grow_meanwhile(steps: list[Step], pace: list[int]) -> None:
    model = Model(steps)
    growing = Growing(model, iter(pace))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_module, "Log", growing.log)
        patch.setattr(cut_module, "invalidate", growing.moved)
        patch.setattr(delta, "prefetch", growing.prefetch)
        heads = cut_module._heads(Settings(project=Path()), dict.fromkeys(STREAMS, 0))
    assert not model.divides(consistent_prefix(heads, lambda stream: reversed(model.logs[stream])))


def test_cut_excludes_deliveries_behind_an_incomplete_one_in_all_logs() -> None:
    assert Model(BEHIND_A_HALF).cut() == {"x": 1, "y": 0, "z": 1}


def test_removed_stream_does_not_block_the_cut() -> None:
    heads = {stream: log[-1] for stream, log in Model([("a", ("x", "y"), 3)]).logs.items() if stream != "y"}
    assert consistent_prefix(heads, unread) == {"x": 1, "z": 0}


def test_cut_reads_no_history_if_every_delivery_is_complete() -> None:
    model = Model([("a", ("x", "y"), 3), ("b", ("x", "z"), 3), (LANDED, ("y",), 3)])
    assert consistent_prefix({stream: log[-1] for stream, log in model.logs.items()}, unread) == {
        "x": 2,
        "y": 2,
        "z": 1,
    }


def unread(stream: str) -> Iterator[LogHead]:
    """Fail if the past is read."""
    pytest.fail(f"the past of {stream} was read")
    yield
