"""CSV options of a stream (`csv` in a contract's `lake`), for files that differ from RFC 4180."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from lake.errors import did_you_mean

OPTIONS: Final = ("delimiter", "quote", "null", "columns", "encoding", "skip", "escape", "trim")
EXAMPLE: Final = 'write {"delimiter": ";", "null": ["NA"], "encoding": "windows-1252"}, each of them optional'
BARRED_CHARACTERS: Final = "\r\n\\"
MOST_SKIPPED: Final = 1000
BARRED_CODECS: Final = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"})
ENCODINGS: Final = 'use "utf-8", "utf-16", "iso-8859-1", "windows-1252" or the like'


@dataclass(frozen=True)
class CsvOptions:
    """`quote` is "" for none; a column whose text is in `null` is absent.

    `columns` are for files without a header. `encoding` is a Python codec, "" for UTF-8. `skip` is a number of lines
    before the header, or their common prefix. `escape` is a backslash or "".
    """

    declared_delimiter: str = ""
    quote: str = '"'
    null: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    encoding: str = ""
    skip: int | str = 0
    escape: str = ""
    trim: bool = False

    @property
    def delimiter(self) -> str:
        return self.declared_delimiter or ","

    @classmethod
    def of(cls, given: Any) -> CsvOptions:
        null, encoding = given.get("null", []), given.get("encoding", "utf-8")
        return cls(
            given.get("delimiter", ""),
            null=(null,) if isinstance(null, str) else tuple(null),
            columns=tuple(given.get("columns", ())),
            encoding="" if codecs.lookup(encoding).name in {"utf-8", "utf-8-sig"} else encoding,
            **{name: given[name] for name in ("quote", "skip", "escape", "trim") if name in given},
        )


DEFAULT_CSV: Final = CsvOptions()


def wrong_options(given: Any) -> Iterator[tuple[str, str]]:
    """Yield (fault, fix)."""
    if not isinstance(given, dict):
        yield f"invalid csv: {given!r}", EXAMPLE
        return
    for name in sorted(set(given) - set(OPTIONS)):
        yield f"unknown member {name!r} of csv", did_you_mean(name, OPTIONS)
    yield from _wrong_characters(given)
    null = given.get("null", [])
    if not isinstance(null, str) and not (isinstance(null, list) and all(isinstance(text, str) for text in null)):
        yield f"invalid null of csv: {null!r}", 'write the texts that stand for no value, such as ["NA", "-"]'
    if "columns" in given:
        yield from _wrong_columns(given["columns"])
    yield from _wrong_parsing(given)
    if "encoding" in given and not _is_encoding(given["encoding"]):
        yield f"unknown encoding of csv: {given['encoding']!r}", ENCODINGS


def _wrong_characters(given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    delimiter, quote = given.get("delimiter", ","), given.get("quote", '"')
    if not _is_character(delimiter):
        yield f"invalid delimiter of csv: {delimiter!r}", r'use one character, such as ";" or "\t"'
    if quote != "" and not _is_character(quote):
        yield f"invalid quote of csv: {quote!r}", 'use one character, or "" where nothing is quoted'
    elif quote == delimiter:
        yield f"delimiter and quote of csv are both {quote!r}", "use different characters"


def _wrong_parsing(given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    skip, escape, trim = given.get("skip", 0), given.get("escape", ""), given.get("trim", False)
    is_number = isinstance(skip, int) and not isinstance(skip, bool) and 0 <= skip <= MOST_SKIPPED
    if not is_number and not (isinstance(skip, str) and skip and not set(skip) & set("\r\n\0")):
        fix = f'write the number of lines before the header, at most {MOST_SKIPPED}, or how they begin, such as "#"'
        yield f"invalid skip of csv: {skip!r}", fix
    if escape not in ("", "\\"):
        fix = r'use "\\", by which \t, \n, \\ and the like are read; a quote doubled within quotes needs no option'
        yield f"invalid escape of csv: {escape!r}", fix
    if not isinstance(trim, bool):
        yield f"invalid trim of csv: {trim!r}", "write true or false"


def _is_character(given: Any) -> bool:
    return isinstance(given, str) and len(given) == 1 and given not in BARRED_CHARACTERS and "\0" < given < "\ud800"


def _wrong_columns(given: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(given, list) or not given or not all(isinstance(name, str) and name for name in given):
        yield f"invalid columns of csv: {given!r}", "write the names of all columns, in the order of the files"
        return
    names = [name.lower() for name in given]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"columns of csv name {name!r} twice", "names differ by more than case"


def _is_encoding(given: Any) -> bool:
    try:
        return isinstance(given, str) and bool("a".encode(given)) and codecs.lookup(given).name not in BARRED_CODECS
    except (LookupError, UnicodeError, ValueError):
        return False
