"""PostgreSQL as a source, by logical replication."""

from __future__ import annotations

from lake.sources.source import Source, SourceDeclaration, SourceKind


def _open(declaration: SourceDeclaration) -> Source:
    from lake.connect.postgres.source.options import postgres_options
    from lake.connect.postgres.source.reader import PostgresSource

    return PostgresSource(
        postgres_options(declaration.name, declaration.values, declaration.contracts, declaration.where)
    )


KIND = SourceKind(_open, members=("slot", "to"))
