"""Deliveries too large for one step: staged beside, then switched to in steps that anyone may finish.

1. Whoever stages says so in the key `staging`, clears what others have staged, and writes rows under keys of its own.
2. In one step, the key `switch` is set: to the position, and to what is staged. From then on the delivery is done, and
   what is left is to show it. It is refused where somebody else stages by now, or the position is another.
3. Of tables that are sent whole, keys that are not staged are removed; then the staged ones are renamed; then, in one
   step, the position is set and `switch` goes. Each step finds `switch` as it was, or does nothing.

A crash before 2 leaves what the next delivery clears, one after it what `finish` does the rest of.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from lake.errors import Unavailable
from lake.sinks.redis.keys import Keys, fields, pattern

if TYPE_CHECKING:
    import redis

STEP: Final = 1000
"""So many keys are looked at or renamed in one step: of the order of a millisecond."""
CLEAR: Final = (
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('UNLINK', unpack(KEYS, 2)) return 1"
)
BEGIN: Final = "if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end redis.call('SET', KEYS[1], ARGV[1]) return 1"
COMMIT: Final = """
    if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
    if (redis.call('GET', KEYS[3]) or '') ~= ARGV[2] then return 0 end
    redis.call('SET', KEYS[2], ARGV[3]) return 1"""
EACH: Final = """
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    for n = 2, #KEYS, 2 do {} end
    return 1"""
REMOVE_STALE: Final = EACH.format("if redis.call('EXISTS', KEYS[n]) == 0 then redis.call('UNLINK', KEYS[n + 1]) end")
RENAME: Final = EACH.format("if redis.call('EXISTS', KEYS[n]) == 1 then redis.call('RENAME', KEYS[n], KEYS[n + 1]) end")
REMOVE: Final = EACH.format("redis.call('UNLINK', KEYS[n], KEYS[n + 1])")
GO_ON: Final = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('SET', KEYS[1], ARGV[2]) return 1"
END: Final = """
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    redis.call('SET', KEYS[2], ARGV[2]) redis.call('UNLINK', KEYS[1], KEYS[3]) return 1"""


@dataclass(frozen=True)
class Row:
    """What becomes of the row `name` of a table, in a form: its JSON, or None where it goes."""

    table: str
    form: str
    name: str
    json: str | None

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.name) + len(self.json or "")


def put(pipe: redis.client.Pipeline, rows: Iterable[tuple[str, Row]]) -> None:
    """Has a pipeline set rows, each at a key."""
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
class Switch:
    """A delivery that was staged: `whole` tables, and others that have changes. `moving` once stale keys are gone."""

    delivery: str
    position: str
    whole: Sequence[str]
    tables: Sequence[str]
    moving: bool = False

    def to_json(self) -> str:
        """As the key `switch` has it."""
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass
class Stage:
    """A delivery that is being staged."""

    client: redis.Redis
    keys: Keys
    delivery: str = field(default_factory=lambda: uuid.uuid4().hex)
    tables: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Says that it is staged, and clears what others have left."""
        if not self.client.eval(BEGIN, 2, self.keys.staging, self.keys.switch, self.delivery):
            raise self._beaten()
        for some in scanned(self.client, self.keys.all_staged):
            if not self.client.eval(CLEAR, 1 + len(some), self.keys.staging, *some, self.delivery):
                raise self._beaten()

    def write(self, rows: Sequence[Row]) -> None:
        """Stages rows; no row twice."""
        for first in range(0, len(rows), STEP):
            some = rows[first : first + STEP]
            pipe = self.client.pipeline(transaction=False)
            pipe.get(self.keys.staging)
            put(pipe, ((self.keys.staged(self.delivery, r.table) + r.name, r) for r in some if r.json is not None))
            if gone := {self.keys.gone(self.delivery, r.table) + r.name: "" for r in some if r.json is None}:
                pipe.mset(gone)
            self.tables |= {row.table for row in some}
            if pipe.execute()[0] != self.delivery.encode():
                raise self._beaten()

    def commit(self, expected: bytes | None, position: str, whole: Sequence[str]) -> None:
        """Makes it what is switched to, where the position is still the one expected."""
        switch = Switch(self.delivery, position, whole, sorted(self.tables | {*whole}))
        named = (self.keys.staging, self.keys.switch, self.keys.position)
        if not self.client.eval(COMMIT, 3, *named, self.delivery, expected or b"", switch.to_json()):
            raise self._beaten()

    def _beaten(self) -> Unavailable:
        return Unavailable(
            "somebody else delivers to the same keys, and is ahead",
            where=self.keys.prefix,
            fix="run one `lake deliver` for each target, and try again",
        )


def clear(client: redis.Redis, keys: Keys) -> None:
    """Removes what a deliverer that died has staged."""
    if client.exists(keys.staging):
        stage = Stage(client, keys)
        stage.begin()
        client.eval(CLEAR, 2, keys.staging, keys.staging, stage.delivery)


def finish(client: redis.Redis, keys: Keys) -> None:
    """Does what is left of a switch, whoever has begun it; nothing where there is none."""
    while (found := read(client, keys.switch)) is not None:
        switch = Switch(**json.loads(found))
        if switch.moving:
            _move(client, keys, switch, found)
        else:
            _remove_stale(client, keys, switch, found)


def _remove_stale(client: redis.Redis, keys: Keys, switch: Switch, found: bytes) -> None:
    for table in switch.whole:
        pairs = _pairs(client, keys.rows(table), keys.staged(switch.delivery, table))
        _each(client, REMOVE_STALE, keys, found, ([*reversed(pair)] for pair in pairs))
    client.eval(GO_ON, 1, keys.switch, found, replace(switch, moving=True).to_json())


def _move(client: redis.Redis, keys: Keys, switch: Switch, found: bytes) -> None:
    for table in switch.tables:
        live = keys.rows(table)
        _each(client, REMOVE, keys, found, _pairs(client, keys.gone(switch.delivery, table), live))
        _each(client, RENAME, keys, found, _pairs(client, keys.staged(switch.delivery, table), live))
    client.eval(END, 3, keys.switch, keys.position, keys.staging, found, switch.position)


def _pairs(client: redis.Redis, beginning: str, other: str) -> Iterator[list[bytes]]:
    """Each key that begins so, with the one that begins otherwise and goes on as it does."""
    length = len(beginning.encode())
    for some in scanned(client, beginning):
        yield from ([key, other.encode() + key[length:]] for key in some)


def _each(client: redis.Redis, script: str, keys: Keys, found: bytes, pairs: Iterable[list[bytes]]) -> None:
    """Runs a script over pairs of keys. Where the switch is no longer as it was found, that does nothing."""
    some = list[bytes]()
    for pair in pairs:
        some += pair
        if len(some) >= 2 * STEP:
            client.eval(script, 1 + len(some), keys.switch, *some, found)
            some = []
    if some:
        client.eval(script, 1 + len(some), keys.switch, *some, found)


def read(client: redis.Redis, key: str) -> bytes | None:
    """What is at a key."""
    found: Any = client.get(key)
    return found if isinstance(found, bytes) else None


def scanned(client: redis.Redis, beginning: str) -> Iterator[list[bytes]]:
    """The keys that begin so, some at a time; one may come twice."""
    cursor: Any = 0
    while True:
        found: Any = client.scan(cursor, pattern(beginning), STEP)
        cursor, some = found
        if some:
            yield some
        if cursor == 0:
            return
