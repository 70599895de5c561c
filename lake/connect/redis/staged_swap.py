"""Deliveries too large for one transaction: staged under other keys, then swapped in by steps. Any process may finish.

1. The deliverer sets the key `staging`, removes what others have staged, and writes rows under its own keys.
2. One step sets the key `switch` to the position and the staged tables, which commits the delivery. It fails if
   another deliverer is staging by now, or the position has changed.
3. Keys of whole tables that are not staged are removed, then the staged keys renamed. One step sets the position and
   removes `switch`. Each step does nothing if `switch` has changed.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from lake.errors import DeclarationError, Unavailable
from lake.sinks.sink import TargetTable, overtaken

if TYPE_CHECKING:
    import redis

TABLE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
PATTERN_SIGNS: Final = re.compile(r"[*?\[\]\\^]")


@dataclass(frozen=True)
class RedisKeys:
    """Row keys begin with a table's name; no table's name begins with `~`."""

    prefix: str

    @property
    def position(self) -> str:
        return f"{self.prefix}position"

    @property
    def staging(self) -> str:
        return f"{self.prefix}staging"

    @property
    def switch(self) -> str:
        return f"{self.prefix}switch"

    def rows(self, table: str) -> str:
        return f"{self.prefix}{table}:"

    def staged(self, delivery: str, table: str) -> str:
        return f"{self.prefix}~{delivery}:{table}:"

    def deleted(self, delivery: str, table: str) -> str:
        return f"{self.prefix}~{delivery}-:{table}:"


def check_table(table: TargetTable, where: str) -> None:
    if not TABLE.fullmatch(table.far):
        raise DeclarationError(
            f"{table.name} cannot be called {table.far!r} in Redis", where=where, fix="use letters, digits, _, - and ."
        )


def fields(row: str) -> dict[str, str]:
    """Columns that are null have no field; values other than text are JSON."""
    values: Mapping[str, Any] = json.loads(row)
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
        if value is not None
    }


def row_of(table: TargetTable, found: Mapping[bytes, bytes]) -> str:
    values = {}
    for name, kind in table.types.items():
        if (value := found.get(name.encode())) is not None:
            text = value.decode()
            values[name] = json.loads(text) if kind.endswith("]") or kind.startswith(("STRUCT", "MAP")) else text
    return json.dumps(values, ensure_ascii=False)


STEP: Final = 1000
"""Keys scanned or renamed in one step, which takes about a millisecond."""
CLEAR: Final = (
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('UNLINK', unpack(KEYS, 2)) return 1"
)
BEGIN: Final = "if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end redis.call('SET', KEYS[1], ARGV[1]) return 1"
COMMIT: Final = """
    if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
    if (redis.call('GET', KEYS[3]) or '') ~= ARGV[2] then return 0 end
    redis.call('SET', KEYS[2], ARGV[3]) return 1"""
LOOP: Final = """
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    for n = 2, #KEYS, 2 do {} end
    return 1"""
REMOVE_STALE: Final = LOOP.format("if redis.call('EXISTS', KEYS[n]) == 0 then redis.call('UNLINK', KEYS[n + 1]) end")
RENAME: Final = LOOP.format("if redis.call('EXISTS', KEYS[n]) == 1 then redis.call('RENAME', KEYS[n], KEYS[n + 1]) end")
REMOVE: Final = LOOP.format("redis.call('UNLINK', KEYS[n], KEYS[n + 1])")
MARK: Final = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('SET', KEYS[1], ARGV[2]) return 1"
END: Final = """
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    redis.call('SET', KEYS[2], ARGV[2]) redis.call('UNLINK', KEYS[1], KEYS[3]) return 1"""


@dataclass(frozen=True)
class KeyChange:
    """`json` None deletes the row."""

    table: str
    form: str
    name: str
    json: str | None

    @property
    def size(self) -> int:
        return len(self.name) + len(self.json or "")


def set_rows(pipe: redis.client.Pipeline, rows: Iterable[tuple[str, KeyChange]]) -> None:
    texts = dict[str, str]()
    for key, row in rows:
        assert row.json is not None
        if row.form == "json":
            texts[key] = row.json
        else:
            pipe.unlink(key)
            columns: dict[Any, Any] = {**fields(row.json)}
            pipe.hset(key, mapping=columns)
    if texts:
        pipe.mset(texts)


@dataclass(frozen=True)
class KeySwap:
    """Committed swap, as stored in the key `switch`. `moving` after stale keys are removed."""

    delivery: str
    position: str
    whole: Sequence[str]
    tables: Sequence[str]
    moving: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass
class KeyStage:
    client: redis.Redis
    keys: RedisKeys
    delivery: str = field(default_factory=lambda: uuid.uuid4().hex)
    tables: set[str] = field(default_factory=set)

    def begin(self) -> None:
        if not self.client.eval(BEGIN, 2, self.keys.staging, self.keys.switch, self.delivery):
            raise self._overtaken()
        for keys in scan_keys(self.client, f"{self.keys.prefix}~"):
            if not self.client.eval(CLEAR, 1 + len(keys), self.keys.staging, *keys, self.delivery):
                raise self._overtaken()

    def write(self, rows: Sequence[KeyChange]) -> None:
        for first in range(0, len(rows), STEP):
            part = rows[first : first + STEP]
            pipe = self.client.pipeline(transaction=False)
            pipe.get(self.keys.staging)
            set_rows(pipe, ((self.keys.staged(self.delivery, r.table) + r.name, r) for r in part if r.json is not None))
            if deleted := {self.keys.deleted(self.delivery, r.table) + r.name: "" for r in part if r.json is None}:
                pipe.mset(deleted)
            self.tables |= {row.table for row in part}
            if pipe.execute()[0] != self.delivery.encode():
                raise self._overtaken()

    def commit(self, expected: bytes | None, position: str, whole: Sequence[str]) -> None:
        swap = KeySwap(self.delivery, position, whole, sorted(self.tables | {*whole}))
        named = (self.keys.staging, self.keys.switch, self.keys.position)
        if not self.client.eval(COMMIT, 3, *named, self.delivery, expected or b"", swap.to_json()):
            raise self._overtaken()

    def _overtaken(self) -> Unavailable:
        return overtaken("another process delivers to the same keys, and is ahead", self.keys.prefix)


def clear(client: redis.Redis, keys: RedisKeys) -> None:
    """Remove what a dead deliverer has staged."""
    if client.exists(keys.staging):
        stage = KeyStage(client, keys)
        stage.begin()
        client.eval(CLEAR, 2, keys.staging, keys.staging, stage.delivery)  # removes the key `staging` itself


def finish(client: redis.Redis, keys: RedisKeys) -> None:
    while (found := read(client, keys.switch)) is not None:
        swap = KeySwap(**json.loads(found))
        if swap.moving:
            _rename_staged(client, keys, swap, found)
        else:
            _remove_stale(client, keys, swap, found)


def _remove_stale(client: redis.Redis, keys: RedisKeys, swap: KeySwap, found: bytes) -> None:
    for table in swap.whole:
        pairs = _pairs(client, keys.rows(table), keys.staged(swap.delivery, table))
        _run(client, REMOVE_STALE, keys, found, ([*reversed(pair)] for pair in pairs))
    client.eval(MARK, 1, keys.switch, found, replace(swap, moving=True).to_json())


def _rename_staged(client: redis.Redis, keys: RedisKeys, swap: KeySwap, found: bytes) -> None:
    for table in swap.tables:
        live = keys.rows(table)
        _run(client, REMOVE, keys, found, _pairs(client, keys.deleted(swap.delivery, table), live))
        _run(client, RENAME, keys, found, _pairs(client, keys.staged(swap.delivery, table), live))
    client.eval(END, 3, keys.switch, keys.position, keys.staging, found, swap.position)


def _pairs(client: redis.Redis, key_prefix: str, other: str) -> Iterator[list[bytes]]:
    length = len(key_prefix.encode())
    for keys in scan_keys(client, key_prefix):
        yield from ([key, other.encode() + key[length:]] for key in keys)


def _run(client: redis.Redis, script: str, keys: RedisKeys, found: bytes, pairs: Iterable[list[bytes]]) -> None:
    flat = chain.from_iterable(pairs)
    while part := [*islice(flat, 2 * STEP)]:
        client.eval(script, 1 + len(part), keys.switch, *part, found)


def read(client: redis.Redis, key: str) -> bytes | None:
    found: Any = client.get(key)
    return found if isinstance(found, bytes) else None


def scan_keys(client: redis.Redis, key_prefix: str) -> Iterator[list[bytes]]:
    """Yield batches. A key may be repeated."""
    pattern = PATTERN_SIGNS.sub(r"\\\g<0>", key_prefix) + "*"
    keys = client.scan_iter(pattern, STEP)
    while batch := [*islice(keys, STEP)]:
        yield batch
