"""Values that a contract writes down, bounds and defaults, as the Spark SQL type of their field reads them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

WHOLE: Final = {"int": 31, "bigint": 63}  # bits
MAGNITUDE: Final = 400  # powers of ten: those of a double are fewer
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
    """What `text` is as a value of the type `ddl`, which has an order; None where it is none."""
    try:
        match ddl.partition("(")[0]:
            case "int" | "bigint":
                return whole if abs(whole := int(text)) < 1 << WHOLE[ddl] else None
            case "float" | "double" | "decimal":
                number = Decimal(text)
                return number if number.is_finite() and abs(number.adjusted()) <= MAGNITUDE else None
            case "date":
                return date.fromisoformat(text)
            case _:
                moment = datetime.fromisoformat(text)
                return moment if moment.tzinfo or ddl == "timestamp_ntz" else moment.replace(tzinfo=UTC)
    except (ValueError, InvalidOperation):
        return None


def fits(ddl: str, value: Any) -> bool:
    """Whether the JSON `value` stands for one of the type `ddl`: as itself, or as the text that a record would have."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
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
    """How a value of the type `ddl` is written."""
    if ddl.startswith("decimal"):
        return 'a number, or better its digits as text, such as "0.50"'
    return EXAMPLES.get(ddl, "a list" if ddl.startswith("array") else "an object")
