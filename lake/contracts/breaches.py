"""What of a record breaks its contract whoever reads it: told without Spark, in the words of the quarantine.

Intake reads more spellings than are known here (see `cast_sql`): a value that may be one of them is not told, and from
there on the record is left to intake. So is what depends on other records, or on when the record is ingested.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from functools import partial
from typing import Any, Final

from lake.contracts import strict
from lake.contracts.contract import Contract
from lake.contracts.digits import MARK
from lake.contracts.fields import Field
from lake.contracts.reasons import Reason
from lake.contracts.strict import NotTaken, Number

JSON_NUMBER: Final = re.compile(strict.NUMBER)
EXACT: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
"""A number of exact digits, which may be of any script."""
FLOATING: Final = re.compile(r"(?s)[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fFdD]?|.*[xX].*)")
NAMED: Final = {"nan", "inf", "infinity"}
TRUTHS: Final = {"t", "true", "y", "yes", "1", "f", "false", "n", "no", "0"}
SINCE: Final = re.compile(r"-?[0-9]+")
NO_MOMENT: Final = re.compile(r"[A-SU-Za-z]|[-+]?[0-9]+[^-:0-9\sT]|[^0-9]*\Z")
"""How texts begin that are no time in any spelling."""
AROUND: Final = "".join(chr(code) for code in range(256) if chr(code).isspace() or not chr(code).isprintable())
LONG: Final = 60
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
UNTOLD: Final = object()
"""In the place of a value that only intake can tell."""
Tell = Callable[[Any], Any]
"""The value of what a record has; UNTOLD, or None where it is no value of the type in any spelling."""


class Breaches:
    """Finds what breaks one contract."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._fields = [(field, _tell(field)) for field in contract.fields]
        self._defaults = {field.name: _default(field) for field in contract.fields}
        self._bounds = {field.name: tuple(strict.bounds(field)) for field in contract.fields}
        self._needed = tuple(_needed(contract))
        needed = {field.name for field, _ in self._needed}
        looks = [
            (field.name, _may_lack(field) and field.name not in needed, _look(field, self._bounds[field.name]))
            for field in contract.fields
            if not field.is_fact
        ]
        facts_are_right = all(_is_right_if_there(field) for field in contract.fields if field.is_fact)
        self._names = {name for field in contract.fields if not field.is_fact for name in field.names}
        seldom = contract.envelope or "refuse" in {contract.unknown, contract.missing}
        self._looks = looks if facts_are_right and not seldom else []

    def seem_none(self, text: str, record: Mapping[str, Any]) -> bool:
        """Whether a record is right as nearly all are, which is quickly seen; `record` is what `whole` makes of it.

        A name that comes twice shows by the quotes.
        """
        if not self._looks or "\\" in text or not text.isascii():
            return False
        for name, may_lack, look in self._looks:
            given = record.get(name)
            if not (may_lack if given is None else look(given)):
                return False
        return text.count('"') == 2 * (len(record) + [*map(type, record.values())].count(str))

    def must_be_none(self, text: str, facts: Mapping[str, str], *, record_bytes: int) -> None:
        """Raises NotTaken where intake would refuse a record, a JSON object, and for what. It may leave that to it."""
        if self._contract.envelope:
            return
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if size > record_bytes:
            raise NotTaken(Reason.OVERSIZED, f"{size} bytes, limit {record_bytes}")
        try:
            record = strict.DECODER.decode(text)
        except RecursionError:
            return
        if "\\u" in text or MARK in text:
            _must_be_characters(record)
        if self._contract.unknown == "refuse" and (unknown := sorted(record.keys() - self._names)):
            raise NotTaken(Reason.UNKNOWN, ", ".join(unknown)[: strict.SHOWN])
        strict.must_have_all(self._contract, record)
        for field, tell in self._fields:
            if not self._is_right(field, tell, self._given(field, record, facts)):
                return
        for field, reason in self._needed:
            if self._given(field, record, facts) is None:
                raise NotTaken(reason, field.name)

    def _given(self, field: Field, record: Mapping[str, Any], facts: Mapping[str, str]) -> Any:
        """What a record has for a field: under its name or a former one, else its default."""
        if field.is_fact:
            return facts.get(".".join(field.path), self._defaults[field.name])
        value = next((given for name in field.names if (given := record.get(name)) is not None), None)
        if value is None and not (field.nullable and any(name in record for name in field.names)):
            return self._defaults[field.name]
        return value

    def _is_right(self, field: Field, tell: Tell, given: Any) -> bool:
        """Whether what is given is known to be right. Raises NotTaken where it is known to be wrong."""
        if given is None:
            if not field.nullable:
                raise NotTaken(Reason.MISSING, field.name)
            return True
        value = tell(given)
        if value is UNTOLD:
            return False
        shown = f"{field.name}: {strict.shown(given)}"
        if value is None:
            raise NotTaken(Reason.WRONG_TYPE, f"{shown} is not {field.type}")
        if field.text_only and isinstance(given, Number):
            raise NotTaken(Reason.WRONG_TYPE, f"{shown} is a number, and the contract wants text")
        strict.must_be_within(field, value, shown, self._bounds[field.name])
        return True


def _needed(contract: Contract) -> Iterator[tuple[Field, Reason]]:
    """The fields without which a record is no event, where all records have to be events of a key."""
    if contract.broadcast or (contract.horizon and contract.horizon.punctuation):
        return
    names = {field.name: field for field in contract.fields}
    subject = [contract.subject] if contract.sealed and contract.subject else []
    yield from ((names[name], Reason.NULL_KEY) for name in contract.key)
    yield from ((names[name], Reason.NULL_SUBJECT) for name in subject)
    if contract.time in names:
        yield names[contract.time], Reason.NULL_TIME


def _must_be_characters(record: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(record, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise NotTaken(Reason.UNPARSEABLE, "unpaired surrogate") from None
    if MARK in text:
        raise NotTaken(Reason.UNPARSEABLE, f"U+{ord(MARK):X}, which is no character")


def _may_lack(field: Field) -> bool:
    return field.nullable and field.default is None and not field.aliases


def _is_right_if_there(field: Field) -> bool:
    """Whether any value of a fact is right, and it is there: without its id a request is refused before."""
    needed = not field.nullable and not field.has_default and field.path != ("http", "id")
    return field.type == "string" and not field.symbols and field.form.plain and not needed


def _look(field: Field, bounds: Sequence[strict.Bound]) -> Callable[[Any], bool]:
    """Whether a value that is there is right as it mostly is."""
    kind, symbols = field.type, frozenset(field.symbols)
    if field.nested or not field.form.plain or kind == "float":
        return lambda _: False
    if kind == "string":
        return lambda given: type(given) is str and (not symbols or given in symbols)
    if kind == "boolean":
        return lambda given: type(given) is bool
    if kind in strict.BITS:
        top = 1 << strict.BITS[kind]
        least = -top if field.minimum is None else int(field.minimum)
        most = top - 1 if field.maximum is None else int(field.maximum)
        return lambda given: type(given) is int and least <= given <= most

    def look(given: Any) -> bool:
        value = strict.of_json(kind, given)
        return value is not None and not any(outside(value) for _, outside, _ in bounds)

    return look


def _default(field: Field) -> Any:
    if field.default is None or not field.nested:
        return field.default
    return strict.DECODER.decode(field.default)


def _tell(field: Field) -> Tell:  # noqa: PLR0911  one return a type
    kind, _, size = field.type.partition("(")
    if not field.form.plain:
        return lambda _: UNTOLD
    if field.nested:
        return partial(_nested, field, [_tell(part) for part in field.parts])
    match kind:
        case "string":
            return _text
        case "boolean":
            return _boolean
        case "int" | "bigint":
            return partial(_whole, strict.BITS[kind])
        case "decimal":
            return partial(_exact, *map(int, size[:-1].split(",")))
        case "double":
            return _floating
        case "float":  # a bound is rounded as its values are
            return _floating if field.minimum is None and field.maximum is None else lambda _: UNTOLD
        case "binary":
            return lambda given: UNTOLD if (found := strict.of_json(kind, given)) is None else found
    return partial(_moment, kind, 1_000_000 // (field.epoch or 1))


def _text(given: Any) -> str:
    return str(given) if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _nested(field: Field, tells: Sequence[Tell], given: Any) -> Any:
    if isinstance(given, str | bool) or isinstance(given, list) != field.type.startswith("array<"):
        return UNTOLD if isinstance(given, str) and not isinstance(given, Number) else None
    if field.type.startswith("struct<"):
        pairs = [(tell, given.get(part.name)) for tell, part in zip(tells, field.parts, strict=True)]
    else:
        pairs = [(tells[0], each) for each in (given if isinstance(given, list) else given.values())]
    values = [tell(each) for tell, each in pairs if each is not None]
    if any(value is None for value in values):
        return None
    return UNTOLD if any(value is UNTOLD for value in values) else given


def _boolean(given: Any) -> Any:
    text = _text(given).lower()
    if text in TRUTHS:
        return True
    return UNTOLD if text.strip(AROUND) in TRUTHS else None


def _whole(bits: int, given: Any) -> Any:
    breach = _exact(10 if bits < 32 else 19, 0, given)
    return None if isinstance(breach, Decimal) and not -(1 << bits) <= breach < 1 << bits else breach


def _exact(precision: int, scale: int, given: Any) -> Any:
    text = _text(given)
    if not EXACT.fullmatch(text.strip(AROUND)):
        return None
    if len(text) > LONG or not JSON_NUMBER.fullmatch(text):
        return UNTOLD
    number = Decimal(text)
    with localcontext(prec=2 * LONG):
        scaled = number.scaleb(scale)
        if scaled != scaled.to_integral_value() or abs(scaled) >= 10**precision:
            return None
    exponent = number.as_tuple().exponent
    return UNTOLD if isinstance(exponent, int) and exponent < -scale and "e" in text.lower() else number


def _floating(given: Any) -> Any:
    text = _text(given)
    if len(text) <= strict.SHOWN and JSON_NUMBER.fullmatch(text):
        return number if math.isfinite(number := float(text)) else None
    core = text.strip(AROUND)
    return UNTOLD if core.lstrip("+-").lower() in NAMED or FLOATING.fullmatch(core) else None


def _moment(kind: str, micros: int, given: Any) -> Any:
    text = _text(given)
    if SINCE.fullmatch(text) and len(text) <= LONG:
        return _since(kind, micros, int(text))
    is_day, parts = strict.DAY.fullmatch(text), strict.MOMENT.fullmatch(text)
    if kind == "date" and is_day:
        return strict.of_text(kind, text)
    if kind != "date" and is_day:
        return strict.of_text(kind, f"{text}T00:00:00{'Z' if kind == 'timestamp' else ''}")
    if kind == "timestamp" and parts:
        return strict.of_text(kind, text if parts[1] else f"{text}Z")
    if kind == "timestamp_ntz" and parts and not parts[1]:
        return strict.of_text(kind, text)
    return None if NO_MOMENT.match(text.strip(AROUND)) else UNTOLD


def _since(kind: str, micros: int, count: int) -> date | datetime | None:
    try:
        if kind == "date":
            return EPOCH.date() + timedelta(days=count)
        moment = EPOCH + timedelta(microseconds=count * micros)
    except OverflowError:
        return None
    return moment if kind == "timestamp" else moment.replace(tzinfo=None)
