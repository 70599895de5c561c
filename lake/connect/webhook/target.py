"""Target behind a webhook. Its position, and the progress of a delivery, are stored in the warehouse."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from lake.config import Settings
from lake.connect.webhook.changes import BodyFormat, ChangeMessage, DeliveryInfo, as_event, changed_rows, message
from lake.connect.webhook.receiver import Receiver
from lake.errors import LakeError, StartOver
from lake.sinks.condition import FilteredChanges
from lake.sinks.sink import SinkDelivery, SinkPosition
from lake.store.ledger import sent
from lake.store.ledger.sent import State, Undelivered, Underway

WINDOW: Final = 16
"""Messages sent between two checks of the results, as a multiple of `parallel`."""
NOTED_EVERY: Final = 1.0
Row = tuple[str, str]


@dataclass
class WebhookTarget:
    """Target of the sink `name`: messages of up to `batch` changes. If `ordered`, a rejected row's changes wait."""

    settings: Settings
    name: str
    receiver: Receiver
    batch: int = 1
    ordered: bool = True
    form: BodyFormat = as_event
    _noted: float = field(default=0.0, init=False)

    def position(self) -> SinkPosition | None:
        position = sent.state(self.settings, self.name).position
        return None if position is None else SinkPosition.from_json(position)

    def underway(self) -> int | None:
        underway = sent.state(self.settings, self.name).underway
        return underway.edition if underway else None

    def close(self) -> None:
        self.receiver.close()

    def deliver(self, delivery: SinkDelivery) -> SinkPosition:
        delivery.check_position(self.position())
        state = self._begin(delivery)
        about = DeliveryInfo(self.name, state.number, delivery.edition, delivery.cut, delivery.published_at)
        waiting = {(row.table, row.key): row for row in sent.undelivered(self.settings, self.name)}
        self._check_undelivered(waiting)
        since = delivery.expected.edition if delivery.expected else None
        ahead = state.underway.table if state.underway else ""
        for changes in delivery.tables:
            name = changes.table.name
            skipped = 0
            if ahead:
                if name != ahead:
                    sum(batch.num_rows for batch in changes.batches())  # reading counts them
                    continue
                skipped, ahead = state.underway.done if state.underway else 0, ""
            rows = changed_rows(changes, about)
            for _ in islice(rows, skipped):
                pass
            state = self._send_table(rows, _at(state, name, skipped), waiting, since)
        position = delivery.position()
        sent.record(self.settings, self.name, State(position.to_json(), state.number + 1))
        return position

    def _begin(self, delivery: SinkDelivery) -> State:
        before = sent.state(self.settings, self.name)
        digest = _digest(delivery)
        if before.underway and before.underway.edition != delivery.edition and not delivery.anew:
            raise StartOver(
                f"part of edition {before.underway.edition} was sent to sink {self.name}, and it has expired",
                where=self.receiver.where,
                fix=f"lake deliver {self.name} --resync sends all rows of the edition",
            )
        if before.underway and (before.underway.edition, before.underway.digest) == (delivery.edition, digest):
            return before
        begun = replace(before, underway=Underway(delivery.edition, digest))
        sent.record(self.settings, self.name, begun)
        return begun

    def _send_table(
        self, rows: Iterator[ChangeMessage], state: State, waiting: dict[Row, Undelivered], since: int | None
    ) -> State:
        self._noted = time.monotonic()
        missed: list[Undelivered] = []
        window = WINDOW * self.receiver.limits.parallel * self.batch
        while part := [*islice(rows, window)]:
            try:
                missed += self._send_window(part, waiting, since)
            except LakeError:
                sent.record(self.settings, self.name, state, missed)
                raise
            assert state.underway is not None
            state = replace(state, underway=replace(state.underway, done=state.underway.done + len(part)))
            if missed or time.monotonic() - self._noted > NOTED_EVERY:
                sent.record(self.settings, self.name, state, missed)
                self._noted, missed = time.monotonic(), []
                self._check_undelivered(waiting)
        return state

    def _send_window(
        self, part: Sequence[ChangeMessage], waiting: dict[Row, Undelivered], since: int | None
    ) -> list[Undelivered]:
        missed: dict[Row, Undelivered] = {}
        going: list[ChangeMessage] = []
        for changed in part:
            before = waiting.get((changed.table, changed.key)) if self.ordered else None
            if before is None:
                going.append(changed)
            else:
                later = {"upto": changed.about.edition, "number": changed.about.number, "change": changed.change}
                missed[changed.table, changed.key] = before.now(**later, action="waiting")
        for changed, reason in self.send(going):
            missed[changed.table, changed.key] = _undelivered(self, changed, since, reason)
        waiting |= missed
        return [*missed.values()]

    def send(self, changes: Sequence[ChangeMessage]) -> Iterator[tuple[ChangeMessage, str]]:
        """Send changes. Yield those that the receiver rejected, with the reason."""
        batches = [changes[first : first + self.batch] for first in range(0, len(changes), self.batch)]
        messages = [message(batch, is_array=self.batch > 1, form=self.form) for batch in batches]
        reasons = self.receiver.send(messages)
        for batch, sent_message in zip(batches, messages, strict=True):
            if sent_message.id in reasons:
                yield from ((changed, reasons[sent_message.id]) for changed in batch)

    def _check_undelivered(self, waiting: Iterable[object]) -> None:
        most = self.receiver.limits.undelivered
        if (count := sum(1 for _ in waiting)) >= most:
            raise LakeError(
                f"{count:,} rows are undelivered, so sink {self.name} stops",
                where=self.receiver.where,
                fix=f"lake deliver {self.name} --retry once the receiver takes them, or --give-up;"
                " lake sql 'from lake.undelivered' tells why",
            )


def _at(state: State, table: str, done: int) -> State:
    assert state.underway is not None
    return replace(state, underway=replace(state.underway, table=table, done=done))


def _undelivered(target: WebhookTarget, changed: ChangeMessage, since: int | None, reason: str) -> Undelivered:
    about = changed.about
    row = Undelivered(
        target.name, changed.table, changed.key, since, about.edition, about.number, changed.change, reason
    )
    return row.now(attempts=1)


def _digest(delivery: SinkDelivery) -> str:
    expected = delivery.expected.to_json() if delivery.expected else None
    tables = []
    for one in delivery.tables:
        condition = repr(one.source.condition) if isinstance(one.source, FilteredChanges) else ""
        tables.append((one.table.name, one.table.types, one.whole, condition))
    return hashlib.sha256(json.dumps([expected, tables]).encode()).hexdigest()[:16]
