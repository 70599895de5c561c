"""Derived tables: read at a version, changed by one commit that carries rows and position together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from deltalake import Field, Schema

from lake.config import Settings
from lake.quoting import SPARK, quoted
from lake.session import raise_if_gone
from lake.store import delta, duckdb_tables
from lake.store.delta import Position
from lake.store.feed import SIGNED, feed
from lake.store.keys import open_store
from lake.store.proof.fingerprints import Fingerprint, of_version
from lake.store.scan import Scan, arrow_schema, distinct, to_frame
from lake.store.storage import Address
from lake.store.table_head import COMMENT, UNIT, Meanings, TableHead
from lake.store.warehouse import Location, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class FeedGap(Exception):
    """The change feed does not cover what was asked of it."""


def heads(at: Location) -> Iterator[TableHead]:
    """What the commits of the derived table there say of it, the newest first."""
    return map(TableHead.of, delta.positions(at.path, at.app))


@dataclass(frozen=True)
class Table:
    """One derived table of a project; it may not exist yet.

    `home` is the folder of its Delta table within its layer: its name, until a changed definition was built beside it.
    `personal` says that it is derived from what is personal: no copy of its rows is kept elsewhere.
    """

    settings: Settings
    layer: str
    name: str
    home: str
    personal: bool = False

    @property
    def location(self) -> Location:
        return Warehouse(self.settings).table(self.layer, self.home)

    @property
    def path(self) -> Address:
        return self.location.path

    @property
    def app(self) -> str:
        """The app id under which its commits are numbered."""
        return self.location.app

    @property
    def lease(self) -> str:
        """The name under which one writer at a time holds the table."""
        return self.location.lease

    @property
    def content_key(self) -> str:
        """What the fingerprints of its rows are keyed by: nothing, unless they are derived from what is personal.

        Raises DeclarationError where the key store cannot be read.
        """
        return open_store(self.settings).derived("content") if self.personal else ""

    def content(self, version: int) -> Fingerprint:
        """The fingerprint of all rows at `version`, found by reading them. Raises as `content_key` does."""
        return of_version(self.path, version, self.content_key)

    def exists(self) -> bool:
        return delta.exists(self.path)

    def version(self) -> int:
        """The newest Delta version, whoever committed it."""
        with delta.opened(self.path) as table:
            return table.version()

    def position(self) -> Position | None:
        """Where the table stands; None before it was built."""
        return delta.head(self.path, self.app)

    def standing(self) -> Position:
        """What the next commit follows: its position, or what is before the first one."""
        return delta.standing(self.path, self.app)

    def heads(self) -> Iterator[TableHead]:
        """What its commits say of it, the newest first."""
        return heads(self.location)

    def head(self) -> TableHead | None:
        """What its newest commit says of it; None before it was built."""
        return next(self.heads(), None)

    def head_at(self, cut: int) -> TableHead | None:
        """The newest head at exactly `cut`."""
        later = takewhile(lambda head: head.cut >= cut, self.heads())
        return next((head for head in later if head.cut == cut), None)

    def stored(self, version: int) -> int:
        """The newest version that has the rows of `version`: that of a compaction, where there was one since."""
        later = takewhile(lambda p: p.origin >= version, delta.positions(self.path, self.app))
        return max((p.version for p in later if p.origin == version), default=version)

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """All rows at `version`, state columns included."""
        return Scan(self.path, version).frame(spark)

    def schema(self) -> pa.Schema:
        """The columns of the newest version as Arrow types."""
        return Scan(self.path).schema()

    def columns(self, version: int | None = None) -> dict[str, str]:
        """The columns that readers see at `version`, or the newest, each with what Delta calls its type."""
        with delta.opened(self.path, version) as table:
            fields = json.loads(table.schema().to_json())["fields"]
        types = {column["name"]: column["type"] for column in fields if not column["name"].startswith("_")}
        return {name: type_ if isinstance(type_, str) else json.dumps(type_) for name, type_ in types.items()}

    def meanings(self, version: int) -> Meanings:
        """What is said of its columns at `version`."""
        with delta.opened(self.path, version) as table:
            fields = json.loads(table.schema().to_json())["fields"]
        metadata = {field["name"]: field["metadata"] for field in fields}
        return {name: {key: meant[key] for key in (COMMENT, UNIT) if key in meant} for name, meant in metadata.items()}

    def rows(self, version: int) -> int:
        """How many rows there are at `version`."""
        return Scan(self.path, version).rows()

    def rows_of(self, keys: pa.Table, version: int, *, limit: int | None = None) -> pa.Table:
        """The rows at `version` whose key columns equal one of `keys`, nulls included; at most `limit` of them."""
        return Scan(self.path, version).arrow(keys=keys, limit=limit)

    def keys_where(
        self, key: Sequence[str], others: pa.Table, condition: str, version: int, *, limit: int
    ) -> pa.Table | None:
        """The `key` of the rows `t` at `version` for which one of `others`, `k`, meets a SQL `condition`; distinct.

        None where it is that of more than `limit` rows.
        """
        keys = Scan(self.path, version).arrow(key, keys=others, match=condition, limit=limit + 1)
        return distinct(keys) if keys.num_rows <= limit else None

    def rows_where(self, condition: str, version: int, *, without: pa.Table | None, limit: int) -> pa.Table:
        """The rows at `version` that meet a SQL `condition`, but those that equal one of the keys `without`; at most
        `limit` of them.
        """
        return Scan(self.path, version).arrow(where=condition, keys=without, matching=False, limit=limit)

    def changed(self, *, after: int, upto: int) -> int:
        """How many rows its commits between two versions changed, at most. Raises FeedGap where they are gone."""
        between = takewhile(lambda head: head.version > after, self.heads())
        heads = [head for head in between if head.version <= upto and not head.changed_nothing]
        # Spark does not say how many rows it wrote where it wrote all of them.
        unsaid = [head.version for head in heads if not head.counts.total]
        try:
            whole = [version for version in unsaid if delta.has_rows(self.path, version)]
            return sum(head.counts.total for head in heads) + sum(
                self.rows(version) + self.rows(max(version - 1, 0)) for version in whole
            )
        except (delta.Unreadable, OSError) as error:
            raise FeedGap(self.name) from error

    def changes(self, spark: SparkSession, *, after: int, upto: int) -> DataFrame:
        """What became of the rows between two versions, netted: the visible columns and `_sign` (+1 new, -1 gone).

        In this process where its commits changed no more than `small_diff_rows`, else by Spark. Raises FeedGap where
        the feed does not reach back that far, or not across a change of columns.
        """
        import pyarrow as pa

        if self.changed(after=after, upto=upto) > self.settings.small_diff_rows:
            return self._changes_by_spark(spark, after, upto)
        with delta.opened(self.path, upto) as table, duckdb_tables.connection() as con:
            visible = [field for field in arrow_schema(table) if not field.name.startswith("_")]
            columns = ", ".join(quoted(field.name) for field in visible)
            try:
                rows = feed(con, self.path, table, after=after, upto=upto)
                netted = con.sql(
                    f"SELECT {columns}, sum({SIGNED})::INTEGER AS _sign FROM ({rows})"
                    f" GROUP BY ALL HAVING sum({SIGNED}) <> 0"
                ).to_arrow_table()
            except Exception as error:
                raise FeedGap(self.name) from error
        return to_frame(spark, netted.cast(pa.schema([*visible, pa.field("_sign", pa.int32())])))

    def _changes_by_spark(self, spark: SparkSession, after: int, upto: int) -> DataFrame:
        """As `changes`. That a file of the feed is gone, which Spark finds when it reads, is looked for now."""
        from pyspark.sql import functions as F

        try:
            told = (delta.actions(self.path, version) for version in range(after + 1, upto + 1))
            files = (file for actions in told for _, file in delta.feed_files(self.path, actions))
            if delta.missing(self.path, list(map(str, files))):
                raise FeedGap(self.name)
            reader = spark.read.format("delta").option("readChangeFeed", "true")
            rows = reader.options(startingVersion=after + 1, endingVersion=upto).load(self.path.spark)
            columns = [F.col(quoted(name, SPARK)) for name in rows.columns if not name.startswith("_")]
        except Exception as error:
            raise_if_gone(error)
            raise FeedGap(self.name) from error
        netted = rows.groupBy(*columns).agg(F.expr(f"cast(sum({SIGNED}) AS int)").alias("_sign"))
        return netted.where("_sign <> 0")

    def create(self, schema: pa.Schema, *, description: str) -> None:
        """Makes the empty table. Its protocol is one that every Delta reader understands."""
        fields = [Field(f.name, f.type, nullable=True) for f in Schema.from_arrow(schema).fields]
        feed = {"delta.enableChangeDataFeed": "true"}
        delta.create(self.path, Schema(fields), feed, name=self.name, description=description)
