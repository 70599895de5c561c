"""Cache of a function's results that is dropped when the function is pickled for Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MOST: Final = 1024


class Memo(Generic[K, V]):
    def __init__(self, function: Callable[[K], V]) -> None:
        self._function = function
        self._known: dict[K, V] = {}

    def __call__(self, argument: K) -> V:
        try:
            return self._known[argument]
        except KeyError:
            result = self._function(argument)
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[argument] = result
        return result

    def __reduce__(self) -> tuple[type[Memo[K, V]], tuple[Callable[[K], V]]]:
        return Memo, (self._function,)
