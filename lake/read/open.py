"""The edition from Python, for notebooks and programs: `lake.open().sql("…")`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lake.config import Settings, load_settings
from lake.quoting import SPARK, quoted
from lake.read.answer import texts
from lake.read.sql import Reader, reader
from lake.session import start
from lake.store import activity
from lake.store.editions import Edition
from lake.text import as_table

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow
    from pyspark.sql import DataFrame

PREVIEW_ROWS = 20


@dataclass(frozen=True)
class Answer:
    """A query's answer, computed when it is converted. Its repr shows the first rows."""

    relation: duckdb.DuckDBPyRelation

    def arrow(self) -> pyarrow.Table:
        """All rows in memory as Arrow."""
        return self.relation.to_arrow_table()

    def pandas(self) -> pandas.DataFrame:
        """All rows in memory; decimals become floats, as pandas has no decimals."""
        frame: pandas.DataFrame = self.relation.df()
        return frame

    def polars(self) -> polars.DataFrame:
        """All rows in memory; decimals and time zones are kept."""
        frame: polars.DataFrame = self.relation.pl()
        return frame

    def duckdb(self) -> duckdb.DuckDBPyRelation:
        """The lazy relation itself, to filter, join and aggregate further."""
        return self.relation

    def __repr__(self) -> str:
        answer, rows = texts(self.relation.limit(PREVIEW_ROWS + 1))
        lines = [*as_table(answer.names, rows[:PREVIEW_ROWS], numeric=answer.numeric)]
        return "\n".join([*lines, "…"] if len(rows) > PREVIEW_ROWS else lines)


@dataclass(frozen=True)
class Lakehouse:
    """One edition of a project's tables. It stays the same edition for as long as the object lives."""

    settings: Settings
    reader: Reader

    @property
    def edition(self) -> Edition:
        """Number, cut and the exact version of each table."""
        return self.reader.edition

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The names of the edition's tables."""
        return tuple(self.edition.tables)

    def sql(self, query: str) -> Answer:
        """The answer to one reading statement over the edition's tables, called `name` or `layer.name`.

        Raises DeclarationError where the query is wrong.
        """
        return Answer(self.reader.relation(query))

    def table(self, name: str) -> DataFrame:
        """Table `name` as a Spark DataFrame at the edition's version, without its state columns.

        Starts the process's Spark session on first use. Raises DeclarationError for an unknown table.
        """
        published = self.reader.table(name)
        path = self.settings.warehouse_path / self.edition.tables[published.name].path
        rows = start(self.settings).read.format("delta").option("versionAsOf", published.version).load(str(path))
        return rows.select(*(quoted(column.name, SPARK) for column in published.columns))


def open(project: Path | str | None = None, *, edition: int | None = None) -> Lakehouse:
    """The tables of `project` (else of the nearest one above the current folder) as they are published.

    `edition` is a number, by default the one that readers see. Raises DeclarationError where there is none.
    """
    settings = load_settings(Path(project) if project is not None else None)
    activity.begin(settings, "lake.open", edition=edition)
    return Lakehouse(settings, reader(settings, edition))
