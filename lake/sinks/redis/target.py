"""The target: rows as keys of a server, and the position beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import redis

from lake.errors import DeclarationError, LakeError, Unavailable
from lake.sinks.json_rows import NULL, json_rows, named_rows
from lake.sinks.redis.keys import Keys, fields, must_be_sound, row_of
from lake.sinks.redis.server import RedisServer
from lake.sinks.redis.switch import Row, Stage, clear, finish, put, read, scanned
from lake.sinks.sink import Delivery, FarTable, Position, TableChanges

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES: Final = 64 << 20
"""The most of one step: the server has it in its memory twice while it is applied."""
LOST: Final = "while watching"
"""What the client says where the connection is lost in a transaction."""
EMPTY: Final = "all of its columns are null, and a hash has a field for each that is not"


@dataclass
class Redis:
    """The target of sink `name`: the keys that begin with `prefix`."""

    name: str
    server: RedisServer
    prefix: str
    at_once: int

    @property
    def keys(self) -> Keys:
        """What its keys are called."""
        return Keys(self.prefix)

    @property
    def client(self) -> redis.Redis:
        """The client of the server."""
        return self.server.client

    def close(self) -> None:
        """Lets go of connections."""
        self.server.close()

    def position(self) -> Position | None:
        """What it has. Where a deliverer has died while it switched, what is left of that is done first."""
        with self.server.asked():
            finish(self.client, self.keys)
            return _parsed(read(self.client, self.keys.position))

    def deliver(self, delivery: Delivery) -> Position:
        """Applies all changes in one step, or stages and switches to them."""
        for changes in delivery.tables:
            must_be_sound(changes.table, self.server.where)
        with self.server.asked():
            clear(self.client, self.keys)
            found = self._must_lead_on(delivery, self.client)
            stage, rows = self._gathered(delivery)
            whole = [changes.table.far for changes in delivery.tables if changes.whole]
            stale = self._stale(delivery) if stage is None else None
            if stage is None and stale is None:
                stage = self._staged(rows)
            position = delivery.position()
            if stage is None:
                assert stale is not None
                self._apply(delivery, position, stale, rows)
                return position
            stage.write(rows)
            stage.commit(found, position.to_json(), whole)
            finish(self.client, self.keys)
            return position

    def rows(self, table: FarTable) -> pa.RecordBatchReader:
        """The rows of a table. Raises LakeError for a key of it that holds none."""
        must_be_sound(table, self.server.where)
        return named_rows(table, self._read(table), self._no_row)

    def _must_lead_on(self, delivery: Delivery, client: redis.Redis) -> bytes | None:
        """The position as it is there. Raises Unavailable where it is not the one expected."""
        found = read(client, self.keys.position)
        if not delivery.anew:
            delivery.must_lead_on_from(_parsed(found))
        for changes in delivery.tables:
            if delivery.shape_there(changes.table) is None and not delivery.anew:
                self._must_be_free(changes.table)
        return found

    def _must_be_free(self, table: FarTable) -> None:
        if some := next(scanned(self.client, self.keys.rows(table.far)), None):
            raise DeclarationError(
                f"there are keys such as {some[0].decode(errors='replace')!r} already, and not of this sink",
                where=self.server.where,
                fix=f"give it a prefix of its own; or lake deliver {self.name} --resync replaces them",
            )

    def _gathered(self, delivery: Delivery) -> tuple[Stage | None, list[Row]]:
        """The rows of all changes, or the last of them where the others had to be staged."""
        stage, rows, size = None, list[Row](), 0
        for changes in delivery.tables:
            for row in _rows(changes):
                rows.append(row)
                size += row.size
                if size >= MOST_BYTES or len(rows) > self.at_once:
                    stage = self._staged(rows, stage)
                    rows, size = [], 0
        return stage, rows

    def _staged(self, rows: list[Row], stage: Stage | None = None) -> Stage:
        if stage is None:
            stage = Stage(self.client, self.keys)
            stage.begin()
        stage.write(rows)
        rows.clear()
        return stage

    def _stale(self, delivery: Delivery) -> list[bytes] | None:
        """The keys of tables that are sent whole; None where they are too many for one step."""
        stale = list[bytes]()
        for changes in delivery.tables:
            for some in scanned(self.client, self.keys.rows(changes.table.far)) if changes.whole else ():
                stale += some
                if len(stale) > self.at_once:
                    return None
        return stale

    def _apply(self, delivery: Delivery, position: Position, stale: list[bytes], rows: list[Row]) -> None:
        """Removes keys and applies rows in one transaction, with the position."""
        with closing(self.client.pipeline()) as pipe:
            pipe.watch(self.keys.position, self.keys.switch)  # type: ignore[no-untyped-call] # of the client
            self._must_lead_on(delivery, pipe)
            if pipe.exists(self.keys.switch):
                raise self._beaten()
            pipe.multi()
            gone = [self.keys.rows(row.table) + row.name for row in rows if row.json is None]
            for some in (stale, gone):
                if some:
                    pipe.unlink(*some)
            put(pipe, ((self.keys.rows(row.table) + row.name, row) for row in rows if row.json is not None))
            pipe.set(self.keys.position, position.to_json())
            try:
                pipe.execute()
            except redis.exceptions.WatchError as error:
                if LOST in str(error):
                    raise redis.exceptions.ConnectionError(str(error)) from None
                raise self._beaten() from None

    def _beaten(self) -> Unavailable:
        return Unavailable(
            f"sink {self.name} was brought to another position meanwhile",
            where=self.server.where,
            fix="run one `lake deliver` for each target, and try again",
        )

    def _read(self, table: FarTable) -> Iterator[list[tuple[str, str]]]:
        """The names of rows, and their JSON."""
        beginning = self.keys.rows(table.far)
        is_json = table.options["form"] == "json"
        seen = set[int]()
        with self.server.asked():
            for some in scanned(self.client, beginning):
                new = [key for key in dict.fromkeys(some) if hash(key) not in seen]
                seen |= set(map(hash, new))
                pipe = self.client.pipeline(transaction=False)
                for key in new:
                    pipe.get(key) if is_json else pipe.hgetall(key)
                found = zip(new, pipe.execute(raise_on_error=False), strict=True)
                yield [self._row(table, key, value) for key, value in found if value not in (None, {})]

    def _row(self, table: FarTable, key: bytes, value: Any) -> tuple[str, str]:
        name = key[len(self.keys.rows(table.far).encode()) :]
        try:
            if isinstance(value, Exception):
                raise value
            return name.decode(), value.decode() if isinstance(value, bytes) else row_of(table, value)
        except (ValueError, redis.exceptions.ResponseError):
            raise self._no_row(table, name.decode(errors="replace")) from None

    def _no_row(self, table: FarTable, name: str) -> LakeError:
        return LakeError(
            f"{self.keys.rows(table.far)}{name} does not hold the row of {table.name} that it says",
            where=self.server.where,
            fix=f"remove the key, and run lake deliver {self.name} --repair",
        )


def _parsed(found: bytes | None) -> Position | None:
    return None if found is None else Position.from_json(found.decode(errors="replace"))


def _rows(changes: TableChanges) -> Iterator[Row]:
    """What becomes of the rows of a table. What goes from the edition stays in a table of mode upsert."""
    table = changes.table
    form = table.options["form"]
    for batch in json_rows(changes):
        columns = (batch.column(name).to_pylist() for name in ("key", "name", "after"))
        for key, name, after in zip(*columns, strict=True):
            if after is not None and form == "hash" and {*name.split(":")} == {NULL} and not fields(after):
                changes.reject(key, EMPTY)
                yield Row(table.far, form, name, None)
            elif after is not None or table.mode == "mirror":
                yield Row(table.far, form, name, after)
