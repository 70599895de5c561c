"""Texts: query results as a table, Markdown or HTML, names and strings as SQL, addresses without passwords.

In results decimals are exact, instants are in UTC with Z, and nulls are not ''. In SQL Spark and DuckDB differ: Spark
quotes names by backticks and treats \\ in a string as an escape.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from html import escape
from itertools import chain, islice
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from lake.errors import DeclarationError

NULL: Final = "NULL"
MEASURED_ROWS: Final = 1000
MARKS: Final = str.maketrans({mark: f"\\{mark}" for mark in "\\|*_`<>[]"})
SPARK: Final = "`"
DUCKDB: Final = '"'
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
LONGEST: Final = timedelta(days=2_000_000)
"""Longest duration: a time of today plus it is a time of Python."""
UNITS: Final = {
    **dict.fromkeys(("s", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("week", "weeks"), 604800),
}
"""Seconds of the units of a duration."""
_DURATION: Final = re.compile(rf"\s*([0-9]{{1,15}}(?:\.[0-9]{{1,6}})?)\s*({'|'.join(UNITS)})\s*")
LOGIN: Final = re.compile(r"://.*:.*@", re.DOTALL)
"""User and password, also with reserved signs: for `me:a/b@host`, a client would look for the host `me`."""
OPTION: Final = re.compile(r"[?&](?:ssl)?password=")
ENCODED: Final = "percent-encode the signs / ? # [ ] @ of its user and password: / is %2F, @ is %40"
Rows = Iterable[Sequence[Any]]


def as_table(
    names: Sequence[str], rows: Rows, *, numeric: Sequence[bool] | None = None, width: int | None = None
) -> Iterator[str]:
    """Yield aligned lines under a heading, numbers to the right; cells are cut at `width` characters.

    The first rows determine the widths, and the `numeric` columns unless given; later rows are streamed, and a wider
    cell sticks out.
    """
    rows = iter(rows)
    first = [list(row) for row in islice(rows, MEASURED_ROWS)]
    if numeric is None:
        numeric = [_is_numeric([row[i] for row in first]) for i in range(len(names))]
    heading = [printable(name) for name in names]
    grid = [[shortened(shown(value), width) for value in row] for row in first]
    widths = [max(_width(name), *(_width(line[i]) for line in grid), 0) for i, name in enumerate(heading)]
    later = ([shortened(shown(value), width) for value in row] for row in rows)
    for line in chain([heading, ["-" * width for width in widths]], grid, later):
        cells = (_pad(cell, size, right) for cell, size, right in zip(line, widths, numeric, strict=True))
        yield "  ".join(cells).rstrip()


def as_markdown(names: Sequence[str], rows: Rows, *, numeric: Sequence[bool]) -> Iterator[str]:
    yield f"| {' | '.join(_marked(printable(name)) for name in names)} |"
    yield f"| {' | '.join('---:' if right else '---' for right in numeric)} |"
    for row in rows:
        yield f"| {' | '.join(_marked(shown(value)) for value in row)} |"


def as_html(names: Sequence[str], rows: Rows, *, numeric: Sequence[bool]) -> Iterator[str]:
    right = [' style="text-align: right"' if number else ' style="text-align: left"' for number in numeric]

    def row(tag: str, cells: Iterable[str]) -> str:
        return "".join(f"<{tag}{to}>{escape(cell)}</{tag}>" for to, cell in zip(right, cells, strict=True))

    yield f"<table><thead><tr>{row('th', map(printable, names))}</tr></thead><tbody>"
    yield from (f"<tr>{row('td', map(shown, cells))}</tr>" for cells in rows)
    yield "</tbody></table>"


def text(value: Any) -> str:
    spelt = plain(value)
    return spelt if isinstance(spelt, str) else json.dumps(spelt, ensure_ascii=False)


def plain(value: Any) -> Any:  # noqa: PLR0911 - one return a type
    """Return `value` in a form that JSON represents without loss."""
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
        return {key if isinstance(key, str) else text(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return str(value)


def moment(value: datetime) -> str:
    """Return a moment in UTC, to the second; one without a zone is in UTC."""
    return f"{value if value.tzinfo is None else value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def shown(value: Any) -> str:
    """Return a cell: one line, control characters escaped. The text NULL is quoted, a null is not."""
    if value is None:
        return NULL
    cell = printable(value if isinstance(value, str) else text(value))
    return f'"{cell}"' if NULL in cell and cell.strip('"') == NULL else cell


def printable(text: str, *, keep: str = "", spell: Callable[[str], str] | None = None) -> str:
    """Escape control characters, by `spell` if it is given, but those in `keep`."""
    if text.isprintable():
        return text
    spell = spell or (lambda c: c.encode("unicode_escape").decode())
    return "".join(c if c.isprintable() or c in keep else spell(c) for c in text)


def shortened(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"


def _width(cell: str) -> int:
    """Return the columns on a terminal: wide East Asian characters take two, combining ones none."""
    if cell.isascii():
        return len(cell)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in cell)


def _pad(cell: str, width: int, right: bool) -> str:
    space = " " * (width - _width(cell))
    return space + cell if right else cell + space


def _is_numeric(values: Sequence[Any]) -> bool:
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(v, int | float | Decimal) and not isinstance(v, bool) for v in given)


def _marked(cell: str) -> str:
    return cell.translate(MARKS)


def distinct(names: Sequence[str], fold: Callable[[str], str] = str) -> list[str]:
    """Return unique names: a second `a` becomes `a_2`. Names are equal if `fold` makes them equal."""
    unique: list[str] = []
    taken: set[str] = set()
    for name in names:
        number, fresh = 2, name
        while fold(fresh) in taken:
            number, fresh = number + 1, f"{name}_{number}"
        unique.append(fresh)
        taken.add(fold(fresh))
    return unique


def counted(count: int, noun: str, several: str = "") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {several or f'{noun}s'}"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return `a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if names[most:] else ""
    return ", ".join(names[:most]) + more


def duration(text: object) -> timedelta | None:
    """Parse `1 day`, `90 minutes`, `10 min`, `0.5s` …; None if it is invalid, or longer than LONGEST."""
    found = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    seconds = Decimal(found[1]) * UNITS[found[2]]
    return timedelta(microseconds=int(seconds * 10**6)) if seconds <= LONGEST.total_seconds() else None


def span(lag: timedelta) -> str:
    """Return a duration in its two largest units: `2 d 3 h`, `3 h 20 min`, `40 s`; `0` for none."""
    seconds = int(lag.total_seconds())
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s")]
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2]) or "0"


def quoted(name: str, quote: str = DUCKDB) -> str:
    return quote + name.replace(quote, quote * 2) + quote


def literal(text: str, quote: str = DUCKDB) -> str:
    if quote == SPARK:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return "'" + text.replace("'", "''") + "'"


def type_parts(text: str) -> tuple[str, list[str]]:
    """Split Spark's name of a type: `struct<a: int, b: string>` into "struct<>" and ["a: int", "b: string"]."""
    if found := re.fullmatch(r"\s*(\w+)\s*<(.*)>\s*", text, re.DOTALL):
        return f"{found[1].lower()}<>", split_fields(found[2])
    if found := re.fullmatch(r"\s*(\w+)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\s*", text):
        return f"{found[1].lower()}()", [part for part in found.groups()[1:] if part]
    return text.strip().lower(), []


def split_fields(text: str) -> list[str]:
    """Split columns or fields with their types, `a int, b array<int>`, at the commas between them."""
    depth, parts, is_quoted = 0, [""], False
    for sign in text:
        is_quoted ^= sign == SPARK
        depth += 0 if is_quoted else (sign in "<(") - (sign in ">)")
        if sign == "," and not depth and not is_quoted:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def field_type(text: str) -> tuple[str, str]:
    """Split a field such as `a: int` into its name and type. Raises ValueError."""
    found = re.fullmatch(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*(?::|\s)\s*(.+)", text, re.DOTALL)
    if found is None:
        raise ValueError(f"{text.strip()!r} is not a field with its type")
    return (found[1] or found[2]).replace(SPARK * 2, SPARK), found[3].strip()


def check_column_names(names: Iterable[str]) -> None:
    """Raise DeclarationError, without a place, for an invalid name. The SQL of kinds contains such names."""
    wrong = [name for name in names if not name.isidentifier()]
    if wrong:
        raise DeclarationError(
            f"{wrong[0]!r} is not a valid column name",
            fix="use letters, digits and _, not beginning with a digit",
        )


def parquet_rows(files: Iterable[str], *options: str) -> str:
    """Return DuckDB's SQL of the rows of Parquet files; a column that some lack is null in them.

    Statistics of floats leave NaN out; without `can_have_nan`, DuckDB concludes from them that no row has one.
    """
    how = ("union_by_name = true", "hive_partitioning = false", "can_have_nan = true", *options)
    return f"read_parquet([{', '.join(map(literal, files))}], {', '.join(how)})"


def has_password(address: str) -> bool:
    return bool(LOGIN.search(address) or OPTION.search(address))


def without_login(address: str) -> str:
    """Return the address for messages: without user, password and options.

    Without the host too, if a password may be among the options.
    """
    scheme, _, rest = address.partition("://")
    place, _, options = rest.partition("?")
    return f"{scheme}://…" if "@" in options else f"{scheme}://{place.rpartition('@')[2]}"


def parts_of(address: str) -> SplitResult | None:
    """Return None if clients cannot read it: port 70000, host `a..b`, or a reserved sign in its user or password."""
    try:
        parts = urlsplit(address)
        host, port = (parts.hostname or "").encode("idna").decode("idna"), parts.port
    except ValueError:
        return None
    is_divided = parts.password is None and LOGIN.search(address) is not None
    fits = port != 0 and "%" not in host and address.isprintable() and " " not in address
    return parts if fits and not is_divided else None
