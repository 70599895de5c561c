"""Model of CSV, one character at a time: two columns x and y, commas, double quotes, no options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

NAMES = ("x", "y")


@dataclass
class ModelRecord:
    line: int
    fields: list[tuple[str, bool]] = field(default_factory=list)
    """Text, and whether it was quoted."""
    fault: str = ""

    @property
    def is_blank(self) -> bool:
        return len(self.fields) == 1 and not self.fields[0][1] and not self.fields[0][0].strip(" \t")

    def verdict(self, text: str) -> dict[str, str] | tuple[str, str]:
        if "\uffff" in text:
            return "not valid UTF-8, or U+FFFF, which is no character", text
        if "\0" in text:
            return "a zero byte", text
        if self.fault:
            return self.fault, text
        if len(self.fields) < len(NAMES) or any(value or quoted for value, quoted in self.fields[len(NAMES) :]):
            columns = "1 column" if len(self.fields) == 1 else f"{len(self.fields)} columns"
            return f"{columns}, and the header has {len(NAMES)}", text
        return {name: value for name, (value, quoted) in zip(NAMES, self.fields, strict=False) if value or quoted}


class _Text:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1

    @property
    def here(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        """Return the next character or line end, and advance."""
        taken = "\r\n" if self.text.startswith("\r\n", self.at) else self.here
        self.at += len(taken)
        self.line += taken in {"\r\n", "\r", "\n"}
        return taken

    def until(self, stops: str) -> str:
        start = self.at
        while self.here and self.here not in stops:
            self.at += 1
        return self.text[start : self.at]


def records(text: str) -> Iterator[tuple[int, dict[str, str] | tuple[str, str]]]:
    """Yield the records after the header, each with its line."""
    source, is_header = _Text(text), True
    while source.here:
        start, record = source.at, _record(source)
        written = source.text[start : source.at]
        if not source.take():  # an unclosed quote, whose text has no last line end
            written = written.removesuffix("\n").removesuffix("\r")
        if record.is_blank:
            continue
        if is_header:
            assert [value for value, _ in record.fields] == [*NAMES]
        else:
            yield record.line, record.verdict(written)
        is_header = False


def _record(source: _Text) -> ModelRecord:
    record = ModelRecord(source.line)
    while True:
        if source.here != '"':
            record.fields.append((source.until(",\r\n"), False))
        else:
            source.take()
            record.fields.append((_quoted(source, record), True))
            if source.until(",\r\n"):
                record.fault = record.fault or "text behind a closing quote"
        if source.here != ",":
            return record
        source.take()


def _quoted(source: _Text, record: ModelRecord) -> str:
    text = ""
    while source.here:
        taken = source.take()
        if taken != '"':
            text += taken
        elif source.here == '"':
            text += source.take()
        else:
            return text
    record.fault = record.fault or "a quote is not closed"
    return text
