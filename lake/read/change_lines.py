"""Changes as lines of text: JSON Lines for programs, and a table for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain

from lake.read.net_changes import Change
from lake.read.subscription import Changes
from lake.text import as_table, plain, shown


def as_json_lines(changes: Changes) -> Iterator[str]:
    """A line for each change, and one that the edition is complete; first one that a snapshot begins.

    A reader who has seen the last line has the edition; one who sees the first forgets what it had.
    """
    of = {"edition": changes.edition, "cut": changes.cut}
    if changes.snapshot:
        yield json.dumps({**of, "change": "snapshot"})
    count = 0
    for count, row in enumerate(changes, start=1):  # noqa: B007 - counted for the line below
        images = {"key": row.key, "before": row.before, "after": row.after}
        yield json.dumps({**of, "change": row.change, **plain(images)})
    yield json.dumps({**of, "change": "complete", "rows": count})


def as_lines(changes: Changes) -> Iterator[str]:
    """A heading, and a table of the rows: of an update, what a column was and is."""
    rows = iter(changes)
    first = next(rows, None)
    way = "snapshot" if changes.snapshot else f"from edition {changes.since}"
    yield f"edition {changes.edition} of cut {changes.cut}, {way}{'' if first else ': no changes'}"
    if first is not None:
        columns = list({**(first.before or {}), **(first.after or {})})
        lines = (_cells(row, columns) for row in chain([first], rows))
        yield from as_table(["change", *columns], lines)


def _cells(row: Change, columns: list[str]) -> list[str]:
    return [row.change, *(_cell(row, column) for column in columns)]


def _cell(row: Change, column: str) -> str:
    images = [image[column] for image in (row.before, row.after) if image is not None and column in image]
    if len(images) == 2 and images[0] == images[1]:
        images.pop()
    return " → ".join(map(shown, images))
