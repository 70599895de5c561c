"""Warehouse of a project in a test's folder: events to ingest, tables to compare, and a check of their laws."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from lake.config import Settings, load_settings
from lake.engine.affected_keys import restrict
from lake.engine.compare import compare
from lake.engine.inputs import Inputs
from lake.engine.verify import verify
from lake.errors import LakeError, LawError, QualityError
from lake.kinds.columns import ORDER, visible
from lake.lazy import DataFrame, F, SparkSession
from lake.ops.pipeline import run
from lake.project.project import Project, load
from lake.publish.cut import pick_cut
from lake.quality.parking import PLACE
from lake.session.spark_session import start
from lake.store.rows import Rows
from lake.store.scan import Scan, to_arrow
from lake.store.storage import address_of
from lake.testing.slices import ALL, Groups, Place, landed_stream, recut

if TYPE_CHECKING:
    from lake.project.declaration import Declaration

ARRIVAL_COLUMNS: Final = ("_batch", "_arrival", "_offset", "_source", "_watermark")


class Lakehouse:
    """A project's declarations with a warehouse and a landing folder in `home`.

    `source` has the settings of the project itself, `settings` those with both folders in `home`.
    """

    def __init__(self, project: Path, home: Path) -> None:
        self.home = home
        self.source = load_settings(project)
        self.settings: Settings = replace(
            self.source, warehouse=home / "warehouse", landing=home / "landing", archive=None
        )

    @cached_property
    def _loaded(self) -> Project:
        return load(self.settings)

    @property
    def project(self) -> Project:
        """Copy of the project with empty caches, as another process may have deployed."""
        return replace(self._loaded)

    @property
    def spark(self) -> SparkSession:
        return start(self.settings)

    def land(self, stream: str, *records: Mapping[str, Any] | str) -> Lakehouse:
        """Write one landing file of JSON Lines; text records are written unchanged."""
        folder = self.settings.path(self.settings.landing) / stream
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.iterdir())) + 1
        lines = [record if isinstance(record, str) else json.dumps(record, default=str) for record in records]
        (folder / f"{number:06d}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return self

    def land_samples(self) -> Lakehouse:
        """Copy the landing files of the project itself; without any, do nothing."""
        target = self.settings.path(self.settings.landing)
        samples = address_of(self.source, self.source.landing)
        if folder := samples.on_disk:
            shutil.copytree(folder, target, dirs_exist_ok=True)
            return self
        with suppress(FileNotFoundError):
            for entry in samples.list(deep=True):
                file = target / entry.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes((samples / entry.name).read())
        return self

    def run(self, *, now: datetime | None = None) -> Lakehouse:
        """Run one cycle: ingest, cut, advance, check, publish. `now` is the time of arrival instead of the clock's."""
        run(self.settings, lambda: self.spark, lambda _: None, now=now).raise_held()
        return self

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return the newest visible rows of table `name`, ordered by identity."""
        [declaration] = self.project.pick([name])
        table = self.project.table(declaration)
        position = table.position()
        rows = Scan(table.path, position.version if position else None).arrow().to_pylist()
        visible_rows = [{column: row[column] for column in visible(row)} for row in rows]
        return sorted(visible_rows, key=lambda row: [_sort_key(row[column]) for column in declaration.kind.identity])

    def check_laws(self, *, slices: int = 2) -> None:
        """Raise LawError unless, for every table:

        - it equals its recomputation from the first event of every log,
        - it does not depend on order and partitions of Spark's rows,
        - half of its keys, evaluated alone, equal that half of the table,
        - it equals the table made of the same records in `slices` micro-batches and random files, with redeliveries and
          in another order. Events keep their order if log order decides between them.

        The last law is not checked if `slices` is 0, nor for tables that depend on batches or files (late events,
        finality with named producers, dumps of rejected records), nor for tables derived from them. Raises
        DeclarationError if landing files of a log are missing.
        """
        inputs = Inputs(lambda: self.spark, self.project, pick_cut(self.project, None), recompute=True)
        for declaration in self.project.tables.values():
            verdict = verify(inputs, declaration)
            if verdict.verdict != "identical":
                raise LawError(f"{declaration.name} {verdict.verdict}: {verdict.why or verdict.differences}")
            sample = _evaluated(inputs, declaration, 2).persist()
            try:
                _check_spread(inputs, declaration, sample)
                _check_locality(inputs, declaration, sample)
            finally:
                sample.unpersist()
        if slices and not inputs.cut.voids:  # a void names a place, which another log gives to another event
            self._check_slices(inputs, slices)

    def _check_slices(self, inputs: Inputs, slices: int) -> None:
        tables = [each for each in self.project.tables.values() if not _depends_on_batches(inputs, each)]
        streams = [landed_stream(self.settings, contract) for contract in self.project.contracts.values()]
        arrived = max((stream.at for stream in streams), default="")
        with TemporaryDirectory(prefix="sliced-", dir=self.home) as folder:
            other = Lakehouse(self.source.path("."), Path(folder))
            for part in recut(streams, _order_groups(inputs, tables), slices):
                part.write(other.settings.path(other.settings.landing))
                with suppress(QualityError):  # a part alone may fail expectations of the table
                    other.run(now=datetime.fromisoformat(arrived) if arrived else None)
            for declaration in tables:
                _check_same(declaration, self.table(declaration.name), other.table(declaration.name), slices)


def _check_same(declaration: Declaration, rows: list[dict[str, Any]], other: list[dict[str, Any]], slices: int) -> None:
    # Compared as text, in which NaNs are equal, and without the places of parked rows, which differ between logs.
    ours, theirs = ([repr(sorted((k, v) for k, v in row.items() if k != PLACE)) for row in of] for of in (rows, other))
    if declaration.parked_of is not None:
        ours, theirs = sorted(ours), sorted(theirs)
    if ours != theirs:
        odd, *_ = [*(Counter(ours) - Counter(theirs)), *(Counter(theirs) - Counter(ours)), "in another order"]
        raise LawError(
            f"{declaration.name} differs when its events come in {slices} micro-batches and other files: {odd}",
            where=declaration.where,
            fix="use values of the events only; a View orders by _batch, _arrival, _bucket, _offset, in this order",
        )


def _check_spread(inputs: Inputs, declaration: Declaration, sample: DataFrame) -> None:
    differing = compare(sample, _evaluated(inputs, declaration, 7), declaration.kind.identity)
    if not differing.isEmpty():
        raise LawError(
            f"{declaration.name} depends on how its rows are spread: {differing.first()}",
            where=declaration.where,
            fix="break ties by a total order",
        )


def _check_locality(inputs: Inputs, declaration: Declaration, whole: DataFrame) -> None:
    kind = declaration.kind
    if not kind.key:
        return
    half = whole.where(F.pmod(F.xxhash64(*[F.col(k).cast("string") for k in kind.key]), F.lit(2)) == 0)
    keys = Rows(to_arrow(half.select(*kind.key).distinct()))
    alone = inputs.evaluated(declaration, restrict(inputs, declaration, keys))
    differing = compare(alone, half, kind.identity)
    if not differing.isEmpty():
        raise LawError(
            f"{declaration.name} is not local to its key: evaluated alone, {differing.first()}",
            where=declaration.where,
            fix="widen the key, or map each input's rows to it: View(key, on={…})",
        )


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Return a key that sorts nulls first, and lists and records by their text, as they may have nulls inside."""
    return value is not None, str(value) if isinstance(value, list | dict) else value


def _evaluated(inputs: Inputs, declaration: Declaration, partitions: int) -> DataFrame:
    frames = [_scattered(inputs.whole(source), partitions) for source in declaration.inputs]
    return inputs.evaluated(declaration, inputs.sides(declaration, frames))


def _scattered(rows: DataFrame, partitions: int) -> DataFrame:
    hashed = F.xxhash64(F.lit(partitions), *[F.col(c).cast("string") for c in rows.columns])
    return rows.repartition(partitions, hashed).sortWithinPartitions(hashed)


def _depends_on_batches(inputs: Inputs, declaration: Declaration) -> bool:
    # The function is analysed without the columns of arrival: that fails if it reads one.
    contracts = inputs.project.contracts
    logs = [source.name for source in declaration.inputs if source.is_log]
    if declaration.kind.needs_time and any(contracts[stream].horizon for stream in logs):
        return True  # finality depends on which producers arrive together and which are closed
    frames = []
    for source in declaration.inputs:
        if source.table is not None and _depends_on_batches(inputs, source.table):
            return True
        rows = inputs.no_rows(source)
        if source.table is None:
            by_place = contracts[source.name].identity == "position"
            without_arrival = rows.drop(*ARRIVAL_COLUMNS, *(["_id"] if by_place else []))
            # A new frame: a filter could still read a column that is only dropped.
            rows = inputs.spark.createDataFrame([], without_arrival.schema)
        frames.append(rows)
    try:
        return not all(side.schema for side in inputs.sides(declaration, frames))
    except (LakeError, PySparkException):
        return True


def _order_groups(inputs: Inputs, tables: Iterable[Declaration]) -> Mapping[str, Groups]:
    """Return, by log of `tables`, the groups of events whose order decides a table."""
    groups_by_log: dict[str, dict[Place, frozenset[int]]] = {}
    for declaration in tables:
        logs = [(side, source.name) for side, source in enumerate(declaration.inputs) if source.is_log]
        groups_by_log |= {stream: {} for _, stream in logs if stream not in groups_by_log}
        ordered = [(side, stream) for side, stream in logs if declaration.kind.ordered_within(side)]
        sides = inputs.sides(declaration, [inputs.whole(s) for s in declaration.inputs]) if ordered else ()
        for side, stream in ordered:
            groups = ", ".join(_group_expressions(declaration, side))
            place = [f"{ORDER}.{column}" for column in ("_batch", "_bucket", "_offset")]
            for row in sides[side].selectExpr(*place, f"array({groups}) as groups").toArrow().to_pylist():
                at = row["_batch"], row["_bucket"], row["_offset"]
                groups_by_log[stream][at] = groups_by_log[stream].get(at, frozenset()).union(row["groups"])
    return groups_by_log


def _group_expressions(declaration: Declaration, side: int) -> Iterator[str]:
    # Groups whose hashes collide are one group: events only keep an order that decides nothing.
    kind = declaration.kind
    for number, columns in enumerate(kind.ordered_within(side)):
        values = ", ".join([f"'{declaration.name} {side} {number}'", *columns])
        group = f"xxhash64({values})" if columns else f"{ALL}L"
        yield f"if(coalesce({kind.broadcast or 'false'}, false), {ALL}L, {group})"
