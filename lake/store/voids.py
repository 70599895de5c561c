"""Voids: records that an event or a delivery was accepted by mistake. From the next cut on, no table has it.

The log keeps such events. Erasures of persons share the numbering of voids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from lake.config import Settings
from lake.errors import DeclarationError
from lake.lazy import DataFrame
from lake.store.ledger.cuts import CUTS
from lake.store.ledger_table import LedgerTable, columns_of
from lake.text import DUCKDB, SPARK, literal


@dataclass(frozen=True)
class Erasure:
    """Person `subject` (a token) of `stream` was erased; or erased data up to `number` was purged."""

    action: Literal["erased", "purged"]
    number: int
    stream: str
    subject: str
    at: datetime


Place = tuple[int, int, int]
"""Batch, bucket and offset of an event."""
Target = tuple[int, int | None, int | None, str | None]
"""Batch, bucket, offset and source that a void names."""


@dataclass(frozen=True)
class Void:
    """Void `number` (1, 2, 3 … over all streams): an event, or a whole delivery, of `stream` does not count.

    It names the event at (batch, bucket, offset); or, without bucket and offset, all events of the file `source` up to
    `batch`; or, without `source`, all of `batch`. The log was at batch `head`: later ones may have the same ids again,
    see `frees`.
    """

    number: int
    stream: str
    batch: int
    bucket: int | None
    offset: int | None
    source: str | None
    reason: str
    at: datetime
    head: int

    def frees(self, batch: int) -> bool:
        """Return whether `batch` may have voided events again.

        A voided delivery may come again, corrected. A single event may come again with other content: with the same
        content it repeats the mistake.
        """
        return self.head < batch

    @property
    def place(self) -> str:
        if self.source is not None:
            return f"{self.source} up to batch {self.batch}"
        return f"batch {self.batch}" if self.bucket is None else f"{self.batch}:{self.bucket}:{self.offset}"

    @property
    def target(self) -> Target:
        return self.batch, self.bucket, self.offset, self.source

    @property
    def is_whole(self) -> bool:
        return self.bucket is None

    def delivery_sql(self, quote: str) -> str:
        if self.source is None:
            return f"(_batch = {self.batch})"
        return f"(_batch <= {self.batch} AND {of_file_sql(self.source, quote)})"

    def covers(self, place: Place, source: str) -> bool:
        if self.bucket is not None:
            return (self.batch, self.bucket, self.offset) == place
        if self.source is None:
            return self.batch == place[0]
        return place[0] <= self.batch and re.fullmatch(f"{re.escape(self.source)}(:[0-9]+)?", source) is not None


VOIDS: Final = LedgerTable("voids", columns_of(Void) | {"bucket": "INTEGER"}, durable=True)
ERASURES: Final = LedgerTable("erasures", columns_of(Erasure) | {"edition": "BIGINT"}, durable=True)
NUMBERED: Final = (VOIDS, ERASURES)


def of_file_sql(file: str, quote: str) -> str:
    """Return SQL, true if an event is of `file`: its `_source` is the name, or the name and a line, as `a.jsonl:12`."""
    name, lined = literal(file, quote), literal(f"{file}:", quote)
    without_line = "rtrim('0123456789', _source)" if quote == SPARK else "rtrim(_source, '0123456789')"
    return f"(_source = {name} OR (_source <> {lined} AND {without_line} = {lined}))"


def all_voids(settings: Settings, stream: str | None = None) -> list[Void]:
    query = "SELECT * FROM t WHERE $1 IS NULL OR stream = $1 ORDER BY number"
    return [Void(**row) for row in VOIDS.rows(settings, query, stream)]


def voids_head(settings: Settings) -> int:
    """Return the greatest number of a recorded void or erasure; 0 without any. `last_void` also counts lost ones."""
    return max(table.greatest(settings, "number") for table in NUMBERED)


def last_void(settings: Settings) -> int:
    """Return the greatest number of a void or an erasure, recorded or lost: cuts remember it."""
    return max(voids_head(settings), CUTS.greatest(settings, "voids"))


def has_void(settings: Settings, number: int) -> bool:
    return any(table.rows(settings, "SELECT 1 FROM t WHERE number = $1 LIMIT 1", number) for table in NUMBERED)


def voids_between(settings: Settings, stream: str, after: int, upto: int) -> list[Void]:
    return [void for void in all_voids(settings, stream) if after < void.number <= upto] if after < upto else []


def without_voided(rows: DataFrame, voids: Iterable[Void]) -> DataFrame:
    voids = list(voids)
    return rows.where(not_voided_sql(voids, SPARK)) if voids else rows


def not_voided_sql(voids: Iterable[Void], quote: str = DUCKDB) -> str:
    voids = list(voids)
    tests = [f"NOT {void.delivery_sql(quote)}" for void in voids if void.is_whole]
    events = [(void.bucket, void.offset) for void in voids if not void.is_whole]
    for bucket in sorted({bucket for bucket, _ in events if bucket is not None}):
        offsets = ", ".join(str(offset) for of, offset in events if of == bucket)
        tests.append(f"NOT (_bucket = {bucket} AND _offset IN ({offsets}))")
    return " AND ".join(tests) or "true"


def only_voided(rows: DataFrame, voids: Iterable[Void]) -> DataFrame:
    return rows.where(f"NOT ({not_voided_sql(voids, SPARK)})")


def record(
    settings: Settings, targets: Iterable[tuple[str, Target]], *, reason: str, at: datetime, heads: Mapping[str, int]
) -> list[Void]:
    """Append a void for each of `targets`, events of streams, in one commit; `heads`: the newest batch of each stream.

    Raises DeclarationError if one is void already.
    """
    with VOIDS.hold_lease(settings):
        recorded = {(void.stream, void.target): void for void in all_voids(settings)}
        number = last_void(settings) + 1
        new: list[Void] = []
        for stream, target in dict.fromkeys(targets):
            if (stream, target) in recorded:
                void = recorded[stream, target]
                raise DeclarationError(
                    f"{'event ' if void.bucket is not None else ''}{void.place} of {stream} is already void:"
                    f" {void.reason!r} (void {void.number})",
                    fix="nothing to do",
                )
            void = Void(number + len(new), stream, *target, reason, at, heads[stream])
            recorded[stream, target] = void
            new.append(void)
        VOIDS.append(settings, new)
    return new
