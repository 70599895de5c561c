"""Times that expectations write as text, as values of the columns that they are about.

    {"type": "expect_column_values_to_be_between", "kwargs": {"column": "at", "min_value": "2013-01-31"}}

A day is its midnight, and a time without an offset is one in the zone that the table's windows declare, UTC where none
is; a column of wall clock times takes none with an offset, a column of days only days.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from lake.errors import DeclarationError
from lake.quality.suite import Expectation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VALUES: Final = ("min_value", "max_value", "value_set")
CONDITION: Final = "row_condition"
DATE, INSTANT, LOCAL = "date", "timestamp", "timestamp_ntz"
FIXES: Final[Mapping[str, str]] = {
    DATE: "write a day: 2013-01-31",
    INSTANT: "write 2013-01-31, 2013-01-31T06:00 or 2013-01-31T06:00Z",
    LOCAL: "write 2013-01-31 or 2013-01-31T06:00, without an offset",
}


@dataclass(frozen=True)
class Moments:
    """How times are read for the columns of a table: `kinds`, by column, and the `zone` of times without an offset.

    `by_spark` says that Spark compares them, to which a wall clock time of Python is one of this machine's zone.
    """

    kinds: Mapping[str, str]
    zone: str = "UTC"
    by_spark: bool = False

    @classmethod
    def of_rows(cls, rows: pa.Table, zone: str | None) -> Moments:
        """For rows in memory."""
        return cls({field.name: kind for field in rows.schema if (kind := _kind(field.type))}, zone or "UTC")

    @classmethod
    def of_frame(cls, rows: DataFrame, zone: str | None) -> Moments:
        """For rows of Spark."""
        kinds = {name: kind for name, kind in rows.dtypes if kind in FIXES}
        return cls(kinds, zone or "UTC", by_spark=True)

    def arguments(self, expectation: Expectation) -> dict[str, Any]:
        """The arguments of an expectation. Raises DeclarationError for a text that is no time of its column."""
        given = dict(expectation.kwargs)
        column = str(given.get("column"))
        given |= {name: self._values(expectation, name, given[name], column) for name in VALUES if name in given}
        if isinstance(given.get(CONDITION), Mapping):
            given[CONDITION] = self._condition(expectation, given[CONDITION])
        return given

    def _condition(self, expectation: Expectation, condition: Mapping[str, Any]) -> dict[str, Any]:
        """A condition on rows, at any depth, with what it compares a column with."""
        given, column = dict(condition), condition.get("column")
        if isinstance(given.get("conditions"), list):
            given["conditions"] = [self._condition(expectation, part) for part in given["conditions"]]
        if isinstance(column, Mapping) and "parameter" in given:
            given["parameter"] = self._values(expectation, CONDITION, given["parameter"], str(column.get("name")))
        return given

    def _values(self, expectation: Expectation, name: str, given: Any, column: str) -> Any:
        """What is given for a column: a value, or a list of values."""
        kind = self.kinds.get(column)
        if kind is None:
            return given
        if isinstance(given, list):
            return [self._values(expectation, name, value, column) for value in given]
        return self._moment(expectation, name, given, kind) if isinstance(given, str) else given

    def _moment(self, expectation: Expectation, name: str, text: str, kind: str) -> date:
        try:
            moment = date.fromisoformat(text) if kind == DATE else datetime.fromisoformat(text)
        except ValueError:
            raise self._fault(expectation, name, text, kind) from None
        if not isinstance(moment, datetime):
            return moment
        if kind == LOCAL:
            if moment.tzinfo is not None:
                raise self._fault(expectation, name, text, kind)
            return moment.replace(tzinfo=UTC) if self.by_spark else moment
        return (moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(self.zone))).astimezone(UTC)

    def _fault(self, expectation: Expectation, name: str, text: str, kind: str) -> DeclarationError:
        what = f"{expectation}: {name} {text!r} is not a valid value of a {kind}"
        return DeclarationError(what, where=expectation.where, fix=FIXES[kind])


def _kind(of: pa.DataType) -> str:
    if pa.types.is_date(of):
        return DATE
    if pa.types.is_timestamp(of):
        return INSTANT if of.tz else LOCAL
    return ""
