"""Reader of single records for small requests: the checks of RecordReader in the same order, without columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lake.contracts.reasons import CONTROL, Reason
from lake.lazy import pc
from lake.records.field_reader import NOT_TEXT, FieldReader, Rejections, is_number
from lake.records.raw_values import ABSENT, RawValue, TextRecords, WrongValue
from lake.records.reader import RecordReader
from lake.records.values import Value, reader

if TYPE_CHECKING:
    from lake.contracts.contract import Contract

MOST_SINGLE: Final = 20
EXTRA: Final = "_extra"


class RecordRejected(ValueError):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = str(reason), detail


class SingleReader(RecordReader):
    """Reader that rejects the records that the log rejects, except for those of expressions in SQL.

    Its checks of key, subject and time equal those of `lake.ingest.event_columns`.
    """

    def __init__(self, contract: Contract, record_bytes: int) -> None:
        super().__init__(contract, record_bytes)
        self._member_readers = [reader for reader in self._readers if not reader.field.is_fact]
        self._singles = [(reader.field.name, _SingleField(reader)) for reader in self._readers]
        self._needed = tuple(_needed(contract))

    def values(self, text: bytes, facts: Mapping[str, str]) -> dict[str, Any]:
        """Return the value of each field, as Arrow returns it, and EXTRA; {} for a control message.

        Raises RecordRejected.
        """
        members = self._members_of_texts([text])
        if 0 in members.broken:
            if members.broken[0][0] == CONTROL:
                return {}
            raise RecordRejected(*members.broken[0])
        rejections = Rejections()
        given: dict[str, Sequence[RawValue]] = {
            name: [facts.get(fact, ABSENT)] for name, fact in self.fact_keys.items()
        }
        given |= {r.field.name: r.raw_column(members.columns, 1, rejections) for r in self._member_readers}
        extra = self._undeclared(members, rejections)
        if self._rejects_missing:
            self._reject_missing(given, rejections)
        if rejections.by_index:
            raise RecordRejected(*rejections.by_index[0])
        optional = members.optional
        values = {name: single.value(given[name][0], optional=name in optional) for name, single in self._singles}
        for name, reason in self._needed:
            if values[name] is None:
                raise RecordRejected(reason, name)
        return {**values, EXTRA: extra.get(0)}

    def rejections(self, records: Sequence[tuple[bytes, Mapping[str, str]]]) -> Iterator[tuple[int, RecordRejected]]:
        """Yield the index and the error of each rejected record of (text, facts)."""
        if len(records) > MOST_SINGLE:
            yield from self._rejections_at_once(records)
            return
        for index, (text, facts) in enumerate(records):
            try:
                self.values(text, facts)
            except RecordRejected as refusal:
                yield index, refusal

    def default(self, name: str) -> Value:
        return dict(self._singles)[name].default

    def _rejections_at_once(
        self, records: Sequence[tuple[bytes, Mapping[str, str]]]
    ) -> Iterator[tuple[int, RecordRejected]]:
        facts = {name: [each.get(fact) for _, each in records] for name, fact in self.fact_keys.items()}
        table = self.read(TextRecords(range(len(records)), [text for text, _ in records]), facts)
        reasons, details = table["_reason"], table["_detail"]
        found: dict[int, tuple[str, str]] = {
            index: (reasons[index].as_py(), details[index].as_py())
            for index in pc.indices_nonzero(reasons.is_valid()).to_pylist()
        }
        for name, reason in self._needed:
            for index in pc.indices_nonzero(table[name].is_null()).to_pylist():
                found.setdefault(index, (reason, name))
        yield from ((index, RecordRejected(*found[index])) for index in sorted(found) if found[index][0] != CONTROL)


class _SingleField:
    def __init__(self, columns: FieldReader) -> None:
        self._columns, self._read, self._field = columns, reader(columns.field), columns.field
        self._limits = [(bound, bound.limit.as_py()) for bound in columns.bounds]
        self.default: Value = None if columns.default is None else columns.default[0].as_py()

    def value(self, given: RawValue, *, optional: bool) -> Value:
        if given is None and self._field.nullable:
            return None
        if given is ABSENT or given is None:
            if self._columns.default_fault:
                raise RecordRejected(Reason.WRONG_TYPE, self._columns.default_fault)
            if self._columns.default is None and not self._field.nullable and not optional:
                raise RecordRejected(Reason.MISSING, self._field.name)
            value = self.default
        else:
            try:
                value = self._read(given)
            except WrongValue as wrong:
                raise RecordRejected(Reason.WRONG_TYPE, f"{self._columns.excerpt(given)} {wrong}") from None
            if self._field.text_only and is_number(given):
                raise RecordRejected(Reason.WRONG_TYPE, f"{self._columns.excerpt(given)} {NOT_TEXT}")
        if value is not None:
            self._check(value, given)
        return value

    def _check(self, value: Any, given: RawValue) -> None:
        if self._field.symbols and value not in self._field.symbols:
            raise RecordRejected(Reason.NOT_IN_ENUM, f"{self._columns.excerpt(given)} {self._columns.not_in_enum}")
        for bound, limit in self._limits:
            if value < limit if bound.is_minimum else not value <= limit:  # NaN is above all numbers
                raise RecordRejected(Reason.OUT_OF_BOUNDS, f"{self._columns.excerpt(given)} {bound.words}")


def _needed(contract: Contract) -> Iterator[tuple[str, Reason]]:
    if contract.broadcast or (contract.horizon and contract.horizon.punctuation):
        return
    yield from ((name, Reason.NULL_KEY) for name in contract.key)
    if contract.sealed and contract.subject:
        yield contract.subject, Reason.NULL_SUBJECT
    if contract.time in {field.name for field in contract.fields}:
        yield str(contract.time), Reason.NULL_TIME
