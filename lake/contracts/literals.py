"""Literals in a contract (bounds and defaults), read as their field's Spark SQL type: a subset of docs/values.md."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

WHOLE: Final = {"int": 31, "bigint": 63}  # bits
NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
DAY: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
FORMS: Final = {
    **dict.fromkeys(("int", "bigint"), re.compile("[+-]?[0-9]+")),
    **dict.fromkeys(("float", "double", "decimal"), NUMBER),
    "date": DAY,
}
MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}(:?[0-5][0-9])?)?)?"
)
LONGEST: Final = 1000
FARTHEST: Final = timedelta(hours=18)
MAGNITUDE: Final = 400  # powers of ten, more than a double's
EXAMPLES: Final = {
    "int": "a whole number, such as 7",
    "bigint": "a whole number, such as 7",
    "float": "a number, such as 0.5",
    "double": "a number, such as 0.5",
    "boolean": "true or false",
    "string": 'text, such as "none"',
    "binary": "text in base64",
    "date": 'a day, such as "2024-03-31"',
    "timestamp": 'a time, such as "2024-03-31T12:00:00Z"',
    "timestamp_ntz": 'a time without a zone, such as "2024-03-31T12:00:00"',
}


def read(ddl: str, text: str) -> Any:
    """Return the value of a literal of the Spark type `ddl`, None if it is invalid."""
    kind = ddl.partition("(")[0]
    if len(text) > LONGEST or not FORMS.get(kind, MOMENT).fullmatch(text):
        return None
    try:
        match kind:
            case "int" | "bigint":
                whole, limit = int(text), 1 << WHOLE[ddl]
                return whole if -limit <= whole < limit else None
            case "float" | "double" | "decimal":
                number = Decimal(text)
                return number if abs(number.adjusted()) <= MAGNITUDE else None
            case "date":
                return date.fromisoformat(text)
            case _:
                return _zoned(datetime.fromisoformat(text), kind)
    except (ValueError, OverflowError):
        return None


def _zoned(moment: datetime, kind: str) -> datetime | None:
    if kind == "timestamp_ntz":
        return None if moment.tzinfo else moment
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return zoned.astimezone(UTC) if abs(zoned.utcoffset() or timedelta()) <= FARTHEST else None


def fits(ddl: str, value: Any) -> bool:
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    match ddl.partition("(")[0].partition("<")[0]:
        case "string" | "binary":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool) or value in ("true", "false")
        case "array":
            return isinstance(value, list)
        case "map" | "struct":
            return isinstance(value, dict)
        case "date" | "timestamp" | "timestamp_ntz" if number:
            return isinstance(value, int)
        case _:
            return (number or isinstance(value, str)) and read(ddl, str(value)) is not None


def example(ddl: str) -> str:
    if ddl.startswith("decimal"):
        return 'a number, or better its digits as text, such as "0.50"'
    return EXAMPLES.get(ddl, "a list" if ddl.startswith("array") else "an object")
