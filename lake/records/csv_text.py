"""Reader of CSV files: the header, then records in columns, with the lines on which they begin.

Before the header there may be skipped lines, and a line `sep=;` that declares the delimiter. Lines end in CR LF, LF or
CR; in quotes these are text. Blank lines are skipped. A record with another number of columns than the header is
broken, except for empty columns at its end. Columns without name and value are ignored.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Final

from lake.contracts.csv_options import CsvOptions
from lake.records.csv_fields import BLANKS, EMPTY, CsvFieldReader, CsvRecord
from lake.records.decompression import OVERSIZED, DecompressedFile, check_columns
from lake.records.raw_values import ABSENT, NO_CHARACTER, ColumnRecords, FileFault, RawValue

SEPARATOR: Final = re.compile('("?)sep=([^"])\\1', re.IGNORECASE)
LONGEST_SHOWN: Final = 300
SEARCHED_LINES: Final = 100
DELIMITERS: Final = ",;\t|"


@dataclass(frozen=True)
class Header:
    """Column `names`; `needed`: columns that each record must have; `first`: index of the first record's line."""

    names: tuple[str, ...]
    needed: int
    first: int
    fields: CsvFieldReader


def read_header(
    lines: Sequence[str], ends: Sequence[str], options: CsvOptions, fields: CsvFieldReader, declared: Collection[str]
) -> Header | None:
    """Return the header; None if the lines end too early. Raises FileFault. `declared` are field names."""
    first = 0
    if lines and (found := SEPARATOR.fullmatch(lines[0])):
        fields, first = CsvFieldReader(options, found[2]), 1
    blanks = BLANKS.replace(fields.delimiter, "") if options.columns else BLANKS + fields.delimiter
    first = _skip_lines(lines, first, options.skip, blanks)
    if first >= len(lines):
        return None
    record = fields.read(lines, ends, first)
    if record.is_unclosed:
        return None
    names = ["" if name is ABSENT else str(name).strip() for name in record.fields]
    if options.columns:
        if [name.lower() for name in names] == [name.lower() for name in options.columns]:
            raise FileFault("a header, and the contract says that there is none")
        return Header(options.columns, len(options.columns), first, fields)
    text = fields.delimiter.join(names)[:LONGEST_SHOWN]
    _check_names(record, names, text, options.encoding, declared)
    if declared and not {*names} & {*declared}:
        suggestion = _suggestion(lines, first, fields, declared)
        raise FileFault(f"a header without a field of the contract: {text} ({suggestion})")
    needed = max(i for i, name in enumerate(names, 1) if name)
    return Header(_unique(names, declared), needed, first + record.lines, fields)


def _skip_lines(lines: Sequence[str], first: int, skip: int | str, blanks: str) -> int:
    if isinstance(skip, int):
        first, skip = max(first, skip), ""
    while first < len(lines) and (not lines[first].strip(blanks) or (skip and lines[first].startswith(skip))):
        first += 1
    return first


def _check_names(record: CsvRecord, names: Sequence[str], text: str, encoding: str, declared: Collection[str]) -> None:
    written = "".join(names)
    if NO_CHARACTER in written:
        raise FileFault(f"a header that is not valid {encoding or 'UTF-8'}")
    if "\0" in written:
        raise FileFault("a header with a zero byte")
    if record.fault:
        raise FileFault(f"a header that cannot be read: {record.fault}: {text}")
    if not any(names):
        raise FileFault(f"a header without names: {text}")
    check_columns(len(names))
    for name in names:
        if name in declared and names.count(name) > 1:
            raise FileFault(f"a header that names the field {name} twice: {text}")


def _suggestion(lines: Sequence[str], first: int, fields: CsvFieldReader, declared: Collection[str]) -> str:
    for number in range(first + 1, min(len(lines), first + SEARCHED_LINES)):
        if _has_declared_name(declared, fields, lines[number]):
            signs = {line[:1] for line in lines[first:number] if line}
            sign = signs.pop() if len(signs) == 1 else ""
            skip = number if sign.isalnum() or sign in {"", fields.quote} else json.dumps(sign, ensure_ascii=False)
            return f'"csv": {{"skip": {skip}}} would read it'
    for delimiter in DELIMITERS.replace(fields.options.delimiter, ""):
        if _has_declared_name(declared, CsvFieldReader(fields.options, delimiter), lines[first]):
            return f'"csv": {{"delimiter": {json.dumps(delimiter)}}} would read it'
    lower = {name.lower(): name for name in declared}
    for name in fields.split(lines[first]):
        if (field := lower.get(str(name).strip().lower())) is not None:
            return f'"aliases": [{json.dumps(name)}] of the field {field} would read it'
    return 'if it has no header, "csv": {"columns": […]} names its columns; if they have other names, "aliases" does'


def _has_declared_name(declared: Collection[str], fields: CsvFieldReader, line: str) -> bool:
    record = fields.read([line], ["\n"], 0)
    return not record.fault and any(str(name).strip() in declared for name in record.fields if name is not ABSENT)


def _unique(names: Sequence[str], declared: Collection[str]) -> tuple[str, ...]:
    used = {*names, *declared}
    unique: list[str] = []
    for number, name in enumerate(names, 1):
        own_name = name
        if not name or name in unique:
            own_name = f"{name}_{number}"
            while own_name in used:
                own_name += "_"
            used.add(own_name)
        unique.append(own_name)
    return tuple(unique)


LINE_END: Final = re.compile("(\r\n|\r|\n)")
DECODE_ERRORS: Final = "lake.records.marked"


def read(source: DecompressedFile, options: CsvOptions, declared: Collection[str] = ()) -> Iterator[ColumnRecords]:
    """Yield the records in parts; the columns alone if there are none. Raises FileFault. `declared` are field names."""
    codecs.register_error(DECODE_ERRORS, _mark_undecodable)
    decoder = codecs.getincrementaldecoder(options.encoding or "utf-8")(DECODE_ERRORS)
    reader, is_begun = _CsvReader(options, declared, source.line_limit), False
    for data in chain(source.chunks(), [b""]):
        is_last = not data
        text = decoder.decode(data, final=is_last)
        if text and not is_begun:
            text, is_begun = text.removeprefix("\ufeff"), True
        had_header = reader.has_header
        part = reader.feed(text, is_last=is_last)
        if part is not None and (part.places or not had_header):
            yield part
    if source.head and not reader.has_header:
        raise FileFault("no record: all lines are blank or skipped, or a quote in the header is not closed")


def _mark_undecodable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return NO_CHARACTER, error.end


@dataclass
class _Chunk:
    """Lines, and their records: these begin at `starts` and end before the line `used`. Plain lines have no `rows`."""

    lines: Sequence[str]
    ends: Sequence[str]
    rows: list[list[RawValue]] = field(default_factory=list)
    starts: Sequence[int] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    used: int = 0

    def text(self, record: int) -> str:
        first = self.starts[record]
        behind = self.starts[record + 1] if record + 1 < len(self.starts) else self.used
        return _joined(self.lines[first:behind], self.ends[first : behind - 1])


def _joined(lines: Sequence[str], ends: Sequence[str]) -> str:
    return "".join(chain.from_iterable(zip_longest(lines, ends, fillvalue="")))


class _CsvReader:
    def __init__(self, options: CsvOptions, declared: Collection[str], line_limit: int) -> None:
        self._options, self._declared, self._line_limit = options, declared, line_limit
        self._fields = CsvFieldReader(options, options.delimiter)
        self._header: Header | None = None
        self._rest, self._line = "", 1
        self._null = frozenset({*options.null, ""} - ({"\\N"} if options.escape else set()))
        self._empty = ABSENT if "" in options.null else ""

    @property
    def has_header(self) -> bool:
        return self._header is not None

    def feed(self, text: str, *, is_last: bool) -> ColumnRecords | None:
        text = self._rest + text
        end = len(text) if is_last else _end_of_lines(text)
        is_plain = self._fields.is_plain(text)
        lines, ends = _split_lines(text[:end], is_plain=is_plain)
        first = 0
        if self._header is None:
            self._header = read_header(lines, ends, self._options, self._fields, self._declared)
            if self._header is None:
                self._rest = text
                self._check_length(text)
                return None
            self._fields, first = self._header.fields, self._header.first
        part = self._records(lines, ends, first, is_plain=is_plain, is_last=is_last)
        if len(text) > self._line_limit:
            for record in range(len(part.starts)):
                self._check_length(part.text(record))
        self._rest = _joined(lines[part.used :], ends[part.used :]) + text[end:]
        self._check_length(self._rest.removesuffix("\n").removesuffix("\r"))
        line, self._line = self._line, self._line + part.used
        is_text = "\0" not in text and NO_CHARACTER not in text
        columns = self._split_at_once(part, self._header) if is_plain and is_text else None
        if columns is not None:
            return ColumnRecords(range(line + first, self._line), columns)
        return self._split_by_record(part, self._header, line, is_text=is_text)

    def _check_length(self, text: str) -> None:
        if len(text) > self._line_limit:
            raise FileFault(f"{OVERSIZED}a line of more than {self._line_limit:,} bytes, or a quote that is not closed")

    def _records(
        self, lines: Sequence[str], ends: Sequence[str], first: int, *, is_plain: bool, is_last: bool
    ) -> _Chunk:
        part, fields = _Chunk(lines, ends, used=len(lines)), self._fields
        if is_plain:
            part.starts = range(first, len(lines))
            return part
        starts: list[int] = []
        rows, part.starts = part.rows, starts
        while first < len(lines):
            record = fields.read(lines, ends, first)
            if record.is_unclosed and not is_last:
                part.used = first
                break
            if record.fault:
                part.faults[len(rows)] = record.fault
            rows.append(record.fields)
            starts.append(first)
            first += record.lines
        return part

    def _split_at_once(self, part: _Chunk, header: Header) -> dict[str, Sequence[RawValue]] | None:
        names, fields = header.names, self._fields
        lines = part.lines[part.starts[0] :] if part.starts else []
        if len(names) == 1 or {line.count(fields.delimiter) for line in lines} != {len(names) - 1}:
            return None
        values = fields.split(fields.delimiter.join(lines))
        return {name: self._without_nulls(values[place :: len(names)]) for place, name in enumerate(names)}

    def _split_by_record(self, part: _Chunk, header: Header, line: int, *, is_text: bool) -> ColumnRecords:
        rows = part.rows or [self._fields.split(part.lines[start]) for start in part.starts]
        width, places = len(header.names), [line + start for start in part.starts]
        broken: dict[int, tuple[str, str]] = {}
        if part.faults or not is_text or width == 1 or {*map(len, rows)} != {width}:
            kept = [record for record, start in enumerate(part.starts) if not self._is_blank(part.lines[start], width)]
            for index, record in enumerate(kept):
                fault = part.faults.get(record) or self._width_fault(rows[record], header)
                if not is_text:
                    fault = self._character_fault(part.text(record)) or fault
                if fault:
                    broken[index] = fault, part.text(record)
            fitting = (() if index in broken else rows[record][:width] for index, record in enumerate(kept))
            rows, places = [[*row, *[ABSENT] * (width - len(row))] for row in fitting], [places[i] for i in kept]
        values = zip(*rows, strict=True) if rows else [()] * width
        columns = {name: self._without_nulls(column) for name, column in zip(header.names, values, strict=True)}
        return ColumnRecords(places, columns, broken)

    def _is_blank(self, line: str, width: int) -> bool:
        may_be_blank_text = width == 1 and not self._options.trim
        return not line if may_be_blank_text else not line.strip(BLANKS.replace(self._fields.delimiter, ""))

    def _width_fault(self, row: Sequence[RawValue], header: Header) -> str:
        width = len(header.names)
        if len(row) >= header.needed and not any(value or value is EMPTY for value in row[width:]):
            return ""
        columns = "1 column" if len(row) == 1 else f"{len(row)} columns"
        return f"{columns}, and {'the contract' if self._options.columns else 'the header'} has {width}"

    def _character_fault(self, text: str) -> str:
        if NO_CHARACTER in text:
            return f"not valid {self._options.encoding or 'UTF-8'}, or U+FFFF, which is no character"
        return "a zero byte" if "\0" in text else ""

    def _without_nulls(self, values: Sequence[RawValue]) -> Sequence[RawValue]:
        if len(self._null) == 1 and EMPTY not in values:
            return [value or ABSENT for value in values]
        return [self._empty if v is EMPTY else ABSENT if v in self._null else v for v in values]


def _end_of_lines(text: str) -> int:
    end = len(text) - text.endswith("\r")
    return max(text.rfind("\n", 0, end), text.rfind("\r", 0, end)) + 1


def _split_lines(text: str, *, is_plain: bool) -> tuple[list[str], list[str]]:
    returns = text.count("\r")
    if returns and text.count("\r\n") == returns == text.count("\n"):
        lines, ends = text.split("\r\n"), ["\r\n"]
    elif returns and not is_plain:
        parts = LINE_END.split(text)
        lines, ends = parts[::2], parts[1::2]
    else:
        lines, ends = text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ["\n"]
    if not lines[-1]:
        lines.pop()
    return lines, ends if len(ends) > 1 else ends * len(lines)
