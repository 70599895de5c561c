"""Texts made of fragments: numbers, times and words, valid and invalid."""

from __future__ import annotations

import random
from itertools import product
from typing import Final

TYPES: Final = (
    *("string", "boolean", "int", "bigint", "float", "double", "date", "timestamp", "timestamp_ntz"),
    *("decimal(9,2)", "decimal(38,10)", "decimal(2,2)", "decimal(5,0)"),
)
SIGNS: Final = ("", "+", "-", "--", "\u2212")
WHOLES: Final = (
    *("", "0", "7", "007", "12", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("1_000", "\uff19", "\u0661", "16777217", "9" * 28, "9" * 40),
)
FRACTIONS: Final = (
    *("", ".", ".0", ".5", ".25", ".000", ".125", ".99", ".0000000001", ".00000000001", ",5", ".\u0665"),
    "." + "0" * 30 + "1",
)
EXPONENTS: Final = ("", "e0", "E3", "e-2", "e+18", "e38", "e39", "e308", "e309", "e-46", "e-400", "e0001", "e", "e1.0")
AROUND: Final = (("", ""), (" ", ""), ("", " "), ("", "\n"), ("", "\0"), ("\ufeff", ""), ("", "f"))
DAYS: Final = (
    *("2024-02-29", "2023-02-29", "2024-07-01", "0000-01-01", "0001-01-01", "9999-12-31", "1582-10-10", "2024-13-01"),
    *(
        "2024-00-10",
        "2024-04-31",
        "2024-2-9",
        "\u0662\u0660\u0662\u0664-02-01",
        "10000-01-01",
        "-0001-01-01",
        "20240229",
    ),
    *("20240229", "2024-03-31", "2024-10-27", "0099-06-01", "9900-01-01"),
)
BETWEEN: Final = ("", "T", " ", "t", "  ")
TIMES: Final = (
    *("", "00:00", "02:30", "23:59:59", "24:00", "24:00:00", "12:60", "12:30:60", "9:05", "12", "1230", "12:30:"),
    *("12:30:15.1", "12:30:15.123456", "12:30:15.1234567", "23:59:59.999999999", "12:30:15.0123456789", "12:30:15."),
    *("12:30:15,5", "12:30 PM", "\uff11\uff12:30"),
)
ZONES: Final = (
    *(
        "",
        "Z",
        "z",
        " Z",
        "  Z",
        "UTC",
        " GMT",
        "UT",
        "+02",
        "+0230",
        "+02:30",
        " -02:30",
        "+02:30:15",
        "+023015",
        "+18:00",
    ),
    *(
        "-18:00",
        "+18:01",
        "+17:60",
        "+19",
        "+2",
        "+2:30",
        "UTC+1",
        "GMT-0330",
        "UTC+5:30",
        "UTC+18:30",
        "utc",
        "BST",
        "CET",
    ),
    *("EST5EDT", "Europe/Vienna", " America/New_York", "Australia/Lord_Howe", "Etc/GMT+5", "europe/vienna"),
    *("posix/Europe/Vienna", "Europe/Nowhere", "/etc/localtime", "../../etc/passwd", "localtime", "Europe/Vienna "),
)
WORDS: Final = (
    *("", " ", "true", "TRUE", "tRuE", "t", "yes", "Y", "on", "off", "no", "N", "f", "FALSE", "null", "NaN", "nan"),
    *("-nan", "+NAN", "Infinity", "-infinity", "INF", "inf", "+inf", "infinit", "1.#INF", "0x1F", "0x1p3", "1f", "1d"),
    *("today", "now", "epoch", "12:30:00", "T12:30", "2024", "45382", "1711886400", "2024-W09-5", "\ud800", "a\uffff"),
    *("\u212aelvin", "\u0130nf", "fal\u017fe", "ja", "1" * 999 + ".", "1" * 1001, "0" * 999 + "7", "0" * 1000 + "7"),
)


def numbers() -> list[str]:
    parts = product(SIGNS, WHOLES, FRACTIONS, EXPONENTS)
    return ["".join(each) for each in parts]


def times() -> list[str]:
    return ["".join(each) for each in product(DAYS, BETWEEN, TIMES, ZONES)]


def some(chance: random.Random, many: int) -> list[str]:
    """Return texts of all sorts: `many` of each sort, and all words."""
    found = chance.sample(numbers(), many) + chance.sample(times(), many)
    found += [f"{day}{sep}{time}{zone}" for day, sep, time, zone in right_times()]
    wrapped = [f"{before}{text}{after}" for text in chance.sample(found, many // 4) for before, after in AROUND]
    return [*found, *wrapped, *WORDS]


def right_times() -> list[tuple[str, str, str, str]]:
    """Return times with mostly valid parts."""
    zones = [zone for zone in ZONES if zone.strip()[:1] in {"", "Z", "U", "G", "+", "-", "E", "A"}]
    return [*product(DAYS[:7], ("T", " "), ("02:30", "23:59:59.999999999", "12:30:15.1"), zones)]
