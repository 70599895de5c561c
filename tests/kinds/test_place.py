"""Type of the log order in state: its batch and arrival. A change of it would rebuild every table."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import Aggregate, First, FirstValue, Fold, History, LastValue, Latest
from tests.kinds.events import batch

KINDS = {
    "latest": (Latest("k", sequence="at", partial="v", groups={"g": "w"}), ("_at", "_at_v", "_at_g")),
    "first": (First("k", deletes="v = 0"), ("_at", "_since")),
    "history": (History("k", sequence="at"), ("_at",)),
    "fold": (Fold("k", sequence="at", state="n int", step={"n": "event.v"}), ("_at",)),
    "values": (
        Aggregate("k", {"a": FirstValue("v", by="at"), "b": LastValue("v", by="at")}),
        ("_a_at", "_b_at"),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_state_keeps_the_type_of_the_log_order(spark: SparkSession, name: Any) -> None:
    kind, columns = KINDS[name]
    types = dict(kind.evaluate(batch(spark, 1, "k int, at int, v int, g int, w int", (1, 2, 3, 4, 5))).dtypes)
    assert [types[c] for c in columns if "struct<_batch:bigint,_arrival:bigint>" not in types[c]] == []
