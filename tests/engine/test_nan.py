"""NaN in rows: equal to NaN where rows are compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checks import answer
from tests.shop import contract, declare, empty, job

pytestmark = pytest.mark.slow

THING = contract("thing", {"id": "int", "at": "timestamp"}, id=["id"], time="at")


@pytest.mark.long
@pytest.mark.parametrize(
    "value", ["array(double('NaN'), 1D)", "double('NaN')", "float('NaN')", "named_struct('x', double('NaN'))"]
)
def test_nan_is_no_change_of_a_row(tmp_path: Path, value: str) -> None:
    def returned(number: int) -> str:
        text = f"rows.selectExpr('*', \"{value} as x\", '{number} as v')"
        return job("newest", 'Latest("id", sequence="at")', 'log("thing")', returns=text)

    settings = empty(tmp_path / "shop")
    declare(settings, THING, jobs={"newest": returned(1)})
    settings.path("landing/thing").mkdir()
    settings.path("landing/thing/1.jsonl").write_text(json.dumps({"id": 1, "at": "2024-01-01T00:00:00Z"}))
    answer(settings.project, "run")
    declare(settings, jobs={"newest": returned(2)})
    [rebuilt] = answer(settings.project, "rebuild", "newest", "--dry-run")["tables"]
    assert [row["columns"] for row in rebuilt["sample"]] == [{"v": [1, 2]}]
    answer(settings.project, "rebuild", "newest")
    answer(settings.project, "run")
    found = answer(settings.project, "diff", "newest", "--from-edition", "1", "--to-edition", "2")
    assert [row["columns"] for row in found["sample"]] == [["v"]]
