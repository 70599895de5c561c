"""Worked examples of the documentation as data: declarations, landed records and tables, in the order of the page.

An example is a section whose heading begins with "Worked example". In it

    ```json title="schemas/<stream>.avsc"      a file of the project, like jobs/…; a repeated title changes it
    ```json title="landing/<stream>"           the records of a batch, a line each
    ```csv title="landing/<stream>/<name>"     a landing file with its own name
    `<table>` after batch <n>:                 followed by a table: its rows; … is any value
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
SECTION = re.compile(r"^#{2,3} Worked example.*?(?=^#{2,3} |\Z)", re.DOTALL | re.MULTILINE)
PART = re.compile(
    r'^```\w+ title="(?P<file>[^"]+)"\n(?P<text>.*?)^```$'
    r"|^`(?P<table>\w+)` after batch (?P<batch>\d+):\n\n(?P<rows>(?:\|[^\n]*\n)+)",
    re.DOTALL | re.MULTILINE,
)
ANY = "…"

Row = dict[str, str]


@dataclass
class Batch:
    """State before the tables of a batch are compared: project files, records by stream, landing files."""

    files: dict[str, str] = field(default_factory=dict)
    landed: dict[str, list[str]] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    tables: dict[str, tuple[list[str], list[Row]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """Worked example of a page."""

    name: str
    batches: tuple[Batch, ...]

    @property
    def changes_jobs(self) -> bool:
        return any(file.startswith("jobs/") for batch in self.batches[1:] for file in batch.files)


def examples() -> Iterator[Example]:
    """Yield the worked examples of all pages."""
    for page in sorted(DOCS.rglob("*.md")):
        for number, section in enumerate(SECTION.findall(page.read_text("utf-8")), start=1):
            name = f"{page.relative_to(DOCS).with_suffix('')} {number}"
            yield Example(name, tuple(_batches(section, name)))


def _batches(section: str, name: str) -> Iterator[Batch]:
    batch, number = Batch(), 1
    for part in PART.finditer(section):
        file, text = part["file"], part["text"]
        if batch.tables and (part["table"] is None or int(part["batch"]) > number):
            yield batch
            batch, number = Batch(), number + 1
        if part["table"] is not None:
            assert int(part["batch"]) == number, f"{name}: {part['table']} after batch {part['batch']}, not {number}"
            batch.tables[part["table"]] = _rows(part["rows"])
        elif file.count("/") > 1 and file.startswith("landing/"):
            batch.named[file.removeprefix("landing/")] = text
        elif file.startswith("landing/"):
            batch.landed.setdefault(file.removeprefix("landing/"), []).extend(text.splitlines())
        else:
            batch.files[file] = text
    yield batch


def _rows(text: str) -> tuple[list[str], list[Row]]:
    """Return the columns and the rows of a Markdown table."""
    heading, _, *lines = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines())
    return heading, [dict(zip(heading, line, strict=True)) for line in lines]


def page_text(value: Any) -> str:
    """Return a value as the pages show it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}".removesuffix(":00")
        case date():
            return value.isoformat()
        case bytes() | bytearray():
            return value.hex()
    return str(value)
