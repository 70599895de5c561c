"""Evaluation of one table: the object that every verb works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake.declaration import Declaration
from lake.evaluation.inputs import Inputs
from lake.kinds.kind import Kind
from lake.store.table_head import TableHead
from lake.store.tables import Table

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Evaluation:
    """Declared table at the cut of its `inputs`; `head` is None before it was built."""

    inputs: Inputs
    declaration: Declaration
    table: Table
    head: TableHead | None

    @classmethod
    def of(cls, inputs: Inputs, declaration: Declaration) -> Evaluation:
        table = inputs.table(declaration)
        return cls(inputs, declaration, table, table.head())

    @property
    def since(self) -> TableHead:
        assert self.head is not None, self.declaration.name
        return self.head

    @property
    def spark(self) -> SparkSession:
        return self.inputs.spark

    @property
    def kind(self) -> Kind:
        return self.declaration.kind

    @property
    def identity(self) -> tuple[str, ...]:
        return self.declaration.kind.identity

    @property
    def horizons(self) -> tuple[datetime | None, ...]:
        return self.inputs.horizons(self.declaration)

    def all_rows(self) -> DataFrame:
        """Return the whole table at the cut. Raises LakeError if a log is damaged."""
        self.inputs.must_be_whole(self.declaration)
        return self.inputs.evaluate(self.declaration)

    def rows_from(self, sides: Sequence[DataFrame]) -> DataFrame:
        return self.inputs.evaluated(self.declaration, sides)

    def is_built(self) -> bool:
        """Return whether the current definition has built the table."""
        return self.head is not None and self.inputs.project.is_built(self.declaration, self.head)
