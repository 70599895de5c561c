"""Kafka as a source: topics, each read into a stream. Options and facts of records: docs/how-to/kafka.md.

Progress is `{"cluster", "topics": {topic: {"id", "ranges": {partition: [first, end]}}}}`; for `era`, `generation` and
`barriers` see `ranges`. Markers and records of aborted transactions are skipped. Records of an open transaction, and
all after it, are not read yet (isolation level read_committed).

Order is that of offsets within a partition. `kafka.offset` is raised by 2^48 for each generation. A null value is a
control message if the envelope is Debezium's; `{}` if a field is from `kafka.tombstone`; else the record is rejected.
"""

from __future__ import annotations

from lake.sources.source import Source, SourceDeclaration, SourceKind


def _open(declaration: SourceDeclaration) -> Source:
    from lake.connect.kafka.source.options import options_of
    from lake.connect.kafka.source.reader import KafkaSource

    return KafkaSource(options_of(declaration.name, declaration.values, declaration.contracts, declaration.where))


KIND = SourceKind(_open, transactional=False)
