"""`lake rebuild` of a table whose data file was damaged: all its rows are right again. No JVM."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.checks import answer
from tests.shop import new_shop


def _write_again(file: Path) -> None:
    """Write the rows with other amounts, as another program might."""
    rows = pq.read_table(file)
    place = rows.schema.get_field_index("amount")
    nothing = pa.nulls(rows.num_rows, rows.schema.field(place).type)
    pq.write_table(rows.set_column(place, rows.schema.field(place), nothing), file)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "written again": _write_again,
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "garbled": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "deleted": lambda file: file.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_rebuild_repairs_a_damaged_file(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    project = new_shop(tmp_path).land_samples().settings.project
    answer(project, "run")
    query = ("sql", "select order_id, amount from current_order order by all")
    before = answer(project, *query)
    [file] = (project / ".lake/warehouse/silver/current_order").glob("*.parquet")
    damage(file)
    answer(project, "rebuild", "current_order")
    answer(project, "publish")
    assert answer(project, *query) == before
