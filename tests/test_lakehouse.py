"""Lakehouse of lake.testing: the rows of a table."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from lake.config import Settings
from tests import shop

JOB = '''
from lake import Latest, log, table

@table(Latest("k"), log("things"))
def thing(things):
    """A thing as it is."""
    return things.select("k")
'''


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("kind", "ordered"),
    [
        ("long?", [None, -10, -2, 1, 2, 10]),
        ("double?", [None, -2.5, 1.0, 10.0]),
        ("decimal(10, 2)?", [None, Decimal("2.00"), Decimal("10.50")]),
        ("string?", [None, "1", "10", "2"]),
        ("boolean?", [None, False, True]),
    ],
)
def test_rows_of_a_table_are_ordered_by_identity(project: Settings, kind: str, ordered: list[Any]) -> None:
    things = shop.declare(project, shop.contract("things", {"k": kind, "id": "long"}, key=["id"]), jobs={"thing": JOB})
    things.land("things", *({"k": key, "id": number} for number, key in enumerate(reversed(ordered))))
    rows = things.run().table("thing")
    assert [row["k"] for row in rows] == ordered
