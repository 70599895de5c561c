"""Derived tables: read at a version, changed by one commit that carries rows and position together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from deltalake import Field, Schema

from lake import cost
from lake.config import Settings
from lake.lazy import DataFrame, F, SparkSession, pa
from lake.session.in_process.mode import in_process
from lake.session.spark_session import raise_if_gone
from lake.store import delta, delta_writer, duckdb_tables
from lake.store.comparison import SIGNED, feed
from lake.store.delta import Position
from lake.store.keys import open_store
from lake.store.proof.fingerprints import Fingerprint, of_version
from lake.store.scan import Scan, arrow_schema, distinct, has_key, to_frame
from lake.store.table_head import Meanings, TableHead, meaning_of
from lake.store.warehouse import Located, Location, Warehouse
from lake.text import SPARK, quoted


class FeedGap(Exception):
    """The change feed does not cover the requested versions."""


def heads(at: Location) -> Iterator[TableHead]:
    return map(TableHead.of, delta.positions(at.path, at.app))


def visible_columns(schema: str) -> dict[str, str]:
    types = {column["name"]: column["type"] for column in json.loads(schema)["fields"]}
    return {
        name: type_ if isinstance(type_, str) else json.dumps(type_)
        for name, type_ in types.items()
        if not name.startswith("_")
    }


@dataclass(frozen=True)
class Table(Located):
    """Derived table of a project; it may not exist yet.

    `home` is the folder of its Delta table within its layer: its name, until a changed definition was built beside it.
    `personal`: derived from personal data, so no copy of its rows is kept elsewhere.
    """

    settings: Settings
    layer: str
    name: str
    home: str
    personal: bool = False

    @cached_property
    def location(self) -> Location:
        return Warehouse(self.settings).table(self.layer, self.home)

    @property
    def content_key(self) -> str:
        """Secret key of its rows' fingerprints; "" unless they are derived from personal data.

        Raises DeclarationError if the key store cannot be read.
        """
        return open_store(self.settings).derived("content") if self.personal else ""

    def content(self, version: int) -> Fingerprint:
        return of_version(self.path, version, self.content_key)

    def exists(self) -> bool:
        return delta.exists(self.path)

    def version(self) -> int:
        return delta.version(self.path)

    def position(self) -> Position | None:
        return delta.head(self.path, self.app)

    def position_or_start(self) -> Position:
        return delta.head_or_start(self.path, self.app)

    def heads(self) -> Iterator[TableHead]:
        return heads(self.location)

    def head(self) -> TableHead | None:
        return next(self.heads(), None)

    def head_at(self, cut: int) -> TableHead | None:
        later = takewhile(lambda head: head.cut >= cut, self.heads())
        return next((head for head in later if head.cut == cut), None)

    def readable_head_at(self, cut: int) -> TableHead | None:
        head = self.head_at(cut)
        return None if head is None or Scan(self.path, head.version).is_unreadable() else head

    def last_repeat(self, version: int) -> int:
        """Return the newest version that repeats `version`, by compaction for example; else itself."""
        later = takewhile(lambda p: p.origin >= version, delta.positions(self.path, self.app))
        return max((p.version for p in later if p.origin == version), default=version)

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        return Scan(self.path, version).frame(spark)

    def schema(self, version: int | None = None) -> pa.Schema:
        return Scan(self.path, version).schema()

    def columns(self, version: int | None = None) -> dict[str, str]:
        with delta.opened(self.path, version) as table:
            return visible_columns(table.schema().to_json())

    def meanings(self, version: int) -> Meanings:
        with delta.opened(self.path, version) as table:
            fields = json.loads(table.schema().to_json())["fields"]
        return {field["name"]: meaning_of(field["metadata"]) for field in fields}

    def rows(self, version: int) -> int:
        return Scan(self.path, version).rows()

    def rows_of(self, keys: pa.Table, version: int, *, limit: int | None = None) -> pa.Table:
        return Scan(self.path, version).arrow(keys=keys, limit=limit)

    def keys_where(
        self, key: Sequence[str], others: pa.Table, condition: str, version: int, *, limit: int
    ) -> pa.Table | None:
        """Return the distinct `key` of the rows `t` for which one of `others`, `k`, meets a SQL `condition`.

        None if more than `limit` rows do.
        """
        where = f"EXISTS (SELECT 1 FROM k WHERE {condition})"
        keys = Scan(self.path, version).arrow(key, where=where, lookup=others, limit=limit + 1)
        return distinct(keys) if keys.num_rows <= limit else None

    def rows_where(self, condition: str, version: int, *, without: pa.Table | None, limit: int) -> pa.Table:
        where = condition if without is None else f"({condition}) AND NOT {has_key(without)}"
        return Scan(self.path, version).arrow(where=where, lookup=without, limit=limit)

    def changed_rows(self, *, after: int, upto: int) -> int:
        """Return the maximum number of rows changed between two versions. Raises FeedGap if commits are gone."""
        between = takewhile(lambda head: head.version > after, self.heads())
        heads = [head for head in between if head.version <= upto and not head.changed_nothing]
        # Spark does not report the number of rows of an overwrite.
        uncounted = [head.version for head in heads if not head.counts.total]
        try:
            files = {version: {kind for kind, _ in delta.actions(self.path, version)} for version in uncounted}
            overwrites = [version for version, kinds in files.items() if kinds & {"add", "remove"}]
            return sum(head.counts.total for head in heads) + sum(
                self.rows(version) + self.rows(max(version - 1, 0)) for version in overwrites
            )
        except (delta.Unreadable, OSError) as error:
            raise FeedGap(self.name) from error

    def changes(self, spark: SparkSession, *, after: int, upto: int) -> DataFrame:
        """Return the net changes between two versions: the visible columns and `_sign` (+1 new, -1 gone).

        Raises FeedGap if the feed does not reach back that far, or columns changed.
        """
        limit = cost.IN_PROCESS_CHANGES if in_process(spark) else self.settings.collected_rows
        if self.changed_rows(after=after, upto=upto) > limit:
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
        """Detect missing files of the feed, which Spark finds only when it reads."""
        try:
            commits = (delta.actions(self.path, version) for version in range(after + 1, upto + 1))
            files = (file for actions in commits for _, file in delta.feed_files(self.path, actions))
            if self.path.missing(list(map(str, files))):
                raise FeedGap(self.name)
            reader = spark.read.format("delta").option("readChangeFeed", "true")
            rows = reader.options(startingVersion=after + 1, endingVersion=upto).load(self.path.url)
            columns = [F.col(quoted(name, SPARK)) for name in rows.columns if not name.startswith("_")]
        except Exception as error:
            raise_if_gone(error)
            raise FeedGap(self.name) from error
        netted = rows.groupBy(*columns).agg(F.expr(f"cast(sum({SIGNED}) AS int)").alias("_sign"))
        return netted.where("_sign <> 0")

    def create(self, schema: pa.Schema, *, description: str) -> None:
        fields = [Field(f.name, f.type, nullable=True) for f in Schema.from_arrow(schema).fields]
        feed = {"delta.enableChangeDataFeed": "true"}
        delta_writer.create(self.path, Schema(fields), feed, name=self.name, description=description)
