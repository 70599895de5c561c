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
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lake.config import Settings, load_settings
from lake.errors import LawError
from lake.kinds.kind import visible
from lake.project import Project, load
from lake.run.cut import pick_cut
from lake.run.cycle import run
from lake.run.diff import compare
from lake.run.inputs import Inputs
from lake.run.verify import verify
from lake.session import start
from lake.store.scan import Scan
from lake.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake.declaration import Declaration


class Lakehouse:
    """A project's declarations over a warehouse and a landing folder of their own, in `home`."""

    def __init__(self, project: Path, home: Path) -> None:
        self.source = load_settings(project)
        self.settings: Settings = replace(
            self.source, warehouse=home / "warehouse", landing=home / "landing", archive=None
        )

    @cached_property
    def project(self) -> Project:
        return load(self.settings)

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
        shutil.copytree(
            self.source.path(self.source.landing), self.settings.path(self.settings.landing), dirs_exist_ok=True
        )
        return self

    def run(self) -> Lakehouse:
        """One cycle: ingest, cut, advance, check, publish."""
        run(self.settings, lambda: self.spark, lambda _: None)
        return self

    def table(self, name: str) -> list[dict[str, Any]]:
        """The newest rows of table `name`, as readers see them, in the order of their identity."""
        [declaration] = self.project.pick([name])
        table = Table(self.settings, declaration.layer, name)
        position = table.position()
        rows = Scan(table.path, position.version if position else None).arrow().to_pylist()
        shown = [{column: row[column] for column in visible(row)} for row in rows]
        return sorted(shown, key=lambda row: [(row[c] is not None, str(row[c])) for c in declaration.kind.identity])

    def check_laws(self) -> None:
        """Raises LawError unless every table equals its recomputation, however Spark happens to order the rows."""
        inputs = Inputs(lambda: self.spark, self.project, pick_cut(self.project, None), recompute=True)
        for declaration in self.project.tables.values():
            verdict = verify(self.spark, self.project, declaration)
            if verdict.verdict != "identical":
                raise LawError(f"{declaration.name} {verdict.verdict}: {verdict.why or verdict.differences}")
            few, many = (_evaluated(inputs, declaration, partitions) for partitions in (2, 7))
            differing = compare(few, many, declaration.kind.identity)
            if not differing.isEmpty():
                raise LawError(
                    f"{declaration.name} depends on how its rows are spread: {differing.first()}",
                    where=declaration.where,
                    fix="break ties by a total order",
                )


def _evaluated(inputs: Inputs, declaration: Declaration, partitions: int) -> DataFrame:
    """The table from inputs that are spread over `partitions`, in an order of no meaning."""
    frames = [_scattered(inputs.whole(source), partitions) for source in declaration.inputs]
    return inputs.evaluated(declaration, inputs.sides(declaration, frames))


def _scattered(rows: DataFrame, partitions: int) -> DataFrame:
    from pyspark.sql import functions as F

    mixed = F.xxhash64(F.lit(partitions), *[F.col(c).cast("string") for c in rows.columns])
    return rows.repartition(partitions, mixed).sortWithinPartitions(mixed)
