"""JSON that is parsed without loss of a number's digits: each number becomes a marked text first, as in "\\uffff1.10".

Spark's parsers make a double of a number that has an exponent or more than 38 digits, or of any that has a point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from lake.contracts.event_id import literal, quoted
from lake.contracts.fields import Field

MARK: Final = "\uffff"
"""By Unicode no character; a record that has it is refused."""
_NUMBER: Final = r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?+[0-9]++)?+"
_TEXT: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NEXT: Final = rf'(?s)\G((?:[^"0-9-]++|{_TEXT})*+)({_NUMBER})(?![^\s,\]}}])'
_AS_TEXT: Final = f'$1"{MARK}$2"'
_MARKED: Final = rf'"{MARK}([^"]*+)"|^{MARK}'


def marked(json: str) -> str:
    """SQL of the JSON text `json` with every number as a marked text; what is no JSON stays none."""
    return f"regexp_replace({json}, {literal(_NEXT)}, {literal(_AS_TEXT)})"


def unmarked(text: str) -> str:
    """SQL of what `text`, JSON or the text of one value, is with its numbers as they were written."""
    return f"regexp_replace({text}, {literal(_MARKED)}, '$1')"


def is_number(text: str) -> str:
    """SQL of whether `text` was a number."""
    return f"startswith({text}, {literal(MARK)})"


def plain(field: Field, text: str) -> str:
    """SQL of the text of a value of `field` in marked JSON as it was written; what is nested keeps its marks."""
    return text if field.nested else unmarked(text)


def text_name(field: Field) -> str:
    """The column that holds the text of `field` while a record is parsed."""
    return quoted(f"_text_{field.name}")


def shown(field: Field) -> str:
    """SQL of that text as it was written."""
    return unmarked(text_name(field)) if field.nested else text_name(field)


def is_text(field: Field) -> bool:
    """Whether a number for `field` is taken as a text."""
    return field.type == "string"


def number_name(field: Field) -> str:
    """The column that tells whether a number came for `field`, which is text."""
    return quoted(f"_number_{field.name}")


def numbers(fields: Iterable[Field], found: Callable[[Field], str]) -> Iterator[str]:
    """Those columns, `found` being SQL of a field's text in marked JSON."""
    return (f"{is_number(found(field))} AS {number_name(field)}" for field in fields if is_text(field))
