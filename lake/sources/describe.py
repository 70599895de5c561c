"""Text of a source's progress for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from lake.sources.source import Progress
from lake.text import some_of

MOST_RANGES: Final = 4
MOST_CHARACTERS: Final = 60


def describe(progress: Progress) -> str:
    """Return the range read last, such as `flights/0 120-449` or `0/1A to 0/2B`; "" if the source has none."""
    if ranges := [f"{place} {first}-{end - 1}" for place, first, end in _offsets(progress) if first < end]:
        return some_of(ranges, MOST_RANGES)
    return f"{progress['from']} to {progress['to']}" if {"from", "to"} <= {*progress} else ""


def position(progress: Progress) -> str:
    """Return where the source continues, such as `flights/0 450`, `0/2B`, `group 7`, or the beginning of a state."""
    if "topics" in progress:
        return some_of([f"{place} {end}" for place, _, end in _offsets(progress)], MOST_RANGES)
    if "state" in progress:
        state = progress.get("text") or json.dumps(progress["state"], ensure_ascii=False, separators=(",", ":"))
        return state if len(state) <= MOST_CHARACTERS else f"{state[: MOST_CHARACTERS - 1]}…"
    return f"group {progress['upto']}" if "upto" in progress else str(progress.get("to", ""))


def topic_of(name: str, era: int) -> str:
    """Return `flights`, or `flights+1` in era 1: offsets restart in each era."""
    return f"{name}+{era}" if era else name


def _offsets(progress: Progress) -> Iterator[tuple[str, int, int]]:
    for name, topic in progress.get("topics", {}).items():
        for partition, (first, end) in topic["ranges"].items():
            yield f"{topic_of(name, topic.get('era', 0))}/{partition}", first, end
