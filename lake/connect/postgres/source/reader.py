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
from typing import TYPE_CHECKING, Any, Final

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
from lake.sources.source import Gap, Lag, Progress, SnapshotRows, SourceRecord, Spool

if TYPE_CHECKING:
    import pyarrow as pa

IDLE: Final = timedelta(minutes=1)
IDLE_BYTES: Final = 256 << 20
"""If no change concerns us, the position advances only after this time or log; till then each read decodes it again."""
COUNTED: Final = 10_000
COUNTING: Final = timedelta(seconds=2)
"""Time limit for counting waiting messages."""


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
        place, tables = self._look_up()
        self.more = False
        if after is None:
            return self._begin(place, tables, spool)
        known = self._known(after)
        self._refuse_gaps(known, place, tables)
        upto = read_lsn(known.to)
        if place.flushed > upto:
            taken, whole = self._changes(known, place, spool, place.flushed, self.options.changes)
            if not whole:
                self.more = True
                return known.moved(lsn_text(taken.end), place.at).progress
            upto = max(place.flushed, taken.end)
            if taken.records and not self._uncopied(known):
                return known.moved(lsn_text(upto), place.at).progress
        if uncopied := self._uncopied(known):
            if not self.options.snapshot:
                entries = {stream: self._entry(stream, tables, lsn_text(upto)) for stream in uncopied}
                return known.with_copies(entries).moved(lsn_text(upto), place.at).progress
            return self._with_copies(replace(known, to=lsn_text(upto)), known.to, place, uncopied, spool)
        behind, since = upto - read_lsn(known.to), timedelta(microseconds=place.at - known.at)
        moves = behind >= IDLE_BYTES or (behind > 0 and since >= IDLE)
        return known.moved(lsn_text(upto), place.at).progress if moves else None

    def read_upto(self, after: Progress, lsn: str, spool: Spool) -> Progress:
        place, tables = self._look_up()
        known = self._known(after)
        self._refuse_gaps(known, place, tables)
        if uncopied := self._uncopied(known):
            raise Unavailable(
                f"{', '.join(uncopied)}: not copied yet", where=self.options.where, fix="lake ingest, and try again"
            )
        taken, _ = self._changes(known, place, spool, read_lsn(lsn), None)
        return known.moved(lsn_text(max(read_lsn(lsn), taken.end, read_lsn(known.to))), place.at).progress

    @contextmanager
    def rows(self, stream: str) -> Iterator[SnapshotRows]:
        """Yield rows as op r. Waits for running transactions to end."""
        place = self._server.place()
        with export_tables(self._server, self.options, [stream], place.version) as exported:
            table = exported.tables[self.options.tables[stream]]
            moment = CommitMoment(exported.lsn, exported.at)
            pairs = copy_messages(self._reading(place), table, exported.rows(table), moment, again=False)
            records = (SourceRecord(text, name) for text, name in pairs)
            yield SnapshotRows(lsn_text(exported.lsn), records)

    def copy_again(self, after: Progress, streams: Iterable[str]) -> Progress:
        """Needed after changes without messages, such as a new column with a default."""
        known = PostgresPosition.of(after)
        again = {stream: {**known.tables[stream], "since": None} for stream in streams}
        return known.with_copies(again).progress

    def acknowledge(self, upto: Progress) -> None:
        known, place, slot = PostgresPosition.of(upto), self._server.place(), self._server.slot(self.options.slot)
        to = read_lsn(known.to)
        same = (known.system, known.timeline) == (place.system, place.timeline) and place.flushed >= to
        if same and slot is not None and slot.confirmed is not None and not slot.lost and slot.confirmed < to:
            self._server.advance(self.options.slot, known.to)

    def lag(self, after: Progress | None) -> Lag:
        place = self._server.place()
        slot = self._server.slot(self.options.slot)
        retained = None if slot is None else slot.retained
        if after is None:
            return Lag(None, None, retained)
        known = PostgresPosition.of(after)
        if place.flushed <= read_lsn(known.to):
            return Lag(0, 0.0, retained)
        seconds = max(0, place.at - known.at) / 1_000_000
        try:
            with self._server.at_most(COUNTING):
                taken, whole = self._changes(known, place, CountingSpool(), place.flushed, COUNTED)
        except (Gap, Unavailable):
            return Lag(None, seconds, retained)
        return Lag(taken.records, seconds, retained, at_least=not whole)

    def skip_gap(self, after: Progress | None) -> Progress:
        """Copy the affected tables again, which also detects deleted rows."""
        if after is None:
            raise DeclarationError(
                "nothing has been read yet, so nothing can be given up", where=self.options.where, fix="lake ingest"
            )
        place, tables = self._look_up()
        known, name = self._known(after), self.options.slot
        slot = self._server.slot(name)
        gaps_found = gaps(known, place, slot, tables, self.options)
        if not gaps_found:
            raise DeclarationError(
                "nothing is gone that could be given up",
                where=self.options.where,
                fix=f"lake ingest {self.options.name}",
            )
        again = {stream: {**known.tables[stream], "since": None} for gap in gaps_found for stream in gap.streams(known)}
        known = replace(known, tables={**known.tables, **again})
        if all(gap.stream is not None for gap in gaps_found):
            return known.moved(known.to, place.at).progress
        if slot is not None and slot.lost:
            self._server.drop_slot(name)
            slot = None
        if slot is None:
            begin = self._server.create_slot(name)
        else:
            begin = max(place.flushed, slot.confirmed or 0)  # without decoding
            self._server.advance(name, lsn_text(begin))
        another = (known.system, known.timeline) != (place.system, place.timeline) or place.flushed < read_lsn(known.to)
        known = replace(known, system=place.system, timeline=place.timeline, era=known.era + another)
        return known.moved(lsn_text(begin), place.at).progress

    def close(self) -> None:
        self._server.close()

    def _look_up(self) -> tuple[ServerPosition, Mapping[str, PublishedTable]]:
        place = self._server.place()
        return place, matching_tables(self._server.rows, self.options, place.version)

    def _known(self, after: Progress) -> PostgresPosition:
        known = PostgresPosition.of(after)
        left_out = {
            stream: {**entry, "since": None} for stream, entry in known.tables.items() if stream not in self.streams
        }
        return known.with_copies(left_out)

    def _refuse_gaps(
        self, known: PostgresPosition, place: ServerPosition, tables: Mapping[str, PublishedTable]
    ) -> None:
        self._refuse(gaps(known, place, self._server.slot(self.options.slot), tables, self.options))

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

    def _begin(self, place: ServerPosition, tables: Mapping[str, PublishedTable], spool: Spool) -> Progress:
        slot = self._server.slot(self.options.slot)
        if slot is not None and slot.lost:
            self._server.drop_slot(self.options.slot)
            slot = None
        if slot is not None:
            self._check_slot(slot, place)
        begin = self._server.create_slot(self.options.slot) if slot is None else slot.confirmed
        assert begin is not None
        known = PostgresPosition(
            place.system, place.timeline, 0, self.options.slot, lsn_text(begin), lsn_text(begin), place.at, {}
        )
        if self.options.snapshot:
            return self._with_copies(known, None, place, self.streams, spool)
        return known.with_copies(
            {stream: self._entry(stream, tables, lsn_text(begin)) for stream in self.streams}
        ).progress

    def _check_slot(self, slot: ReplicationSlot, place: ServerPosition) -> None:
        if (slot.plugin, slot.database) != (PLUGIN, place.database):
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
        self, known: PostgresPosition, begin: str | None, place: ServerPosition, uncopied: Sequence[str], spool: Spool
    ) -> Progress:
        with export_tables(self._server, self.options, uncopied, place.version) as exported:
            if any(entry["since"] for entry in known.tables.values()):
                self._changes(known, place, spool, exported.lsn, None)
            reading, moment = self._reading(place, known), CommitMoment(exported.lsn, exported.at, known.era)
            entries, columns = {}, RecordBuffer(spool)
            for stream in uncopied:
                table = exported.tables[self.options.tables[stream]]
                for text, name in copy_messages(
                    reading, table, exported.rows(table), moment, again=stream in known.tables
                ):
                    columns.put(stream, text, name)
                columns.flush()
                entries[stream] = self._entry(stream, exported.tables, lsn_text(exported.lsn))
        moved = known.with_copies(entries).moved(lsn_text(exported.lsn), exported.at)
        return replace(moved, begin=begin or moved.to).progress

    def _changes(
        self, known: PostgresPosition, place: ServerPosition, spool: Spool, upto: int, limit: int | None
    ) -> tuple[Transactions, bool]:
        """Spool the transactions up to `upto`; `limit` bounds their messages. Return whether they are complete.

        After a server crash a slot may repeat known messages, so the limit grows until there is progress. Raises Gap if
        another process has advanced the slot.
        """
        since = {stream: read_lsn(entry["since"]) for stream, entry in known.tables.items() if entry["since"]}
        while True:
            taken = Transactions(self._reading(place, known), spool, after=read_lsn(known.to), since=since)
            taken.take(self._server.peek(self.options.slot, self.options.publication, lsn_text(upto), limit))
            taken.finish()
            self._refuse([*of_slot(known, self._server.slot(self.options.slot), self.options.slot)])
            whole = limit is None or taken.messages < limit
            if limit is None or whole or taken.end > read_lsn(known.to):
                return taken, whole
            limit *= 8

    def _reading(self, place: ServerPosition, known: PostgresPosition | None = None) -> ChangeContext:
        options, entries = self.options, known.tables if known else {}
        tables = {entry["id"]: options.tables[stream] for stream, entry in entries.items() if stream in options.tables}
        era = known.era if known else 0
        streams = {table: (stream, options.contracts[stream]) for stream, table in options.tables.items()}
        return ChangeContext(options.name, place.database, era, streams, self._server.types, tables)

    def _uncopied(self, known: PostgresPosition) -> list[str]:
        return [stream for stream in self.streams if not known.tables.get(stream, {}).get("since")]

    def _entry(self, stream: str, tables: Mapping[str, PublishedTable], since: str) -> dict[str, Any]:
        table = tables[self.options.tables[stream]]
        return {"id": table.id, "published": table.published, "since": since}
