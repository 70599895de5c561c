"""Texts of Debezium's messages become the members of records, by one decoding of many.

A text begins with the schema of its columns, which is long and the same in all messages of a table. A schema that has
been read is recognized by its bytes, and cut off.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from lake.contracts.reasons import Reason
from lake.records.debezium import Envelope, Opened
from lake.records.debezium_values import Columns
from lake.records.given import ABSENT, Given
from lake.records.json_members import BLANKS, Members, decode_without_loss, decoder
from lake.records.json_value import NotJson, read_json

WRAPPER: Final = b'{"schema"'
HEAD: Final = re.compile(rb'\{[ \t\r\n]*"schema"[ \t\r\n]*:[ \t\r\n]*')
TAIL: Final = re.compile(rb'[ \t\r\n]*,[ \t\r\n]*"payload"[ \t\r\n]*:[ \t\r\n]*')
AT_ONCE: Final = 100
"""Messages that are decoded together; more of them fill the processor's cache."""
SCHEMAS: Final = 64
"""Schemas that are recognized at once."""


class MessageDecoder:
    """Decodes the texts of messages; each is one JSON value of UTF-8, or blank. It pickles without its cache."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._decode = decoder(dict[str, Any])
        self._known: dict[bytes, Columns] = {}

    def __reduce__(self) -> tuple[type[MessageDecoder], tuple[Envelope]]:
        return MessageDecoder, (self._envelope,)

    def decode(self, texts: Sequence[bytes]) -> Members:
        pieces = (texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE))
        return self._members([change for piece in pieces for change in self.open(piece)])

    def decode_rows(self, rows: Sequence[Mapping[str, Given] | None]) -> Members:
        """Return the members of changes that are rows of a file by their columns."""
        return self._members([self._envelope.open(dict(row or {})) for row in rows])

    def _members(self, opened: Sequence[Opened]) -> Members:
        broken = {index: one.verdict for index, one in enumerate(opened) if one.verdict is not None}
        optional: dict[str, set[int]] = defaultdict(set)
        for index, change in enumerate(opened):
            for name in change.lacking:
                optional[name].add(index)
        names = [field.name for field in self._envelope.contract.fields]
        columns = {name: [change.members.get(name, ABSENT) for change in opened] for name in names}
        return Members(columns, [change.extra for change in opened], broken, optional)

    def open(self, texts: Sequence[bytes]) -> list[Opened]:
        """Return the change in each text; a verdict for one that is no JSON value."""
        cut = [self._cut(text) for text in texts]
        records = decode_without_loss([payload for payload, _ in cut], self._decode)
        return [self._open(*change) for change in zip(texts, (columns for _, columns in cut), records, strict=True)]

    def _open(self, text: bytes, columns: Columns | None, record: dict[str, Any] | None) -> Opened:
        if record is not None:
            return self._envelope.open(record) if columns is None else self._envelope.open_payload(record, columns)
        if not text.strip(BLANKS):
            return self._envelope.open(None)
        try:
            return self._envelope.open(read_json(text))
        except NotJson as fault:
            return Opened(verdict=(Reason.UNPARSEABLE, str(fault)))

    def _cut(self, text: bytes) -> tuple[bytes, Columns | None]:
        """Return the payload of a text with a schema in front of it, and its columns; else the text, and None."""
        if not text.startswith(WRAPPER) or not text.endswith(b"}"):
            return text, None
        for prefix, columns in self._known.items():
            if text.startswith(prefix):
                return text[len(prefix) : -1], columns
        return self._learn(text)

    def _learn(self, text: bytes) -> tuple[bytes, Columns | None]:
        """Recognize the schema of a text from now on, if a payload and nothing else is after it."""
        try:
            parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            if parts.keys() != {"schema", "payload"}:
                return text, None
            schema, payload = bytes(parts["schema"]), bytes(parts["payload"])
            prefix = text.removesuffix(payload + b"}")
            head, _, tail = prefix.partition(schema)
            if prefix == text or not HEAD.fullmatch(head) or not TAIL.fullmatch(tail):
                return text, None
            columns = self._envelope.columns(read_json(schema))
        except (ValueError, RecursionError):
            return text, None
        if len(self._known) == SCHEMAS:
            del self._known[next(iter(self._known))]
        self._known[prefix] = columns
        return payload, columns
