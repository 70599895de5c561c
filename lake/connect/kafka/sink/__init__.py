"""Kafka as a target: a topic for each table, and one for the sink's position. Options: docs/how-to/sink-kafka.md.

Key and value are the row's identity and the row as JSON; headers are `change`, `edition` and `cut`. A deleted row is a
tombstone. In mode append the value is `{"before", "after"}`.

One transaction has all rows of an edition, and the position, in the compacted topic `<id>-position`. `<id>` is also the
transactional id: a second deliverer fences off the first, and an abandoned transaction is aborted before the position
is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lake.connect.kafka.sink.target import KafkaTarget
from lake.connect.kafka.source.options import OURS, KafkaOptions, as_text, faults_of_settings
from lake.errors import DeclarationError
from lake.sinks.kind import OptionTable, SinkDeclaration, SinkKind
from lake.sinks.sink import Target

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
    faults = [
        DeclarationError(what, where=where, fix=fix)
        for what, fix in faults_of_settings("client", options["client"], SET_HERE)
    ]
    for option in ("seconds", "transaction_seconds"):
        if options[option] < 1:
            fix = f"its default is {OPTIONS[option][1]}"
            faults.append(
                DeclarationError(f"{option} must be at least 1, found {options[option]}", where=where, fix=fix)
            )
    if faults:
        raise DeclarationError.all(faults)
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
