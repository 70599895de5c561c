"""A record read strictly, without Spark: canonical JSON alone, so that what passes here is parsed alike there.

    string, enum     a text                       boolean      true, false
    int, long        7, -12                       double       1.5, 2e3
    decimal          "19.90" or 19.90, no exponent, as many digits as its type has at most
    date             "2024-03-31"                 bytes        base64
    timestamp        "2024-03-31T12:00:00Z", with up to six digits of a second, and Z or an offset such as +02:00
    local timestamp  the same without Z or an offset

Any other record is refused with the reason that quarantine has for it, or would have, were it read as strictly.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Final, NoReturn

from lake.contracts import literals
from lake.contracts.contract import Contract
from lake.contracts.digits import MARK
from lake.contracts.fields import Field
from lake.contracts.reasons import Reason

WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
DIGITS: Final = re.compile(r"-?(0|[1-9][0-9]*)(?:\.([0-9]+))?")
MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?"
)
DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
BITS: Final = {"int": 31, "bigint": 63}
KINDS: Final = (
    "string",
    "boolean",
    "int",
    "bigint",
    "double",
    "decimal",
    "date",
    "timestamp",
    "timestamp_ntz",
    "binary",
)
KEYS: Final = ("string", "boolean", "int", "bigint", "decimal", "date", "timestamp", "timestamp_ntz")
"""Types of which values are equal here as they are in a log."""
SHOWN: Final = 200


class NotTaken(ValueError):
    """A record that is not read: for which `reason`, and what was found."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class Number(str):
    """A number of JSON as it is written."""


Bound = tuple[str, Callable[[Any], bool], str]
"""A bound as it is written, whether a value is outside of it, and the word for that."""


class StrictReader:
    """Reads the records of one contract, of which `unreadable` finds nothing wrong."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self._of = {name: field for field in contract.fields if not field.is_fact for name in field.names}
        self._defaults = {field.name: _default(field) for field in contract.fields}
        self._bounds = {field.name: tuple(bounds(field)) for field in contract.fields}

    def values(self, text: str, facts: Mapping[str, str], *, record_bytes: int, now: datetime) -> dict[str, Any]:
        """The value of each field, as Arrow gives it. Raises NotTaken."""
        if (size := len(text.encode("utf-8", "surrogatepass"))) > record_bytes:
            raise NotTaken(Reason.OVERSIZED, f"{size} bytes, limit {record_bytes}")
        named = self._named(_parsed(text))
        must_have_all(self.contract, named)
        values = {field.name: self._value(field, named, facts) for field in self.contract.fields}
        for name in self.contract.key:
            if values[name] is None:
                raise NotTaken(Reason.NULL_KEY, name)
        if self.contract.time is not None:
            self._must_not_be_ahead(values[self.contract.time], now)
        return values

    def default(self, name: str) -> Any:
        """The value of a field that a record lacks; None for null."""
        return self._defaults[name]

    def _named(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """By the names that fields have now."""
        named: dict[str, Any] = {}
        for name, given in record.items():
            field = self._of.get(name)
            if field is None:
                raise NotTaken(Reason.UNPARSEABLE, f"{name[:SHOWN]!r} is not a field of {self.contract.name}")
            if field.name in named:
                raise NotTaken(Reason.UNPARSEABLE, f"{field.name} is there under two names")
            named[field.name] = given
        return named

    def _value(self, field: Field, named: Mapping[str, Any], facts: Mapping[str, str]) -> Any:
        given = facts.get(".".join(field.path)) if field.is_fact else named.get(field.name)
        if given is None:
            explicit = field.name in named and field.nullable
            value = None if explicit else self._defaults[field.name]
            if value is None and not field.nullable:
                raise NotTaken(Reason.MISSING, field.name)
            return value
        value = of_text(field.type, given) if field.is_fact else of_json(field.type, given)
        fault = f"{field.name}: {shown(given)}"
        if value is None:
            raise NotTaken(Reason.WRONG_TYPE, f"{fault} is not {_expected(field.type)}")
        must_be_within(field, value, fault, self._bounds[field.name])
        return value

    def _must_not_be_ahead(self, value: date | datetime | None, now: datetime) -> None:
        if value is None:
            raise NotTaken(Reason.NULL_TIME, str(self.contract.time))
        at = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day, tzinfo=UTC)
        if at > now + self.contract.max_ahead:
            raise NotTaken(Reason.AHEAD, f"{at} is more than {self.contract.max_ahead} ahead of its arrival")


def must_have_all(contract: Contract, record: Mapping[str, Any]) -> None:
    """Raise NotTaken if the contract refuses a record because fields are missing."""
    if contract.missing == "refuse":
        fields = (field for field in contract.fields if not field.is_fact)
        if lacking := [field.name for field in fields if not any(name in record for name in field.names)]:
            raise NotTaken(Reason.MISSING, ", ".join(lacking))


def unreadable(contract: Contract) -> Iterator[str]:
    """Why records of a contract cannot be read strictly; nothing where they can."""
    for what, is_declared in (
        (f"its records are {contract.envelope} messages", contract.envelope),
        ("it has broadcasts", contract.broadcast),
        ("it corrects clocks", contract.clock),
        ("it declares `horizon`: events from producers beyond its limit are refused", contract.horizon),
        ("its records are rows of dumps", contract.dump),
        ("it has personal fields: forgetting a person would change what was decided", contract.personal),
    ):
        if is_declared:
            yield what
    names = {field.name: field for field in contract.fields}
    if contract.time is not None and (
        contract.time not in names or names[contract.time].type not in {"date", "timestamp"}
    ):
        yield f"its time, {contract.time}, is not a field of type timestamp or date"
    for field in contract.fields:
        kind = field.type.partition("(")[0]
        if kind not in KINDS:
            yield f"field {field.name} is of type {field.type}"
        elif field.name in contract.key and kind not in KEYS:
            yield f"field {field.name} of the key is of type {field.type}"
        elif not field.form.plain or field.encoding:
            yield f"field {field.name} is written in a form of its own"
        elif field.is_fact and field.path[0] not in {"http", "cloudevents"}:
            yield f"field {field.name} is taken from {'.'.join(field.path)}, which nothing by HTTP has"
        elif field.default is not None and _default(field) is None:
            yield f"the default of field {field.name} is not written as a record would have it"


def of_json(kind: str, given: Any) -> Any:
    """The value of a type that a part of a record is; None where it is none, or is not written as it should be."""
    match kind.partition("(")[0]:
        case "boolean":
            return given if isinstance(given, bool) else None
        case "int" | "bigint" | "double":
            return of_text(kind, given) if isinstance(given, Number) else None
        case "decimal":
            return of_text(kind, given) if isinstance(given, str) else None
        case _:
            return of_text(kind, given) if isinstance(given, str) and not isinstance(given, Number) else None


def of_text(kind: str, text: str) -> Any:  # noqa: PLR0911 one type after the other
    """As `of_json`, of the text of a fact or a default."""
    match kind.partition("(")[0]:
        case "string":
            return str(text)
        case "boolean":
            return {"true": True, "false": False}.get(text)
        case "int" | "bigint":
            whole = int(text) if WHOLE.fullmatch(text) else None
            return whole if whole is not None and -(1 << BITS[kind]) <= whole < 1 << BITS[kind] else None
        case "double":
            number = float(text) if len(text) <= SHOWN and re.fullmatch(NUMBER, text) else math.inf
            return number if math.isfinite(number) else None
        case "decimal":
            return _decimal(kind, text)
        case "binary":
            return _bytes(text)
        case "date":
            return _date(text) if DAY.fullmatch(text) else None
        case _:
            return _moment(kind, text)


NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?"


def _decimal(kind: str, text: str) -> Decimal | None:
    precision, scale = map(int, kind[len("decimal(") : -1].split(","))
    parts = DIGITS.fullmatch(text)
    if parts is None or len(parts[2] or "") > scale or len(parts[1].lstrip("0")) > precision - scale:
        return None
    with localcontext(prec=precision + 1):
        number = Decimal(text).quantize(Decimal(1).scaleb(-scale))
        return number if number else abs(number)


def _bytes(text: str) -> bytes | None:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if base64.b64encode(value).decode() == text else None


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _moment(kind: str, text: str) -> datetime | None:
    parts = MOMENT.fullmatch(text)
    if parts is None or bool(parts[1]) != (kind == "timestamp"):
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if kind == "timestamp" else moment
    except (ValueError, OverflowError):
        return None


def _expected(kind: str) -> str:
    return f"{kind}, written as {literals.example(kind)}"


def shown(given: Any) -> str:
    """What is told of a value, which may be long."""
    return (given if isinstance(given, str) else json.dumps(given))[:SHOWN]


def _default(field: Field) -> Any:
    return None if field.default is None else of_text(field.type, field.default)


def must_be_within(field: Field, value: Any, shown: str, limits: Iterable[Bound]) -> None:
    """Raises NotTaken where a value, which is `shown` so, is none of its field's symbols or outside of its bounds."""
    if field.symbols and value not in field.symbols:
        raise NotTaken(Reason.NOT_IN_ENUM, f"{shown} is none of {', '.join(field.symbols)}")
    for bound, outside, words in limits:
        if outside(value):
            raise NotTaken(Reason.OUT_OF_BOUNDS, f"{shown} is {words} {bound}")


def bounds(field: Field) -> Iterator[Bound]:
    """Those of a field."""
    if field.minimum is not None:
        least = _limit(field.type, field.minimum)
        yield field.minimum, lambda value: bool(value < least), "below"
    if field.maximum is not None:
        most = _limit(field.type, field.maximum)
        yield field.maximum, lambda value: bool(value > most), "above"


def _limit(kind: str, text: str) -> Any:
    """A bound as the type of its field has it: a cast rounds it."""
    limit = literals.read(kind, text)
    if kind == "double":
        return float(limit)
    if kind.startswith("decimal"):
        with localcontext(prec=1000):
            return limit.quantize(Decimal(1).scaleb(-int(kind[:-1].split(",")[1])), ROUND_HALF_UP)
    return limit


def _parsed(text: str) -> dict[str, Any]:
    """The one object that a text is. Raises NotTaken where it is none, or a name comes twice in it."""
    try:
        value = DECODER.decode(text)
        if not isinstance(value, dict):
            raise NotTaken(Reason.UNPARSEABLE, "not one JSON object")
        for part in (*value, *value.values()):
            if isinstance(part, str):
                part.encode()
                if MARK in part:
                    raise NotTaken(Reason.UNPARSEABLE, f"U+{ord(MARK):X}, which is no character")
    except UnicodeEncodeError:
        raise NotTaken(Reason.UNPARSEABLE, "unpaired surrogate") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise NotTaken(Reason.UNPARSEABLE, f"not one JSON object: {error}") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise NotTaken(Reason.UNPARSEABLE, "duplicate field name")
    return members


def _constant(name: str) -> NoReturn:
    raise NotTaken(Reason.UNPARSEABLE, f"{name} is not JSON")


DECODER: Final = json.JSONDecoder(
    parse_int=Number, parse_float=Number, parse_constant=_constant, object_pairs_hook=_object
)
