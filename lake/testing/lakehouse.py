"""Proofs for a project's own tests: its tables made from a few events, and the promise tried on them.

@pytest.fixture(scope="session")
def lakehouse(tmp_path_factory):
    return Lakehouse(PROJECT, tmp_path_factory.mktemp("lake"))

def test_the_promise(lakehouse):
    lakehouse.land_samples().run().check_laws()
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lake.config import Settings, in_store, load_settings
from lake.engine.verify import verify
from lake.errors import LawError, QualityError
from lake.evaluation.affected_keys import restrict
from lake.evaluation.compare import compare
from lake.evaluation.inputs import Inputs
from lake.kinds.columns import visible
from lake.pipeline import run
from lake.project import Project, load
from lake.publish.cut import pick_cut
from lake.quality.parking import PLACE
from lake.session import start
from lake.store.scan import Scan, to_arrow
from lake.store.storage import object_store
from lake.testing.log_order import goes_by_batches, order_decides
from lake.testing.slices import cut_anew, landed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake.declaration import Declaration


class Lakehouse:
    """A project's declarations over a warehouse and a landing folder of their own, in `home`."""

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
        """The declarations, and where their tables are now: another process may have deployed since."""
        return replace(self._loaded)

    @property
    def spark(self) -> SparkSession:
        """The process's session."""
        return start(self.settings)

    def land(self, stream: str, *records: Mapping[str, Any] | str) -> Lakehouse:
        """Writes one landing file of JSON Lines; a record given as text is written as it is."""
        folder = self.settings.path(self.settings.landing) / stream
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.iterdir())) + 1
        lines = [record if isinstance(record, str) else json.dumps(record, default=str) for record in records]
        (folder / f"{number:06d}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return self

    def land_samples(self) -> Lakehouse:
        """Copies the project's own landing files."""
        target = self.settings.path(self.settings.landing)
        if not (url := in_store(self.source.landing)):
            shutil.copytree(self.source.path(self.source.landing), target, dirs_exist_ok=True)
            return self
        samples = object_store.at(self.source, url)
        with suppress(FileNotFoundError):
            for entry in samples.list(deep=True):
                file = target / entry.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes((samples / entry.name).read())
        return self

    def run(self, *, now: datetime | None = None) -> Lakehouse:
        """One cycle: ingest, cut, advance, check, publish. `now` is the time of arrival, the clock's if it is None."""
        done = run(self.settings, lambda: self.spark, lambda _: None, now=now)
        if done.held is not None:
            raise done.held.error
        return self

    def table(self, name: str) -> list[dict[str, Any]]:
        """The newest rows of table `name`, as readers see them, in the order of their identity."""
        [declaration] = self.project.pick([name])
        table = self.project.table(declaration)
        position = table.position()
        rows = Scan(table.path, position.version if position else None).arrow().to_pylist()
        shown = [{column: row[column] for column in visible(row)} for row in rows]
        return sorted(shown, key=lambda row: [(row[c] is not None, str(row[c])) for c in declaration.kind.identity])

    def check_laws(self, *, slices: int = 2) -> None:
        """Raises LawError unless, for every table:

        - it equals its recomputation from the first event of every log,
        - however Spark happens to order and spread the rows,
        - half of its keys, evaluated alone, are that half of the whole,
        - and the landed records give the same rows when they come in `slices` micro-batches and in files that are cut
          at random, some of them again, and in another order: of what shares no key, or has a place of its own in the
          sequence. Tables that go by the batches or the files of the log (what is late; what is final where a contract
          names producers; which dump a refused record is of), and what is derived from them, are exempt.

        Raises DeclarationError where a log was not made of landing files that are still there.
        """
        inputs = Inputs(lambda: self.spark, self.project, pick_cut(self.project, None), recompute=True)
        for declaration in self.project.tables.values():
            verdict = verify(inputs, declaration)
            if verdict.verdict != "identical":
                raise LawError(f"{declaration.name} {verdict.verdict}: {verdict.why or verdict.differences}")
            few = _evaluated(inputs, declaration, 2).persist()
            try:
                _check_spread(inputs, declaration, few)
                _check_locality(inputs, declaration, few)
            finally:
                few.unpersist()
        if slices and not inputs.cut.voids:  # a void names a place in this very log
            self._check_slices(inputs, slices)

    def _check_slices(self, inputs: Inputs, slices: int) -> None:
        tables = [each for each in self.project.tables.values() if not goes_by_batches(inputs, each)]
        streams = [landed(self.settings, contract) for contract in self.project.contracts.values()]
        arrived = max((stream.at for stream in streams), default="")
        with TemporaryDirectory(prefix="sliced-", dir=self.home) as folder:
            other = Lakehouse(self.source.path("."), Path(folder))
            for part in cut_anew(streams, order_decides(inputs, tables), slices):
                part.write(other.settings.path(other.settings.landing))
                with suppress(QualityError):  # a part alone may be less than a table is expected to have
                    other.run(now=datetime.fromisoformat(arrived) if arrived else None)
            for declaration in tables:
                _check_same(declaration, self.table(declaration.name), other.table(declaration.name), slices)


def _check_same(declaration: Declaration, rows: list[dict[str, Any]], other: list[dict[str, Any]], slices: int) -> None:
    # A NaN is like another, and where a parked row came from is another place of another log.
    ours, theirs = ([repr(sorted((k, v) for k, v in row.items() if k != PLACE)) for row in of] for of in (rows, other))
    if declaration.parked_of is not None:
        ours, theirs = sorted(ours), sorted(theirs)
    if ours != theirs:
        only = [row for row in ours if row not in set(theirs)] or [row for row in theirs if row not in set(ours)]
        raise LawError(
            f"{declaration.name} differs when its events come in {slices} micro-batches and other files: {only[0]}",
            where=declaration.where,
            fix="go by what the events say; a View orders them by _batch, _arrival, _bucket, _offset, in this order",
        )


def _check_spread(inputs: Inputs, declaration: Declaration, few: DataFrame) -> None:
    """The table is the same from more partitions than `few` was made of."""
    differing = compare(few, _evaluated(inputs, declaration, 7), declaration.kind.identity)
    if not differing.isEmpty():
        raise LawError(
            f"{declaration.name} depends on how its rows are spread: {differing.first()}",
            where=declaration.where,
            fix="break ties by a total order",
        )


def _check_locality(inputs: Inputs, declaration: Declaration, whole: DataFrame) -> None:
    """Half of the keys of the `whole` table, told by a hash of theirs."""
    from pyspark.sql import functions as F

    kind = declaration.kind
    if not kind.key:
        return
    half = whole.where(F.pmod(F.xxhash64(*[F.col(k).cast("string") for k in kind.key]), F.lit(2)) == 0)
    keys = to_arrow(half.select(*kind.key).distinct())
    alone = inputs.evaluated(declaration, restrict(inputs, declaration, keys))
    differing = compare(alone, half, kind.identity)
    if not differing.isEmpty():
        raise LawError(
            f"{declaration.name} is not local to its key: evaluated alone, {differing.first()}",
            where=declaration.where,
            fix="widen the key, or map each input's rows to it: View(key, on={…})",
        )


def _evaluated(inputs: Inputs, declaration: Declaration, partitions: int) -> DataFrame:
    """The table from inputs that are spread over `partitions`, in an order of no meaning."""
    frames = [_scattered(inputs.whole(source), partitions) for source in declaration.inputs]
    return inputs.evaluated(declaration, inputs.sides(declaration, frames))


def _scattered(rows: DataFrame, partitions: int) -> DataFrame:
    from pyspark.sql import functions as F

    mixed = F.xxhash64(F.lit(partitions), *[F.col(c).cast("string") for c in rows.columns])
    return rows.repartition(partitions, mixed).sortWithinPartitions(mixed)
