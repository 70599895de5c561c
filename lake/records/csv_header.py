"""Beginning of a CSV file: skipped lines, a line that declares the delimiter, and the column names."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from lake.contracts.csv_options import CsvOptions
from lake.records.csv_fields import BLANKS, CsvFieldReader, CsvRecord
from lake.records.decompression import check_columns
from lake.records.raw_values import ABSENT, NO_CHARACTER, FileFault

SEPARATOR: Final = re.compile('("?)sep=([^"])\\1', re.IGNORECASE)
LONGEST_SHOWN: Final = 300
LOOK_AHEAD: Final = 100
DELIMITERS: Final = ",;\t|"


@dataclass(frozen=True)
class Header:
    """Column names, the number of columns each record needs, the first record's line, and the reader of records."""

    names: tuple[str, ...]
    needed: int
    first: int
    fields: CsvFieldReader


def read_header(
    lines: Sequence[str], ends: Sequence[str], options: CsvOptions, fields: CsvFieldReader, declared: Collection[str]
) -> Header | None:
    """Return the header; None if the lines end too early. Raises FileFault if it is invalid. `declared` are field
    names.
    """
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
    if NO_CHARACTER in text:
        raise FileFault(f"a header that is not valid {encoding or 'UTF-8'}")
    if "\0" in text:
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
    for number in range(first + 1, min(len(lines), first + LOOK_AHEAD)):
        if _has_declared_name(declared, fields, lines[number]):
            signs = {line[:1] for line in lines[first:number] if line}
            sign = signs.pop() if len(signs) == 1 else ""
            skip = number if sign.isalnum() or sign in {"", fields.quote} else f'"{sign}"'
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
    taken = {*names, *declared}
    unique: list[str] = []
    for place, name in enumerate(names, 1):
        own = name
        if not name or name in unique:
            own = f"{name}_{place}"
            while own in taken:
                own += "_"
            taken.add(own)
        unique.append(own)
    return tuple(unique)
