"""Laws of Fold: equal in any slicing and equal to the model, in SQL and in Python; each key is a separate history."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal
from itertools import groupby
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import Fold, Refusal
from lake.kinds.columns import ORDER
from lake.testing.laws import at_once, by_slices
from tests.laws import HISTORIES
from tests.laws.models import fold as model
from tests.laws.models.fold import Entry

PARTS = 4
STATE = "balance decimal(12, 2), entries int, amounts array<decimal(12, 2)>, _newest int"
START = {"balance": Decimal("0.00"), "entries": 0, "amounts": []}
LEFT = "state.balance + event.amount"

IN_SQL = Fold(
    "key",
    sequence="at",
    state=STATE,
    start=START,
    step={
        "balance": LEFT,
        "entries": "state.entries + 1",
        "amounts": "concat(state.amounts, array(event.amount))",
        "_newest": "event.place",
    },
    refuse=f"if({LEFT} < 0, concat(cast(-({LEFT}) as decimal(12, 2)), ' short'), null)",
)


def post(state: dict[str, Any], event: dict[str, Any]) -> dict[str, Any] | Refusal:
    left = state["balance"] + event["amount"]
    if left < 0:
        return Refusal(f"{-left} short")
    return {
        "balance": left,
        "entries": state["entries"] + 1,
        "amounts": [*state["amounts"], event["amount"]],
        "_newest": event["place"],
    }


IN_PYTHON = Fold("key", sequence="at", state=STATE, start=START, step=post)
KINDS = {"sql": IN_SQL, "python": IN_PYTHON}


def histories(*, total: bool = False) -> list[list[tuple[Entry, int]]]:
    """Return the signed entries of each part; times come late, and are distinct if the sequence is `total`. Half of the
    histories remove entries, if not `total`.
    """
    chance = random.Random(HISTORIES + total)
    parts: list[list[tuple[Entry, int]]] = [[] for _ in range(PARTS)]
    for key in range(HISTORIES):
        times = chance.sample(range(20), 12) if total else [chance.choice([None, *range(5)]) for _ in range(12)]
        if chance.random() < 0.4:
            times = sorted(times, key=lambda t: (t is not None, t))
        number = 0
        there: list[tuple[Entry, int]] = []
        for place in range(chance.randrange(1, 12)):
            number = min(PARTS - 1, number + chance.choice([0, 0, 1]))
            gone = [entry for entry, came in there if came < number]
            if key % 2 and gone and not total and chance.random() < 0.2:
                entry = chance.choice(gone)
                there = [(each, came) for each, came in there if each != entry]
                parts[number].append((entry, -1))
            entry = Entry(key, times[place], Decimal(chance.randrange(-300, 400)).scaleb(-2), place)
            there.append((entry, number))
            parts[number].append((entry, 1))
    return parts


def frames(spark: SparkSession, parts: list[list[tuple[Entry, int]]]) -> list[DataFrame]:
    schema = "key int, at int, amount decimal(6, 2), place int, _sign int"
    rows = [[(e.key, e.at, e.amount, e.place, sign) for e, sign in part] for part in parts]
    return [spark.createDataFrame(part, schema).withColumn(ORDER, F.struct("place")) for part in rows]


def remaining_entries(parts: list[list[tuple[Entry, int]]]) -> list[Entry]:
    gone = {entry for part in parts for entry, sign in part if sign < 0}
    return [entry for part in parts for entry, sign in part if sign > 0 and entry not in gone]


def states(table: DataFrame) -> dict[Any, Any]:
    return {row.key: (row.balance, row.entries, row.amounts, row.refused) for row in table.collect()}


@pytest.mark.parametrize("reducer", ["python", pytest.param("sql", marks=pytest.mark.long)])
def test_fold_is_equal_in_any_slicing(spark: SparkSession, reducer: Any) -> None:
    parts = histories()
    slices = frames(spark, parts)
    everything, sliced = at_once(KINDS[reducer], slices), by_slices(KINDS[reducer], slices)
    assert states(everything) == model.accounts(remaining_entries(parts))
    columns = sorted(everything.columns)
    assert sliced.select(columns).exceptAll(everything.select(columns)).isEmpty()
    assert everything.select(columns).exceptAll(sliced.select(columns)).isEmpty()


@pytest.mark.long
@pytest.mark.parametrize("reducer", ["sql", "python"])
def test_refused_events_are_equal_in_any_slicing(spark: SparkSession, reducer: Any) -> None:
    kind = KINDS[reducer].refusals(id="place")
    parts = histories()
    slices = frames(spark, parts)
    by_history = groupby(model.in_order(remaining_entries(parts)), key=lambda entry: entry.key)
    expected = {place: row for _, entries in by_history for place, row in model.refusals(list(entries)).items()}
    for table in (at_once(kind, slices), by_slices(kind, slices)):
        rows = table.collect()
        assert {(r.key, r.place): (r.at, r.amount, r.reason) for r in rows} == expected
        assert len(rows) == len(expected)


@pytest.mark.long
@pytest.mark.parametrize("reducer", KINDS)
def test_fold_with_a_total_sequence_is_equal_in_any_order_of_arrival(spark: SparkSession, reducer: Any) -> None:
    parts = histories(total=True)
    entries = [entry for part in parts for entry, _ in part]
    random.Random(7).shuffle(entries)
    arrived = [(replace(entry, place=number), 1) for number, entry in enumerate(entries)]
    size = len(arrived) // PARTS + 1
    shuffled = [arrived[i * size : (i + 1) * size] for i in range(PARTS)]
    assert states(by_slices(KINDS[reducer], frames(spark, shuffled))) == model.accounts(remaining_entries(parts))
