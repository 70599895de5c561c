"""Kafka as a source: topics, each read into a stream. Options and facts of records: docs/how-to/kafka.md.

Progress is `{"cluster", "topics": {topic: {"id", "ranges": {partition: [first, end]}}}}`; for `era`, `generation` and
`barriers` see `ranges`. Records of an open transaction, and all after it, are not read yet (isolation level
read_committed). A null value is a control message if the envelope is Debezium's; `{}` if a field is from
`kafka.tombstone`; else the record is rejected.
"""

from __future__ import annotations

from typing import Final

from lake.sources.source import Source, SourceDeclaration, SourceFact, SourceKind

FACTS: Final = (
    SourceFact("kafka.key", "string", "the key, as the option `key` decodes it"),
    SourceFact("kafka.key.NAME", "string", "a field of a key that is an object"),
    SourceFact("kafka.headers.NAME", "string", "a header; the last of that name"),
    SourceFact("kafka.timestamp", "timestamp-millis", "when it was created or appended, as the topic is set"),
    SourceFact("kafka.topic", "string", "its topic"),
    SourceFact("kafka.partition", "int", "its partition"),
    SourceFact("kafka.offset", "long", "its offset, raised for each time that the topic was recreated or extended"),
    SourceFact("kafka.tombstone", "boolean", "whether the value is null"),
)


def _open(declaration: SourceDeclaration) -> Source:
    from lake.connect.kafka.source.options import options_of
    from lake.connect.kafka.source.reader import KafkaSource

    return KafkaSource(options_of(declaration.name, declaration.values, declaration.contracts, declaration.where))


KIND = SourceKind(_open, transactional=False, facts=FACTS, members=("cluster", "topics"))
