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
    COMPACTED,
    KEPT,
    Headers,
    KafkaTransaction,
    TargetTopic,
    Topics,
    TopicSpec,
    is_decided,
)
from lake.connect.kafka.source.options import OURS, KafkaOptions, as_text, faults_of_settings
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.sinks.json_rows import json_rows, named_rows
from lake.sinks.kind import OptionTable, SinkDeclaration, SinkKind
from lake.sinks.sink import CHANGES, SinkDelivery, SinkPosition, TableChanges, Target, TargetTable, UnreadablePosition

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

GONE: Final = ""
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
    def place(self) -> str:
        return f"{self.id}-position"

    def close(self) -> None:
        if "topics" in self.__dict__:
            self.topics.close()

    def position(self) -> SinkPosition | None:
        """A table whose topic was removed or recreated has the shape GONE."""
        stored = self._stored()
        if stored is None:
            return None
        found = self._found(stored)
        for name, (topic, *_) in stored.topics.items():
            if found.tables[name] != stored.position.tables[name]:
                which = (
                    f"the topic {topic!r} is not the one that was filled: it is gone, recreated or of another cluster"
                )
                logging.getLogger("lake").warning("%s: %s", self.options.name, which)
        return found

    def _found(self, stored: StoredPosition) -> SinkPosition:
        cluster = self.topics.id
        there = self.topics.ids(topic for topic, *_ in stored.topics.values())
        tables = dict(stored.position.tables)
        for name, (topic, id, _) in stored.topics.items():
            if (cluster, there.get(topic, ("",))[0]) != (stored.cluster, id):
                tables[name] = GONE, tables[name][1]
        return replace(stored.position, tables=tables)

    def _stored(self, *, decided: bool = False) -> StoredPosition | None:
        """Raises Unavailable if `decided` and a transaction is open in its topic."""
        if self.place not in self.topics.ids([self.place]):
            return None
        here = self.topics.when_decided(self.place)
        if decided and not is_decided(here):
            raise Unavailable(
                f"a transaction that is not of this sink is open in the topic {self.place!r}",
                where=self.options.where,
                fix="let nothing else write to it, and try again",
            )
        newest = self.topics.newest(self.place, here)
        if newest is None:
            return None
        if newest.key() != self.id.encode():
            raise DeclarationError(
                f"the topic {self.place!r} has records of others",
                where=self.options.where,
                fix="it must be the sink's own: let the sink have another id",
            )
        text = (newest.value() or b"").decode(errors="replace")
        return StoredPosition.from_json(text, self.place, self.options.where)

    def deliver(self, delivery: SinkDelivery) -> SinkPosition:
        there = self._prepared(delivery)
        most = {name: topic.most for name, topic in there.items()}
        with KafkaTransaction(self.topics, self.id, self.transaction_seconds, most) as transaction:
            stored = self._stored(decided=True)
            delivery.check_position(self._found(stored) if stored else None)
            if not delivery.anew:
                self._check_own(delivery, stored)
            for changes in delivery.tables:
                _TableSender(self.topics, transaction, changes, delivery).send()
            position = delivery.position()
            tables = [changes.table for changes in delivery.tables]
            topics = {table.name: (table.far, there[table.far].id, there[table.far].partitions) for table in tables}
            self._send_position(transaction, StoredPosition(self.topics.id, topics, position))
        self.topics.when_decided(self.place)
        return position

    def _prepared(self, delivery: SinkDelivery) -> dict[str, TargetTopic]:
        wanted = [TopicSpec(self.place, COMPACTED)]
        for changes in delivery.tables:
            table = changes.table
            policy = KEPT if table.mode == "append" else COMPACTED
            wanted.append(TopicSpec(table.far, policy, table.options["partitions"]))
        there = self.topics.prepare(wanted, create=self.create, replication=self.replication)
        stored = self._stored()
        for topic, id, partitions in stored.topics.values() if stored else ():
            if topic in there and there[topic].id == id and there[topic].partitions != partitions:
                raise DeclarationError(
                    f"the topic {topic!r} has {there[topic].partitions} partitions now, and had {partitions}: the"
                    " keys of the rows that it has lie in others now",
                    where=self.options.where,
                    fix="delete it, or name another: the next delivery fills it anew",
                )
        return there

    def _check_own(self, delivery: SinkDelivery, stored: StoredPosition | None) -> None:
        """Raise DeclarationError for a topic with records that this sink did not send."""
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
        if not transaction.takes(self.place, key, value, []):
            raise LakeError(
                f"the position has {len(value):,} bytes, more than the topic {self.place!r} takes",
                where=self.options.where,
                fix="raise its max.message.bytes; or have fewer rows that are not taken",
            )
        transaction.send(self.place, key, value, [], partition=0)

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
            gone = con.execute("SELECT key FROM latest EXCEPT SELECT key FROM sent ORDER BY key")
            while batch := gone.fetchmany(BATCH):
                for (key,) in batch:
                    self.transaction.send(self.table.far, key, None, self.headers["delete"])

    def _rows(self, con: duckdb.DuckDBPyConnection | None) -> None:
        import pyarrow as pa

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
        if self.transaction.takes(far, name, value, self.headers[change]):
            self.transaction.send(far, name, value, self.headers[change])
            return True
        size = len(name) + len(value or b"")
        self.changes.reject(key, f"a record of {size:,} bytes, more than the topic takes")
        may_be_there = change == "update" or (self.table.mode == "upsert" and not self.changes.whole)
        if may_be_there and self.table.mode != "append" and self.transaction.takes(far, name, None, []):
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
SET_HERE: Final[Mapping[str, str]] = {
    **{name: fix for name, fix in OURS.items() if name != "group.id"},
    "group.id": "leave it out: no group is needed",
    "transactional.id": "use id",
    "transaction.timeout.ms": "use transaction_seconds",
    "message.timeout.ms": "use seconds",
    "enable.idempotence": "leave it out: it is switched on",
    "acks": "leave it out: all replicas have to have a record",
    "partitioner": "leave it out: rows go to the partitions that Java's clients choose for their keys",
    "batch.size": "leave it out: it goes by what the topics take",
    "message.max.bytes": "leave it out: it goes by what the topics take",
}
"""Settings of librdkafka that a delivery depends on."""


def _open(declaration: SinkDeclaration) -> Target:
    name, options, where = declaration.name, declaration.options, declaration.where
    DeclarationError.raise_any(faults_of_settings("client", options["client"], SET_HERE), where)
    client = {setting: as_text(value) for setting, value in options["client"].items()}
    known = options["id"] or f"headwater-{name}"
    cluster = KafkaOptions(
        name, where, options["bootstrap"], (), group=known, seconds=options["seconds"], client=client
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
