"""What a receiver has not taken is sent again, as it is by now; or given up.

A message tells what became of the row from the edition that the receiver has of it to the last one that changed it. It
is made anew from the two editions, so that nothing of a person who was forgotten meanwhile is kept for it. Where the
former has expired, `before` is not known; where the latter has, the row is told as the sink's edition has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, islice

from lake.config import Settings
from lake.errors import DeclarationError
from lake.read.net_changes import NetChanges, TableInEdition
from lake.sinks.condition import Filtered
from lake.sinks.declared import Declared
from lake.sinks.plan import Plan, Selected
from lake.sinks.sink import Position, Rows, TableChanges
from lake.sinks.webhook.changes import About, Changed, changed_rows
from lake.sinks.webhook.target import WINDOW, WebhookTarget
from lake.store.ledger import editions, sent
from lake.store.ledger.editions import Edition
from lake.store.ledger.sent import Undelivered
from lake.store.locks.lease import lease


@dataclass(frozen=True)
class Retried:
    """So many rows were `taken` by the receiver of a sink, or given up; so many are `left`."""

    sink: str
    taken: int
    left: int


def retry(settings: Settings, sink: Declared) -> Retried:
    """Sends again what the receiver of a sink has not taken.

    Raises DeclarationError for a sink of another kind, Unavailable where nobody takes anything.
    """
    with lease(settings, f"sink.{sink.name}"), closing(_webhook(sink)) as target:
        waiting, position = sent.undelivered(settings, sink.name), target.position()
        if position is not None:
            again = _Again(settings, sink, target, position)
            for _, rows in groupby(sorted(waiting, key=_span), key=_span):
                again.send([*rows])
        left = len(sent.undelivered(settings, sink.name))
        return Retried(sink.name, len(waiting) - left, left)


def give_up(settings: Settings, sink: Declared) -> Retried:
    """Takes what the receiver has not taken as if it had. Raises DeclarationError for a sink of another kind."""
    with lease(settings, f"sink.{sink.name}"), closing(_webhook(sink)):
        rows = sent.undelivered(settings, sink.name)
        if rows:
            given_up = [row.now(action="dropped") for row in rows]
            sent.note(settings, sink.name, sent.state(settings, sink.name), given_up)
        return Retried(sink.name, len(rows), 0)


def _webhook(sink: Declared) -> WebhookTarget:
    target = sink.open()
    if not isinstance(target, WebhookTarget):
        target.close()
        raise DeclarationError(
            f"sink {sink.name} is of kind {sink.kind}: nothing is kept for it to be sent again",
            where=sink.where,
            fix=f"lake deliver {sink.name} sends what it has not",
        )
    return target


def _span(row: Undelivered) -> tuple[str, int, int]:
    """The changes that a row is looked for in: of which table, from which edition on, up to which."""
    return row.table, row.since or 0, row.upto


@dataclass(frozen=True)
class _Again:
    """Rows of a sink that has `position`, sent again."""

    settings: Settings
    sink: Declared
    target: WebhookTarget
    position: Position

    def send(self, rows: Sequence[Undelivered]) -> None:
        """Sends rows of one span; notes what became of them."""
        changes = self._changes(rows)
        window = WINDOW * self.target.receiver.limits.parallel * self.target.batch
        found: set[str] = set()
        while part := [*islice(changes, window)]:
            refused = {changed.key: reason for changed, reason in self.target.tell(part)}
            keys = {changed.key for changed in part}
            self._note(rows, keys, refused)
            found |= keys
        self._note(rows, {row.key for row in rows} - found, {})  # nothing is left to be told of them

    def _note(self, rows: Iterable[Undelivered], keys: set[str], refused: dict[str, str]) -> None:
        noted = [
            row.now(reason=refused[row.key], attempts=row.attempts + 1)
            if row.key in refused
            else row.now(action="taken")
            for row in rows
            if row.key in keys
        ]
        if noted:
            sent.note(self.settings, self.sink.name, sent.state(self.settings, self.sink.name), noted)

    def _changes(self, rows: Sequence[Undelivered]) -> Iterator[Changed]:
        """What is to be told of the rows."""
        first = rows[0]
        old, new = self._edition(first.since), self._edition(first.upto) or self._edition(self.position.edition)
        if new is None or first.table not in self.sink.tables:
            return
        table = self.sink.tables[first.table]
        sides = {far.name: (far, side) for far, side in Plan(self.settings, self.sink, None, new).sides()}
        far, side = sides[table.name]
        before = TableInEdition.of(self.settings, table.name, old)
        source: Rows = Selected(NetChanges(self.settings, before, side), table.columns)
        if table.condition:
            source = Filtered(source, table.condition)
        numbers = {row.key: row.number for row in rows}
        gone = dict.fromkeys(numbers)
        about = About(self.sink.name, 0, new.number, new.cut, new.published_at)
        for changed in changed_rows(TableChanges(far, source), about):
            if changed.key in numbers:
                gone.pop(changed.key, None)
                yield _numbered(changed, numbers[changed.key])
        if first.since is not None and old is None:  # what is not there by now may have been there before
            for key in gone:
                yield _numbered(Changed(about, table.name, far.far, "delete", key, key, None), numbers[key])

    def _edition(self, number: int | None) -> Edition | None:
        """An edition, while it is kept."""
        if number is None or not editions.is_kept(self.settings, number):
            return None
        return editions.get_edition(self.settings, number)


def _numbered(changed: Changed, number: int) -> Changed:
    """A change as part of the delivery that was to tell it, whose message had the same id."""
    return replace(changed, about=replace(changed.about, number=number))
