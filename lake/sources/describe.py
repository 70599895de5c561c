"""What a delivery read at its source, for people: Kafka's offsets, and places in PostgreSQL's log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lake.sources.source import Progress

SHOWN: Final = 4


def describe(progress: Progress) -> str:
    """The range that ends where a source stands, "" where nothing says it: `flights/0 120-449`, `0/1A to 0/2B`."""
    ranges = [*_offsets(progress)]
    if ranges:
        more = f" and {len(ranges) - SHOWN} more" if ranges[SHOWN:] else ""
        return ", ".join(ranges[:SHOWN]) + more
    return f"{progress['from']} to {progress['to']}" if {"from", "to"} <= {*progress} else ""


def topic_of(name: str, era: int) -> str:
    """How places name a topic, after `era` recreations: its offsets of before were those of other records."""
    return f"{name}+{era}" if era else name


def _offsets(progress: Progress) -> Iterator[str]:
    """The first and the last offset of each partition that was read."""
    for name, taken in progress.get("topics", {}).items():
        for partition, (first, end) in taken["ranges"].items():
            if first < end:
                yield f"{topic_of(name, taken.get('era', 0))}/{partition} {first}-{end - 1}"
