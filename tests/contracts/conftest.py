"""Records are read quickly where they can be, however few they are."""

from __future__ import annotations

import pytest

from lake import cost


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "CAREFUL_BYTES", 0)
