"""A query's answer: run once on a locked connection, returned in the form wanted."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
from duckdb.sqltypes import DuckDBPyType

from lake.quoting import quoted
from lake.read.spelling import NUMBERS, as_object, as_text
from lake.text import distinct


@dataclass(frozen=True)
class Answer:
    """The columns of an answer, and SQL of its rows in several forms."""

    names: Sequence[str]
    kinds: Sequence[DuckDBPyType]
    source: str

    @property
    def numeric(self) -> list[bool]:
        """Which columns are numbers."""
        return [kind.id in NUMBERS for kind in self.kinds]

    @property
    def values(self) -> str:
        """The rows with their types; duplicate column names are made unique."""
        return self._select([f"{name} AS {quoted(own)}" for name, own in zip(self._columns, self._names, strict=True)])

    @property
    def texts(self) -> str:
        """The rows as texts and nulls."""
        texts = (as_text(kind, name) for kind, name in zip(self.kinds, self._columns, strict=True))
        return self._select([f"{text} AS {quoted(own)}" for text, own in zip(texts, self._names, strict=True)])

    @property
    def objects(self) -> str:
        """Each row as one JSON object."""
        return self._select([as_object(distinct(self.names), self.kinds, self._columns)])

    @property
    def _names(self) -> list[str]:
        """Names that are unique in SQL, which ignores case."""
        return distinct(self.names, lambda name: name.lower())

    @property
    def _columns(self) -> list[str]:
        return [f"c{i}" for i in range(len(self.names))]

    def _select(self, columns: Sequence[str]) -> str:
        return f"SELECT {', '.join(columns)} FROM {self.source} AS v({', '.join(self._columns)})"


def ask(con: duckdb.DuckDBPyConnection, query: str) -> Answer:
    """The answer of `con` to one statement that reads, computed when its rows are read.

    PIVOT and EXPLAIN, which cannot be in a FROM, are computed at once.
    """
    try:
        relation = con.sql(query)
    except duckdb.Error:
        con.execute(query)  # which says where in the query the fault is
        raise
    if relation.type == "QUERY_RELATION":
        return Answer(relation.columns, relation.types, f"(\n{_statement(query)}\n)")
    source = f"answer_{secrets.token_hex(8)}"
    relation.create(source)
    return Answer(relation.columns, relation.types, source)


def texts(relation: duckdb.DuckDBPyRelation) -> tuple[Answer, list[tuple[str | None, ...]]]:
    """A relation's columns, and its rows as texts and nulls."""
    answer = Answer(relation.columns, relation.types, f"answer_{secrets.token_hex(8)}")
    spelt = relation.query(answer.source, answer.texts)
    return answer, spelt.fetchall() if spelt else []


def _statement(query: str) -> str:
    """The only statement of `query`, without the ; that ends it and anything after that."""
    written = query.encode()
    ends = (at for at, _ in duckdb.tokenize(query) if written[at : at + 1] == b";")
    return written[: next(ends, len(written))].decode()
