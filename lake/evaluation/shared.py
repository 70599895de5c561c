"""Inputs that several tables read are read once, and kept by Spark as long as these are at work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from lake import cost
from lake.declaration import Declaration, Input
from lake.evaluation.inputs import Inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TEXT, NUMBER = 48, 8
"""Bytes that a value takes in memory at most, as a rule: texts are short."""

UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@contextmanager
def sharing(inputs: Inputs, tables: Iterable[Declaration]) -> Iterator[None]:
    """Keeps the logs that more than one of `tables` reads, with all of their columns, while the block runs."""
    readers = Counter(name for table in tables for name in {source.name for source in table.inputs if source.is_log})
    room = cost.SHARED_MEMORY * _bytes(inputs.project.settings.spark.driver_memory)
    kept: list[DataFrame] = []
    for name in [name for name, reading in readers.items() if reading > 1]:
        source = Input(name)
        rows = inputs.whole(source)
        needed = inputs.size(source) * sum(TEXT if kind == "string" else NUMBER for _, kind in rows.dtypes)
        if needed <= room:
            room -= needed
            kept.append(rows.persist())
            inputs.kept[name] = kept[-1]
    try:
        yield
    finally:
        inputs.kept.clear()
        for rows in kept:
            rows.unpersist()


def _bytes(memory: str) -> int:
    """A size as the JVM writes it: 512m, 2g."""
    unit = UNITS.get(memory[-1].lower())
    return int(memory[:-1]) * unit if unit else int(memory)
