"""Where a person is mentioned: in a text that has a value of theirs as a whole word, in a record that is about them.

A producer may write the same value in many ways: `{"customer": "J\\u00f6rg"}` is of Jörg. So texts are searched as they
are, and once more with the escapes of JSON decoded; numbers and instants are found however they are spelled; and what a
record says of its subject is compared as the contract reads it, under each name of the field.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.ingest.personal import BLANKED
from lake.store import small
from lake.store.side_tables import LAST_BATCH, counts
from lake.store.warehouse import Warehouse

SHORTEST: Final = 4
"""Shorter values are found anywhere by chance, so they are not searched for."""
MOST_DIGITS: Final = 38
NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:E[+-]?\d{1,3})?")
INSTANT: Final = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,3})(\d*))?")
"""Numbers and instants as Spark writes them."""
ESCAPES: Final = re.compile(r'(?:\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]))+')


def whole_word(expressions: Iterable[str]) -> str:
    """A regular expression, as RE2 and Python have it, that finds what any of `expressions` does as a whole word."""
    return f"(?:^|[^0-9A-Za-z])(?:{'|'.join(sorted(expressions))})(?:$|[^0-9A-Za-z])"


def spelled(value: str) -> str:
    """A regular expression of a value as Spark writes it, and as other engines and producers spell the same."""
    if NUMBER.fullmatch(value):
        return "|".join(sorted({re.escape(value), *map(_digits, _kept_as(Decimal(value)))}))
    if instant := INSTANT.fullmatch(value):
        day, time, millis, micros = instant.groups(default="")
        # Statistics keep milliseconds.
        fraction = rf"\.{millis}(?:{micros}|)0*" if millis else r"(?:\.0+)?"
        return f"{re.escape(day)}[ T]{time}{fraction}Z?"
    return re.escape(value)


def is_long_enough(value: str) -> bool:
    """Whether a value, of a number its shortest form, is long enough to be searched for."""
    return len(_plain(Decimal(value)) if NUMBER.fullmatch(value) else value) >= SHORTEST


def sought(contract: Contract, subject: str, values: Collection[str]) -> tuple[set[str], list[str]]:
    """Those of a person's `values`, and of the subject, that can be searched for; what cannot, and why.

    The latter in words that reveal no value.
    """
    field, left_out = contract.field(contract.subject or ""), []
    wanted = {*values, subject}
    if not field.personal:
        wanted.remove(subject)
        left_out.append(f"{field.name}, which is not personal by the contract: logs keep it unencrypted")
    short = {value for value in wanted if not is_long_enough(value)}
    if short:
        what = field.name if short == {subject} else f"{len(short)} values"
        left_out.append(f"{what} of fewer than {SHORTEST} characters, which match anywhere by chance")
    if shared := [name for name in contract.sealed if contract.field(name).shared]:
        left_out.append(f"{', '.join(shared)}, whose few values are shared by other people")
    return wanted - short, left_out


def _kept_as(number: Decimal) -> set[Decimal]:
    """A number, and what is left of it in 64 bits, as statistics keep decimals, and of one of 32 bits in 64.

    delta-rs divides the digits of a decimal by a power of ten, which may round once more.
    """
    _, digits, exponent = number.as_tuple()
    spellings = {number, Decimal(repr(float(number)))}
    if isinstance(exponent, int) and -MOST_DIGITS <= exponent < 0:
        spellings.add(Decimal(repr(int("".join(map(str, digits))) / 10.0**-exponent)).copy_sign(number))
    with suppress(OverflowError):
        [single] = struct.unpack("f", struct.pack("f", float(number)))
        if Decimal(f"{single:.{len(_significant(number))}g}") == number:
            spellings.add(Decimal(repr(single)))
    return {spelling for spelling in spellings if spelling.is_finite() and len(_plain(spelling)) >= SHORTEST}


def _digits(number: Decimal) -> str:
    """A regular expression of a number, with or without an exponent, whatever zeros come last."""
    plain = _plain(number)
    fixed = re.escape(plain) + ("0*" if "." in plain else "")
    digits, exponent = _significant(number), number.adjusted()
    fraction = rf"\.{digits[1:]}0*" if digits[1:] else r"(?:\.0+)?"
    sign = "-" if number.is_signed() else ""
    return rf"{fixed}|{sign}{digits[0]}{fraction}[eE]{'-' if exponent < 0 else '[+]?'}0*{abs(exponent)}"


def _plain(number: Decimal) -> str:
    """The shortest form of a number without an exponent."""
    fixed = f"{number:f}"
    return fixed.rstrip("0").rstrip(".") if "." in fixed else fixed


def _significant(number: Decimal) -> str:
    """The digits of a number from the first that is not zero to the last."""
    return "".join(map(str, number.as_tuple().digits)).rstrip("0") or "0"


def decoded(text: str) -> Iterator[str]:
    """`text` as it is, then with the escapes of JSON decoded, and again as long as there are any: JSON within JSON."""
    yield text
    while (plain := ESCAPES.sub(lambda escape: str(json.loads(f'"{escape[0]}"')), text)) != text:
        yield (text := plain)


def quarantined(settings: Settings, contract: Contract, subject: str, values: Collection[str]) -> list[dict[str, Any]]:
    """The quarantined records that tell of a person, or have one of their `values`, and what to keep of their place.

    Rows of `_batch`, `_number`, `source`, the last empty where the very name of the file tells of them.
    """
    texts = ", ".join(f"coalesce({name}, '') AS {name}" for name in ("raw", "detail", "source"))
    path, tells = Warehouse(settings).quarantine(contract.name).path, _tells(contract, subject, values)
    word = _word(values)
    records = []
    for batch in counts(Warehouse(settings).quarantine(contract.name), upto=LAST_BATCH):
        for row in small.rows(path, f"SELECT _batch, _number, {texts} FROM t WHERE _batch = $1", batch):
            raw, detail, source = row.pop("raw"), row.pop("detail"), row["source"]
            named = word(source)
            if named or tells(raw) or (detail != BLANKED and word(detail)):
                records.append({**row, "source": "" if named else source})
    return records


def _word(values: Collection[str]) -> Callable[[str], bool]:
    """Whether a text has one of `values`, of those that are long enough to be searched for."""
    longer = [spelled(value) for value in values if is_long_enough(value)]
    words = re.compile(whole_word(longer)) if longer else None
    return lambda text: words is not None and any(words.search(plain) for plain in decoded(text))


def _tells(contract: Contract, subject: str, values: Collection[str]) -> Callable[[str], bool]:
    """Whether the text of a record is about a person, or has one of their `values`."""
    field = contract.field(contract.subject or "")
    names = {name.lower() for name in (*field.names, *field.path[-1:])}
    word, same = _word(values), _same(subject, number=field.type != "string")
    # What is no JSON, as half a record: its field, wherever it is.
    spelled = "|".join(re.escape(name) for name in sorted(names))
    broken = re.compile(f'"(?i:{spelled})"\\s*:\\s*"?{re.escape(subject)}"?\\s*(?:[,}}]|$)')
    return lambda raw: (
        word(raw) or any(map(same, _values(raw, names))) or any(broken.search(plain) for plain in decoded(raw))
    )


def _values(raw: str, names: Collection[str]) -> list[str]:
    """What a record says under any of `names`, however deep in it, as it is written there."""
    values: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> None:
        values.extend(str(value) for name, value in pairs if name.lower() in names and value is not None)

    try:
        json.loads(raw, object_pairs_hook=members, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return values
    return values


def _same(subject: str, *, number: bool) -> Callable[[str], bool]:
    """Whether a text says the subject: as a `number`, 7 and 7.0 are one."""
    if not number:
        return lambda text: text.strip() == subject.strip()
    return lambda text: _number(text) == _number(subject)


def _number(text: str) -> Decimal | str:
    try:
        return Decimal(text.strip())
    except InvalidOperation:
        return text.strip()
