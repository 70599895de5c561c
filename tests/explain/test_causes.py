"""Events behind rows stopped by a gate, as the error lists them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lake.engine.explain import causes
from lake.errors import QualityError
from lake.quality import failures


def test_stopped_lists_a_row_once_when_several_expectations_fail_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "stop_error", lambda _: QualityError("pay: two failed"))
    monkeypatch.setattr(failures, "fix_text", lambda *_: "")
    rows = iter([("id=1", ["pay 1:0:0"]), ("id=1", ["pay 1:0:0"]), ("id=2", ["pay 1:0:1"])])
    monkeypatch.setattr(causes, "_failing_rows", lambda *_: [next(rows)])
    error = causes.gate_error(cast("Any", None), cast("Any", [1, 2, 3]))
    assert error is not None
    assert error.what.splitlines()[1:] == ["  behind id=1: pay 1:0:0", "  behind id=2: pay 1:0:1"]
