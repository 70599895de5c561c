"""Kafka as a target: a topic for each table, and one with the sink's position.

    kind = "kafka"
    bootstrap = "broker-1:9092,broker-2:9092"     or "env:NAME"
    id = "shop-crm"                tells the sink from all others of the cluster; default: headwater-<sink>
    create = true                  topics that are missing are made; false: they are demanded
    replication = -1               replicas of topics that are made; -1 is the cluster's default
    seconds = 30                   how long nothing may come of a broker before it is unavailable
    transaction_seconds = 900      the longest a delivery may take; the cluster's transaction.max.timeout.ms bounds it

    [client]                       settings of librdkafka; a secret is "env:NAME"
    "security.protocol" = "SASL_SSL"

    [tables.customer_daily]
    name = "shop.customer_daily"   the topic
    partitions = 3                 of a topic that is made

**A record** has the row's identity as JSON for its key, the row as JSON for its value, and the headers `change`
(insert, update, delete), `edition` and `cut`. A row that goes is a null value, a tombstone, so the topic, compacted, is
the table. Of mode upsert a row that goes stays. Of mode append a value is `{"before", "after"}`, and nothing goes.

**One transaction** has the rows of all tables of an edition, and the position: a record in the compacted topic
`<id>-position`. Who reads with isolation level read_committed sees the edition whole, or not yet. `<id>` is the
transactional id too, so that of two deliverers the earlier is fenced off, and what a dead one has left is aborted,
before the position is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lake.errors import DeclarationError
from lake.sinks.kafka.target import Kafka
from lake.sinks.sink import Mode, Target
from lake.sources.kafka.options import OURS, Options, as_text, faults_of_settings

MODES: Final[tuple[Mode, ...]] = ("mirror", "upsert", "append")
LOOSE: Final[tuple[Mode, ...]] = ("append",)
OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {
    "bootstrap": (str, None),
    "id": (str, ""),
    "create": (bool, True),
    "replication": (int, -1),
    "seconds": (int, 30),
    "transaction_seconds": (int, 900),
    "client": (dict, {}),
}
KEEPS: Final = "records of before stay in its topics until these are compacted, and those of mode append as retained"
TABLE_OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {"partitions": (int, 1)}
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
"""Settings of librdkafka on which a delivery stands."""


def of(name: str, options: Mapping[str, Any], where: str) -> Target:
    """The target of a sink. Raises DeclarationError that tells all faults."""
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
    cluster = Options(name, where, options["bootstrap"], (), group=known, seconds=options["seconds"], client=client)
    return Kafka(cluster, options["transaction_seconds"], create=options["create"], replication=options["replication"])
