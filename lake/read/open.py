"""The edition from Python, for notebooks and programs: `lake.open().sql("…")`, `lake.open().changes("…")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lake.config import Settings, load_settings
from lake.errors import DeclarationError, install
from lake.quoting import SPARK, quoted
from lake.read.answer import texts
from lake.read.sql import Reader, reader
from lake.read.subscription import Changes, subscribe
from lake.session import start
from lake.store.ledger.editions import Edition
from lake.store.locks import activity
from lake.store.warehouse import Warehouse
from lake.text import as_html, as_table

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow
    from pyspark.sql import DataFrame

PREVIEW_ROWS = 20


@dataclass(frozen=True)
class Answer:
    """A query's answer, computed when it is converted. Its repr, a table in a notebook, shows the first rows."""

    relation: duckdb.DuckDBPyRelation

    def arrow(self) -> pyarrow.Table:
        """All rows in memory as Arrow."""
        return self.relation.to_arrow_table()

    def pandas(self) -> pandas.DataFrame:
        """All rows in memory; decimals become floats, as pandas has no decimals."""
        frame: pandas.DataFrame = self.relation.df()
        return frame

    def polars(self) -> polars.DataFrame:
        """All rows in memory; decimals and time zones are kept. Raises DeclarationError where Polars is missing."""
        if find_spec("polars") is None:
            raise DeclarationError("Polars is missing, which the extra `polars` installs", fix=install("polars"))
        frame: polars.DataFrame = self.relation.pl()
        return frame

    def duckdb(self) -> duckdb.DuckDBPyRelation:
        """The lazy relation itself, to filter, join and aggregate further."""
        return self.relation

    def __repr__(self) -> str:
        names, rows, numeric, more = self._preview
        lines = [*as_table(names, rows, numeric=numeric)]
        return "\n".join([*lines, "…"] if more else lines)

    def _repr_html_(self) -> str:
        names, rows, numeric, more = self._preview
        html = "".join(as_html(names, rows, numeric=numeric))
        return html + (f"<p>the first {PREVIEW_ROWS} rows</p>" if more else "")

    @cached_property
    def _preview(self) -> tuple[Sequence[str], list[tuple[str | None, ...]], list[bool], bool]:
        """The names of the columns, the first rows, which columns are numbers, and whether there are more rows."""
        answer, rows = texts(self.relation.limit(PREVIEW_ROWS + 1))
        return answer.names, rows[:PREVIEW_ROWS], answer.numeric, len(rows) > PREVIEW_ROWS


@dataclass(frozen=True)
class Lakehouse:
    """One edition of a project's tables. It stays the same edition for as long as the object lives."""

    settings: Settings
    reader: Reader

    def __repr__(self) -> str:
        edition = self.edition
        tables = "1 table" if len(edition.tables) == 1 else f"{len(edition.tables)} tables"
        return f"Lakehouse({str(self.settings.project)!r}, edition {edition.number} at cut {edition.cut}, {tables})"

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
        relation = self.reader.table(name)
        path = Warehouse(self.settings).root / self.edition.tables[relation.name].path
        rows = start(self.settings).read.format("delta").option("versionAsOf", relation.version).load(path.spark)
        return rows.select(*(quoted(column.name, SPARK) for column in relation.columns))

    def changes(
        self,
        table: str,
        *,
        consumer: str | None = None,
        from_edition: int | None = None,
        follow: bool = False,
        start_over: bool = False,
    ) -> Iterator[Changes]:
        """What becomes of the rows of `table`, edition by edition: a snapshot, then the changes that lead on from it.

        For each, apply its rows, then call `ack()`: what a `consumer`, any name, has acknowledged is remembered, and
        there it goes on, by whatever process. What was not acknowledged is given again. Without a name, nothing is
        remembered. `from_edition` begins after an edition whose rows you have, without a snapshot. With `follow`, the
        changes of editions to come are waited for; the edition of this object may expire meanwhile.

        Raises DeclarationError for an unknown table; StartOver where a consumer was away for so long that an edition
        that it needs has expired: with `start_over`, a snapshot then replaces all that it has; Unavailable where
        another process reads for it.
        """
        return subscribe(
            self.settings, table, consumer=consumer, from_edition=from_edition, follow=follow, start_over=start_over
        )


def open(project: Path | str | None = None, *, edition: int | None = None) -> Lakehouse:
    """The tables of `project` (else of the nearest one above the current folder) as they are published.

    `edition` is a number, by default the one that readers see. Raises DeclarationError where there is none.
    """
    settings = load_settings(Path(project) if project is not None else None)
    activity.begin(settings, "lake.open", edition=edition)
    return Lakehouse(settings, reader(settings, edition))
