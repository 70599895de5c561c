"""PostgreSQL source: copies tables as of one LSN, then reads whole transactions from there on.

Progress is {"system", "timeline", "era", "slot", "from", "to", "at", "tables"}: everything committed before `to` (an
LSN) is in the logs. `tables` is {stream: {"id", "published", "since"}}; `since` is the copy's LSN, null to copy again.

The first read creates the slot, which retains the log. Then a temporary slot gives the tables as of a later LSN, so an
interrupted copy is repeated. A new stream is copied once the reader has caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from lake.connect.postgres.source.messages import CommitMoment, lsn_text, read_lsn
from lake.connect.postgres.source.options import PostgresOptions
from lake.connect.postgres.source.publication import (
    MissedChange,
    PostgresPosition,
    PublishedTable,
    export_tables,
    gaps,
    matching_tables,
    of_slot,
)
from lake.connect.postgres.source.server import PLUGIN, PostgresServer, ReplicationSlot, ServerPosition
from lake.connect.postgres.source.transactions import ChangeContext, RecordBuffer, Transactions, copy_messages
from lake.errors import DeclarationError, Unavailable
from lake.lazy import pa
from lake.sources.source import Gap, Lag, Progress, SnapshotRows, SourceRecord, Spool

IDLE_TIME: Final = timedelta(minutes=1)
IDLE_BYTES: Final = 256 << 20
"""Without changes of our tables the position advances only after this time or log, which is decoded again till then."""
COUNTED_MESSAGES: Final = 10_000
COUNT_TIME: Final = timedelta(seconds=2)


class CountingSpool:
    def put(self, stream: str, record: SourceRecord) -> None:
        pass

    def put_many(self, stream: str, texts: pa.Array, places: pa.Array, facts: Mapping[str, pa.Array]) -> None:
        pass


class PostgresSource:
    def __init__(self, options: PostgresOptions) -> None:
        self.options = options
        self._server = PostgresServer(options.dsn, name=options.name, where=options.where)
        self.more = False

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self.options.tables)

    @property
    def copies(self) -> bool:
        return self.options.snapshot

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        current, tables = self._current_state()
        self.more = False
        if after is None:
            return self._begin(current, tables, spool)
        known = self._known(after)
        self._refuse_gaps(known, current, tables)
        upto = read_lsn(known.to)
        if current.flushed > upto:
            transactions, is_complete = self._changes(known, current, spool, current.flushed, self.options.changes)
            if not is_complete:
                self.more = True
                return known.advanced(lsn_text(transactions.end), current.at).progress
            upto = max(current.flushed, transactions.end)
            if transactions.records and not self._uncopied(known):
                return known.advanced(lsn_text(upto), current.at).progress
        if uncopied := self._uncopied(known):
            if not self.options.snapshot:
                entries = {stream: self._entry(stream, tables, lsn_text(upto)) for stream in uncopied}
                return known.with_copies(entries).advanced(lsn_text(upto), current.at).progress
            return self._with_copies(replace(known, to=lsn_text(upto)), known.to, current, uncopied, spool)
        behind, since = upto - read_lsn(known.to), timedelta(microseconds=current.at - known.at)
        is_due = behind >= IDLE_BYTES or (behind > 0 and since >= IDLE_TIME)
        return known.advanced(lsn_text(upto), current.at).progress if is_due else None

    def read_upto(self, after: Progress, lsn: str, spool: Spool) -> Progress:
        current, tables = self._current_state()
        known = self._known(after)
        self._refuse_gaps(known, current, tables)
        if uncopied := self._uncopied(known):
            raise Unavailable(
                f"{', '.join(uncopied)}: not copied yet", where=self.options.where, fix="lake ingest, and try again"
            )
        transactions, _ = self._changes(known, current, spool, read_lsn(lsn), None)
        return known.advanced(lsn_text(max(read_lsn(lsn), transactions.end, read_lsn(known.to))), current.at).progress

    @contextmanager
    def rows(self, stream: str) -> Iterator[SnapshotRows]:
        """Yield rows as op r. Waits for running transactions to end."""
        current = self._server.current()
        with export_tables(self._server, self.options, [stream], current.version) as exported:
            table = exported.tables[self.options.tables[stream]]
            moment = CommitMoment(exported.lsn, exported.at)
            pairs = copy_messages(self._context(current), table, exported.rows(table), moment, again=False)
            records = (SourceRecord(text, name) for text, name in pairs)
            yield SnapshotRows(lsn_text(exported.lsn), records)

    def copy_again(self, after: Progress, streams: Iterable[str]) -> Progress:
        """Mark `streams` to be copied again, as after changes without messages, such as a column with a default."""
        known = PostgresPosition.of(after)
        again = {stream: {**known.tables[stream], "since": None} for stream in streams}
        return known.with_copies(again).progress

    def acknowledge(self, upto: Progress) -> None:
        known, current, slot = PostgresPosition.of(upto), self._server.current(), self._server.slot(self.options.slot)
        to = read_lsn(known.to)
        same = (known.system, known.timeline) == (current.system, current.timeline) and current.flushed >= to
        if same and slot is not None and slot.confirmed is not None and not slot.lost and slot.confirmed < to:
            self._server.advance(self.options.slot, known.to)

    def lag(self, after: Progress | None) -> Lag:
        current = self._server.current()
        slot = self._server.slot(self.options.slot)
        retained = None if slot is None else slot.retained
        if after is None:
            return Lag(None, None, retained)
        known = PostgresPosition.of(after)
        if current.flushed <= read_lsn(known.to):
            return Lag(0, 0.0, retained)
        seconds = max(0, current.at - known.at) / 1_000_000
        try:
            with self._server.at_most(COUNT_TIME):
                transactions, is_complete = self._changes(
                    known, current, CountingSpool(), current.flushed, COUNTED_MESSAGES
                )
        except (Gap, Unavailable):
            return Lag(None, seconds, retained)
        return Lag(transactions.records, seconds, retained, at_least=not is_complete)

    def skip_gap(self, after: Progress | None) -> Progress:
        if after is None:
            raise DeclarationError(
                "nothing has been read yet, so nothing can be given up", where=self.options.where, fix="lake ingest"
            )
        current, tables = self._current_state()
        known, name = self._known(after), self.options.slot
        slot = self._server.slot(name)
        gaps_found = gaps(known, current, slot, tables, self.options)
        if not gaps_found:
            raise DeclarationError(
                "nothing is gone that could be given up",
                where=self.options.where,
                fix=f"lake ingest {self.options.name}",
            )
        again = {stream: {**known.tables[stream], "since": None} for gap in gaps_found for stream in gap.streams(known)}
        known = replace(known, tables={**known.tables, **again})
        if all(gap.stream is not None for gap in gaps_found):
            return known.advanced(known.to, current.at).progress
        if slot is not None and slot.lost:
            self._server.drop_slot(name)
            slot = None
        if slot is None:
            begin = self._server.create_slot(name)
        else:
            begin = max(current.flushed, slot.confirmed or 0)  # without decoding
            self._server.advance(name, lsn_text(begin))
        is_same = (known.system, known.timeline) == (current.system, current.timeline)
        is_new_era = not is_same or current.flushed < read_lsn(known.to)
        known = replace(known, system=current.system, timeline=current.timeline, era=known.era + is_new_era)
        return known.advanced(lsn_text(begin), current.at).progress

    def close(self) -> None:
        self._server.close()

    def _current_state(self) -> tuple[ServerPosition, Mapping[str, PublishedTable]]:
        current = self._server.current()
        return current, matching_tables(self._server.rows, self.options, current.version)

    def _known(self, after: Progress) -> PostgresPosition:
        known = PostgresPosition.of(after)
        left_out = {
            stream: {**entry, "since": None} for stream, entry in known.tables.items() if stream not in self.streams
        }
        return known.with_copies(left_out)

    def _refuse_gaps(
        self, known: PostgresPosition, current: ServerPosition, tables: Mapping[str, PublishedTable]
    ) -> None:
        self._refuse(gaps(known, current, self._server.slot(self.options.slot), tables, self.options))

    def _refuse(self, gaps: Sequence[MissedChange]) -> None:
        if not gaps:
            return
        fix = f"lake ingest {self.options.name} --give-up "
        if self.copies:
            fix += "copies the tables anew, and so finds what was missed"
        else:
            fix += f"goes on without what was missed; with snapshot = true in {self.options.where} it copies the"
            fix += " tables anew, and so finds that"
        raise Gap("; ".join(gap.what for gap in gaps), where=self.options.where, fix=fix)

    def _begin(self, current: ServerPosition, tables: Mapping[str, PublishedTable], spool: Spool) -> Progress:
        slot = self._server.slot(self.options.slot)
        if slot is not None and slot.lost:
            self._server.drop_slot(self.options.slot)
            slot = None
        if slot is not None:
            self._check_slot(slot, current)
        begin = self._server.create_slot(self.options.slot) if slot is None else slot.confirmed
        assert begin is not None
        known = PostgresPosition(
            current.system, current.timeline, 0, self.options.slot, lsn_text(begin), lsn_text(begin), current.at, {}
        )
        if self.options.snapshot:
            return self._with_copies(known, None, current, self.streams, spool)
        return known.with_copies(
            {stream: self._entry(stream, tables, lsn_text(begin)) for stream in self.streams}
        ).progress

    def _check_slot(self, slot: ReplicationSlot, current: ServerPosition) -> None:
        if (slot.plugin, slot.database) != (PLUGIN, current.database):
            raise DeclarationError(
                f"the slot {self.options.slot!r} is of the plugin {slot.plugin} in the database {slot.database}",
                where=self.options.where,
                fix="name another slot: a first read makes it",
            )
        if slot.active is not None:
            raise Unavailable(
                f"the slot is in use: a first read found {self.options.slot!r} read by another process, {slot.active}",
                where=self.options.where,
                fix="name another slot, or end that process",
            )

    def _with_copies(
        self, known: PostgresPosition, begin: str | None, current: ServerPosition, uncopied: Sequence[str], spool: Spool
    ) -> Progress:
        with export_tables(self._server, self.options, uncopied, current.version) as exported:
            if any(entry["since"] for entry in known.tables.values()):
                self._changes(known, current, spool, exported.lsn, None)
            context, moment = self._context(current, known), CommitMoment(exported.lsn, exported.at, known.era)
            entries, buffer = {}, RecordBuffer(spool)
            for stream in uncopied:
                table = exported.tables[self.options.tables[stream]]
                for text, name in copy_messages(
                    context, table, exported.rows(table), moment, again=stream in known.tables
                ):
                    buffer.put(stream, text, name)
                buffer.flush()
                entries[stream] = self._entry(stream, exported.tables, lsn_text(exported.lsn))
        advanced = known.with_copies(entries).advanced(lsn_text(exported.lsn), exported.at)
        return replace(advanced, begin=begin or advanced.to).progress

    def _changes(
        self, known: PostgresPosition, current: ServerPosition, spool: Spool, upto: int, limit: int | None
    ) -> tuple[Transactions, bool]:
        """Spool the transactions up to `upto`; `limit` bounds their messages. Return whether they are complete.

        After a server crash a slot may repeat known messages, so the limit grows until there is progress. Raises Gap if
        another process has advanced the slot.
        """
        since = {stream: read_lsn(entry["since"]) for stream, entry in known.tables.items() if entry["since"]}
        while True:
            transactions = Transactions(self._context(current, known), spool, after=read_lsn(known.to), since=since)
            transactions.read(self._server.peek(self.options.slot, self.options.publication, lsn_text(upto), limit))
            transactions.finish()
            self._refuse([*of_slot(known, self._server.slot(self.options.slot), self.options.slot)])
            is_complete = limit is None or transactions.messages < limit
            if limit is None or is_complete or transactions.end > read_lsn(known.to):
                return transactions, is_complete
            limit *= 8

    def _context(self, current: ServerPosition, known: PostgresPosition | None = None) -> ChangeContext:
        options, entries = self.options, known.tables if known else {}
        tables = {entry["id"]: options.tables[stream] for stream, entry in entries.items() if stream in options.tables}
        era = known.era if known else 0
        streams = {table: (stream, options.contracts[stream]) for stream, table in options.tables.items()}
        return ChangeContext(options.name, current.database, era, streams, self._server.types, tables)

    def _uncopied(self, known: PostgresPosition) -> list[str]:
        return [stream for stream in self.streams if not known.tables.get(stream, {}).get("since")]

    def _entry(self, stream: str, tables: Mapping[str, PublishedTable], since: str) -> dict[str, Any]:
        table = tables[self.options.tables[stream]]
        return {"id": table.id, "published": table.published, "since": since}
