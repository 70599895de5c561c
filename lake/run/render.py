"""Answers as text: an aligned table, CSV or JSON. Decimals are exact, instants in UTC with Z, nulls told from ''."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

NULL: Final = "null"
Rows = Iterable[Sequence[Any]]


def as_table(names: Sequence[str], rows: Rows, *, width: int | None = None) -> Iterator[str]:
    """Aligned lines under a heading, numbers to the right; cells are cut at `width` characters where it is given."""
    records = [list(row) for row in rows]
    numeric = [
        any(row[i] is not None for row in records) and all(_is_number(row[i]) for row in records)
        for i in range(len(names))
    ]
    grid = [[_cut(shown(value), width) for value in row] for row in records]
    widths = [max(_width(name), *(_width(line[i]) for line in grid), 0) for i, name in enumerate(names)]
    for line in ([*names], ["-" * width for width in widths], *grid):
        cells = (_pad(cell, size, right) for cell, size, right in zip(line, widths, numeric, strict=True))
        yield "  ".join(cells).rstrip()


def as_csv(names: Sequence[str], rows: Rows) -> Iterator[str]:
    """Lines of RFC 4180 with a heading. Null is nothing between commas, empty text is `""`."""
    yield ",".join(_csv(name) for name in names)
    for row in rows:
        yield ",".join("" if value is None else _csv(text(value)) for value in row)


def as_json(names: Sequence[str], rows: Rows) -> Iterator[str]:
    """One array, a row a line. Decimals are strings, so that no reader rounds them; instants are ISO 8601 in UTC."""
    keys = _distinct(names)
    yield "["
    held = ""
    for row in rows:
        if held:
            yield held + ","
        held = json.dumps(dict(zip(keys, map(plain, row), strict=True)), ensure_ascii=False)
    if held:
        yield held
    yield "]"


FORMATS: Final[Mapping[str, Callable[[Sequence[str], Rows], Iterator[str]]]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
}


def text(value: Any) -> str:
    """One value as text; nested ones as JSON."""
    found = plain(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def plain(value: Any) -> Any:  # noqa: PLR0911 - one return a type
    """`value` as JSON can say it without loss."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat()
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else text(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value)


def shown(value: Any) -> str:
    """A cell of a table: one line, and nothing that a terminal would obey."""
    if value is None:
        return NULL
    return printable(text(value))


def printable(text: str) -> str:
    """`text` on one line, with what a terminal would obey spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _cut(cell: str, width: int | None) -> str:
    return cell if width is None or len(cell) <= width else cell[: width - 1] + "…"


def _width(cell: str) -> int:
    """Columns on a terminal: wide East Asian characters take two, combining ones none."""
    if cell.isascii():
        return len(cell)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in cell)


def _pad(cell: str, width: int, right: bool) -> str:
    space = " " * (width - _width(cell))
    return space + cell if right else cell + space


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | Decimal) and not isinstance(value, bool))


def _csv(cell: str) -> str:
    if cell and not any(c in cell for c in ',"\r\n') and cell.strip() == cell:
        return cell
    return '"' + cell.replace('"', '""') + '"'


def _distinct(names: Sequence[str]) -> list[str]:
    """Names that are keys of one object: a second `a` becomes `a_2`."""
    found: list[str] = []
    for name in names:
        number, fresh = 2, name
        while fresh in found:
            number, fresh = number + 1, f"{name}_{number}"
        found.append(fresh)
    return found
