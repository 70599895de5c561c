"""The kind of a table: everything that the engine asks of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from lake.kinds.checks import Checks
from lake.kinds.explanation import Explanation
from lake.kinds.locality import Locality

ALL_FINAL: Final = datetime.max.replace(tzinfo=UTC)
"""The horizon of a log that waits for no producer any more: all its rows are final."""


class Kind(Locality, Checks, Explanation):
    """How a derived table follows from its inputs: DataFrame in, DataFrame out; a kind knows neither Delta nor a clock.

    Law          what it makes of all rows of some keys, and of what changed in them
    Locality     which keys a change of an input affects, and how inputs are restricted to keys
    Checks       what a declaration must not do, and what must hold of its table
    Explanation  which rows of the inputs made a row of the table, and the role of each there
    """
