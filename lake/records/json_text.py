"""Splitter of JSON files into record texts: one per line, pretty-printed, concatenated, or items of arrays.

A record's place is the line on which it begins, or the previous place plus 1 if several begin on one line.

Other text is returned too, and rejected when decoded; not so blanks, byte order marks and commas of arrays. A record
without an end is broken up to the line that shows this, except for lines in between that are objects by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lake.records.decompression import OVERSIZED, DecompressedFile
from lake.records.raw_values import FileFault, TextRecords

BLANK: Final = b" \t\r\n"
GAP: Final = re.compile(rb"(?:[ \t]|\xef\xbb\xbf)*+")
GAP_IN_ARRAY: Final = re.compile(rb"(?:[ \t\r\n,]|\xef\xbb\xbf)*+")
LINE_END: Final = re.compile(rb"\r\n|\r|\n")
SEVERAL_ON_A_LINE: Final = re.compile(rb"\}[ \t]*[{\[]")
TEXT: Final = rb'"(?:[^"\\\r\n]|\\[^\r\n])*+"'
TO_STRUCTURE: Final = re.compile(rb'[^"{}\[\]]*+(?:' + TEXT + rb'[^"{}\[\]]*+)*+')
SCALAR: Final = re.compile(rb"(?:" + TEXT + rb'|[^",\[\]{}\r\n])*+')
CLOSING: Final = {ord("{"): ord("}"), ord("["): ord("]")}
QUOTE: Final = ord('"')
UNFINISHED: Final = frozenset({b"\r", b"\xef", b"\xef\xbb"})
WINDOW: Final = 1 << 16


@dataclass
class Incomplete(Exception):
    """More bytes are needed to find the end of the record or line at `start`."""

    start: int


@dataclass
class Broken(Exception):
    """A record has no end, as the byte `at` shows."""

    at: int


def read(source: DecompressedFile) -> Iterator[TextRecords]:
    """Yield record texts. Raises FileFault if a record exceeds the line limit, or there is none."""
    scanner, has_records = _Scanner(source.line_limit), False
    for data in source.chunks():
        part = scanner.feed(data, is_last=False)
        if part.places:
            has_records = True
            yield part
    part = scanner.feed(b"", is_last=True)
    if source.head and not (has_records or part.places or scanner.has_array):
        raise FileFault("no record: all lines are blank")
    if part.places:
        yield part


class _Scanner:
    def __init__(self, line_limit: int) -> None:
        self.has_array = False
        self._line_limit = line_limit
        self._data, self._at, self._line = b"", 0, 1
        self._last_place = 0
        self._is_last = False
        self._in_array = False
        self._commas = 0
        self._is_behind_item = False
        self._places: list[int] = []
        self._texts: list[bytes] = []

    def feed(self, data: bytes, *, is_last: bool) -> TextRecords:
        self._data, self._at = self._data[self._at :] + data, 0
        self._is_last = is_last
        self._places, self._texts = [], []
        try:
            while self._at < len(self._data):
                if self._in_array:
                    self._take_item()
                else:
                    self._take_lines()
        except Incomplete as incomplete:
            if len(self._data) - incomplete.start > self._line_limit:
                self._check(self._data[incomplete.start :].rstrip(b"\r\n"))
        if is_last and self._in_array:
            self._add(self._line, b"[")
        return TextRecords(self._places, self._texts)

    def _take_lines(self) -> None:
        """Take lines that are objects by themselves, then one other record.

        An object may continue on the next line, unless that begins with a brace.
        """
        at, number, last = self._at, self._line, b""
        first = LINE_END.search(self._data, at)
        if first is None or self._data[at : first.start()].rstrip(BLANK)[-1:] != b"}":
            self._take_record()
            return
        end = self._end_of_lines(at)
        has_several = SEVERAL_ON_A_LINE.search(self._data, at, end) is not None
        for line in self._data[at:end].splitlines(keepends=True):
            text = line.strip(BLANK)
            if text[:1] == b"{":
                if last:
                    self._add(self._line, last)
                last = b"" if has_several and SEVERAL_ON_A_LINE.search(text) else text
                self._at, self._line = at, number
                if last[-1:] != b"}":
                    break
            elif text:
                break
            at += len(line)
            number += 1
            if not last:
                self._at, self._line = at, number
        if self._at < end or end == 0:
            self._take_record()

    def _end_of_lines(self, at: int) -> int:
        data, end = self._data, min(at + WINDOW, len(self._data))
        if end == len(data):
            if self._is_last:
                return end
            end -= data.endswith(b"\r")  # its line feed may follow
        end = max(data.rfind(b"\n", at, end), data.rfind(b"\r", at, end)) + 1
        return end + (data[end - 1 : end + 1] == b"\r\n")

    def _take_record(self) -> None:
        data = self._data
        self._at = at = _match_end(GAP, data, self._at)
        while data[at : at + 1] == b"{":
            self._take_object(at)
            self._at = at = _match_end(GAP, data, self._at)
        here = data[at : at + 1]
        if here == b"[":
            self._in_array = self.has_array = True
            self._is_behind_item, self._commas = False, 0
            self._at += 1
        elif here in {b"\r", b"\n"}:
            self._advance(self._end_of_line(at))
        elif here:
            self._take(at, self._end_of_line(at))

    def _take_object(self, at: int) -> None:
        try:
            end = self._end_of_record(at)
        except Broken as broken:
            self._take_broken(at, broken.at)
            return
        behind = _match_end(GAP, self._data, end)
        if behind == len(self._data) and not self._is_last:
            raise Incomplete(at)
        is_alone = self._data[behind : behind + 1] in {b"", b"\r", b"\n", b"{", b"["}
        self._take(at, end if is_alone else self._end_of_line(behind))

    def _take_item(self) -> None:
        data = self._data
        at = _match_end(GAP_IN_ARRAY, data, self._at)
        at -= at == len(data) and not self._is_last and data.endswith(b"\r")
        self._commas += data.count(b",", self._at, at)
        self._advance(at)
        here = data[at : at + 1]
        if not here:
            return
        if not self._is_last and data[at:] in UNFINISHED:
            raise Incomplete(at)
        if self._commas > (self._is_behind_item and here != b"]"):
            self._add(self._line, b",")
        self._commas = 0
        if here == b"]":
            self._in_array = False
            self._at += 1
            return
        self._is_behind_item = True
        try:
            self._take(at, self._end_of_record(at) if here in {b"{", b"["} else self._end_of_scalar(at))
        except Broken as broken:
            self._take_broken(at, broken.at)

    def _end_of_record(self, at: int) -> int:
        data, start, closing = self._data, at, bytearray()
        while True:
            here = _match_end(TO_STRUCTURE, data, at)
            if here == len(data):
                raise Broken(here) if self._is_last else Incomplete(start)
            found = data[here]
            if found == QUOTE:
                if not self._is_last and LINE_END.search(data, here) is None:
                    raise Incomplete(start)
                raise Broken(here)
            if found in CLOSING:
                if closing and not _may_open(data, at, here, closing[-1]):
                    raise Broken(here)
                closing.append(CLOSING[found])
            elif closing.pop() != found:
                raise Broken(here)
            elif not closing:
                return here + 1
            at = here + 1

    def _end_of_scalar(self, at: int) -> int:
        end = _match_end(SCALAR, self._data, at)
        if end == len(self._data) and not self._is_last:
            raise Incomplete(at)
        if self._data[end : end + 1] == b'"':
            if not self._is_last and LINE_END.search(self._data, end) is None:
                raise Incomplete(at)
            raise Broken(end)
        return end + (end == at)  # an unmatched brace

    def _take_broken(self, start: int, fault: int) -> None:
        """Take the lines before the one with the fault, or including it.

        Outside of arrays, lines in it that are objects by themselves are separate records.
        """
        data = self._data
        line = max(data.rfind(b"\n", start, fault), data.rfind(b"\r", start, fault)) + 1
        end = line if line and _match_end(GAP, data, line) == fault else self._end_of_line(fault, start)
        if self._in_array:
            self._add(self._line, data[start:end].rstrip(BLANK + b","))
            self._advance(end)
            return
        at = start
        for text in data[start:end].splitlines(keepends=True):
            if text[:1] == b"{" and text.rstrip(BLANK)[-1:] == b"}":
                if self._at < at:
                    self._take(self._at, at)
                self._take(at, at + len(text))
            at += len(text)
        if self._at < end:
            self._take(self._at, end)

    def _end_of_line(self, at: int, start: int | None = None) -> int:
        found = LINE_END.search(self._data, at)
        is_whole = found and (found[0] != b"\r" or found.end() < len(self._data))
        if found and (is_whole or self._is_last):
            return found.end()
        if self._is_last:
            return len(self._data)
        raise Incomplete(at if start is None else start)

    def _take(self, start: int, end: int) -> None:
        self._add(self._line, self._data[start:end].rstrip(BLANK))
        self._advance(end)

    def _advance(self, end: int) -> None:
        data, start = self._data, self._at
        ends = data.count(b"\n", start, end) + data.count(b"\r", start, end) - data.count(b"\r\n", start, end)
        self._line += ends
        self._at = end

    def _add(self, line: int, text: bytes) -> None:
        self._check(text)
        self._last_place = max(line, self._last_place + 1)
        self._places.append(self._last_place)
        self._texts.append(text)

    def _check(self, text: bytes) -> None:
        if len(text) > self._line_limit:
            one = "one record" if b"\n" in text else "a line"
            raise FileFault(f"{OVERSIZED}{one} of more than {self._line_limit:,} bytes")


def _match_end(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.match(data, at)
    assert found is not None  # every pattern may match no bytes
    return found.end()


def _may_open(data: bytes, at: int, here: int, closing: int) -> bool:
    before = data[at:here].rstrip(BLANK)[-1:]
    if closing == CLOSING[ord("{")]:
        return before == b":"
    return before == b"," or (not before and data[at - 1] == ord("["))
