"""Columns read for a key lookup in a large log: only those used by the table."""

from __future__ import annotations

import random
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.engine.affected_keys import restrict
from lake.engine.inputs import Inputs
from lake.engine.verify import verify_all
from lake.ingest.events import void
from lake.privacy.forget import forget
from lake.project.declaration import Declaration
from lake.publish.cut import cut
from lake.store import scan
from lake.store.rows import Rows
from lake.store.scan import to_arrow
from lake.testing import Lakehouse
from tests.shop import contract, declare, empty, job

BEGAN: Final = datetime(2024, 5, 1, tzinfo=UTC)
ABOUT: Final = {"time": "at", "id": ["number"], "subject": "owner"}
FIRST: Final = {
    "meter": "string",
    "at": "timestamp",
    "number": "long",
    "value": "int?",
    "mode": "string",
    "owner": ("string", {"personal": True}),
    "place": "string?",
}
SECOND: Final = {
    "meter": "string",
    "at": "timestamp",
    "number": "long",
    "value": "long?",
    "state": ("string", {"aliases": ["mode"]}),
    "owner": ("string", {"personal": True}),
    "place": "string?",
    "grade": ("int", {"default": 7}),
}
"""Renames a field, widens one, and has one more, which older events have in `_extra`."""
CHANGE: Final = {"meter": "string", "since": "timestamp", "tariff": "string", "remark": "string?"}
SEEN: Final = 'lambda state, event: {"n": state["n"] + 1, "last": event["value"]}'
FOLDED: Final = 'state="n int, last bigint", start={"n": 0, "last": None}, step='
BEST: Final = (
    '"best": FirstValue("state", by="value"), "last": LastValue("grade", by="at"), "kinds": CountDistinct("state")'
)
KINDS: Final = {
    "newest": """Latest("meter", sequence="at", deletes="state = 'off'")""",
    "partial": """Latest("meter", sequence="at", deletes="state = 'off'", partial=["value"])""",
    "in_order": """Latest("meter", deletes="state = 'off'")""",
    "oldest": """First("meter", sequence="at", deletes="state = 'off'")""",
    "periods": """History("meter", sequence="at", track="state", deletes="grade = 1")""",
    "best": f'Aggregate("meter", {{"n": Count(), {BEST}}})',
    "hourly": 'Aggregate("meter", {"most": Max("value")}, window=Tumbling(length=timedelta(hours=8), on="at"), '
    'late="drop", lateness=timedelta(hours=40), is_final=True)',
    "runs": 'Aggregate("meter", {"n": Count()}, window=Session(gap=timedelta(hours=6), on="at"))',
    "folded": f'Fold("meter", sequence="at", {FOLDED}{{"n": "state.n + 1", "last": "event.value"}})',
    "counted": f'Fold("meter", sequence="at", {FOLDED}{SEEN})',
    "high": 'Pattern("meter", sequence="at", steps=[Step("high", "value > 40", times="{2,}")], '
    'measures={"n": Count(), "began": FirstOf("at")})',
    "owners": 'Latest("meter", sequence="at")',
}
TWO: Final = {
    "priced": 'Enrich("number", AsOf("meter", time="since"), time="at")',
    "joined": 'Join("meter", left="number", right="since", within=timedelta(hours=12), times=("at", "since"))',
}
PLACE: Final = {"_batch", "_arrival", "_bucket", "_offset", "_source", "_refusal", "_subject"}
"""Where an event is, and by what it is told that it is void or none, and whose it is."""
WIDENED: Final = {"value", "value__bigint", "_version"}
READ: Final = {
    "newest": PLACE | WIDENED | {"meter", "at", "number", "mode", "state", "grade", "_extra"},
    "folded": PLACE | WIDENED | {"meter", "at"},
    "runs": PLACE | {"meter", "at"},
    "owners": PLACE | {"meter", "at", "owner"},
}
"""What some tables are made of: all columns that the contract's two versions have for their fields."""


def jobs(tables: Collection[str]) -> dict[str, str]:
    """Return the jobs of `tables`, each of a kind; those of `TWO` also read the changes of tariffs."""
    shown = dict.fromkeys(KINDS, 'rows.select("meter", "at", "number", "value", "state", "grade")')
    shown |= {"owners": 'rows.select("meter", "at", "owner")', "runs": "rows"}
    shown |= {"folded": 'rows.select("meter", "at", "value")'}  # An event of a Fold has all columns of the function
    both = '(rows.select("meter", "at", "number", "value"), rows1.select("meter", "since", "tariff"))'
    made = {name: job(name, kind, 'log("reading")', returns=shown[name]) for name, kind in KINDS.items()} | {
        name: job(name, kind, 'log("reading")', 'log("change")', returns=both) for name, kind in TWO.items()
    }
    return {name: made[name] for name in tables}


def land(lake: Lakehouse, chance: random.Random, batch: int, *, old: bool = False) -> None:
    """Land readings of some meters, some late, without every sixth meter later; and changes of tariffs."""
    readings = []
    for nth in range(24):
        at = BEGAN + timedelta(hours=24 * batch + chance.randrange(24) - (60 if chance.random() < 0.2 else 0))
        state = chance.choice(["on", "on", "on", "idle", "off"])
        readings.append(
            {
                "meter": f"M{chance.randrange(12)}",
                "at": str(at),
                "number": 100 * batch + nth,
                "value": chance.choice([None, chance.randrange(90)]),
                ("mode" if old else "state"): state,
                "owner": chance.choice(["ada", "grace", "joan"]),
                "place": "somewhere",
                "grade": chance.randrange(4),
                "note": "no contract knows it",
            }
        )
    changes = [
        {"meter": f"M{chance.randrange(12)}", "since": str(BEGAN + timedelta(hours=24 * batch + n)), "tariff": "abc"[n]}
        for n in range(3)
    ]
    lake.land("reading", *readings, "no reading").land("change", *changes)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Treat every log as large and every key set as small. Return the columns read by each key lookup."""
    seen: list[set[str]] = []
    call = scan.read

    def noted(path: Any, *args: Any, only: Collection[str] | None = None, **kwargs: Any) -> pa.Table:
        rows = call(path, *args, only=only, **kwargs)
        if only is not None:
            seen.append({name for name in rows.column_names if rows.column(name).null_count < rows.num_rows})
            assert seen[-1] <= {*only}
        return rows

    monkeypatch.setattr(scan, "read", noted)
    for limit in ("PRUNED_LOG_ROWS", "SOUGHT_ROWS", "PICKED_BYTES"):
        monkeypatch.setattr(cost, limit, 0)
    monkeypatch.setattr(cost, "AFFECTED_SHARE", 1.0)
    return seen


def new_lake(folder: Path, chance: random.Random, tables: Collection[str] = (*KINDS, *TWO)) -> Lakehouse:
    """Return a lake whose first two batches have another contract version than later ones."""
    settings = empty(folder)
    lake = declare(settings, contract("reading", FIRST, **ABOUT), contract("change", CHANGE, time="since"))
    for batch in (1, 2):
        land(lake, chance, batch, old=True)
        lake.run()
    return declare(settings, contract("reading", SECOND, **ABOUT), jobs=jobs(tables))


def same_alone(inputs: Inputs, declaration: Declaration, first: float) -> bool:
    """Return whether the keys of three rows of a table, from a place between 0 and 1, have the same rows alone."""
    whole = to_arrow(inputs.evaluate(declaration))
    keys = whole.select(list(declaration.kind.key)).slice(int(first * whole.num_rows), 3)
    some = to_arrow(inputs.evaluated(declaration, restrict(inputs, declaration, Rows(keys))))
    wanted = keys.to_pylist()
    expected = [row for row in whole.to_pylist() if {c: row[c] for c in keys.column_names} in wanted]
    return bool(expected) and sorted(map(str, some.to_pylist())) == sorted(map(str, expected))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tables_are_equal_when_unused_columns_are_not_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[set[str]], seed: int
) -> None:
    chance = random.Random(seed)
    lake = new_lake(tmp_path, chance)
    lake.run()
    for batch in (3, 4):
        land(lake, chance, batch)
        lake.run()
        if batch == 3:
            void(lake.settings, "reading", batches=[2], reason="wrong")
            forget(lake.project, lambda: spark, "reading", "joan")
    assert read
    verdicts = verify_all(lambda: spark, lake.project, on_progress=lambda _: None)
    assert {verdict.table: verdict.verdict for verdict in verdicts} == dict.fromkeys([*KINDS, *TWO], "identical")
    inputs = Inputs(lambda: spark, lake.project, cut(lake.project))
    for number, declaration in enumerate(lake.project.tables.values()):
        # The rows go to Spark from this process, or Spark reads them itself.
        for limit in ("SCAN_ROWS", "HANDED_ROWS"):
            monkeypatch.setattr(cost, limit, 20_000 * ((number + seed) % 2))
        assert same_alone(inputs, declaration, chance.random()), declaration.name


@pytest.mark.long
@pytest.mark.parametrize("names", [["newest", "owners"], ["folded", "runs"]])
def test_key_lookup_reads_only_the_columns_in_use(
    spark: SparkSession, tmp_path: Path, read: list[set[str]], names: list[str]
) -> None:
    lake = new_lake(tmp_path, random.Random(0), names)
    land(lake, random.Random(0), 3)
    lake.run()
    inputs = Inputs(lambda: spark, lake.project, cut(lake.project))
    for name in names:
        read.clear()
        assert same_alone(inputs, lake.project.tables[name], 0), name
        assert read, name
        assert read[-1] <= READ[name], name
