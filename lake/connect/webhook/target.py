"""Webhook target: its change messages, their delivery, and retry of undelivered ones. Ids are stable across retries.

Position and progress are stored in the warehouse, messages are not: a retry rebuilds them from two editions, so that
no data of a forgotten person is kept. These are the edition that the receiver has of the row and the last that changed
it. If the former has expired, `before` is unknown. If the latter has, the row is read from the sink's edition.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby, islice, takewhile
from typing import Any, Final

from lake.config import Settings
from lake.connect.webhook.receiver import Receiver, Rejection, WebhookMessage
from lake.errors import LakeError, StartOver
from lake.read.net_changes import NetChanges, TableInEdition
from lake.sinks.json_rows import json_rows
from lake.sinks.kind import DeclaredSink, RetryResult
from lake.sinks.plan import DeclaredChanges, DeliveryPlan
from lake.sinks.sink import SinkDelivery, SinkPosition, TableChanges, UnfinishedDelivery
from lake.store.ledger import editions, sent
from lake.store.ledger.editions import Edition
from lake.store.ledger.sent import State, Undelivered, Underway

Row = tuple[str, str]
"""Table and key."""
Answers = dict[Row, Rejection | None]
"""None means accepted."""
COLUMNS: Final = ("change", "key", "before", "after")


@dataclass(frozen=True)
class DeliveryInfo:
    sink: str
    number: int  # of the delivery
    edition: int
    cut: int
    published_at: datetime

    @property
    def at(self) -> str:
        return self.published_at.astimezone(UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class ChangeMessage:
    """`far` is the table's name in the target. `key`, `before` and `after` are JSON."""

    about: DeliveryInfo
    table: str
    far: str
    change: str
    key: str
    before: str | None
    after: str | None

    @property
    def id(self) -> str:
        """It depends on the delivery number: after a rollback the same edition may be delivered again."""
        about = self.about
        return _hash("chg", [about.sink, about.number, about.at, self.table, self.key, self.change])

    @property
    def row(self) -> Row:
        return self.table, self.key

    @property
    def data(self) -> str:
        about: dict[str, str | int] = {"id": self.id, "table": self.far, "change": self.change}
        about |= {"edition": self.about.edition, "cut": self.about.cut}
        rows = f'"key": {self.key}, "before": {self.before or "null"}, "after": {self.after or "null"}'
        return f"{json.dumps(about)[:-1]}, {rows}}}"


BodyFormat = Callable[[ChangeMessage], str]


def as_event(changed: ChangeMessage) -> str:
    return _body(f"{changed.far}.{changed.change}", changed.about, changed.data)


def message(batch: Sequence[ChangeMessage], *, is_array: bool, form: BodyFormat = as_event) -> WebhookMessage:
    keys = tuple(f"{changed.table} {changed.key}" for changed in batch)
    if not is_array:
        return WebhookMessage(batch[0].id, keys, form(batch[0]).encode())
    data = f"[{', '.join(changed.data for changed in batch)}]"
    id = _hash("msg", [changed.id for changed in batch])
    return WebhookMessage(id, keys, _body("changes", batch[0].about, data).encode())


def changed_rows(changes: TableChanges, about: DeliveryInfo) -> Iterator[ChangeMessage]:
    table = changes.table
    for batch in json_rows(changes):
        for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            yield ChangeMessage(about, table.name, table.far, *row)


def _body(type: str, about: DeliveryInfo, data: str) -> str:
    return f'{{"type": {json.dumps(type)}, "timestamp": "{about.at}", "data": {data}}}'


def _hash(prefix: str, of: Any) -> str:
    return f"{prefix}_{hashlib.sha256(json.dumps(of).encode()).hexdigest()[:32]}"


WINDOW: Final = 16
"""Messages sent between two checks of the results, as a multiple of `parallel`."""
RECORD_SECONDS: Final = 1.0


@dataclass
class WebhookTarget:
    """If `ordered`, changes of a rejected row wait."""

    settings: Settings
    name: str
    receiver: Receiver
    batch: int = 1
    ordered: bool = True
    form: BodyFormat = as_event
    _recorded_at: float = field(default=0.0, init=False)

    def position(self) -> SinkPosition | None:
        position = sent.state(self.settings, self.name).position
        return None if position is None else SinkPosition.from_json(position)

    def underway(self) -> UnfinishedDelivery | None:
        underway = sent.state(self.settings, self.name).underway
        return UnfinishedDelivery(underway.edition, underway.anew) if underway else None

    def close(self) -> None:
        self.receiver.close()

    def deliver(self, delivery: SinkDelivery) -> SinkPosition:
        delivery.check_position(self.position())
        state, underway = self._begin(delivery)
        about = DeliveryInfo(self.name, state.number, delivery.edition, delivery.cut, delivery.published_at)
        waiting = {(row.table, row.key): row for row in sent.undelivered(self.settings, self.name)}
        self._check_undelivered(waiting)
        since = delivery.expected.edition if delivery.expected else None
        ahead = underway.table
        for changes in delivery.tables:
            name = changes.table.name
            skipped = 0
            if ahead:
                if name != ahead:
                    for _ in changes.batches():  # reading them counts their rows
                        pass
                    continue
                skipped, ahead = underway.done, ""
            rows = changed_rows(changes, about)
            for _ in islice(rows, skipped):
                pass
            self._send_table(rows, state, replace(underway, table=name, done=skipped), waiting, since)
        position = delivery.position()
        sent.record(self.settings, self.name, State(position.to_json(), state.number + 1))
        return position

    def _begin(self, delivery: SinkDelivery) -> tuple[State, Underway]:
        before = sent.state(self.settings, self.name)
        underway, digest = before.underway, _digest(delivery)
        if underway and underway.edition != delivery.edition and not delivery.anew:
            raise StartOver(
                f"part of edition {underway.edition} was sent to sink {self.name}, and it has expired",
                where=self.receiver.where,
                fix=f"lake deliver {self.name} --resync sends all rows of the edition",
            )
        if underway and (underway.edition, underway.digest) == (delivery.edition, digest):
            return before, underway
        underway = Underway(delivery.edition, digest, anew=delivery.anew)
        sent.record(self.settings, self.name, replace(before, underway=underway))
        return before, underway

    def _send_table(
        self,
        rows: Iterator[ChangeMessage],
        state: State,
        underway: Underway,
        waiting: dict[Row, Undelivered],
        since: int | None,
    ) -> None:
        self._recorded_at = time.monotonic()
        window = WINDOW * self.receiver.limits.parallel * self.batch
        while part := [*islice(rows, window)]:
            answers, failure = self._send_window(part, waiting)
            done = self._finished(part, answers, waiting)
            missed = [*self._undelivered(done, answers, waiting, since)]
            waiting |= {(row.table, row.key): row for row in missed}
            underway = replace(underway, done=underway.done + len(done))
            if failure or missed or time.monotonic() - self._recorded_at > RECORD_SECONDS:
                sent.record(self.settings, self.name, replace(state, underway=underway), missed)
                self._recorded_at = time.monotonic()
            if failure:
                raise failure
            if missed:
                self._check_undelivered(waiting)

    def _send_window(
        self, part: Sequence[ChangeMessage], waiting: Mapping[Row, Undelivered]
    ) -> tuple[Answers, LakeError | None]:
        answers = Answers()
        try:
            self.send([changed for changed in part if not self._waits(changed, waiting)], answers)
        except LakeError as failure:
            return answers, failure
        return answers, None

    def _finished(
        self, part: Sequence[ChangeMessage], answers: Answers, waiting: Mapping[Row, Undelivered]
    ) -> list[ChangeMessage]:
        """Return the changes before the first that is neither answered nor waiting."""
        return [*takewhile(lambda changed: changed.row in answers or self._waits(changed, waiting), part)]

    def _waits(self, changed: ChangeMessage, waiting: Mapping[Row, Undelivered]) -> bool:
        return self.ordered and changed.row in waiting

    def _undelivered(
        self, done: Sequence[ChangeMessage], answers: Answers, waiting: Mapping[Row, Undelivered], since: int | None
    ) -> Iterator[Undelivered]:
        for changed in done:
            about, change = changed.about, changed.change
            if self._waits(changed, waiting):
                later = {"upto": about.edition, "number": about.number, "change": change}
                yield waiting[changed.row].now(**later, action="waiting")
            elif rejection := answers[changed.row]:
                reason, attempts = rejection
                failed = Undelivered(self.name, *changed.row, since, about.edition, about.number, change, reason)
                yield failed.now(attempts=attempts)

    def send(self, changes: Sequence[ChangeMessage], answers: Answers) -> None:
        """Add the answer to each change to `answers`, those before a failure as well."""
        batches = [changes[first : first + self.batch] for first in range(0, len(changes), self.batch)]
        messages = [message(batch, is_array=self.batch > 1, form=self.form) for batch in batches]
        by_id: dict[str, Rejection | None] = {}
        try:
            self.receiver.send(messages, by_id)
        finally:
            for batch, sent_message in zip(batches, messages, strict=True):
                if sent_message.id in by_id:
                    answers |= dict.fromkeys((changed.row for changed in batch), by_id[sent_message.id])

    def send_again(self, sink: DeclaredSink) -> RetryResult:
        waiting, position = sent.undelivered(self.settings, self.name), self.position()
        if position is not None:
            again = _Resender(self.settings, sink, self, position)
            for _, rows in groupby(sorted(waiting, key=_editions_of), key=_editions_of):
                again.send([*rows])
        left = len(sent.undelivered(self.settings, self.name))
        return RetryResult(self.name, len(waiting) - left, left)

    def give_up(self) -> RetryResult:
        rows = sent.undelivered(self.settings, self.name)
        if rows:
            given_up = [row.now(action="dropped") for row in rows]
            sent.record(self.settings, self.name, sent.state(self.settings, self.name), given_up)
        return RetryResult(self.name, len(rows), 0)

    def _check_undelivered(self, waiting: Iterable[object]) -> None:
        if (count := sum(1 for _ in waiting)) >= self.receiver.limits.undelivered:
            raise LakeError(
                f"{count:,} rows are undelivered, so sink {self.name} stops",
                where=self.receiver.where,
                fix=f"lake deliver {self.name} --retry when the receiver accepts them, or --give-up;"
                " reasons: lake sql 'from lake.undelivered'",
            )


def _digest(delivery: SinkDelivery) -> str:
    expected = delivery.expected.to_json() if delivery.expected else None
    tables = []
    for changes in delivery.tables:
        table, source = changes.table, changes.source
        condition = source.table.condition if isinstance(source, DeclaredChanges) else None
        tables.append((table.name, table.types, changes.whole, repr(condition) if condition else ""))
    return hashlib.sha256(json.dumps([expected, tables]).encode()).hexdigest()[:16]


def _editions_of(row: Undelivered) -> tuple[str, int, int]:
    return row.table, row.since or 0, row.upto


@dataclass(frozen=True)
class _Resender:
    settings: Settings
    sink: DeclaredSink
    target: WebhookTarget
    position: SinkPosition

    def send(self, rows: Sequence[Undelivered]) -> None:
        """Rows of a table that left the sink, or of editions that expired, stay undelivered."""
        new = self._edition(rows[0].upto) or self._edition(self.position.edition)
        if new is None or rows[0].table not in self.sink.tables:
            return
        changes = self._changes(rows, new)
        window = WINDOW * self.target.receiver.limits.parallel * self.target.batch
        answered: set[Row] = set()
        while part := [*islice(changes, window)]:
            answers = Answers()
            try:
                self.target.send(part, answers)
            finally:
                self._record(rows, answers)
            answered |= answers.keys()
        unchanged = {(row.table, row.key) for row in rows} - answered  # their net change is empty by now
        self._record(rows, dict.fromkeys(unchanged))

    def _record(self, rows: Iterable[Undelivered], answers: Answers) -> None:
        records = [
            row.now(reason=rejection.reason, attempts=row.attempts + rejection.attempts)
            if (rejection := answers[row.table, row.key])
            else row.now(action="taken")
            for row in rows
            if (row.table, row.key) in answers
        ]
        if records:
            sent.record(self.settings, self.sink.name, sent.state(self.settings, self.sink.name), records)

    def _changes(self, rows: Sequence[Undelivered], new: Edition) -> Iterator[ChangeMessage]:
        first = rows[0]
        old = self._edition(first.since)
        table, far, side = DeliveryPlan(self.settings, self.sink, None, new).table(first.table)
        before = TableInEdition.of(self.settings, table.name, old)
        source = DeclaredChanges(NetChanges(self.settings, before, side), table)
        numbers = {row.key: row.number for row in rows}
        missing = dict.fromkeys(numbers)
        about = DeliveryInfo(self.sink.name, 0, new.number, new.cut, new.published_at)
        for changed in changed_rows(TableChanges(far, source), about):
            if changed.key in numbers:
                missing.pop(changed.key, None)
                yield _with_number(changed, numbers[changed.key])
        if first.since is not None and old is None:  # a row missing from the new edition may have been in the old one
            for key in missing:
                yield _with_number(ChangeMessage(about, table.name, far.far, "delete", key, key, None), numbers[key])

    def _edition(self, number: int | None) -> Edition | None:
        if number is None or not editions.is_kept(self.settings, number):
            return None
        return editions.get_edition(self.settings, number)


def _with_number(changed: ChangeMessage, number: int) -> ChangeMessage:
    """Keep the original delivery number, so that the id is the same."""
    return replace(changed, about=replace(changed.about, number=number))
