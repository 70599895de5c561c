"""PostgreSQL as a source: tables copied as of one place in the database's log, then whole transactions from there on.

A position is {"system", "timeline", "era", "slot", "from", "to", "at", "tables"}: everything that was committed before
`to` (an LSN) is in the logs, as far as `tables` go, {stream: {"id", "published", "since"}}, each since the place of its
copy, null where it is to be copied anew.

A first read makes the slot, which keeps the log from there on; then a temporary slot gives the tables exactly as they
are at a later place, which is where the changes begin. So the copy of a reader that died is simply made again. A new
stream is copied the same way once the reader has caught up, in one delivery with all changes before that place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from lake.errors import DeclarationError, Unavailable
from lake.sources.postgres.copies import exporting, fitting
from lake.sources.postgres.gaps import Known, Missed, gaps, of_slot
from lake.sources.postgres.messages import Moment, read_lsn, shown
from lake.sources.postgres.options import Options
from lake.sources.postgres.publication import Table
from lake.sources.postgres.server import PLUGIN, Place, Server, Slot
from lake.sources.postgres.transactions import Columns, Reading, Transactions, copied
from lake.sources.source import Gap, Lag, Progress, Record, Spool

if TYPE_CHECKING:
    import pyarrow as pa

IDLE: Final = timedelta(minutes=1)
IDLE_BYTES: Final = 256 << 20
"""How long, and for how much of the log, a position is kept while nothing in it concerns us: all of it is decoded again
by each read, and kept by the server.
"""
COUNTED: Final = 10_000
COUNTING: Final = timedelta(seconds=2)
"""So many messages of those that wait are counted, and their transaction's others; for as long as that takes."""


@dataclass(frozen=True)
class Rows:
    """The rows of a stream's table exactly as of `lsn`: everything committed before it, and nothing else."""

    lsn: str
    at: datetime
    records: Iterable[Record]


class Nowhere(Spool):
    """Takes what is only counted."""

    def put(self, stream: str, record: Record) -> None:
        pass

    def put_many(self, stream: str, texts: pa.Array, places: pa.Array, facts: Mapping[str, pa.Array]) -> None:
        pass


class Postgres:
    """One declared database."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._server = Server(options.dsn, name=options.name, where=options.where)
        self.more = False

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self.options.tables)

    @property
    def copies(self) -> bool:
        return self.options.snapshot

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        """Puts the next whole transactions into `spool`, or the copy of the tables at first. See Source."""
        place, tables = self._looked()
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
                return known.moved(shown(taken.end), place.at).progress
            upto = max(place.flushed, taken.end)
            if taken.records and not self._uncopied(known):
                return known.moved(shown(upto), place.at).progress
        if uncopied := self._uncopied(known):
            if not self.options.snapshot:
                entries = {stream: self._entry(stream, tables, shown(upto)) for stream in uncopied}
                return known.with_copies(entries).moved(shown(upto), place.at).progress
            return self._with_copies(replace(known, to=shown(upto)), known.to, place, uncopied, spool)
        behind, since = upto - read_lsn(known.to), timedelta(microseconds=place.at - known.at)
        moves = behind >= IDLE_BYTES or (behind > 0 and since >= IDLE)
        return known.moved(shown(upto), place.at).progress if moves else None

    def read_upto(self, after: Progress, lsn: str, spool: Spool) -> Progress:
        """Puts everything that was committed before `lsn` into `spool`, so that a cut is exactly there."""
        place, tables = self._looked()
        known = self._known(after)
        self._refuse_gaps(known, place, tables)
        if uncopied := self._uncopied(known):
            raise Unavailable(
                f"{', '.join(uncopied)}: not copied yet", where=self.options.where, fix="lake ingest, and try again"
            )
        taken, _ = self._changes(known, place, spool, read_lsn(lsn), None)
        return known.moved(shown(max(read_lsn(lsn), taken.end, read_lsn(known.to))), place.at).progress

    @contextmanager
    def rows(self, stream: str, *, era: int = 0) -> Iterator[Rows]:
        """The rows of the table of `stream`, each as a read (op r), while the block lasts; `era` is the position's.

        Waits until the transactions that are running have ended. Raises Unavailable.
        """
        place = self._server.place()
        with exporting(self._server, self.options, [stream], place.version) as exported:
            table = exported.tables[self.options.tables[stream]]
            moment = Moment(exported.lsn, exported.at, era)
            pairs = copied(self._reading(place, era), table, exported.rows(table), moment, again=False)
            records = (Record(text, name) for text, name in pairs)
            yield Rows(shown(exported.lsn), datetime.fromtimestamp(exported.at / 1_000_000, UTC), records)

    def copy_again(self, after: Progress, streams: Iterable[str]) -> Progress:
        """A position from which the next read copies the tables of `streams` anew, though nothing was missed.

        For what changes a table's rows without a word, such as a new column with a default.
        """
        known = Known.of(after)
        again = {stream: {**known.tables[stream], "since": None} for stream in streams}
        return known.with_copies(again).progress

    def acknowledge(self, upto: Progress) -> None:
        """Lets the server drop the log before `upto`. Does nothing when called again, or where there is a gap."""
        known, place, slot = Known.of(upto), self._server.place(), self._server.slot(self.options.slot)
        to = read_lsn(known.to)
        same = (known.system, known.timeline) == (place.system, place.timeline) and place.flushed >= to
        if same and slot is not None and slot.confirmed is not None and not slot.lost and slot.confirmed < to:
            self._server.advance(self.options.slot, known.to)

    def lag(self, after: Progress | None) -> Lag:
        """Bytes of log that the slot keeps, and since when the logs are behind where they are."""
        place = self._server.place()
        slot = self._server.slot(self.options.slot)
        retained = None if slot is None else slot.retained
        if after is None:
            return Lag(None, None, retained)
        known = Known.of(after)
        behind = place.flushed > read_lsn(known.to)
        events = self._waiting(known, place) if behind else 0
        return Lag(events, max(0, place.at - known.at) / 1_000_000 if behind else 0.0, retained)

    def _waiting(self, known: Known, place: Place) -> int | None:
        """How many changes wait, at least; None where the server cannot say so soon, or another process reads them."""
        try:
            with self._server.at_most(COUNTING):
                return self._changes(known, place, Nowhere(), place.flushed, COUNTED)[0].records
        except (Gap, Unavailable):
            return None

    def skip_gap(self, after: Progress | None) -> Progress:
        """Where to go on: the tables in question are copied anew, which also tells the rows that are gone."""
        if after is None:
            raise DeclarationError(
                "nothing has been read yet, so nothing can be given up", where=self.options.where, fix="lake ingest"
            )
        place, tables = self._looked()
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
        if all(gap.of_table for gap in gaps_found):
            return known.moved(known.to, place.at).progress
        if slot is not None and slot.lost:
            self._server.drop_slot(name)
            slot = None
        if slot is None:
            begin = self._server.create_slot(name)
        else:
            begin = max(place.flushed, slot.confirmed or 0)  # decodes nothing on its way
            self._server.advance(name, shown(begin))
        another = (known.system, known.timeline) != (place.system, place.timeline) or place.flushed < read_lsn(known.to)
        known = replace(known, system=place.system, timeline=place.timeline, era=known.era + another)
        return known.moved(shown(begin), place.at).progress

    def close(self) -> None:
        self._server.close()

    def _looked(self) -> tuple[Place, Mapping[str, Table]]:
        """Where the server is and what it publishes."""
        place = self._server.place()
        return place, fitting(self._server.rows, self.options, place.version)

    def _known(self, after: Progress) -> Known:
        """A position. A stream that has been left out since then has to be copied anew once it is back."""
        known = Known.of(after)
        left_out = {
            stream: {**entry, "since": None} for stream, entry in known.tables.items() if stream not in self.streams
        }
        return known.with_copies(left_out)

    def _refuse_gaps(self, known: Known, place: Place, tables: Mapping[str, Table]) -> None:
        self._refuse(gaps(known, place, self._server.slot(self.options.slot), tables, self.options))

    def _refuse(self, gaps: Sequence[Missed]) -> None:
        if gaps:
            raise Gap(
                "; ".join(gap.what for gap in gaps),
                where=self.options.where,
                fix=f"lake ingest {self.options.name} --give-up {self._after_gap}",
            )

    @property
    def _after_gap(self) -> str:
        """What is done about what was missed."""
        if self.copies:
            return "copies the tables anew, and so finds what was missed"
        return (
            f"goes on without what was missed; with snapshot = true in {self.options.where} it copies the tables anew,"
            " and so finds that"
        )

    def _begin(self, place: Place, tables: Mapping[str, Table], spool: Spool) -> Progress:
        slot = self._server.slot(self.options.slot)
        if slot is not None and slot.lost:
            self._server.drop_slot(self.options.slot)
            slot = None
        if slot is not None:
            self._must_be_ours(slot, place)
        begin = self._server.create_slot(self.options.slot) if slot is None else slot.confirmed
        assert begin is not None
        known = Known(place.system, place.timeline, 0, self.options.slot, shown(begin), shown(begin), place.at, {})
        if self.options.snapshot:
            return self._with_copies(known, None, place, self.streams, spool)
        return known.with_copies(
            {stream: self._entry(stream, tables, shown(begin)) for stream in self.streams}
        ).progress

    def _must_be_ours(self, slot: Slot, place: Place) -> None:
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
        self, known: Known, begin: str | None, place: Place, uncopied: Sequence[str], spool: Spool
    ) -> Progress:
        """Changes up to the place of the copies, then the copies: together they are the tables at that place."""
        with exporting(self._server, self.options, uncopied, place.version) as exported:
            if any(entry["since"] for entry in known.tables.values()):
                self._changes(known, place, spool, exported.lsn, None)
            reading, moment = self._reading(place, known.era), Moment(exported.lsn, exported.at, known.era)
            entries, columns = {}, Columns(spool)
            for stream in uncopied:
                table = exported.tables[self.options.tables[stream]]
                for text, name in copied(reading, table, exported.rows(table), moment, again=stream in known.tables):
                    columns.put(stream, text, name)
                columns.flush()
                entries[stream] = self._entry(stream, exported.tables, shown(exported.lsn))
        moved = known.with_copies(entries).moved(shown(exported.lsn), exported.at)
        return replace(moved, begin=begin or moved.to).progress

    def _changes(
        self, known: Known, place: Place, spool: Spool, upto: int, limit: int | None
    ) -> tuple[Transactions, bool]:
        """Puts the transactions from `known` up to `upto` into `spool`; `limit` bounds their messages.

        Returns whether it has all of them. A slot that a crash of the server has put back sends again what is known:
        then the limit is of no use at first. Raises Gap where somebody else has moved the slot meanwhile.
        """
        since = {stream: read_lsn(entry["since"]) for stream, entry in known.tables.items() if entry["since"]}
        while True:
            taken = Transactions(self._reading(place, known.era), spool, after=read_lsn(known.to), since=since)
            taken.take(self._server.peek(self.options.slot, self.options.publication, shown(upto), limit))
            taken.finish()
            self._refuse([*of_slot(known, self._server.slot(self.options.slot), self.options.slot)])
            whole = limit is None or taken.messages < limit
            if limit is None or whole or taken.end > read_lsn(known.to):
                return taken, whole
            limit *= 8

    def _reading(self, place: Place, era: int) -> Reading:
        options = self.options
        streams = {table: (stream, options.contracts[stream]) for stream, table in options.tables.items()}
        return Reading(options.name, place.database, era, streams, self._server.declared)

    def _uncopied(self, known: Known) -> list[str]:
        return [stream for stream in self.streams if not known.tables.get(stream, {}).get("since")]

    def _entry(self, stream: str, tables: Mapping[str, Table], since: str) -> dict[str, Any]:
        table = tables[self.options.tables[stream]]
        return {"id": table.id, "published": table.published, "since": since}
