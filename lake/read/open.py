"""Python access to an edition: `lake.open().sql("…")`, `lake.open().changes("…")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lake.config import Settings, load_settings
from lake.errors import DeclarationError, install
from lake.lazy import DataFrame
from lake.read.query import text_rows
from lake.read.sql import EditionReader, reader
from lake.read.subscription import Changes, subscribe
from lake.session.spark_session import start
from lake.store.ledger.editions import Edition
from lake.store.locks import activity
from lake.store.warehouse import Warehouse
from lake.text import SPARK, as_html, as_table, counted, quoted

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow

PREVIEW_ROWS = 20


@dataclass(frozen=True)
class LazyResult:
    """Result that is evaluated when converted."""

    relation: duckdb.DuckDBPyRelation

    def arrow(self) -> pyarrow.Table:
        return self.relation.to_arrow_table()

    def pandas(self) -> pandas.DataFrame:
        """Return all rows; decimals become floats."""
        frame: pandas.DataFrame = self.relation.df()
        return frame

    def polars(self) -> polars.DataFrame:
        """Return all rows; decimals and time zones are kept. Raises DeclarationError without Polars."""
        if find_spec("polars") is None:
            raise DeclarationError("Polars is missing, which the extra `polars` installs", fix=install("polars"))
        frame: polars.DataFrame = self.relation.pl()
        return frame

    def duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the lazy relation."""
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
        answer, rows = text_rows(self.relation.limit(PREVIEW_ROWS + 1))
        return answer.names, rows[:PREVIEW_ROWS], answer.numeric, len(rows) > PREVIEW_ROWS


@dataclass(frozen=True)
class OpenLakehouse:
    """One edition of a project's tables, fixed for the object's life."""

    settings: Settings
    reader: EditionReader

    def __repr__(self) -> str:
        at, tables = f"edition {self.edition.number} at cut {self.edition.cut}", counted(len(self.tables), "table")
        return f"Lakehouse({str(self.settings.project)!r}, {at}, {tables})"

    @property
    def edition(self) -> Edition:
        return self.reader.edition

    @cached_property
    def tables(self) -> tuple[str, ...]:
        return tuple(self.edition.tables)

    def sql(self, query: str) -> LazyResult:
        """Return the result of one SELECT over tables `name` or `layer.name`. Raises DeclarationError."""
        return LazyResult(self.reader.relation(query))

    def table(self, name: str) -> DataFrame:
        """Return table `name` as a Spark DataFrame without state columns. Raises DeclarationError."""
        relation = self.reader.table(name)
        path = Warehouse(self.settings).root / self.edition.tables[relation.name].path
        rows = start(self.settings).read.format("delta").option("versionAsOf", relation.version).load(path.url)
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
        """Yield the changes of `table`, edition by edition: a snapshot first, then net changes.

        Apply the rows, then call `ack()`. A named `consumer` resumes after its last acknowledged edition;
        unacknowledged changes come again. `from_edition` starts after an edition without a snapshot. `follow` waits for
        new editions; the edition of this object may expire meanwhile.

        Raises DeclarationError for an unknown table; StartOver if a needed edition has expired, unless `start_over`
        replaces all rows by a snapshot; Unavailable if another process reads for the consumer.
        """
        on_wait = (lambda: None) if follow else None
        return subscribe(
            self.settings, table, consumer=consumer, from_edition=from_edition, start_over=start_over, on_wait=on_wait
        )


def open(project: Path | str | None = None, *, edition: int | None = None) -> OpenLakehouse:
    """Open the published tables of `project`, by default of the nearest one above the current folder.

    `edition` defaults to the current one. Raises DeclarationError if there is none.
    """
    settings = load_settings(Path(project) if project is not None else None)
    activity.begin(settings, "lake.open", edition=edition)
    return OpenLakehouse(settings, reader(settings, edition))
