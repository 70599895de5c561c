"""Kafka as a target: a topic for each table, and one for the sink's position. Options: docs/how-to/sink-kafka.md.

Key and value are the row's identity and the row as JSON; headers are `change`, `edition` and `cut`. A deleted row is a
tombstone. In mode append the value is `{"before", "after"}`.

One transaction has all rows of an edition, and the position, in the compacted topic `<id>-position`. `<id>` is also the
transactional id: a second deliverer fences off the first, and an abandoned transaction is aborted before the position
is read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

from lake.connect.kafka.sink.topics import (
    COMPACT_POLICY,
    DELETE_POLICY,
    Headers,
    KafkaTransaction,
    TargetTopic,
    Topics,
    TopicSpec,
    is_decided,
)
from lake.connect.kafka.source.options import RESERVED_SETTINGS, KafkaOptions, as_text, faults_of_settings
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.lazy import pa
from lake.sinks.json_rows import json_rows, named_rows
from lake.sinks.kind import OptionTable, SinkDeclaration, SinkKind
from lake.sinks.sink import CHANGES, SinkDelivery, SinkPosition, TableChanges, Target, TargetTable, UnreadablePosition

if TYPE_CHECKING:
    import duckdb

NO_TOPIC: Final = ""
"""Shape, in a position, of a table whose topic was removed or recreated."""
BATCH: Final = 10_000


@dataclass(frozen=True)
class StoredPosition:
    """`topics` has (topic, id, partitions) by table."""

    cluster: str
    topics: dict[str, tuple[str, str, int]]
    position: SinkPosition

    def to_json(self) -> str:
        position = json.loads(self.position.to_json())
        return json.dumps({"cluster": self.cluster, "topics": self.topics, "position": position}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, topic: str, where: str) -> Self:
        try:
            data = json.loads(text)
            topics = {name: (topic, str(id), int(count)) for name, (topic, id, count) in data["topics"].items()}
            return cls(str(data["cluster"]), topics, SinkPosition.from_json(json.dumps(data["position"])))
        except (ValueError, TypeError, KeyError, AttributeError, UnreadablePosition):
            raise LakeError(
                f"the position in the topic {topic!r} cannot be read: {text[:100]!r}",
                where=where,
                fix="delete that topic, and deliver with --resync",
            ) from None


@dataclass
class KafkaTarget:
    options: KafkaOptions
    transaction_seconds: int
    create: bool
    replication: int

    @cached_property
    def topics(self) -> Topics:
        return Topics(self.options)

    @property
    def id(self) -> str:
        return self.options.group

    @property
    def position_topic(self) -> str:
        return f"{self.id}-position"

    def close(self) -> None:
        if "topics" in self.__dict__:
            self.topics.close()

    def position(self) -> SinkPosition | None:
        stored = self._stored()
        if stored is None:
            return None
        current = self._current(stored)
        for name, (topic, *_) in stored.topics.items():
            if current.tables[name] != stored.position.tables[name]:
                which = (
                    f"the topic {topic!r} is not the one that was filled: it is gone, recreated or of another cluster"
                )
                logging.getLogger("lake").warning("%s: %s", self.options.name, which)
        return current

    def _current(self, stored: StoredPosition) -> SinkPosition:
        cluster = self.topics.id
        ids = self.topics.ids(topic for topic, *_ in stored.topics.values())
        tables = dict(stored.position.tables)
        for name, (topic, id, _) in stored.topics.items():
            if (cluster, ids.get(topic, ("",))[0]) != (stored.cluster, id):
                tables[name] = NO_TOPIC, tables[name][1]
        return replace(stored.position, tables=tables)

    def _stored(self, *, decided: bool = False) -> StoredPosition | None:
        """Raises Unavailable if `decided` and a transaction is open in its topic."""
        if self.position_topic not in self.topics.ids([self.position_topic]):
            return None
        state = self.topics.when_decided(self.position_topic)
        if decided and not is_decided(state):
            raise Unavailable(
                f"a transaction that is not of this sink is open in the topic {self.position_topic!r}",
                where=self.options.where,
                fix="let nothing else write to it, and try again",
            )
        newest = self.topics.newest(self.position_topic, state)
        if newest is None:
            return None
        if newest.key() != self.id.encode():
            raise DeclarationError(
                f"the topic {self.position_topic!r} has records of others",
                where=self.options.where,
                fix="it must be the sink's own: let the sink have another id",
            )
        text = (newest.value() or b"").decode(errors="replace")
        return StoredPosition.from_json(text, self.position_topic, self.options.where)

    def deliver(self, delivery: SinkDelivery) -> SinkPosition:
        targets = self._prepared(delivery)
        record_bytes = {name: topic.record_bytes for name, topic in targets.items()}
        with KafkaTransaction(self.topics, self.id, self.transaction_seconds, record_bytes) as transaction:
            stored = self._stored(decided=True)
            delivery.check_position(self._current(stored) if stored else None)
            if not delivery.anew:
                self._check_no_other_records(delivery, stored)
            for changes in delivery.tables:
                _TableSender(self.topics, transaction, changes, delivery).send()
            position = delivery.position()
            tables = [changes.table for changes in delivery.tables]
            topics = {table.name: (table.far, targets[table.far].id, targets[table.far].partitions) for table in tables}
            self._send_position(transaction, StoredPosition(self.topics.id, topics, position))
        self.topics.when_decided(self.position_topic)
        return position

    def _prepared(self, delivery: SinkDelivery) -> dict[str, TargetTopic]:
        wanted = [TopicSpec(self.position_topic, COMPACT_POLICY)]
        for changes in delivery.tables:
            table = changes.table
            policy = DELETE_POLICY if table.mode == "append" else COMPACT_POLICY
            wanted.append(TopicSpec(table.far, policy, table.options["partitions"]))
        targets = self.topics.prepare(wanted, create=self.create, replication=self.replication)
        stored = self._stored()
        for topic, id, partitions in stored.topics.values() if stored else ():
            target = targets.get(topic)
            if target and target.id == id and target.partitions != partitions:
                raise DeclarationError(
                    f"the topic {topic!r} has {target.partitions} partitions, and had {partitions}: the same key now"
                    " belongs to another partition",
                    where=self.options.where,
                    fix="delete it, or name another: the next delivery sends all rows",
                )
        return targets

    def _check_no_other_records(self, delivery: SinkDelivery, stored: StoredPosition | None) -> None:
        own = {topic for topic, *_ in stored.topics.values()} if stored else set()
        for topic in (changes.table.far for changes in delivery.tables):
            if topic not in own and self.topics.has_records(topic):
                raise DeclarationError(
                    f"the topic {topic!r} has records already, and not of this sink",
                    where=self.options.where,
                    fix=f"give its table another `name`; or lake deliver {delivery.sink} --resync sends all rows to it"
                    " and, unless it appends, removes other keys",
                )

    def _send_position(self, transaction: KafkaTransaction, stored: StoredPosition) -> None:
        key, value = self.id.encode(), stored.to_json().encode()
        if not transaction.fits(self.position_topic, key, value, []):
            raise LakeError(
                f"the position has {len(value):,} bytes, more than the topic {self.position_topic!r} takes",
                where=self.options.where,
                fix="raise its max.message.bytes; or have fewer rejected rows",
            )
        transaction.send(self.position_topic, key, value, [], partition=0)

    def rows(self, table: TargetTable) -> pa.RecordBatchReader:
        return named_rows(table, self._rows(table))

    def _rows(self, table: TargetTable) -> Iterator[list[tuple[None, str]]]:
        with self.topics.latest(table.far) as con:
            rows = con.execute("SELECT value FROM latest")
            while batch := rows.fetchmany(BATCH):
                yield [(None, value.decode()) for (value,) in batch]


class _TableSender:
    def __init__(
        self, topics: Topics, transaction: KafkaTransaction, changes: TableChanges, delivery: SinkDelivery
    ) -> None:
        self.topics, self.transaction, self.changes, self.table = topics, transaction, changes, changes.table
        at = [("edition", str(delivery.edition).encode()), ("cut", str(delivery.cut).encode())]
        self.headers: dict[str, Headers] = {change: [("change", change.encode()), *at] for change in CHANGES}

    def send(self) -> None:
        if not self.changes.whole or self.table.mode == "append":
            self._rows(None)
            return
        with self.topics.latest(self.table.far) as con:
            con.execute("CREATE TABLE sent (key BLOB)")
            self._rows(con)
            deleted = con.execute("SELECT key FROM latest EXCEPT SELECT key FROM sent ORDER BY key")
            while batch := deleted.fetchmany(BATCH):
                for (key,) in batch:
                    self.transaction.send(self.table.far, key, None, self.headers["delete"])

    def _rows(self, con: duckdb.DuckDBPyConnection | None) -> None:
        for batch in json_rows(self.changes):
            columns = [batch.column(name).to_pylist() for name in ("change", "key", "before", "after")]
            sent = [row[1].encode() for row in zip(*columns, strict=True) if self._row(*row)]
            if con is not None and sent:
                con.from_arrow(pa.table({"key": pa.array(sent, pa.binary())})).insert_into("sent")

    def _row(self, change: str, key: str, before: str | None, after: str | None) -> bool:
        if change == "delete" and self.table.mode == "upsert":
            return True
        text = f'{{"before": {before or "null"}, "after": {after or "null"}}}' if self.table.mode == "append" else after
        far, name, value = self.table.far, key.encode(), None if text is None else text.encode()
        if self.transaction.fits(far, name, value, self.headers[change]):
            self.transaction.send(far, name, value, self.headers[change])
            return True
        size = len(name) + len(value or b"")
        self.changes.reject(key, f"a record of {size:,} bytes, more than the topic takes")
        may_be_in_topic = change == "update" or (self.table.mode == "upsert" and not self.changes.whole)
        if may_be_in_topic and self.table.mode != "append" and self.transaction.fits(far, name, None, []):
            self.transaction.send(far, name, None, self.headers["delete"])
        return False


OPTIONS: Final[OptionTable] = {
    "bootstrap": (str, None),
    "id": (str, ""),
    "create": (bool, True),
    "replication": (int, -1),
    "seconds": (int, 30),
    "transaction_seconds": (int, 900),
    "client": (dict, {}),
}
SINK_RESERVED_SETTINGS: Final[Mapping[str, str]] = {
    **{name: fix for name, fix in RESERVED_SETTINGS.items() if name != "group.id"},
    "group.id": "leave it out: no group is needed",
    "transactional.id": "use id",
    "transaction.timeout.ms": "use transaction_seconds",
    "message.timeout.ms": "use seconds",
    "enable.idempotence": "leave it out: it is switched on",
    "acks": "leave it out: all replicas have to have a record",
    "partitioner": "leave it out: rows go to the partitions that Java's clients choose for their keys",
    "batch.size": "leave it out: it follows from max.message.bytes of the topics",
    "message.max.bytes": "leave it out: it follows from max.message.bytes of the topics",
}


def _open(declaration: SinkDeclaration) -> Target:
    name, options, where = declaration.name, declaration.options, declaration.where
    DeclarationError.raise_any(faults_of_settings("client", options["client"], SINK_RESERVED_SETTINGS), where)
    client = {setting: as_text(value) for setting, value in options["client"].items()}
    group = options["id"] or f"headwater-{name}"
    cluster = KafkaOptions(
        name, where, options["bootstrap"], (), group=group, seconds=options["seconds"], client=client
    )
    return KafkaTarget(
        cluster, options["transaction_seconds"], create=options["create"], replication=options["replication"]
    )


KIND: Final = SinkKind(
    _open,
    modes=("mirror", "upsert", "append"),
    loose=("append",),
    options=OPTIONS,
    table_options={"partitions": (int, 1)},
    keeps="records of before stay in its topics until these are compacted, and those of mode append as retained",
)
