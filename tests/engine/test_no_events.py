"""Tables over streams without events: they are built, advanced and verified like others."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild_all
from lake.engine.verify import verify_all
from lake.publish.cut import pick_cut
from lake.testing import Lakehouse
from tests.options import events
from tests.options import project as matrix


@pytest.mark.long
@pytest.mark.parametrize("first", ["others", "events"])
def test_table_of_every_kind_exists_before_its_events(spark: SparkSession, tmp_path: Path, first: str) -> None:
    """No stream has events, then `first` alone, then both; tables equal those of one run of all events."""
    folder = matrix.write(tmp_path / "project", matrix.tables(bold=True))
    land, come = next(iter(events.batches())), set[str]()
    ours = Lakehouse(folder, tmp_path / "ours")
    for number, streams in enumerate(([], [first], [name for name in land if name != first])):
        theirs = Lakehouse(folder, tmp_path / f"theirs {number}")
        come |= {*streams}
        for stream in streams:
            ours.land(stream, *land[stream])
        for stream in sorted(come):
            theirs.land(stream, *land[stream])
        for lakehouse in (ours, theirs):
            lakehouse.run()
        tables = {name: ours.table(name) for name in ours.project.tables}
        assert tables == {name: theirs.table(name) for name in theirs.project.tables}, streams
        assert any(tables.values()) == bool(come & {"events"} or (come and "other" in tables))
        rebuild_all(Inputs(lambda: spark, ours.project, pick_cut(ours.project, None)), (), on_progress=lambda _: None)
        verdicts = verify_all(lambda: spark, ours.project, on_progress=lambda _: None)
        assert [each for each in verdicts if each.verdict != "identical"] == []
