"""Reader of records: JSON texts or columns of a file become typed columns, with a reason for each rejected record.

Checks that need SQL (expressions, the key, the event's time) happen in ingest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

import numpy as np

from lake.contracts.fields import Field
from lake.contracts.reasons import BLANK, Reason
from lake.lazy import pa
from lake.records import json_value
from lake.records.debezium import Envelope, MessageDecoder
from lake.records.field_reader import FieldColumn, FieldReader, Rejections
from lake.records.json_value import BLANKS, Decoder, Members, NotJson, encoder, read_json
from lake.records.raw_values import ABSENT, NO_CHARACTER, ColumnRecords, FileFault, RawValue, TextRecords, as_list
from lake.records.unknown_members import (
    REPORTED,
    by_names,
    has_records,
    masks,
    object_of,
    undeclared_members,
    unknown_members,
)
from lake.records.values import SHOWN

if TYPE_CHECKING:
    from lake.contracts.contract import Contract

_BROKEN_BYTE: Final = re.compile("[\udc80-\udcff]")
PATHS: Final = pa.list_(pa.string())


class RecordReader:
    """Reader of records of one contract, of at most `record_bytes` bytes. Can be pickled.

    If `all_texts`, accepted records keep their text. `fact_keys` maps fields that are facts to their key; `names` are
    those of all other fields.
    """

    def __init__(self, contract: Contract, record_bytes: int, *, all_texts: bool = False) -> None:
        self.record_bytes, self._all_texts = record_bytes, all_texts
        facts = (field for field in contract.fields if field.is_fact)
        self.fact_keys = {field.name: field.name if field.of_file else ".".join(field.path) for field in facts}
        self._messages = MessageDecoder(Envelope(contract)) if contract.envelope else None
        self._readers = tuple(FieldReader(field, in_envelope=self._messages is not None) for field in contract.fields)
        self._declared = tuple(field for field in contract.fields if not field.is_fact)
        self.names = () if self._messages else tuple(name for field in self._declared for name in field.names)
        nested = (field for field in self._declared if has_records(field) and not field.path)
        self._nested = tuple((name, field) for field in nested for name in field.names)
        self._by_names = by_names(self._declared)
        self._kept_if_rejected = {contract.subject if contract.sealed else None, contract.dump}
        self._reported = by_names(contract.fields if contract.unknown in REPORTED and not contract.sealed else ())
        self._rejects_unknown = contract.unknown == "refuse"
        self._rejects_missing = contract.missing == "refuse"
        self._masks = {name: tuple(field.name for field in fields) for name, fields in masks(contract).items()}
        self._decoder = Decoder(self.names)

    @property
    def schema(self) -> pa.Schema:
        texts = [(name, pa.string()) for name in ("_raw", "_reason", "_detail")]
        fields = [(reader.field.name, reader.type) for reader in self._readers]
        others = [("_extra", pa.string()), ("_numbers", pa.string()), ("_unknown", PATHS)]
        return pa.schema(
            [("_seq", pa.int64()), *texts, *fields, *others, *((name, pa.int64()) for name in self._masks)]
        )

    def check_columns(self, part: TextRecords | ColumnRecords) -> None:
        if isinstance(part, TextRecords) or self._messages or not self._rejects_missing:
            return
        if lacking := [field.name for field in self._declared if not part.columns.keys() & {*field.names}]:
            raise FileFault(f"it has no column {', '.join(lacking)}")

    def read(self, part: TextRecords | ColumnRecords, facts: Mapping[str, Sequence[str | None]]) -> pa.Table:
        """Return records with the columns of `schema`. `facts` has the texts of fields that are facts, by name.

        The fields of a rejected record are null, but for two: the subject of personal fields, since its texts are
        blanked if that person was forgotten, and the dump, which is partial without the record.
        """
        members = (
            self._members_of_texts(part.texts) if isinstance(part, TextRecords) else self._members_of_columns(part)
        )
        rejections = Rejections({index: (str(reason), detail) for index, (reason, detail) in members.broken.items()})
        given: dict[str, Sequence[RawValue]] = {}
        for reader in self._readers:
            if reader.field.is_fact:
                given[reader.field.name] = [ABSENT if text is None else text for text in facts[reader.field.name]]
            else:
                given[reader.field.name] = reader.raw_column(members.columns, len(part.places), rejections)
        extra = self._undeclared(members, rejections)
        if self._rejects_missing and isinstance(part, TextRecords):
            self._reject_missing(given, rejections)
        columns = {}
        for reader in self._readers:
            name = reader.field.name
            columns[name] = reader.read(given[name], rejections, optional=members.optional.get(name, ()))
        return self._table(part, columns, extra, rejections)

    def _members_of_texts(self, texts: Sequence[bytes]) -> Members:
        oversized = {index: len(text) for index, text in enumerate(texts) if len(text) > self.record_bytes}
        if oversized:
            texts = [b"{}" if index in oversized else text for index, text in enumerate(texts)]
        members = (self._messages or self._decoder).decode(texts)
        limit = f"limit {self.record_bytes}"
        broken = {index: (str(Reason.OVERSIZED), f"{size} bytes, {limit}") for index, size in oversized.items()}
        for index, fault in members.broken.items():
            broken.setdefault(index, fault if self._messages or texts[index].strip(BLANKS) else (BLANK, ""))
        return replace(members, broken=broken)

    def _members_of_columns(self, rows: ColumnRecords) -> Members:
        broken = {index: (str(Reason.UNPARSEABLE), detail) for index, (detail, _) in rows.broken.items()}
        others = {name: as_list(column) for name, column in rows.columns.items() if name not in self.names}
        extra: list[dict[str, RawValue] | None] = [None] * len(rows.places)
        for name, column in others.items():
            for index, value in enumerate(column):
                if value is not None and value is not ABSENT:
                    members = extra[index] = extra[index] or {}
                    try:
                        members[name] = _as_json(value)
                    except NotJson as fault:
                        broken.setdefault(index, (str(Reason.UNPARSEABLE), f"{name[:SHOWN]}: {fault}"))
        if self._messages:
            opened = self._messages.decode_rows(extra)
            return replace(opened, broken={**opened.broken, **broken})
        return Members(rows.columns, extra, broken, are_typed=True)

    def _undeclared(self, members: Members, rejections: Rejections) -> dict[int, str]:
        found = {index: others for index, others in enumerate(members.extra) if others is not None}
        for name, field in self._nested:
            for index, value in enumerate(as_list(members.columns.get(name, ()))):
                if value is None or value is ABSENT or not (others := undeclared_members(field, value)):
                    continue
                try:
                    found.setdefault(index, {})[name] = _as_json(others) if members.are_typed else others
                except NotJson as fault:
                    rejections.add(index, Reason.UNPARSEABLE, f"{name[:SHOWN]}: {fault}")
        for index, others in found.items() if self._rejects_unknown else ():
            names = sorted(".".join(each.keys) for each in unknown_members(others, self._by_names))
            rejections.add(index, Reason.UNKNOWN, ", ".join(names)[:SHOWN])
        encode = encoder().encode
        return {index: encode(others).decode() for index, others in found.items()}

    def _reject_missing(self, given: Mapping[str, Sequence[RawValue]], rejections: Rejections) -> None:
        lacking: dict[int, list[str]] = {}
        for field in self._declared:
            for index, value in enumerate(given[field.name]):
                if value is ABSENT:
                    lacking.setdefault(index, []).append(field.name)
        for index, names in lacking.items():
            rejections.add(index, Reason.MISSING, ", ".join(names))

    def _table(
        self,
        part: TextRecords | ColumnRecords,
        read: Mapping[str, FieldColumn],
        extra: Mapping[int, str],
        rejections: Rejections,
    ) -> pa.Table:
        size, rejected = len(part.places), rejections.by_index
        columns = [pa.array(part.places, pa.int64())]
        columns += [_text_column(size, self._raw_texts(part, range(size) if self._all_texts else rejected))]
        columns += [_text_column(size, {index: fault[n] for index, fault in rejected.items()}) for n in (0, 1)]
        values = [field.values for field in read.values()]
        if rejected:
            is_rejected = np.zeros(size, bool)
            is_rejected[[*rejected]] = True
            rows = pa.array(np.arange(size), mask=is_rejected)
            named = zip(read, values, strict=True)
            values = [column if name in self._kept_if_rejected else column.take(rows) for name, column in named]
        extras = _text_column(size, {index: text for index, text in extra.items() if index not in rejected})
        columns += [*values, extras]
        numbers: dict[int, list[str]] = {}
        for name, field in read.items():
            for index in field.numbers:
                if index not in rejected:
                    numbers.setdefault(index, []).append(name)
        columns += [_text_column(size, {index: ", ".join(names) for index, names in numbers.items()})]
        columns += [_unknown_paths(self._reported, extras)]
        columns += [_bit_masks(size, [read[name].lacking for name in names]) for names in self._masks.values()]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _raw_texts(self, part: TextRecords | ColumnRecords, indices: Iterable[int]) -> dict[int, str]:
        if isinstance(part, TextRecords):
            texts = ((index, part.texts[index].decode("utf-8", "surrogateescape")) for index in indices)
            return {index: _BROKEN_BYTE.sub(NO_CHARACTER, text)[: self.record_bytes] for index, text in texts}
        columns = {name: as_list(column) for name, column in part.columns.items()}
        raw = {}
        for index in indices:
            values = ((name, column[index]) for name, column in columns.items())
            record = {
                name: _as_declared(self._by_names.get(name), value)
                for name, value in values
                if value is not ABSENT and (value is not None or name in self._by_names)
            }
            text = part.broken[index][1] if index in part.broken else json_value.encode(record)
            raw[index] = text.encode("utf-8", "backslashreplace").decode()[: self.record_bytes]
        return raw


def _as_json(value: RawValue) -> RawValue:
    try:
        return read_json(json_value.encode(value).encode("utf-8", "surrogatepass"))
    except RecursionError:
        raise NotJson("too many levels") from None


def _as_declared(field: Field | None, value: RawValue) -> RawValue:
    kind = field.type.partition("<")[0] if field else ""
    parts = {part.name: part for part in field.parts} if field else {}
    match value:
        case bytes() if kind == "string":
            return value.decode("utf-8", "surrogateescape")
        case datetime() if kind == "date" and value.time() == datetime.min.time():
            return value.date()
        case list() if kind == "array" and field:
            return [_as_declared(field.parts[0], item) for item in value]
        case dict() if kind in {"map", "struct"} and field:
            return {
                name: _as_declared(field.parts[0] if kind == "map" else parts.get(name), item)
                for name, item in value.items()
            }
    return value


def _unknown_paths(fields: Mapping[str, Field], extras: pa.Array) -> pa.Array:
    if not fields or extras.null_count == len(extras):
        return pa.nulls(len(extras), PATHS)
    found = ({each.path for each in unknown_members(object_of(text), fields)} for text in extras.to_pylist())
    return pa.array([sorted(paths) or None for paths in found], PATHS)


def _bit_masks(size: int, lacking: Sequence[Sequence[int]]) -> pa.Array:
    bits = np.zeros(size, np.int64)
    for bit, indices in enumerate(lacking):
        bits[[*indices]] |= 1 << bit
    return pa.array(bits)


def _text_column(size: int, texts: Mapping[int, str]) -> pa.Array:
    if not texts:
        return pa.nulls(size, pa.string())
    column: list[str | None] = [None] * size
    for index, text in texts.items():
        column[index] = text
    return pa.array(column, pa.string())
