"""PostgreSQL as a source, by logical replication."""

from __future__ import annotations

from lake.sources.source import Source, SourceDeclaration, SourceKind


def _open(declaration: SourceDeclaration) -> Source:
    import psycopg  # noqa: F401  a missing extra is reported when the source is declared, not when it is read

    from lake.connect.postgres.source.options import read_options
    from lake.connect.postgres.source.reader import PostgresSource

    return PostgresSource(read_options(declaration.name, declaration.values, declaration.contracts, declaration.where))


KIND = SourceKind(_open)
