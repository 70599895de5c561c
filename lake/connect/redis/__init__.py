"""Redis or Valkey as a target, a cache of rows. Options: docs/how-to/sink-redis.md.

A row's key is `<prefix><table>:<name>`, with the name of lake.sinks.json_rows; another key has the position. Up to
`at_once` changes are one transaction. A larger delivery is swapped in by steps (`staged_swap`), between which readers
may see a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lake.connect.redis.staged_swap import (
    KeyChange,
    KeyStage,
    RedisKeys,
    check_table,
    clear,
    fields,
    finish,
    read,
    row_of,
    scan_keys,
    set_rows,
)
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.lazy import pa
from lake.sinks.json_rows import NULL, json_rows, named_rows
from lake.sinks.kind import SinkDeclaration, SinkKind
from lake.sinks.server import SERVER_OPTIONS, SinkServer
from lake.sinks.sink import SinkDelivery, SinkPosition, TableChanges, Target, TargetTable, overtaken

COMMAND_END: Final = "of pipeline caused error: "
"""End of a message's part that quotes the command, and with it the row."""
ERRORS_BY_WORD: Final[Mapping[str, tuple[type[LakeError], str]]] = {
    "NOAUTH": (DeclarationError, 'give it a password: password = "env:NAME"'),
    "WRONGPASS": (DeclarationError, "look at username and password"),
    "NOPERM": (
        DeclarationError,
        "allow the user the commands and the keys that it needs: see docs/how-to/sink-redis.md",
    ),
    "OOM": (Unavailable, "raise its maxmemory, or leave out columns or tables"),
    "READONLY": (Unavailable, "name the primary: this is a replica, or was made one"),
    "MISCONF": (Unavailable, "it cannot write to its disk, and refuses all changes: see its log"),
    "LOADING": (Unavailable, "it is loading its data: try again"),
    "BUSY": (Unavailable, "a script keeps it busy: try again"),
    "MASTERDOWN": (Unavailable, "try again"),
    "TRYAGAIN": (Unavailable, "try again"),
    "CLUSTERDOWN": (Unavailable, "try again"),
    "NOREPLICAS": (Unavailable, "it has too few replicas to take changes"),
    **dict.fromkeys(
        ("MOVED", "ASK", "CROSSSLOT"),
        (DeclarationError, "name a server that is no cluster, which cannot change the rows of an edition at once"),
    ),
}
"""By the first word of the server's error."""


class RedisServer(SinkServer):
    schemes = ("redis", "rediss", "unix")
    tls = "rediss"
    example = "redis://127.0.0.1:6379/0"
    errors = redis.exceptions.RedisError

    @classmethod
    def is_readable(cls, url: str) -> bool:
        try:
            redis.ConnectionPool.from_url(url).make_connection()  # it connects on first use
        except (ValueError, TypeError, redis.exceptions.RedisError):
            return False
        return super().is_readable(url)

    @cached_property
    def client(self) -> redis.Redis:
        """Deliveries are retried as a whole, so the client never retries."""
        more: dict[str, Any] = {"username": self.username or None, "password": self.password or None}
        if self.certificates:
            more["ssl_ca_certs"] = self.certificates
        return redis.Redis.from_url(
            self.url,
            socket_timeout=self.seconds,
            socket_connect_timeout=self.seconds,
            retry=Retry(NoBackoff(), 0),
            client_name="headwater",
            **{name: value for name, value in more.items() if value is not None},
        )

    def as_error(self, error: Exception) -> LakeError:
        message = str(error).rpartition(COMMAND_END)[2].strip() or type(error).__name__
        removed_word = getattr(error, "status_code", None)  # if the client removes it from the message
        word = removed_word or message.split()[0]
        if word in ERRORS_BY_WORD:
            kind, fix = ERRORS_BY_WORD[word]
            return self.fault(kind, f"refuses: {message}", fix)
        if isinstance(error, redis.exceptions.TimeoutError):
            what = f"does not answer within {self.seconds} s"
            return self.fault(Unavailable, what, "try again, or give it more `seconds`")
        if isinstance(error, redis.exceptions.ConnectionError):
            return self.fault(Unavailable, f"does not answer: {message}", "try again when it does")
        return self.fault(LakeError, f"failed: {message}", "see the server's log")

    @property
    def place(self) -> str:
        parts = urlsplit(self.url)
        return f"Redis at {parts.hostname}:{parts.port or 6379}" if parts.hostname else f"Redis at {parts.path}"


TRANSACTION_BYTES: Final = 64 << 20
"""Most bytes of one transaction, which the server holds in memory twice."""
LOST_CONNECTION: Final = "while watching"
EMPTY_HASH: Final = "all of its columns are null, and a hash has a field for each that is not"


@dataclass
class RedisTarget:
    name: str
    server: RedisServer
    keys: RedisKeys
    at_once: int

    @property
    def client(self) -> redis.Redis:
        return self.server.client

    def close(self) -> None:
        self.server.close()

    def position(self) -> SinkPosition | None:
        """Finish an interrupted swap first."""
        with self.server.translated_errors():
            finish(self.client, self.keys)
            return _parsed(read(self.client, self.keys.position))

    def deliver(self, delivery: SinkDelivery) -> SinkPosition:
        for changes in delivery.tables:
            check_table(changes.table, self.server.where)
        with self.server.translated_errors():
            clear(self.client, self.keys)
            found = self._check_position(delivery, self.client)
            stage, rows = self._read_changes(delivery)
            stale = self._stale_keys(delivery) if stage is None else None
            position = delivery.position()
            if stale is not None:
                self._apply(delivery, position, stale, rows)
                return position
            whole = [changes.table.far for changes in delivery.tables if changes.whole]
            self._staged(rows, stage).commit(found, position.to_json(), whole)
            finish(self.client, self.keys)
            return position

    def rows(self, table: TargetTable) -> pa.RecordBatchReader:
        check_table(table, self.server.where)
        return named_rows(table, self._read(table), self._no_row)

    def _check_position(self, delivery: SinkDelivery, client: redis.Redis) -> bytes | None:
        found = read(client, self.keys.position)
        if not delivery.anew:
            delivery.check_position(_parsed(found))
        for changes in delivery.tables:
            if delivery.shape_in_target(changes.table) is None and not delivery.anew:
                self._check_unused(changes.table)
        return found

    def _check_unused(self, table: TargetTable) -> None:
        if keys := next(scan_keys(self.client, self.keys.rows(table.far)), None):
            raise DeclarationError(
                f"there are keys such as {keys[0].decode(errors='replace')!r} already, and not of this sink",
                where=self.server.where,
                fix=f"give it a prefix of its own; or lake deliver {self.name} --resync replaces them",
            )

    def _read_changes(self, delivery: SinkDelivery) -> tuple[KeyStage | None, list[KeyChange]]:
        """Return all changes if they fit into one transaction; else a stage, and the changes not staged yet."""
        stage, rows, size = None, list[KeyChange](), 0
        for changes in delivery.tables:
            for row in _rows(changes):
                rows.append(row)
                size += row.size
                if size >= TRANSACTION_BYTES or len(rows) > self.at_once:
                    stage = self._staged(rows, stage)
                    rows, size = [], 0
        return stage, rows

    def _staged(self, rows: list[KeyChange], stage: KeyStage | None) -> KeyStage:
        if stage is None:
            stage = KeyStage(self.client, self.keys)
            stage.begin()
        stage.write(rows)
        return stage

    def _stale_keys(self, delivery: SinkDelivery) -> list[bytes] | None:
        """Return None if they are too many for one transaction."""
        stale = list[bytes]()
        for changes in delivery.tables:
            for keys in scan_keys(self.client, self.keys.rows(changes.table.far)) if changes.whole else ():
                stale += keys
                if len(stale) > self.at_once:
                    return None
        return stale

    def _apply(self, delivery: SinkDelivery, position: SinkPosition, stale: list[bytes], rows: list[KeyChange]) -> None:
        with closing(self.client.pipeline()) as pipe:
            pipe.watch(self.keys.position, self.keys.switch)  # type: ignore[no-untyped-call] # of the client
            self._check_position(delivery, pipe)
            if pipe.exists(self.keys.switch):
                raise self._overtaken()
            pipe.multi()
            deleted = [self.keys.rows(row.table) + row.name for row in rows if row.json is None]
            for keys in (stale, deleted):
                if keys:
                    pipe.unlink(*keys)
            set_rows(pipe, ((self.keys.rows(row.table) + row.name, row) for row in rows if row.json is not None))
            pipe.set(self.keys.position, position.to_json())
            try:
                pipe.execute()
            except redis.exceptions.WatchError as error:
                if LOST_CONNECTION in str(error):
                    raise redis.exceptions.ConnectionError(str(error)) from None
                raise self._overtaken() from None

    def _overtaken(self) -> Unavailable:
        return overtaken(f"sink {self.name} was brought to another position meanwhile", self.server.where)

    def _read(self, table: TargetTable) -> Iterator[list[tuple[str, str]]]:
        key_prefix = self.keys.rows(table.far)
        is_json = table.options["form"] == "json"
        seen = set[int]()
        with self.server.translated_errors():
            for keys in scan_keys(self.client, key_prefix):
                new = [key for key in dict.fromkeys(keys) if hash(key) not in seen]
                seen |= set(map(hash, new))
                pipe = self.client.pipeline(transaction=False)
                for key in new:
                    pipe.get(key) if is_json else pipe.hgetall(key)
                found = zip(new, pipe.execute(raise_on_error=False), strict=True)
                yield [self._row(table, key, value) for key, value in found if value not in (None, {})]

    def _row(self, table: TargetTable, key: bytes, value: Any) -> tuple[str, str]:
        name = key[len(self.keys.rows(table.far).encode()) :]
        try:
            if isinstance(value, Exception):
                raise value
            return name.decode(), value.decode() if isinstance(value, bytes) else row_of(table, value)
        except (ValueError, redis.exceptions.ResponseError):
            raise self._no_row(table, name.decode(errors="replace")) from None

    def _no_row(self, table: TargetTable, name: str) -> LakeError:
        return LakeError(
            f"{self.keys.rows(table.far)}{name} is not the row of {table.name} with that key",
            where=self.server.where,
            fix=f"remove the key, and run lake deliver {self.name} --repair",
        )


def _parsed(found: bytes | None) -> SinkPosition | None:
    return None if found is None else SinkPosition.from_json(found.decode(errors="replace"))


def _rows(changes: TableChanges) -> Iterator[KeyChange]:
    table = changes.table
    form = table.options["form"]
    for batch in json_rows(changes):
        columns = (batch.column(name).to_pylist() for name in ("key", "name", "after"))
        for key, name, after in zip(*columns, strict=True):
            if after is not None and form == "hash" and {*name.split(":")} == {NULL} and not fields(after):
                changes.reject(key, EMPTY_HASH)
                yield KeyChange(table.far, form, name, None)
            elif after is not None or table.mode == "mirror":
                yield KeyChange(table.far, form, name, after)


def _open(declaration: SinkDeclaration) -> Target:
    options = declaration.options
    server = RedisServer.of(options, declaration.where)
    keys = RedisKeys(options["prefix"] or f"{declaration.name}:")
    return RedisTarget(declaration.name, server, keys, options["at_once"])


KIND: Final = SinkKind(
    _open,
    modes=("mirror", "upsert"),
    options={**SERVER_OPTIONS, "at_once": (int, 10_000), "seconds": (int, 10)},
    table_options={"form": (("json", "hash"), "json")},
)
