"""PostgreSQL as a source, by logical replication."""

from __future__ import annotations

from lake.sources.source import Source, SourceDeclaration, SourceKind


def _open(declaration: SourceDeclaration) -> Source:
    from lake.connect.postgres.source.options import read_options
    from lake.connect.postgres.source.reader import PostgresSource

    return PostgresSource(read_options(declaration.name, declaration.values, declaration.contracts, declaration.where))


KIND = SourceKind(_open)
