"""Text of the reference on each name, in `words.toml`, and its form in Markdown."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
WORDS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))


class Drift(Exception):
    """The code and what the reference says of it have different names."""


def said_of(section: str, names: Iterable[str]) -> Mapping[str, str]:
    """Return the texts of exactly these names, in the order of words.toml."""
    found: Any = WORDS
    for part in section.split("."):
        found = found.get(part, {})
    said: Mapping[str, str] = found
    if differing := sorted(set(said) ^ set(names)):
        raise Drift(f"words.toml [{section}] and the code differ in {', '.join(differing)}")
    return said


def prose(paragraph: str) -> str:
    """A paragraph of a docstring as Markdown."""
    return re.sub(r"(?<!`)([*_<>\[\]])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", textwrap.dedent(paragraph))


def type_cell(text: str) -> str:
    """A type as one cell of a table."""
    plain = text.replace(" | None", " or null").replace(" | ", " or ")
    return f"`{plain}`" if re.search(r"[\[\]<>]", plain) else plain


def cell(text: str) -> str:
    """Text as one cell of a table."""
    plain = " ".join(text.split())
    return re.sub(r"([|*_<>\[\]{}])", r"\\\1", plain)
