"""How much of a stream may be refused before readers are kept from what is made of the rest.

A batch enters log and quarantine whatever it is like. What is held is publication: of what no edition has yet, all
batches together, more is refused than the contract's `max_refused` lets pass. So it does not matter how records were
cut into batches. What was repaired, accepted or voided since is no longer refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lake import groups
from lake.errors import QualityError
from lake.store import log, quarantine, small, voids
from lake.store.ledger.cuts import Cut, get_cut
from lake.store.ledger.editions import latest_edition
from lake.store.log import Log
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from lake.contracts.contract import MaxRefused
    from lake.declaration import Declaration
    from lake.project import Project

FIX: Final = (
    "`lake quarantine list {stream}` shows them; repair and replay them (lake quarantine replay {stream}), or void the"
    " delivery (lake void {stream} --batch N), or accept the loss (lake quarantine accept {stream}); then run again"
)


@dataclass(frozen=True)
class Excess:
    """That of the `records` of batches `first` to `last`, which no edition has, too many are refused, for `reasons`."""

    stream: str
    where: str
    first: int
    last: int
    records: int
    reasons: Mapping[str, int]
    limit: MaxRefused

    @property
    def refused(self) -> int:
        return sum(self.reasons.values())

    @property
    def fix(self) -> str:
        return FIX.format(stream=self.stream)

    def __str__(self) -> str:
        batches = f"batch {self.last}" if self.first == self.last else f"batches {self.first} to {self.last}"
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.reasons.items())
        return (
            f"{self.stream}: {self.refused} of {self.records} records of {batches} were refused ({reasons}):"
            f" more than {self.limit.records}, and more than {self.limit.share:.3g} of them"
        )


def excess(project: Project, stream: str, cut: Cut, tables: Iterable[str]) -> Excess | None:
    """What of the stream at `cut` holds publication of `tables`; None where nothing does."""
    settings, contract, upto = project.settings, project.contracts[stream], cut.batches.get(stream, 0)
    published = _published(project, tables).get(stream, 0)
    heads = [head for head in Log(settings, stream).heads_after(published) if head.batch <= upto]
    since = max(published, heads[0].accepted_upto) if heads else published
    taken_back = [void for void in voids.voided(settings, stream, 0, cut.voids) if void.whole]
    gone = {void.batch for void in taken_back if void.source is None}
    counting = [head for head in heads if head.batch > since and head.batch not in gone]
    accepted = sum(head.counts.get("accepted", 0) for head in counting)
    quarantined = sum(head.counts.get("quarantined", 0) for head in counting)
    if not contract.max_refused.exceeded(quarantined, quarantined + accepted):
        return None
    repaired = {file["path"] for head in heads for file in head.files}
    query = """SELECT _batch, _number, reason, source FROM t WHERE _batch > $1 AND _batch <= $2"""
    rows = small.rows(Warehouse(settings).quarantine(stream).path, query, since, upto)
    reasons = Counter(
        row["reason"]
        for row in rows
        if quarantine.mark(row["_batch"], row["_number"]) not in repaired
        and not any(void.covers((row["_batch"], log.BROADCAST, -1), row["source"]) for void in taken_back)
    )
    refused = reasons.total()
    if not contract.max_refused.exceeded(refused, refused + accepted):
        return None
    first, last = counting[-1].batch, counting[0].batch
    counts = dict(reasons.most_common())
    return Excess(stream, contract.where, first, last, refused + accepted, counts, contract.max_refused)


def derived(project: Project, tables: Iterable[Declaration]) -> dict[str, list[str]]:
    """Which of `tables` are derived from each stream, directly or not."""
    readers: dict[str, list[str]] = {}
    for table in tables:
        for stream in project.logs(table):
            readers.setdefault(stream, []).append(table.name)
    return readers


def excesses(project: Project, readers: Mapping[str, Iterable[str]], cut: Cut) -> list[Excess]:
    """What of streams at `cut` holds publication of what is derived from them: `readers`, by stream."""
    every = (excess(project, stream, cut, readers[stream]) for stream in sorted(readers))
    return [over for over in every if over is not None]


def stopped(project: Project, tables: Iterable[Declaration], cut: Cut) -> QualityError | None:
    """What holds publication of `tables` at `cut`, as one error; None where nothing does."""
    readers = derived(project, tables)
    lines = [
        f"{over}; held: {', '.join(readers[over.stream])} ({over.where})\n  fix: {over.fix}"
        for over in excesses(project, readers, cut)
    ]
    return QualityError("\n".join(lines)) if lines else None


def _published(project: Project, tables: Iterable[str]) -> Mapping[str, int]:
    """The last batch of each stream that is in the edition of all `tables`."""
    at = groups.published(project.settings, project.groups, latest_edition(project.settings), [*tables])
    return get_cut(project.settings, at).batches if at else {}
