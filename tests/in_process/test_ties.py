"""Rows of one time, of which DuckDB's sort keeps no order: tables do not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lake import (
    Aggregate,
    AsOf,
    Count,
    Enrich,
    First,
    FirstValue,
    History,
    Hopping,
    Join,
    LastValue,
    Latest,
    Max,
    Pattern,
    Session,
    Sliding,
    Step,
    Sum,
    Tumbling,
)
from lake.kinds.columns import ORDER, TIME
from lake.session.in_process.mode import by_duckdb
from lake.store.scan import to_arrow, to_frame
from lake.testing.laws import at_once, by_slices
from tests.in_process.rows import in_process

MINUTE, GAP = timedelta(minutes=1), timedelta(minutes=10)
EPOCH = datetime(2024, 3, 1, tzinfo=UTC)
MEASURES = {
    "n": Count(),
    "total": Sum("value"),
    "most": Max("value"),
    "opening": FirstValue("value", by="at"),
    "closing": LastValue("value", by="at"),
}
WINDOWS = {
    "session": Session(gap=GAP, on="at"),
    "sliding": Sliding(length=GAP, on="at", id="id"),
    "tumbling": Tumbling(length=GAP, on="at"),
    "hopping": Hopping(length=GAP, every=5 * MINUTE, on="at"),
}
KINDS: dict[str, Any] = {
    "latest": Latest("key", sequence="at"),
    "first": First("key", sequence="at"),
    "history": History("key", sequence="at", track=["value"]),
    "pattern": Pattern("key", sequence="at", steps=[Step("rise", "value > 3", times="+")], measures={"n": Count()}),
    **{name: Aggregate("key", MEASURES, window=window) for name, window in WINDOWS.items()},
}
OF_TWO: dict[str, Any] = {
    "enrich": Enrich("id", AsOf("key", time="since"), time="at"),
    "join": Join("key", left="id", right="other", how="full"),
}
SCHEMA = pa.schema(
    {
        "key": pa.int32(),
        "id": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "value": pa.int32(),
        TIME: pa.timestamp("us", "UTC"),
        "_watermark": pa.timestamp("us", "UTC"),
        ORDER: pa.struct({"place": pa.int64()}),
        "_sign": pa.int8(),
    }
)


def events(seed: int, count: int = 300) -> pa.Table:
    """Return events of two keys at a few times."""
    dice = Random(seed)
    times = [EPOCH + MINUTE * minutes for minutes in dice.sample(range(120), 12)]
    rows = [
        {"key": dice.randrange(2), "id": n, "at": (at := dice.choice(times)), "value": dice.randrange(9), TIME: at}
        | {ORDER: {"place": n}, "_sign": 1}
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def mixed(rows: pa.Table, seed: int) -> pa.Table:
    places = [*range(rows.num_rows)]
    Random(seed).shuffle(places)
    return rows.take(pa.array(places))


def of_another(rows: pa.Table) -> pa.Table:
    """Return rows as those of a second input, whose columns have other names."""
    names = {"id": "other", "at": "since", "value": "worth"}
    return rows.rename_columns([names.get(name, name) for name in rows.column_names])


def content(rows: Any) -> list[str]:
    table = to_arrow(rows)
    return sorted(map(repr, table.select(sorted(table.column_names)).to_pylist()))


def frames(*tables: pa.Table) -> Any:
    made = [to_frame(in_process(), table) for table in tables]
    return made[0] if len(made) == 1 else made


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*KINDS, *OF_TWO])
def test_table_does_not_depend_on_the_order_of_rows_of_one_time(name: str, seed: int) -> None:
    kind = KINDS.get(name) or OF_TWO[name]
    rows = events(seed, 40 if name == "join" else 300)
    third = rows.num_rows // 3
    slices = [rows.slice(0, third), rows.slice(third, third), rows.slice(2 * third)]

    def part(table: pa.Table, order: int) -> Any:
        table = mixed(table, order)
        return frames(table, of_another(table)) if name in OF_TWO else frames(table)

    with by_duckdb():
        found = [content(at_once(kind, [part(rows, order)])) for order in range(4)]
        assert found[0]
        assert found == found[:1] * 4
        assert content(by_slices(kind, [part(each, seed) for each in slices])) == found[0]


@pytest.mark.parametrize("seed", range(3))
def test_sessions_of_many_events_of_one_time_are_those_of_the_model(seed: int) -> None:
    rows = events(seed)
    with by_duckdb():
        table = to_arrow(at_once(KINDS["session"], [frames(mixed(rows, seed))]))
    found = [(row["key"], row["window_start"], row["window_end"], row["n"]) for row in table.to_pylist()]
    wanted = [
        (key, *session)
        for key in (0, 1)
        for session in sessions(rows.filter(pc.equal(rows["key"], key))["at"].to_pylist())
    ]
    assert sorted(found) == wanted


def sessions(times: Sequence[datetime]) -> list[tuple[datetime, datetime, int]]:
    """Return start, end and number of events of each session of one key."""
    made: list[tuple[datetime, datetime, int]] = []
    for at in sorted(times):
        if made and at < made[-1][1]:
            made[-1] = (made[-1][0], at + GAP, made[-1][2] + 1)
        else:
            made.append((at, at + GAP, 1))
    return made
