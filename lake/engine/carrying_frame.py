"""Frame passed to a row-by-row function: its `select` keeps the carried columns.

The function may return `flights.select("tailnum", "carrier")`, and its kind still knows each row's place in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pyspark.sql import DataFrame

from lake.kinds.columns import CARRIED


class CarryingFrame(DataFrame):
    def __new__(cls, _: DataFrame) -> CarryingFrame:
        return object.__new__(cls)

    def __init__(self, frame: DataFrame) -> None:
        object.__setattr__(self, "_frame", frame)

    def __getattribute__(self, name: str) -> Any:
        frame: DataFrame = object.__getattribute__(self, "_frame")
        if name in ("select", "selectExpr"):
            return _carrying_select(frame, name)
        if name == "transform":
            return lambda function, *args, **kwargs: function(self, *args, **kwargs)
        value = getattr(frame, name)
        if isinstance(value, DataFrame):
            return CarryingFrame(value)
        return _carrying_method(value) if callable(value) and not name.startswith("_") else value

    def __getitem__(self, item: Any) -> Any:
        return unwrapped(self)[item]

    def __getattr__(self, name: str) -> Any:
        return getattr(unwrapped(self), name)

    def __dir__(self) -> list[str]:
        return dir(unwrapped(self))


def unwrapped(frame: DataFrame) -> DataFrame:
    if isinstance(frame, CarryingFrame):
        inner: DataFrame = object.__getattribute__(frame, "_frame")
        return inner
    return frame


def _carrying_select(frame: DataFrame, method: str) -> Callable[..., DataFrame]:
    def select(*columns: Any) -> DataFrame:
        result = getattr(frame, method)(*columns)
        missing = [c for c in CARRIED if c in frame.columns and c not in set(result.columns)]
        if not missing:
            return CarryingFrame(result)
        selected = columns[0] if len(columns) == 1 and isinstance(columns[0], list) else columns
        return CarryingFrame(getattr(frame, method)(*selected, *missing))

    return select


def _carrying_method(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(
            *(unwrapped(a) if isinstance(a, DataFrame) else a for a in args),
            **{k: unwrapped(a) if isinstance(a, DataFrame) else a for k, a in kwargs.items()},
        )
        return CarryingFrame(result) if isinstance(result, DataFrame) else result

    return call
