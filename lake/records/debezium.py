"""Reader of Debezium's change messages: an envelope becomes the members of a record, or a verdict that it is no change.

`docs/how-to/debezium.md` specifies members, values, and messages that are no change.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lake.contracts.fields import UNCHANGED
from lake.contracts.reasons import CONTROL, Reason
from lake.records.debezium_values import NoChange, Row, RowConverter, row_schema
from lake.records.json_value import BLANKS, Members, NotJson, decode_without_loss, decoder, plain_text, read_json
from lake.records.raw_values import ABSENT, RawValue
from lake.records.values import excerpt

if TYPE_CHECKING:
    from lake.contracts.contract import Contract

ROWS: Final[Mapping[str, str]] = {"c": "after", "r": "after", "u": "after", "d": "before"}
OPS: Final = (*ROWS, "t")
NO_FIELDS: Final[frozenset[str]] = frozenset()
NO_VALUE: Final = (
    'the message has no value for it, as it did not change: declare a field with "from": "unchanged"'
    " (docs/how-to/debezium.md, Unchanged values)"
)
PLACEHOLDER_POINTS: Final = (
    "0101000020E6100000000000FC83D797C1000000FC83D797C1",
    "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
)
"""Points in EWKB that stand for a geometry or geography that did not change."""
WRAPPED: Final = b'{"schema"'
SCHEMA_NAME: Final = re.compile(rb'\{[ \t\r\n]*"schema"[ \t\r\n]*:[ \t\r\n]*')
PAYLOAD_NAME: Final = re.compile(rb'[ \t\r\n]*,[ \t\r\n]*"payload"[ \t\r\n]*:[ \t\r\n]*')
BATCH_MESSAGES: Final = 100
"""Messages decoded together; more exceed the processor's cache."""
MOST_SCHEMAS: Final = 64


@dataclass(slots=True)
class DebeziumChange:
    """Change as members by name, aliases included. `lacking` are fields that it may lack.

    If the message is no change, only `verdict` is set: reason and detail.
    """

    members: Mapping[str, RawValue] = field(default_factory=dict)
    extra: Row | None = None
    lacking: frozenset[str] = NO_FIELDS
    verdict: tuple[str, str] | None = None


class Placeholder:
    """Mark of a large value (TOAST) that PostgreSQL did not send because it did not change.

    Source: io.debezium.connector.postgresql.UnchangedToastedPlaceholder. The text is `unavailable.value.placeholder`.
    """

    def __init__(self, text: str) -> None:
        content = text.encode()
        encoded = base64.b64encode(content).decode()
        self._texts = {text, encoded, base64.urlsafe_b64encode(content).decode(), content.hex()}
        self._texts.add(f'{{"{text}":"{text}"}}')
        id_of_content = uuid.UUID(bytes=hashlib.md5(content, usedforsecurity=False).digest(), version=3)
        self._items = self._texts | {str(id_of_content)}
        self._bytes = [str(byte) for byte in content]
        self._map = {text: text}
        self._points = {base64.b64encode(bytes.fromhex(point)).decode() for point in PLACEHOLDER_POINTS}

    def hidden_columns(self, row: dict[str, RawValue]) -> frozenset[str]:
        try:
            if self._texts.isdisjoint(row.values()):
                return frozenset()
        except TypeError:  # lists and dicts are not hashable
            pass
        return frozenset(name for name, value in row.items() if self.is_placeholder(value))

    def is_placeholder(self, value: RawValue) -> bool:
        if isinstance(value, str):
            return value in self._texts
        if isinstance(value, list):
            if len(value) == 1:
                return isinstance(value[0], str) and value[0] in self._items
            return len(value) == len(self._bytes) and [str(item) for item in value] == self._bytes
        return isinstance(value, dict) and (value == self._map or self._is_point(value))

    def _is_point(self, value: dict[str, RawValue]) -> bool:
        point = value.get("wkb")
        return isinstance(point, str) and point in self._points


class Envelope:
    """Reader of a contract's messages. Pickled without its cache."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        fields = [field for field in contract.fields if field.path != UNCHANGED]
        self._row_fields = [field for field in fields if not field.path]
        self._path_fields = [field for field in fields if field.path]
        self._unchanged = next((field.name for field in contract.fields if field.path == UNCHANGED), None)
        by_name = {name: field.name for field in self._row_fields for name in field.names}
        self._row_names = tuple(by_name)
        at_paths = [(*field.path, field.name) for field in self._path_fields if _is_column(field.path)]
        self._field_of = {column: name for image, column, name in at_paths if image == "after"} | by_name
        self._known = {
            op: by_name.keys() | {column for image, column, _ in at_paths if image == own} for op, own in ROWS.items()
        }
        columns = frozenset(field.name for field in fields if not field.path or _is_column(field.path))
        self._lacking = {"t": columns, "d": columns - set(contract.key)}
        self._placeholder = Placeholder(contract.placeholder)
        self._schema: RawValue = ABSENT
        self._converter = RowConverter({}, self._row_fields, self._path_fields)

    def __reduce__(self) -> tuple[type[Envelope], tuple[Contract]]:
        return Envelope, (self.contract,)

    def open(self, message: RawValue) -> DebeziumChange:
        payload, schema = message, None
        if isinstance(message, dict):
            payload = message if "op" in message else message.get("payload", message)
            schema = message.get("schema")
        return self.open_payload(payload, self.converter(schema))

    def converter(self, schema: RawValue) -> RowConverter:
        """Return the converter of rows with this schema. The last one is cached."""
        if schema != self._schema:
            self._converter = RowConverter(row_schema(schema), self._row_fields, self._path_fields)
            self._schema = schema
        return self._converter

    def open_payload(self, payload: RawValue, converter: RowConverter) -> DebeziumChange:
        try:
            op, change = _checked_change(payload)
            self._check(op, change)
            return self._convert(op, change, converter)
        except NoChange as no_change:
            return DebeziumChange(verdict=no_change.verdict)

    def _check(self, op: str, change: Row) -> None:
        if self.contract.table:
            table = _table(change)
            if not f".{table}".endswith(f".{self.contract.table}"):
                raise NoChange(Reason.OTHER_TABLE, table or "source names no table")
        if op == "t":
            if self.contract.broadcast is None:
                raise NoChange(Reason.ENVELOPE, "a truncate, and the contract declares no broadcast")
        elif not isinstance(change.get(ROWS[op]), dict):
            raise NoChange(Reason.ENVELOPE, f"op {op} without a row in {ROWS[op]}")

    def _convert(self, op: str, change: Row, converter: RowConverter) -> DebeziumChange:
        row: Row = change[ROWS[op]] if op != "t" else {}  # type: ignore[assignment]
        hidden = self._placeholder.hidden_columns(row)
        if hidden:
            row = self._hide(hidden, row, op)
            change = change | {ROWS[op]: row}
        row = converter.converted(row)
        members: Row = {name: row.get(name, ABSENT) for name in self._row_names}
        members |= {field.name: converter.at_path(field, change) for field in self._path_fields}
        lacking = self._lacking.get(op, NO_FIELDS)
        if self._unchanged is not None:
            unchanged = {self._field_of.get(name, name) for name in hidden}
            members[self._unchanged] = [*sorted(unchanged)]
            lacking |= unchanged
        return DebeziumChange(members, self._undeclared(op, row), lacking)

    def _hide(self, hidden: frozenset[str], row: Row, op: str) -> Row:
        """Remove placeholders. Raises NoChange if a declared column has one, and no field is from "unchanged"."""
        if op == "d":
            return {name: given for name, given in row.items() if name not in hidden}
        declared = [name for name in self._field_of if name in hidden]
        if self._unchanged is not None:
            return {name: given for name, given in row.items() if name not in hidden} | dict.fromkeys(declared)
        if declared:
            raise NoChange(Reason.ENVELOPE, f"{self._field_of[declared[0]]}: {NO_VALUE}")
        return row

    def _undeclared(self, op: str, row: Row) -> Row | None:
        if op not in self._known or row.keys() <= self._known[op]:
            return None
        return {name: given for name, given in row.items() if name not in self._known[op]}


def _is_column(path: tuple[str, ...]) -> bool:
    return len(path) == 2 and path[0] in {"before", "after"}


def _checked_change(payload: RawValue) -> tuple[str, Row]:
    if payload is None:
        raise NoChange(CONTROL, "tombstone")
    change = payload if isinstance(payload, dict) else {}
    op = change.get("op")
    if op is None:
        kind = _control_message(change)
        raise NoChange(CONTROL, kind) if kind else NoChange(Reason.ENVELOPE, "no op, and no control message either")
    if op == "m":
        raise NoChange(CONTROL, "logical message")
    if not isinstance(op, str) or op not in OPS:
        raise NoChange(Reason.ENVELOPE, f"op {excerpt(op)} is none of {', '.join(OPS)}, m")
    return op, change


def _control_message(change: Row) -> str:
    if change.get("status") in ("BEGIN", "END"):
        return "transaction"
    if any(name in change for name in ("ddl", "tableChanges", "historyRecord")):
        return "schema change"
    return "heartbeat" if change.keys() == {"ts_ms"} else ""


def _table(change: Row) -> str:
    source = change.get("source")
    names = [source.get(name) for name in ("db", "schema", "table")] if isinstance(source, dict) else []
    return ".".join([name if type(name) is str else plain_text(name) for name in names if name is not None])


class MessageDecoder:
    """Decoder of messages, a batch at a time. Each is one JSON value in UTF-8, or blank. Pickled without its cache.

    A message begins with a long schema, the same for all of a table: a known one is recognized by its bytes, and
    skipped.
    """

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._decode = decoder(dict[str, Any])
        self._known: dict[bytes, RowConverter] = {}

    def __reduce__(self) -> tuple[type[MessageDecoder], tuple[Envelope]]:
        return MessageDecoder, (self._envelope,)

    def decode(self, texts: Sequence[bytes]) -> Members:
        pieces = (texts[start : start + BATCH_MESSAGES] for start in range(0, len(texts), BATCH_MESSAGES))
        return self._members([change for piece in pieces for change in self.open(piece)])

    def decode_rows(self, rows: Sequence[Mapping[str, RawValue] | None]) -> Members:
        return self._members([self._envelope.open(dict(row or {})) for row in rows])

    def _members(self, opened: Sequence[DebeziumChange]) -> Members:
        broken = {index: change.verdict for index, change in enumerate(opened) if change.verdict is not None}
        optional: dict[str, set[int]] = defaultdict(set)
        for index, change in enumerate(opened):
            for name in change.lacking:
                optional[name].add(index)
        names = [name for field in self._envelope.contract.fields for name in field.names]
        columns = {name: [change.members.get(name, ABSENT) for change in opened] for name in names}
        return Members(columns, [change.extra for change in opened], broken, optional)

    def open(self, texts: Sequence[bytes]) -> list[DebeziumChange]:
        parts = [self._without_schema(text) for text in texts]
        payloads, converters = zip(*parts, strict=True) if parts else ((), ())
        records = decode_without_loss(payloads, self._decode)
        return [self._open(*change) for change in zip(texts, converters, records, strict=True)]

    def _open(self, text: bytes, converter: RowConverter | None, record: dict[str, Any] | None) -> DebeziumChange:
        if record is not None:
            return self._envelope.open(record) if converter is None else self._envelope.open_payload(record, converter)
        if not text.strip(BLANKS):
            return self._envelope.open(None)
        try:
            return self._envelope.open(read_json(text))
        except NotJson as fault:
            return DebeziumChange(verdict=(Reason.UNPARSEABLE, str(fault)))

    def _without_schema(self, text: bytes) -> tuple[bytes, RowConverter | None]:
        if not text.startswith(WRAPPED) or not text.endswith(b"}"):
            return text, None
        for prefix, converter in self._known.items():
            if text.startswith(prefix):
                return text[len(prefix) : -1], converter
        return self._learn_schema(text)

    def _learn_schema(self, text: bytes) -> tuple[bytes, RowConverter | None]:
        try:
            parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            if parts.keys() != {"schema", "payload"}:
                return text, None
            schema, payload = bytes(parts["schema"]), bytes(parts["payload"])
            prefix = text.removesuffix(payload + b"}")
            head, _, tail = prefix.partition(schema)
            if prefix == text or not SCHEMA_NAME.fullmatch(head) or not PAYLOAD_NAME.fullmatch(tail):
                return text, None
            converter = self._envelope.converter(read_json(schema))
        except (ValueError, RecursionError):
            return text, None
        if len(self._known) == MOST_SCHEMAS:
            del self._known[next(iter(self._known))]
        self._known[prefix] = converter
        return payload, converter
