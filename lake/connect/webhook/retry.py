"""Retry of messages that the receiver did not accept, with their current content; or giving up on them.

A message is rebuilt from the edition that the receiver has of the row and the last one that changed it, so no data of a
person forgotten meanwhile is stored for it. If the former has expired, `before` is unknown. If the latter has, the row
is taken from the sink's edition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby, islice

from lake.config import Settings
from lake.connect.webhook.changes import ChangeMessage, DeliveryInfo, changed_rows
from lake.connect.webhook.target import WINDOW, WebhookTarget
from lake.read.net_changes import NetChanges, TableInEdition
from lake.sinks.condition import FilteredChanges
from lake.sinks.kind import DeclaredSink, RetryResult
from lake.sinks.plan import DeliveryPlan, SelectedChanges
from lake.sinks.sink import ChangeSource, SinkPosition, TableChanges
from lake.store.ledger import editions, sent
from lake.store.ledger.editions import Edition
from lake.store.ledger.sent import Undelivered
from lake.store.locks.lease import lease


class WebhookRetry:
    """Messages that receivers have not accepted."""

    def send_again(self, settings: Settings, sink: DeclaredSink) -> RetryResult:
        """Resend what the receiver of a sink did not accept. Raises Unavailable if it does not answer."""
        with lease(settings, f"sink.{sink.name}"), closing(_webhook(sink)) as target:
            waiting, position = sent.undelivered(settings, sink.name), target.position()
            if position is not None:
                again = _Resender(settings, sink, target, position)
                for _, rows in groupby(sorted(waiting, key=_span), key=_span):
                    again.send([*rows])
            left = len(sent.undelivered(settings, sink.name))
            return RetryResult(sink.name, len(waiting) - left, left)

    def give_up(self, settings: Settings, sink: DeclaredSink) -> RetryResult:
        """Treat all undelivered rows as accepted."""
        with lease(settings, f"sink.{sink.name}"):
            rows = sent.undelivered(settings, sink.name)
            if rows:
                given_up = [row.now(action="dropped") for row in rows]
                sent.record(settings, sink.name, sent.state(settings, sink.name), given_up)
            return RetryResult(sink.name, len(rows), 0)


def _webhook(sink: DeclaredSink) -> WebhookTarget:
    target = sink.open()
    assert isinstance(target, WebhookTarget)
    return target


def _span(row: Undelivered) -> tuple[str, int, int]:
    return row.table, row.since or 0, row.upto


@dataclass(frozen=True)
class _Resender:
    settings: Settings
    sink: DeclaredSink
    target: WebhookTarget
    position: SinkPosition

    def send(self, rows: Sequence[Undelivered]) -> None:
        changes = self._changes(rows)
        window = WINDOW * self.target.receiver.limits.parallel * self.target.batch
        found: set[str] = set()
        while part := [*islice(changes, window)]:
            refused = {changed.key: reason for changed, reason in self.target.send(part)}
            keys = {changed.key for changed in part}
            self._note(rows, keys, refused)
            found |= keys
        self._note(rows, {row.key for row in rows} - found, {})  # their net change is empty by now

    def _note(self, rows: Iterable[Undelivered], keys: set[str], refused: dict[str, str]) -> None:
        noted = [
            row.now(reason=refused[row.key], attempts=row.attempts + 1)
            if row.key in refused
            else row.now(action="taken")
            for row in rows
            if row.key in keys
        ]
        if noted:
            sent.record(self.settings, self.sink.name, sent.state(self.settings, self.sink.name), noted)

    def _changes(self, rows: Sequence[Undelivered]) -> Iterator[ChangeMessage]:
        first = rows[0]
        old, new = self._edition(first.since), self._edition(first.upto) or self._edition(self.position.edition)
        if new is None or first.table not in self.sink.tables:
            return
        table = self.sink.tables[first.table]
        sides = {far.name: (far, side) for far, side in DeliveryPlan(self.settings, self.sink, None, new).sides()}
        far, side = sides[table.name]
        before = TableInEdition.of(self.settings, table.name, old)
        source: ChangeSource = SelectedChanges(NetChanges(self.settings, before, side), table.columns)
        if table.condition:
            source = FilteredChanges(source, table.condition)
        numbers = {row.key: row.number for row in rows}
        gone = dict.fromkeys(numbers)
        about = DeliveryInfo(self.sink.name, 0, new.number, new.cut, new.published_at)
        for changed in changed_rows(TableChanges(far, source), about):
            if changed.key in numbers:
                gone.pop(changed.key, None)
                yield _numbered(changed, numbers[changed.key])
        if first.since is not None and old is None:  # a row missing from the new edition may have been in the old one
            for key in gone:
                yield _numbered(ChangeMessage(about, table.name, far.far, "delete", key, key, None), numbers[key])

    def _edition(self, number: int | None) -> Edition | None:
        if number is None or not editions.is_kept(self.settings, number):
            return None
        return editions.get_edition(self.settings, number)


def _numbered(changed: ChangeMessage, number: int) -> ChangeMessage:
    """Return the change with its original delivery number, so that its id is the same."""
    return replace(changed, about=replace(changed.about, number=number))
