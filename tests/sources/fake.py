"""External system in a file: transactions, each of records for several streams, and the acknowledged position.

kind = "fake"
file = "outside.json"      {"transactions": [[[stream, record], …], …], "acknowledged": 0, "lost": 0, "partitions": 1,
                           "at_least": false}
at_once = 2                transactions in one range
streams = ["debits", "credits"]
copies = true              it can repeat the copy of a stream; false: it is declared not to
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lake.sources.source import Gap, Lag, Progress, SourceDeclaration, SourceKind, SourceRecord, Spool


@dataclass
class Fake:
    """Source that reads the file."""

    file: Path
    at_once: int
    streams: tuple[str, ...]
    more: bool = False
    together = (("kafka", "partition"), ("kafka", "key"))
    offset = ("kafka", "offset")

    def _outside(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.file.read_text())
        return said

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        """Read a range of whole transactions."""
        outside, begin = self._outside(), int(after["to"]) if after else 0
        if begin < outside.get("lost", 0):
            raise Gap(f"transactions from {begin} on are gone", where=str(self.file), fix="lake ingest bank --give-up")
        end = min(begin + self.at_once, len(outside["transactions"]))
        self.more = end < len(outside["transactions"])
        if end == begin:
            return None
        for number in range(begin, end):
            for ordinal, (stream, record) in enumerate(outside["transactions"][number]):
                text = record if isinstance(record, str) else json.dumps(record)
                spool.put(stream, SourceRecord(text, f"{number}:{ordinal}", {"kafka.key": f"k{number}"}))
        return {"to": end}

    def acknowledge(self, upto: Progress) -> None:
        """Record the acknowledgement in the file."""
        self.file.write_text(json.dumps(self._outside() | {"acknowledged": upto["to"]}))

    def lag(self, after: Progress | None) -> Lag:
        """Return the number of waiting transactions."""
        outside = self._outside()
        waiting = len(outside["transactions"]) - (int(after["to"]) if after else 0)
        return Lag(events=waiting, at_least=outside.get("at_least", False))

    def partitions(self, after: Progress) -> Mapping[str, int]:
        """Return the number of partitions in the file."""
        return dict.fromkeys(self.streams, self._outside().get("partitions", 1))

    def skip_gap(self, after: Progress | None) -> Progress:
        """Return the position after the lost transactions."""
        return {"to": self._outside()["lost"]}

    def close(self) -> None:
        """Do nothing."""


@dataclass
class Database(Fake):
    """Fake source with repeatable copies of its streams."""

    copies: bool = True

    def copy_again(self, after: Progress, streams: Iterable[str]) -> Progress:
        """Deliver again everything that those streams have had so far."""
        return {**after, "again": sorted(streams)}

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        """Read the copy alone, or as before."""
        if after is None or "again" not in after:
            return super().read(after, spool)
        for number, transaction in enumerate(self._outside()["transactions"][: after["to"]]):
            for stream, record in transaction:
                if stream in after["again"]:
                    spool.put(stream, SourceRecord(json.dumps(record), f"copy:{number}", {"kafka.key": "copy"}))
        return {"to": after["to"]}


def _open(declaration: SourceDeclaration) -> Fake:
    said = declaration.values
    made = Fake(Path(said["file"]), said.get("at_once", 1), tuple(said["streams"]))
    return Database(made.file, made.at_once, made.streams, copies=said["copies"]) if "copies" in said else made


KIND = SourceKind(_open)
