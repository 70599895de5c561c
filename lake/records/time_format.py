"""Reader of dates and times in a contract's `format`, as `lake.contracts.written_form` specifies it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Final, TypeAlias

from lake.contracts.written_form import EPOCHS, PARTS, ZONES, TextForm
from lake.records.memo import Memo
from lake.records.numbers import exact
from lake.records.raw_values import RawValue
from lake.records.times import compose_time, from_count, offset_of

MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH: Final = "|".join(MONTHS)
_MON: Final = "|".join(month[:3] for month in MONTHS)
_ONE_OR_TWO: Final = "[0-9]{1,2}"
_TWO: Final = "[0-9]{2}"
_OFFSETS: Final[Mapping[str, str]] = {
    "X": f"[+-]{_TWO}(?:{_TWO})?|Z",
    "XX": f"[+-]{_TWO}{_TWO}|Z",
    "XXX": f"[+-]{_TWO}:{_TWO}|Z",
    "x": f"[+-]{_TWO}(?:{_TWO})?",
    "xx": f"[+-]{_TWO}{_TWO}",
    "xxx": f"[+-]{_TWO}:{_TWO}",
    **dict.fromkeys(("Z", "ZZ", "ZZZ"), f"[+-]{_TWO}{_TWO}"),
}
_RUNS: Final[Mapping[str, str]] = {
    "y": "[0-9]{1,4}",
    "yy": _TWO,
    "yyyy": "[0-9]{4}",
    "MMM": f"(?i:{_MON})",
    "MMMM": f"(?i:{_MONTH})",
    "D": "[0-9]{1,3}",
    "DD": "[0-9]{2,3}",
    "DDD": "[0-9]{3}",
    "a": "(?i:am|pm)",
    **_OFFSETS,
}
Parts: TypeAlias = Mapping[str, int]


def reader(form: TextForm) -> Callable[[RawValue], datetime | None]:
    """The function returns UTC; None if a value does not match."""
    if form.format in EPOCHS:
        return lambda given: _since_1970(given, form.format.removeprefix("epoch-"))
    pattern, runs = _compiled(form.format)

    def read(given: RawValue) -> datetime | None:
        if isinstance(given, bool) or not isinstance(given, str | int):
            return None
        match = pattern.fullmatch(str(given))
        return _time(match, runs, form) if match else None

    return read


def matches(text_format: str, text: str) -> bool:
    """Return whether a text matches a format, whatever its numbers."""
    return _compiled(text_format)[0].fullmatch(text) is not None


def _since_1970(given: RawValue, unit: str) -> datetime | None:
    number = exact(given)
    if number is None or (unit != "seconds" and number != number.to_integral_value()):
        return None
    return from_count(number, unit)


@Memo
def _compiled(text: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    pattern, runs, is_quoted = "", [], False
    for part in PARTS.finditer(text):
        if run := part["letters"]:
            runs.append(run)
            pattern += f"({_run_pattern(run)})"
        elif part["text"]:
            inside = part["text"][1:-1]
            pattern += re.escape(f"'{inside}" if is_quoted or not inside else inside)
        else:
            pattern += {"[": "(?:", "]": ")?"}.get(part["other"], re.escape(part["other"]))
        is_quoted = bool(part["text"] and part["text"] != "''")
    return re.compile(pattern, re.ASCII), tuple(runs)


def _run_pattern(run: str) -> str:
    if run[0] == "S":
        return f"[0-9]{{1,{len(run)}}}"
    return _RUNS.get(run, _TWO if len(run) == 2 else _ONE_OR_TWO)


def _time(match: re.Match[str], runs: tuple[str, ...], form: TextForm) -> datetime | None:
    parts: dict[str, int] = {}
    fraction = ""
    for run, text in zip(runs, match.groups(), strict=True):
        if text is None:
            continue
        if run[0] == "S":
            fraction = text
            continue
        number = _number(run, text, form.pivot)
        letter = "X" if run[0] in ZONES else run[0]
        if number is None or parts.setdefault(letter, number) != number:
            return None
    ymd, hour = _date(parts), _hour(parts)
    if ymd is None or hour is None:
        return None
    local = compose_time(
        (ymd.year, ymd.month, ymd.day), (hour, parts.get("m", 0), parts.get("s", 0)), fraction, form.hour24
    )
    try:
        return None if local is None else local - timedelta(seconds=parts.get("X", 0))
    except OverflowError:
        return None


def _number(run: str, text: str, pivot: int) -> int | None:
    match run:
        case "yy":
            return pivot + (int(text) - pivot) % 100
        case "MMM" | "MMMM":
            return 1 + next(place for place, month in enumerate(MONTHS) if month.startswith(text.lower()))
        case "a":
            return 12 if text.lower() == "pm" else 0
    if run[0] not in ZONES:
        return int(text)
    if text == "Z":
        return 0
    digits = text[1:].replace(":", "")
    offset = offset_of(text[0], int(digits[:2]), int(digits[2:] or 0))
    return None if offset is None else int(offset.total_seconds())


def _date(parts: Parts) -> date | None:
    if "y" not in parts:
        return None
    try:
        if "D" not in parts:
            return date(parts["y"], parts.get("M", 1), parts.get("d", 1))
        found = date(parts["y"], 1, 1) + timedelta(days=parts["D"] - 1)
    except (ValueError, OverflowError):
        return None
    written = (found.year, parts.get("M", found.month), parts.get("d", found.day))
    return found if written == (parts["y"], found.month, found.day) else None


def _hour(parts: Parts) -> int | None:
    meridiem = parts.get("a")
    if "h" not in parts:
        hour = parts.get("H", meridiem or 0)
        return hour if meridiem is None or (hour >= 12) == (meridiem == 12) else None
    if meridiem is None or not 1 <= parts["h"] <= 12:
        return None
    hour = parts["h"] % 12 + meridiem
    return hour if parts.get("H", hour) == hour else None
