"""What was read of a source, for people: Kafka's offsets, places in PostgreSQL's log, groups by HTTP, a tap's STATE."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from lake.sources.source import Progress

SHOWN: Final = 4
STATE: Final = 60
"""Characters of a tap's STATE that are shown."""


def describe(progress: Progress) -> str:
    """The range that ends where a source stands, "" where nothing says it: `flights/0 120-449`, `0/1A to 0/2B`."""
    if ranges := [*_offsets(progress)]:
        return _some(ranges)
    return f"{progress['from']} to {progress['to']}" if {"from", "to"} <= {*progress} else ""


def position(progress: Progress) -> str:
    """Where a source stands, "" where nothing says it: before `flights/0 450`, `0/2B`; behind `group 7`, a STATE."""
    if "topics" in progress:
        topics = progress["topics"].items()
        return _some(
            [
                f"{topic_of(name, taken.get('era', 0))}/{partition} {end}"
                for name, taken in topics
                for partition, (_, end) in taken["ranges"].items()
            ]
        )
    if "state" in progress:
        state = json.dumps(progress["state"], ensure_ascii=False, separators=(",", ":"))
        return state if len(state) <= STATE else f"{state[: STATE - 1]}…"
    return f"group {progress['upto']}" if "upto" in progress else str(progress.get("to", ""))


def topic_of(name: str, era: int) -> str:
    """How places name a topic, after `era` recreations: its offsets of before were those of other records."""
    return f"{name}+{era}" if era else name


def _some(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - SHOWN} more" if parts[SHOWN:] else ""
    return ", ".join(parts[:SHOWN]) + more


def _offsets(progress: Progress) -> Iterator[str]:
    """The first and the last offset of each partition that was read."""
    for name, taken in progress.get("topics", {}).items():
        for partition, (first, end) in taken["ranges"].items():
            if first < end:
                yield f"{topic_of(name, taken.get('era', 0))}/{partition} {first}-{end - 1}"
