"""The points of tests.kills: each is a method that exists."""

from __future__ import annotations

import pytest

from tests.kills import DELIVERY, METHODS, methods


@pytest.mark.parametrize("what", METHODS)
def test_point_of_a_kill_is_a_method_that_exists(what: str) -> None:
    assert all(callable(getattr(owner, name)) for owner, name in methods(what))


def test_points_of_a_delivery_are_those_of_methods() -> None:
    assert {point.partition(".")[0] for point in DELIVERY} <= METHODS.keys()
    assert {point.partition(".")[2] for point in DELIVERY} == {"before", "after"}
