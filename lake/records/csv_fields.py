"""Parser of one CSV record: splits plain lines at delimiters, quoted lines at quotes, and all others field by field.

A quoted field may span lines. A quote within a field that does not begin with one is an ordinary character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lake.contracts.csv_options import CsvOptions
from lake.records.raw_values import ABSENT, RawValue

BLANKS: Final = " \t"
ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "Z": "\x1a"}
"""Of PostgreSQL and MySQL; other escaped characters stand for themselves."""
AMBIGUOUS_ESCAPES: Final = "0123456789x"
"""Codes in PostgreSQL, ordinary characters in MySQL."""


class EmptyText(str):
    """Empty text written as two quotes. An empty unquoted column is absent."""

    __slots__ = ()


EMPTY: Final = EmptyText()


@dataclass
class CsvRecord:
    fields: list[RawValue]
    lines: int = 1
    fault: str = ""
    is_unclosed: bool = False


class CsvFieldReader:
    def __init__(self, options: CsvOptions, delimiter: str) -> None:
        self.options = options
        self.delimiter, self.quote, self.escape, self.trim = delimiter, options.quote, options.escape, options.trim
        quote, stop, escaped = re.escape(self.quote), re.escape(self.escape), r"\\." if self.escape else ""
        self.text_in_quotes = _pattern(rf"[^{quote}{stop}]" if self.quote else "", quote * 2, escaped)
        self.text_outside = _pattern(rf"[^{re.escape(delimiter)}{stop}]", escaped)
        self.escapes_in_quotes = re.compile("|".join(filter(None, (quote * 2, escaped))) or "(?!)", re.DOTALL)
        self.escapes = re.compile(escaped or "(?!)", re.DOTALL)
        self.blanks = re.compile(f"[{BLANKS.replace(delimiter, '')}]*" if self.trim else "")

    def is_plain(self, text: str) -> bool:
        return not ((self.quote and self.quote in text) or (self.escape and self.escape in text))

    def split(self, line: str) -> list[RawValue]:
        fields = line.split(self.delimiter)
        return [field.strip(BLANKS) for field in fields] if self.trim else list(fields)

    def read(self, lines: Sequence[str], ends: Sequence[str], first: int) -> CsvRecord:
        line = lines[first]
        if self.is_plain(line):
            return CsvRecord(self.split(line))
        if not (self.escape and self.escape in line):
            fields = self._by_quotes(line)
            if fields is not None:
                return CsvRecord(fields)
        return _FieldByField(self, lines, ends, first).record()

    def _by_quotes(self, line: str) -> list[RawValue] | None:
        delimiter, quote = self.delimiter, self.quote
        if line[0] == quote == line[-1]:
            texts = line[1:-1].split(quote + delimiter + quote)
            if 2 * len(texts) == line.count(quote):  # all are quoted
                return [text or EMPTY for text in texts]
        parts = line.split(quote)
        if len(parts) % 2 == 0:
            return None
        before, behind = parts[0], parts[-1]
        if (before and before[-1] != delimiter) or (behind and behind[0] != delimiter):
            return None
        fields = self.split(before[:-1]) if before else []
        for i in range(1, len(parts) - 2, 2):
            fields.append(parts[i] or EMPTY)
            between = parts[i + 1]
            if between == delimiter:
                continue
            if len(between) < 2 or between[0] != delimiter or between[-1] != delimiter:
                return None
            fields += self.split(between[1:-1])
        fields.append(parts[-2] or EMPTY)
        return fields + self.split(behind[1:]) if behind else fields


def _pattern(*alternatives: str) -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(filter(None, alternatives))})*+", re.DOTALL)


class _FieldByField:
    def __init__(self, reader: CsvFieldReader, lines: Sequence[str], ends: Sequence[str], first: int) -> None:
        self._reader = reader
        self._lines, self._ends, self._first = lines, ends, first
        self._number, self._line, self._at = first, lines[first], 0
        self._fault, self._is_unclosed = "", False

    def record(self) -> CsvRecord:
        fields: list[RawValue] = [self._field()]
        while self._at < len(self._line):
            self._at += 1
            fields.append(self._field())
        return CsvRecord(fields, self._number - self._first + 1, self._fault, self._is_unclosed)

    def _field(self) -> RawValue:
        reader = self._reader
        match = reader.blanks.match(self._line, self._at)
        at = match.end() if match else self._at
        if reader.quote and self._line.startswith(reader.quote, at):
            return self._quoted(at + 1)
        text = self._text(reader.text_outside, self._at, is_quoted=False)
        text = text.strip(BLANKS) if reader.trim else text
        return ABSENT if reader.escape and text == reader.escape + "N" else reader.escapes.sub(self._unescape, text)

    def _quoted(self, at: int) -> RawValue:
        reader = self._reader
        text = reader.escapes_in_quotes.sub(self._unescape, self._text(reader.text_in_quotes, at, is_quoted=True))
        if not self._is_unclosed:
            behind = self._text(reader.text_outside, self._at + 1, is_quoted=False)
            if behind.strip(BLANKS) if reader.trim else behind:
                self._fault = self._fault or "text behind a closing quote"
        return text or EMPTY

    def _text(self, pattern: re.Pattern[str], at: int, *, is_quoted: bool) -> str:
        pieces: list[str] = []
        while True:
            match = pattern.match(self._line, at)
            assert match is not None  # it may be empty
            pieces.append(match[0])
            self._at = match.end()
            is_escape = self._line[self._at :] == self._reader.escape != ""
            if not is_escape and (self._at < len(self._line) or not is_quoted):
                return "".join(pieces)
            if self._number + 1 == len(self._lines):
                self._at, self._is_unclosed = len(self._line), True
                self._fault = self._fault or ("a quote is not closed" if is_quoted else "a backslash at the end")
                return "".join(pieces)
            pieces += [self._line[self._at :], self._ends[self._number]]
            self._number += 1
            self._line, at = self._lines[self._number], 0

    def _unescape(self, match: re.Match[str]) -> str:
        character = match[0][1:]
        if match[0][0] == self._reader.escape and character in AMBIGUOUS_ESCAPES:
            self._fault = self._fault or f"{match[0]} is no escape that is read"
        return ESCAPES.get(character, character) if match[0][0] == self._reader.escape else character
