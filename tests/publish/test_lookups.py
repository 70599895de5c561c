"""Bounds of table look-ups and calls for a run of one late event."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from infra.house import late_event
from lake.config import load_settings
from lake.ops import pipeline

MOST = {"look-ups of a table": 20, "modules at work": 153, "calls between modules": 4400}
"""Upper bounds: a change may lower them, and raises none."""


def test_run_of_one_late_event_keeps_the_bounds_of_lookups_and_calls(spark: SparkSession, tmp_path: Path) -> None:
    done = late_event(tmp_path, lambda: pipeline.run(load_settings(tmp_path), lambda: spark, lambda _: None))
    for figure, most in MOST.items():
        assert 0 < len(done[figure]) <= most, (figure, Counter(done[figure]).most_common(20))
