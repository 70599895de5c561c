"""DuckDB types of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lake.contracts.fields import Field
from lake.text import quoted

NAMES: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}


def type_of(field: Field) -> str:
    """Return DuckDB's type of `field`."""
    if field.type.startswith("array"):
        return f"{type_of(field.parts[0])}[]"
    if field.type.startswith("map"):
        return f"MAP(VARCHAR, {type_of(field.parts[0])})"
    if field.nested:
        return f"STRUCT({', '.join(f'{quoted(part.name)} {type_of(part)}' for part in field.parts)})"
    return NAMES.get(field.type, field.type.upper())
