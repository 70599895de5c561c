"""`make bench W=kinds`: each kind of table beside the plainest hand-written PySpark + Delta for the same rows.

A million readings of a hundred thousand meters are batch 1 of a log. One table of each kind is built from it, rebuilt,
and advanced by batches of a thousand readings, each event in order or each hundredth late; so is its hand-written twin,
in the same session. The rows of both are compared after the build and after the last batch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from infra.bench import tables
from infra.bench.meters import FIELDS, Meters, append, contract
from infra.bench.plain import Hand
from infra.bench.times import Times, heading, line
from lake.config import Settings, SparkSettings
from lake.engine.advance import advance
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild
from lake.project.declaration import Declaration
from lake.project.jobfile import JobFile
from lake.project.project import Project
from lake.publish.cut import cut
from lake.session.spark_session import first_line, start
from lake.store.ledger.cuts import Cut

BATCH = 1000
# Times of a table, and of its hand-written twin.
PAIRS = {"rebuild": "overwrite", "in order": "hand in order", "late": "hand late"}


def main() -> None:
    """Runs the benchmark and prints its table."""
    names = {declaration.name: label for label, declaration in tables.KINDS.items()}
    parser = argparse.ArgumentParser(description="Each kind of table beside hand-written Spark.")
    parser.add_argument("--events", type=int, default=1_000_000, help="readings to build from (default: a million)")
    parser.add_argument("--keys", type=int, default=100_000, help="meters (default: a hundred thousand)")
    parser.add_argument("--kind", choices=names, action="append", help="one kind only; may be repeated")
    parser.add_argument("--repeat", type=int, default=1, help="repetitions of rebuilds and of batches (default: 1)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        home = Path(folder)
        memory = SparkSettings(driver_memory="4g")
        settings = Settings(project=home, warehouse=home / "warehouse", spark=memory)
        spark = start(settings)
        try:
            bench = Bench.over(Meters(spark, arguments.events, arguments.keys), settings, repeat=arguments.repeat)
            if bench.run(arguments.kind or names):
                sys.exit("not all kinds were measured")
        finally:
            spark.stop()


@dataclass
class Bench:
    """All tables of a project and their hand-written twins; `cuts` follow batch 1, 2, 3 …, `sorts` names batches."""

    spark: SparkSession
    project: Project
    hand: Hand
    cuts: list[Cut]
    sorts: list[str]
    repeat: int
    times: Times = field(default_factory=Times)

    @classmethod
    def over(cls, meters: Meters, settings: Settings, *, repeat: int, warm_up: int = 1) -> Bench:
        """The log's batches, each with its cut; after the first, `warm_up` of them do not count."""
        contracts = {stream: contract(stream) for stream in FIELDS}
        declared = {each.name: each for each in (tables.tariff, *tables.KINDS.values())}
        file = JobFile.read(Path(tables.__file__))
        files = {name: replace(file, path=file.path.with_stem(name)) for name in declared}
        project = Project(settings, contracts, declared, files)
        sorts, times, cuts = ["all", *["warm"] * warm_up, *["in order", "late"] * repeat], Times(), []
        for number, sort in enumerate(sorts):
            first, count = (meters.readings + BATCH * (number - 1), BATCH) if number else (0, meters.readings)
            with times.timed(sort):
                for stream, each in contracts.items():
                    append(settings, each, meters.events(stream, first, count, late=sort in ("warm", "late")))
            cuts.append(cut(project))
        heading(f"{meters.readings:,} readings and {meters.readings // 5:,} tariffs of {meters.meters:,} meters")
        line("commit to the logs", times["all"], "")
        hand = Hand(meters.spark, settings.warehouse_path / "logs", settings.warehouse_path / "hand")
        return cls(meters.spark, project, hand, cuts, sorts, repeat)

    def run(self, names: Iterable[str]) -> list[str]:
        """Measures each kind and prints its line; a kind that fails is reported, and the next one follows.

        Returns those that failed.
        """
        failed = []
        labels = {declaration.name: label for label, declaration in tables.KINDS.items()}
        heading(
            f"Rebuild from the log, and a warm batch of {BATCH:,} events, all in order or 1 % late: seconds,\n"
            "those of the hand-written job, and their ratio"
        )
        groups = "".join(f"{ours:>9}{'hand':>7}{'ratio':>7}" for ours in PAIRS)
        print(f"{'kind':<21}{'rows':>9}{'build':>7}{groups}", flush=True)
        for name in names:
            try:
                found = f"{self.measure(tables.KINDS[labels[name]]):9,}{self._figures(name)}"
            except Exception as error:
                found = f" {type(error).__name__}: {first_line(error)}"
                failed.append(name)
            print(f"{labels[name]:<21}{found}", flush=True)
        return failed

    def measure(self, declaration: Declaration) -> int:
        """Takes the times of one kind. Returns how many rows its table has in the end.

        Raises ValueError where the two tables differ.
        """
        name, times, hand = declaration.name, self.times, self.hand
        self._prepare(declaration, 1)
        with times.timed(f"build {name}"):
            advance(self._at(1), declaration)
        hand.rebuild(name, 1)
        for _ in range(self.repeat):
            with times.timed(f"rebuild {name}"):
                rebuild(self._at(1), declaration)
            with times.timed(f"overwrite {name}"):
                hand.rebuild(name, 1)
        self._compare(declaration)
        for batch, sort in enumerate(self.sorts[1:], start=2):
            self._prepare(declaration, batch)
            with times.timed(f"{sort} {name}"):
                advance(self._at(batch), declaration)
            with times.timed(f"hand {sort} {name}"):
                hand.step(name, batch)
        return self._compare(declaration)

    def _at(self, batch: int) -> Inputs:
        return Inputs(lambda: self.spark, self.project, self.cuts[batch - 1])

    def _prepare(self, declaration: Declaration, batch: int) -> None:
        """The tables that it reads, up to `batch`."""
        for source in declaration.inputs:
            if source.table is not None:
                advance(self._at(batch), source.table)
                if batch == 1:
                    self.hand.rebuild(source.name, batch)
                else:
                    self.hand.step(source.name, batch)

    def _compare(self, declaration: Declaration) -> int:
        """How many rows both tables have. Raises ValueError where they differ."""
        table = self._at(1).table(declaration)
        theirs = self.hand.result(declaration.name)
        ours = table.read(self.spark, table.version())
        columns = [column for column in theirs.columns if column in ours.columns]
        found, wanted = (fingerprint(rows, columns) for rows in (ours, theirs))
        if found != wanted:
            texts = [rows.selectExpr(*[f"cast({c} as string)" for c in columns]) for rows in (ours, theirs)]
            differing = texts[0].exceptAll(texts[1]).count()
            raise ValueError(f"{differing:,} of {found[0]:,} rows are not the {wanted[0]:,} hand-written ones")
        return found[0]

    def _figures(self, name: str) -> str:
        pairs = [(self.times[f"{ours} {name}"], self.times[f"{hand} {name}"]) for ours, hand in PAIRS.items()]
        figures = "".join(f"{ours:9.2f}{hand:7.2f}{ours / hand:7.2f}" for ours, hand in pairs)
        return f"{self.times[f'build {name}']:7.2f}{figures}"


def fingerprint(rows: DataFrame, columns: list[str]) -> tuple[int, int]:
    """The number of rows, and the sum of their hashes."""
    texts = ", ".join(f"cast(`{column}` as string)" for column in columns)
    found = rows.selectExpr("count(*)", f"sum(cast(xxhash64({texts}) as decimal(38)))").head()
    return (found[0], int(found[1] or 0)) if found else (0, 0)


if __name__ == "__main__":
    main()
