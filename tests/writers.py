"""Writer of rows: delta-rs in this process, or Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import pytest

from lake import cost
from lake.config import Settings

Writer = Literal["delta-rs", "spark"]
WRITERS: Final[tuple[Writer, Writer]] = ("delta-rs", "spark")
IN_PROCESS_ROWS: Final[dict[Writer, int]] = {"delta-rs": Settings.in_process_rows, "spark": 0}
"""The setting `in_process_rows` by which a writer writes tables."""


@contextmanager
def writing(writer: Writer) -> Iterator[None]:
    """Have `writer` write every batch of a log in the block."""
    with pytest.MonkeyPatch.context() as patch:
        if writer == "spark":
            patch.setattr(cost, "APPENDED_BYTES", -1)
        yield
