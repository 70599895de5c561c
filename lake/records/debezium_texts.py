"""Decoder of Debezium's messages, a batch at a time, to members of records.

A message begins with a long schema, which is the same for all messages of a table. A known schema is recognized by its
bytes, and skipped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lake.contracts.reasons import Reason
from lake.records.debezium import DebeziumChange, Envelope
from lake.records.debezium_values import RowConverter
from lake.records.json_members import BLANKS, Members, decode_without_loss, decoder
from lake.records.json_value import NotJson, read_json
from lake.records.raw_values import ABSENT, RawValue

WRAPPED: Final = b'{"schema"'
SCHEMA_NAME: Final = re.compile(rb'\{[ \t\r\n]*"schema"[ \t\r\n]*:[ \t\r\n]*')
PAYLOAD_NAME: Final = re.compile(rb'[ \t\r\n]*,[ \t\r\n]*"payload"[ \t\r\n]*:[ \t\r\n]*')
BATCH_MESSAGES: Final = 100
"""Messages decoded together; more exceed the processor's cache."""
MOST_SCHEMAS: Final = 64


class MessageDecoder:
    """Decoder of messages; each is one JSON value in UTF-8, or blank. Pickled without its cache."""

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
        names = [field.name for field in self._envelope.contract.fields]
        columns = {name: [change.members.get(name, ABSENT) for change in opened] for name in names}
        return Members(columns, [change.extra for change in opened], broken, optional)

    def open(self, texts: Sequence[bytes]) -> list[DebeziumChange]:
        parts = [self._without_schema(text) for text in texts]
        records = decode_without_loss([payload for payload, _ in parts], self._decode)
        return [self._open(*change) for change in zip(texts, (columns for _, columns in parts), records, strict=True)]

    def _open(self, text: bytes, columns: RowConverter | None, record: dict[str, Any] | None) -> DebeziumChange:
        if record is not None:
            return self._envelope.open(record) if columns is None else self._envelope.open_payload(record, columns)
        if not text.strip(BLANKS):
            return self._envelope.open(None)
        try:
            return self._envelope.open(read_json(text))
        except NotJson as fault:
            return DebeziumChange(verdict=(Reason.UNPARSEABLE, str(fault)))

    def _without_schema(self, text: bytes) -> tuple[bytes, RowConverter | None]:
        if not text.startswith(WRAPPED) or not text.endswith(b"}"):
            return text, None
        for prefix, columns in self._known.items():
            if text.startswith(prefix):
                return text[len(prefix) : -1], columns
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
            columns = self._envelope.columns(read_json(schema))
        except (ValueError, RecursionError):
            return text, None
        if len(self._known) == MOST_SCHEMAS:
            del self._known[next(iter(self._known))]
        self._known[prefix] = columns
        return payload, columns
