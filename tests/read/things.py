"""Table published repeatedly without Spark, in every way that an edition is made."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import arro3.core
from deltalake import DeltaTable

from lake.config import Settings
from lake.read.sql import reader
from lake.store import delta, duckdb_tables
from lake.store.ledger import consumers, editions
from lake.store.proof.fingerprints import of_arrow
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.warehouse import Warehouse
from tests.warehouse import commit

NAME: Final = "thing"
VALUES: Final = {
    "amount": "(n / 4)::DECIMAL(12, 2)",
    "ratio": "CASE n % 5 WHEN 0 THEN 'nan'::DOUBLE WHEN 1 THEN -0.1::DOUBLE ELSE n / 8::DOUBLE END",
    "word": "nullif('w' || n % 3, 'w0')",
    "part": "CASE WHEN n % 4 > 0 THEN {'size': nullif(n % 4, 2), 'of': ['a', nullif('b' || n % 2, 'b1')]} END",
    "at": "TIMESTAMPTZ '2024-03-30 09:12Z' + to_days(n % 3)",
}


def query(rows: Mapping[int | None, int], more: bool = False) -> str:
    """Return SQL of rows {key: number for the other values}, with a state column and one public column if `more`."""
    pairs = ", ".join(f"({'NULL' if key is None else key}, {n})" for key, n in rows.items())
    values = ", ".join(f"{sql} AS {name}" for name, sql in VALUES.items())
    extra = ", (n % 2)::INTEGER AS more" if more else ""
    listed = f"(VALUES {pairs}) t(k, n)" if rows else "(SELECT 0 AS k, 0 AS n) WHERE false"
    return f"SELECT k::BIGINT AS k, {values}{extra}, (n % 7)::BIGINT AS _state FROM {listed}"


@dataclass
class Things:
    """The rows of the table, and the path of its newest version."""

    settings: Settings
    rows: dict[int | None, int] = field(default_factory=dict)
    home: str = NAME
    more: bool = False
    cut: int = 0
    homes: int = 0

    @property
    def path(self) -> Address:
        return Warehouse(self.settings).table("silver", self.home).path

    def write(self, *, anew: bool = True) -> int:
        """Write all rows `anew`, or those that differ. Return the version."""
        rows = query(self.rows, self.more)
        if anew or not delta.exists(self.path):
            feed = {"delta.enableChangeDataFeed": "true"}
            commit(self.path, rows, mode="overwrite", schema_mode="overwrite", configuration=feed)
            return delta.version(self.path)
        with duckdb_tables.connection() as con:
            source = arro3.core.Table.from_arrow(con.sql(rows))
        same = " AND ".join(f"(t.{name} IS NOT DISTINCT FROM s.{name})" for name in ("word", "amount", "at"))
        merge = DeltaTable(str(self.path)).merge(source, "t.k IS NOT DISTINCT FROM s.k", "s", "t")
        merge = merge.when_matched_update_all(f"NOT ({same})").when_not_matched_insert_all()
        merge.when_not_matched_by_source_delete().execute()
        return delta.version(self.path)

    def publish(self, *, without: bool = False, anew: bool = True) -> editions.Edition:
        """Publish the next edition: of all rows written `anew`, of rows that differ, or without the table."""
        self.cut += 1
        version = self.write(anew=anew)
        content = of_arrow(Scan(self.path, version).arrow())
        entry = editions.EditionTable(
            "silver", f"silver/{self.home}", version, "f", content.rows, str(content), identity=["k"]
        )
        other = editions.EditionTable("silver", "silver/other", self.cut, "f")
        tables = {"other": other} if without else {"other": other, NAME: entry}
        return editions.record_edition(self.settings, self.cut, tables)

    def change(self, rows: Mapping[int | None, int]) -> editions.Edition:
        """Publish the next edition, of other rows."""
        self.rows = dict(rows)
        return self.publish(anew=False)

    def deploy(self) -> editions.Edition:
        """Publish the next edition, built elsewhere by a definition with another column."""
        self.homes += 1
        self.home, self.more = f"{NAME}@{self.homes}", not self.more
        return self.publish()

    def settle(self) -> editions.Edition:
        """Publish the next edition, of the same rows at the table's own path."""
        self.home = f"{NAME}_with_more" if self.more else NAME
        return self.publish()

    def step(self, chance: random.Random) -> None:
        """Do one random step."""
        match chance.randrange(9):
            case 0 | 1 | 2:
                self.advance(chance)
            case 3:
                self.publish()
            case 4:
                self.publish(without=True)
            case 5:
                self.deploy()
            case 6:
                self.settle()
            case 7:
                self.pin(chance)
            case 8:
                self.expire()

    def advance(self, chance: random.Random) -> None:
        """Insert, change and delete some rows."""
        rows = {**self.rows, **{self.key(chance): chance.randrange(20) for _ in range(3)}}
        rows.pop(self.key(chance), None)
        self.change(rows)

    def key(self, chance: random.Random) -> int | None:
        keys: list[int | None] = [None, *range(8)]
        return chance.choice(keys)

    def pin(self, chance: random.Random) -> None:
        """Pin readers to an old edition, or resume."""
        kept = editions.kept_editions(self.settings)
        if editions.pinned(self.settings) is None and kept:
            editions.pin_edition(self.settings, chance.choice(kept).number)
        else:
            editions.resume_editions(self.settings)

    def expire(self) -> None:
        """Expire editions that no consumer needs, as lake maintain does."""
        with consumers.needed_editions(self.settings) as held:
            old = {edition.number for edition in editions.kept_editions(self.settings)} - held
            editions.expire_editions(self.settings, old)

    def as_of(self, edition: int) -> dict[Any, dict[str, Any]]:
        """Return the rows of an edition by key."""
        read = reader(self.settings, edition)
        if NAME not in read.edition.tables:
            return {}
        return {row["k"]: row for row in read.relation(f"from {NAME}").to_arrow_table().to_pylist()}
