"""Sets of whole numbers as ranges `[first, last]`: few where the numbers are many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """The ranges of `numbers`, in order."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def numbers(found: Iterable[Sequence[int]]) -> Iterator[int]:
    """The numbers within ranges."""
    for first, last in found:
        yield from range(first, last + 1)


def within(number: int, found: Iterable[Sequence[int]]) -> bool:
    """Whether one of the ranges has `number`."""
    return any(first <= number <= last for first, last in found)


def told(numbers: Iterable[int]) -> str:
    """`3, 7 to 9` for a person; `none` where there are none."""
    parts = (str(first) if first == last else f"{first} to {last}" for first, last in ranges(numbers))
    return ", ".join(parts) or "none"
