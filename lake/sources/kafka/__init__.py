"""Kafka: topics, each the log of a stream.

    kind = "kafka"
    bootstrap = "broker-1:9092,broker-2:9092"     or "env:NAME"
    group = "headwater"            where its offsets are written after each commit, for tools that show lag
    records = 1000000              the most of one delivery, in offsets
    bytes = 268435456              the most of one delivery, about, in bytes of values
    seconds = 30                   how long nothing may come of a broker, or a registry, before it is unavailable

    [streams.flights]
    topic = "flights"
    value = "json"                 or "avro": what its values are
    key = "text"                   or "json", "avro", "base64": what its keys are

    [client]                       settings of librdkafka; a secret is "env:NAME"
    "security.protocol" = "SASL_SSL"
    "sasl.password" = "env:KAFKA_PASSWORD"

    [registry]                     settings of the schema registry's client, where values or keys are Avro
    url = "https://registry:8081"

**Progress** is `{"cluster", "topics": {topic: {"id", "ranges": {partition: [first, end]}}}}`: the offsets that a
delivery took are those from `first` on, before `end`; see `lake.sources.kafka.ranges` for `era`, `generation` and
`barriers` of a topic. Records of aborted transactions and markers lie between them and
are not delivered; records of an open transaction, and all behind it, are not read yet (isolation level read_committed).

**Order** is that of offsets within a partition. A delivery has the partitions of a topic one after another, each as
far as its share of the delivery goes. `kafka.offset` is raised by 2^48 for each generation.

**Facts** of a record, for fields with `"from"`: `kafka.key`, `kafka.key.NAME` of a key that is an object,
`kafka.headers.NAME` (the last of that name), `kafka.timestamp` (ISO 8601, UTC, milliseconds), `kafka.topic`,
`kafka.partition`, `kafka.offset`, `kafka.tombstone` ("true" where the value is null). Only those that a contract takes
are kept.

**A null value** is what the contract says it is: a control message where the envelope is Debezium's; an event without
fields of its own, `{}`, where a field is from `kafka.tombstone`; else a record that is refused.
"""

from lake.sources.kafka.reader import of

__all__ = ["of"]
