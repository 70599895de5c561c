"""What a deploy tells. No JVM: its builds are tried beside the fixtures and in tests/crash."""

from __future__ import annotations

from datetime import UTC, datetime

from lake.publish.deploy import moves
from lake.store.ledger.editions import Edition, EditionTable


def test_tables_that_have_moved_are_told_with_both_paths() -> None:
    paths = {"stayed": "gold/stayed", "new": "gold/new", "moved": "gold/moved@c9", "again": "silver/again@d0"}
    tables = {name: EditionTable(path.partition("/")[0], path, 1, "f") for name, path in paths.items()}
    edition = Edition(2, 1, tables, datetime(2024, 1, 1, tzinfo=UTC))
    told = [*moves(edition, {"stayed": "stayed", "moved": "moved", "again": "again@c8", "gone": "gone"})]
    assert told == [
        "gold.moved has moved: whoever reads it by its path reads gold/moved@c9 from now on;"
        " gold/moved keeps the rows of earlier editions",
        "silver.again has moved: whoever reads it by its path reads silver/again@d0 from now on;"
        " silver/again@c8 keeps the rows of earlier editions",
    ]
    assert [*moves(edition, {})] == []
