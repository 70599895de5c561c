"""Archived batches of a log: Delta tables at a colder place that are read as one table with the log.

The log's metadata names these parts. The commit that adds a part removes its rows from the log, so each version has
every row once. A named part never changes, so several versions and copies of a log may name it. The batches' counts and
the chain of their digests stay in the log's own commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Final

from deltalake.exceptions import DeltaError, TableNotFoundError

from lake.errors import LakeError, StorageError, Unavailable
from lake.lazy import DataFrame, SparkSession
from lake.session.spark_session import first_line
from lake.store import delta
from lake.store.storage import Address
from lake.store.table_log import TableState

PROPERTY: Final = "headwater.cold"
FOLDER: Final = "cold"
"""Folder of the parts of a copied log, below the copied warehouse."""
Batches = tuple[int, int]
"""First and last batch."""


@dataclass(frozen=True)
class ArchivedPart:
    """Batches `first` to `through` of a log: the Delta table at `place`, at `version`.

    A `place` that is neither a URL nor an absolute path is relative to the warehouse, and moves with it.
    """

    first: int
    through: int
    place: str
    version: int
    rows: int

    def path(self, log: Address) -> Address:
        if self.place.startswith("/") or "://" in self.place:
            return log.at(self.place)
        return log.parent.parent / self.place

    def meets(self, batches: Batches | None) -> bool:
        return batches is None or (self.first <= batches[1] and batches[0] <= self.through)


def parts(table: TableState) -> list[ArchivedPart]:
    named = table.metadata().configuration.get(PROPERTY)
    return [ArchivedPart(**part) for part in json.loads(named)] if named else []


def parts_of(path: Address) -> list[ArchivedPart]:
    try:
        with delta.opened(path) as table:
            return parts(table)
    except TableNotFoundError:
        return []


def parts_property(named: Iterable[ArchivedPart]) -> dict[str, str]:
    return {PROPERTY: json.dumps([vars(part) for part in named], separators=(",", ":"), sort_keys=True)}


@contextmanager
def opened_parts(
    path: Address, table: TableState, batches: Batches | None = None
) -> Iterator[Sequence[tuple[Address, TableState]]]:
    """Yield the `table` and those of its parts that may have rows of `batches`, each with its address.

    Raises StorageError if a part is missing or unreadable.
    """
    with ExitStack() as stack:
        named = [(part, part.path(path)) for part in parts(table) if part.meets(batches)]
        yield [(path, table), *((at, stack.enter_context(_opened(path, part, at))) for part, at in named)]


def check_parts(log: Address, named: Iterable[ArchivedPart]) -> None:
    for part in named:
        with _opened(log, part, part.path(log)):
            pass


@contextmanager
def _opened(log: Address, part: ArchivedPart, at: Address) -> Iterator[TableState]:
    with ExitStack() as stack:
        try:
            table = stack.enter_context(delta.opened(at, part.version))
        except (TableNotFoundError, FileNotFoundError):
            raise StorageError(
                f"batches {part.first} to {part.through} of {log.name} were archived, and are gone from there",
                where=at.url,
                fix="restore that folder from a backup; where it was moved, have the setting `cold` name the new place,"
                f" and run lake archive {log.name} --through {part.through}",
            ) from None
        except Unavailable:
            raise
        except (DeltaError, LakeError, OSError) as error:
            what, where = (error.what, error.where) if isinstance(error, LakeError) else (first_line(error), at.url)
            raise StorageError(
                f"batches {part.first} to {part.through} of {log.name} were archived, and cannot be read there: {what}",
                where=where,
                fix="restore that folder from a backup",
            ) from error
        yield table


def files(path: Address, table: TableState) -> list[str]:
    with opened_parts(path, table) as tables:
        return [file for _, each in tables for file in delta.files(each)]


def frame(spark: SparkSession, path: Address, table: TableState, batches: Batches | None = None) -> DataFrame:
    with opened_parts(path, table, batches) as tables:
        reader = spark.read.format("delta")
        frames = [reader.option("versionAsOf", each.version()).load(at.url) for at, each in tables]
    return reduce(lambda rows, more: rows.unionByName(more, allowMissingColumns=True), frames)
