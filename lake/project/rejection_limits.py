"""Limits on rejected records: a stream above `max_refused` is not published.

A batch always enters the log. All batches in no edition yet count together; records repaired, accepted or voided since
do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lake.errors import QualityError
from lake.project import groups
from lake.store import duckdb_tables, log_rows, quarantine, voids
from lake.store.ledger.cuts import Cut, get_cut
from lake.store.ledger.editions import latest_edition
from lake.store.log import Log
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from lake.contracts.contract import MaxRefused
    from lake.project.declaration import Declaration
    from lake.project.project import Project

FIX: Final = (
    "`lake quarantine list {stream}` shows them; repair and replay them (lake quarantine replay {stream}), or void the"
    " delivery (lake void {stream} --batch N), or accept the loss (lake quarantine accept {stream}); then lake run"
)
ACCEPTED: Final = "they were accepted after the cut, and a new one counts that: lake run"


@dataclass(frozen=True)
class RejectionExcess:
    """Too many rejected records in batches `first` to `last` of a stream; `is_accepted` if all are since the cut."""

    stream: str
    where: str
    first: int
    last: int
    records: int
    reasons: Mapping[str, int]
    limit: MaxRefused
    is_accepted: bool = False

    @property
    def refused(self) -> int:
        return sum(self.reasons.values())

    @property
    def fix(self) -> str:
        return ACCEPTED if self.is_accepted else FIX.format(stream=self.stream)

    @property
    def advice(self) -> str:
        return ACCEPTED if self.is_accepted else f"repair and replay them, or lake quarantine accept {self.stream}"

    def __str__(self) -> str:
        batches = f"batch {self.last}" if self.first == self.last else f"batches {self.first} to {self.last}"
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.reasons.items())
        return (
            f"{self.stream}: {self.refused} of {self.records} records of {batches} were refused ({reasons}):"
            f" more than {self.limit.records}, and more than {self.limit.share:.3g} of them"
        )


def find_excess(project: Project, stream: str, cut: Cut, tables: Iterable[str]) -> RejectionExcess | None:
    """Return the excess of the stream at `cut` that holds publication of `tables`, or None."""
    settings, contract, upto = project.settings, project.contracts[stream], cut.batches.get(stream, 0)
    published = _published_batches(project, tables).get(stream, 0)
    heads = [head for head in Log(settings, stream).heads_after(published) if head.batch <= upto]
    since = max(published, heads[0].accepted_upto) if heads else published
    voided = [void for void in voids.voids_between(settings, stream, 0, cut.voids) if void.is_whole]
    voided_batches = {void.batch for void in voided if void.source is None}
    counting = [head for head in heads if head.batch > since and head.batch not in voided_batches]
    accepted = sum(head.counts.get("accepted", 0) for head in counting)
    quarantined = sum(head.counts.get("quarantined", 0) for head in counting)
    if not contract.max_refused.exceeded(quarantined, quarantined + accepted):
        return None
    repaired = {file["path"] for head in heads for file in head.files}
    query = """SELECT _batch, _number, reason, source FROM t WHERE _batch > $1 AND _batch <= $2"""
    rows = duckdb_tables.rows(Warehouse(settings).quarantine(stream).path, query, since, upto)
    reasons = Counter(
        row["reason"]
        for row in rows
        if quarantine.mark(row["_batch"], row["_number"]) not in repaired
        and not any(void.covers((row["_batch"], log_rows.BROADCAST, -1), row["source"]) for void in voided)
    )
    refused = reasons.total()
    if not contract.max_refused.exceeded(refused, refused + accepted):
        return None
    first, last = counting[-1].batch, counting[0].batch  # the newest head comes first
    counts, limit = dict(reasons.most_common()), contract.max_refused
    is_accepted = Log(settings, stream).head().accepted_upto >= last
    return RejectionExcess(stream, contract.where, first, last, refused + accepted, counts, limit, is_accepted)


def tables_by_stream(project: Project, tables: Iterable[Declaration]) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {}
    for table in tables:
        for stream in project.logs(table):
            readers.setdefault(stream, []).append(table.name)
    return readers


def find_excesses(project: Project, readers: Mapping[str, Iterable[str]], cut: Cut) -> list[RejectionExcess]:
    excesses = (find_excess(project, stream, cut, readers[stream]) for stream in sorted(readers))
    return [excess for excess in excesses if excess is not None]


def stop_errors(project: Project, tables: Iterable[Declaration], cut: Cut) -> list[QualityError]:
    """Return an error for each excess. It names the `tables` that are held, unless they are published by groups."""
    readers = tables_by_stream(project, tables)
    by_groups = project.settings.publish.groups
    return [
        QualityError(
            str(excess) if by_groups else f"{excess}; held: {', '.join(readers[excess.stream])}",
            where=excess.where,
            fix=excess.fix,
        )
        for excess in find_excesses(project, readers, cut)
    ]


def _published_batches(project: Project, tables: Iterable[str]) -> Mapping[str, int]:
    at = groups.published_cut(project.settings, project.groups, latest_edition(project.settings), [*tables])
    return get_cut(project.settings, at).batches if at else {}
