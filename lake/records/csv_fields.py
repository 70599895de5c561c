"""A record of CSV taken apart: fields that are split, those in quotes and those with a backslash.

A line without quotes and backslashes is split at its delimiters, one with well-formed quotes at its quotes. All others
are read field by field, over the ends of lines where a quoted field goes on. A quote within a field that does not
begin with one is a character like others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lake.contracts.csv_options import CsvOptions
from lake.records.given import ABSENT, Given

BLANKS: Final = " \t"
ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "Z": "\x1a"}
"""Letters behind a backslash, as PostgreSQL and MySQL write them; other characters stand for themselves."""
NO_ESCAPES: Final = "0123456789x"
"""Behind a backslash, of two meanings: octal and hexadecimal codes to PostgreSQL, themselves to MySQL."""


class EmptyText(str):
    """The empty text, written as two quotes; an empty column without quotes is absent."""

    __slots__ = ()


EMPTY: Final = EmptyText()


@dataclass
class Record:
    """Fields of a record, the number of its lines, and what is wrong with it ("" for nothing).

    It is unclosed if it goes on behind the last line at hand.
    """

    fields: list[Given]
    lines: int = 1
    fault: str = ""
    is_unclosed: bool = False


class FieldReader:
    """Reader of records with the quotes and escapes of `options`, and `delimiter`."""

    def __init__(self, options: CsvOptions, delimiter: str) -> None:
        self.options = options
        self.delimiter, self.quote, self.escape, self.trim = delimiter, options.quote, options.escape, options.trim
        quote, stop, escaped = re.escape(self.quote), re.escape(self.escape), r"\\." if self.escape else ""
        self.inside = _pattern(rf"[^{quote}{stop}]" if self.quote else "", quote * 2, escaped)
        self.plain = _pattern(rf"[^{re.escape(delimiter)}{stop}]", escaped)
        self.meant_inside = re.compile("|".join(filter(None, (quote * 2, escaped))) or "(?!)", re.DOTALL)
        self.meant = re.compile(escaped or "(?!)", re.DOTALL)
        self.blanks = re.compile(f"[{BLANKS.replace(delimiter, '')}]*" if self.trim else "")

    def is_plain(self, text: str) -> bool:
        """Return whether the lines of a text are records, and their fields are what is between delimiters."""
        return not ((self.quote and self.quote in text) or (self.escape and self.escape in text))

    def split(self, line: str) -> list[Given]:
        """Return the fields of a plain line."""
        fields = line.split(self.delimiter)
        return [field.strip(BLANKS) for field in fields] if self.trim else list(fields)

    def read(self, lines: Sequence[str], ends: Sequence[str], first: int) -> Record:
        """Return the record that begins with line `first`; at the end of the lines it may be `unclosed`."""
        line = lines[first]
        if self.is_plain(line):
            return Record(self.split(line))
        if not (self.escape and self.escape in line):
            fields = self._by_quotes(line)
            if fields is not None:
                return Record(fields)
        return _CarefulReading(self, lines, ends, first).record()

    def _by_quotes(self, line: str) -> list[Given] | None:
        """Return the fields of a line of which each quote opens or closes a field; None for others."""
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


class _CarefulReading:
    def __init__(self, reader: FieldReader, lines: Sequence[str], ends: Sequence[str], first: int) -> None:
        self._reader = reader
        self._lines, self._ends, self._first = lines, ends, first
        self._number, self._line, self._at = first, lines[first], 0
        self._fault, self._is_unclosed = "", False

    def record(self) -> Record:
        fields: list[Given] = [self._field()]
        while self._at < len(self._line):
            self._at += 1
            fields.append(self._field())
        return Record(fields, self._number - self._first + 1, self._fault, self._is_unclosed)

    def _field(self) -> Given:
        reader = self._reader
        found = reader.blanks.match(self._line, self._at)
        at = found.end() if found else self._at
        if reader.quote and self._line.startswith(reader.quote, at):
            return self._quoted(at + 1)
        text = self._text(reader.plain, self._at, is_quoted=False)
        text = text.strip(BLANKS) if reader.trim else text
        return ABSENT if reader.escape and text == reader.escape + "N" else reader.meant.sub(self._meaning, text)

    def _quoted(self, at: int) -> Given:
        reader = self._reader
        text = reader.meant_inside.sub(self._meaning, self._text(reader.inside, at, is_quoted=True))
        if not self._is_unclosed:
            behind = self._text(reader.plain, self._at + 1, is_quoted=False)
            if behind.strip(BLANKS) if reader.trim else behind:
                self._fault = self._fault or "text behind a closing quote"
        return text or EMPTY

    def _text(self, pattern: re.Pattern[str], at: int, *, is_quoted: bool) -> str:
        """Return what matches from `at` on, over the ends of lines that are quoted or escaped."""
        pieces: list[str] = []
        while True:
            found = pattern.match(self._line, at)
            assert found is not None  # it may be empty
            pieces.append(found[0])
            self._at = found.end()
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

    def _meaning(self, found: re.Match[str]) -> str:
        character = found[0][1:]
        if found[0][0] == self._reader.escape and character in NO_ESCAPES:
            self._fault = self._fault or f"{found[0]} is no escape that is read"
        return ESCAPES.get(character, character) if found[0][0] == self._reader.escape else character
