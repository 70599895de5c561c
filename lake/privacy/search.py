r"""Search for a person in texts: one of their values as a whole word, or a record about them.

Producers write a value in many ways: `{"customer": "J\\u00f6rg"}` is about Jörg. So texts are also searched with
escapes of JSON and CSV decoded, and numbers and instants match in every spelling. A record's subject is compared as the
contract reads it.
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
from lake.ingest.field_encryption import BLANKED
from lake.store import duckdb_tables
from lake.store.quarantine import LAST_BATCH, counts_by_batch
from lake.store.warehouse import Warehouse

LEAST_LENGTH: Final = 4
"""Length of a value; shorter ones match by chance."""
MOST_DIGITS: Final = 38
NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:E[+-]?\d{1,3})?")
INSTANT: Final = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,3})(\d*))?")
ESCAPES: Final = re.compile(r'(?:\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]))+')


def whole_word(expressions: Iterable[str]) -> str:
    return f"(?:^|[^0-9A-Za-z])(?:{'|'.join(sorted(expressions))})(?:$|[^0-9A-Za-z])"


def spelling_pattern(value: str) -> str:
    if NUMBER.fullmatch(value):
        return "|".join(sorted({re.escape(value), *map(_number_pattern, _stored_numbers(Decimal(value)))}))
    if instant := INSTANT.fullmatch(value):
        day, time, millis, micros = instant.groups(default="")
        # Statistics have milliseconds only.
        fraction = rf"\.{millis}(?:{micros}|)0*" if millis else r"(?:\.0+)?"
        return f"{re.escape(day)}[ T]{time}{fraction}Z?"
    return re.escape(value)


def _is_long_enough(value: str) -> bool:
    return len(_plain(Decimal(value)) if NUMBER.fullmatch(value) else value) >= LEAST_LENGTH


def searchable_values(contract: Contract, subject: str, values: Collection[str]) -> tuple[set[str], list[str]]:
    """Return the values to search for, with the subject, and why others are left out, without showing them."""
    field, left_out = contract.field(contract.subject or ""), []
    wanted = {*values, subject}
    if not field.personal:
        wanted.remove(subject)
        left_out.append(f"{field.name}, which is not personal by the contract: logs keep it unencrypted")
    short = {value for value in wanted if not _is_long_enough(value)}
    if short:
        what = field.name if short == {subject} else f"{len(short)} values"
        left_out.append(f"{what} of fewer than {LEAST_LENGTH} characters, which match anywhere by chance")
    if shared := [name for name in contract.sealed if contract.field(name).shared]:
        left_out.append(f"{', '.join(shared)}, whose few values are shared by other people")
    return wanted - short, left_out


def _stored_numbers(number: Decimal) -> set[Decimal]:
    """Return a number, and its 64-bit and 32-bit roundings in column statistics.

    delta-rs divides a decimal's digits by a power of ten, which may round once more.
    """
    _, digits, exponent = number.as_tuple()
    spellings = {number, Decimal(repr(float(number)))}
    with suppress(OverflowError):
        if isinstance(exponent, int) and -MOST_DIGITS <= exponent < 0:
            spellings.add(Decimal(repr(int("".join(map(str, digits))) / 10.0**-exponent)).copy_sign(number))
        [single] = struct.unpack("f", struct.pack("f", float(number)))
        if Decimal(f"{single:.{len(_significant(number))}g}") == number:
            spellings.add(Decimal(repr(single)))
    return {spelling for spelling in spellings if spelling.is_finite() and len(_plain(spelling)) >= LEAST_LENGTH}


def _number_pattern(number: Decimal) -> str:
    plain = _plain(number)
    fixed = re.escape(plain) + ("0*" if "." in plain else "")
    digits, exponent = _significant(number), number.adjusted()
    fraction = rf"\.{digits[1:]}0*" if digits[1:] else r"(?:\.0+)?"
    sign = "-" if number.is_signed() else ""
    return rf"{fixed}|{sign}{digits[0]}{fraction}[eE]{'-' if exponent < 0 else '[+]?'}0*{abs(exponent)}"


def _plain(number: Decimal) -> str:
    fixed = f"{number:f}"
    return fixed.rstrip("0").rstrip(".") if "." in fixed else fixed


def _significant(number: Decimal) -> str:
    return "".join(map(str, number.as_tuple().digits)).rstrip("0") or "0"


def unescaped_texts(text: str) -> Iterator[str]:
    """Yield `text`, then with escapes of JSON decoded, repeatedly, then with doubled quotes of CSV too.

    JSON may be nested in JSON, and either in the other.
    """
    yield text
    for decode in (_unescaped, lambda escaped: _unescaped(escaped).replace('""', '"')):
        before = text
        while (plain := decode(before)) != before:
            yield (before := plain)


def _unescaped(text: str) -> str:
    return ESCAPES.sub(lambda escape: str(json.loads(f'"{escape[0]}"')), text)


def quarantined_records(
    settings: Settings, contract: Contract, subject: str, values: Collection[str]
) -> list[dict[str, Any]]:
    """Return the quarantined records about a person or with one of their `values`.

    Rows of `_batch`, `_number`, `source`; `source` is empty if the file's name itself mentions them.
    """
    texts = ", ".join(f"coalesce({name}, '') AS {name}" for name in ("raw", "detail", "source"))
    path = Warehouse(settings).quarantine(contract.name).path
    has_value, is_about = _value_search(values), _person_search(contract, subject, values)
    records = []
    for batch in counts_by_batch(Warehouse(settings).quarantine(contract.name), upto=LAST_BATCH):
        for row in duckdb_tables.rows(path, f"SELECT _batch, _number, {texts} FROM t WHERE _batch = $1", batch):
            raw, detail, source = row.pop("raw"), row.pop("detail"), row["source"]
            is_named = has_value(source)
            if is_named or is_about(raw) or (detail != BLANKED and has_value(detail)):
                records.append({**row, "source": "" if is_named else source})
    return records


def _value_search(values: Collection[str]) -> Callable[[str], bool]:
    longer = [spelling_pattern(value) for value in values if _is_long_enough(value)]
    words = re.compile(whole_word(longer)) if longer else None
    return lambda text: words is not None and any(words.search(plain) for plain in unescaped_texts(text))


def _person_search(contract: Contract, subject: str, values: Collection[str]) -> Callable[[str], bool]:
    field = contract.field(contract.subject or "")
    names = {name.lower() for name in (*field.names, *field.path[-1:])}
    has_value = _value_search(values)
    as_value: Callable[[str], Decimal | str] = str.strip if field.type == "string" else _number
    # For text that is not JSON, such as half a record: the field anywhere.
    any_name = "|".join(re.escape(name) for name in sorted(names))
    broken = re.compile(f'"(?i:{any_name})"\\s*:\\s*"?{re.escape(subject)}"?\\s*(?:[,}}]|$)')
    # A line of CSV has no names: a text in any of its cells.
    cell = re.compile(f'(?:^|[,;|\\t])\\s*"?{re.escape(subject)}"?\\s*(?:[,;|\\t]|$)')
    in_csv = field.type == "string" and not NUMBER.fullmatch(subject)
    return lambda raw: (
        has_value(raw)
        or any(as_value(text) == as_value(subject) for text in _values(raw, names))
        or any(broken.search(plain) for plain in unescaped_texts(raw))
        or (in_csv and not raw.lstrip().startswith(("{", "[")) and cell.search(raw) is not None)
    )


def _values(raw: str, names: Collection[str]) -> list[str]:
    values: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> None:
        values.extend(str(value) for name, value in pairs if name.lower() in names and value is not None)

    with suppress(ValueError, RecursionError):
        json.loads(raw, object_pairs_hook=members, parse_int=str, parse_float=str)
    return values


def _number(text: str) -> Decimal | str:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return text.strip()
    return number if number.is_finite() else text.strip()
