"""A request's body as records: their texts as they came, digit for digit, and what the request says of them.

    application/json                        one object, or an array of objects
    application/x-ndjson, application/jsonl an object a line; empty lines are none
    application/cloudevents+json            a CloudEvent whose `data` is the record
    application/cloudevents-batch+json      an array of such

A JSON object with the headers `ce-id`, `ce-source` … is a CloudEvent too, whose body is its data (CloudEvents 1.0.2,
HTTP protocol binding: https://github.com/cloudevents/spec).

The fact "http.id" of a record is the id that its producer sends again with it: the CloudEvent's own, else the header
`webhook-id`, else `Idempotency-Key`; where a request has one of the latter two for several records, the id of each is
`<id>:<ordinal>`, from 1. "cloudevents.source" and the like are a CloudEvent's attributes,
"http.headers.<name>" is a header.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from lake.contracts.fields import FACTS_OF
from lake.contracts.reasons import Reason
from lake.http.problems import Problem

LINES: Final = {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"}
ATTRIBUTES: Final = FACTS_OF["cloudevents"]
HEADERS: Final = "http.headers"
EVENT: Final = "application/cloudevents+json"
EVENTS: Final = "application/cloudevents-batch+json"
TYPES: Final = ("application/json", "application/x-ndjson", EVENT, EVENTS)
SPACE: Final = re.compile(r"[ \t\r\n]*")
LONGEST_ID: Final = 1024
SHOWN: Final = 10
"""Bad records that an answer names."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a request: its text, and the facts about it that contracts may name."""

    text: str
    facts: Mapping[str, str]


class _Bad(ValueError):
    """What is wrong with a record or a body."""


def _constant(name: str) -> NoReturn:
    raise _Bad(f"{name} is not JSON")


SCAN: Final = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_constant)
"""Which makes nothing of numbers: those of contracts are exact, and may be of any length."""


def records(  # noqa: PLR0913  a request, and what it is held to
    body: bytes,
    headers: Mapping[str, str],
    *,
    received: str,
    record_bytes: int,
    max_records: int,
    named: Iterable[str] = (),
) -> list[Record]:
    """The records of a body; the headers that are `named` are facts of each.

    Raises Problem, which names the first bad records, where any is bad: then none is taken.
    """
    kind, _, options = headers.get("content-type", "").partition(";")
    kind = kind.strip().lower()
    if (charset := re.search(r'charset\s*=\s*"?([^";\s]+)', options, re.I)) and charset[1].lower() not in {
        "utf-8",
        "us-ascii",
    }:
        raise Problem("wrong-type", f"found charset {charset[1]!r}; JSON is UTF-8")
    try:
        text = body.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise Problem("unparseable", f"not UTF-8 at byte {error.start}", reason=Reason.UNPARSEABLE) from None
    facts = {"http.received": received}
    facts |= {f"{HEADERS}.{name}": headers[name] for name in named if name in headers}
    if kind in LINES:
        found = _lines(text)
    elif kind in {EVENT, EVENTS}:
        found = _each(text, many=kind == EVENTS)
    elif kind == "application/json" or kind.endswith("+json"):
        found = _each(text, many=text.lstrip(" \t\r\n").startswith("["))
        facts |= {f"cloudevents.{name}": headers[f"ce-{name}"] for name in ATTRIBUTES if f"ce-{name}" in headers}
    else:
        fix = f"found {kind or 'none'}: send {', '.join(TYPES)}; with curl, --json or -H 'Content-Type: …'"
        raise Problem("wrong-type", fix)
    parts = _good(found, record_bytes, max_records)
    if kind in {EVENT, EVENTS}:
        return [_cloud_event(part, number, facts) for number, part in enumerate(parts, 1)]
    return _identified([text for text, _ in parts], headers, facts)


def unpacked(chunk: bytes, stream: Any, room: int) -> bytes:
    """What a chunk of gzip is, up to one byte more than there is room for. `stream` is zlib.decompressobj(31)."""
    try:
        return bytes(stream.decompress(stream.unconsumed_tail + chunk, room + 1))
    except zlib.error as error:
        raise Problem("wrong-encoding", f"not valid gzip: {error}") from None


def _lines(text: str) -> Iterator[tuple[str, Any]]:
    for line in text.split("\n"):
        if line.strip(" \t\r"):
            yield line.strip(" \t\r"), None


def _each(text: str, *, many: bool) -> Iterator[tuple[str, Any]]:
    """The texts of the values of an array, or of the one value. Raises _Bad where the array is not one."""
    whole = text.strip(" \t\r\n")
    if not many:
        yield whole, None
        return
    if not whole.startswith("["):
        raise _Bad("it is no array")
    at = _after_space(whole, 1)
    if whole[at : at + 1] == "]" and at + 1 == len(whole):
        return
    while True:
        try:
            value, end = SCAN.raw_decode(whole, at)
        except (ValueError, RecursionError) as error:
            raise _Bad(_told(error)) from None
        yield whole[at:end], value
        at = _after_space(whole, end)
        sign, at = whole[at : at + 1], _after_space(whole, at + 1)
        if sign == "]" and at == len(whole):
            return
        if sign != ",":
            raise _Bad(f"expected ',' or ']' at character {end}")


def _after_space(text: str, at: int) -> int:
    match = SPACE.match(text, at)
    return match.end() if match else at


def _good(found: Iterator[tuple[str, Any]], record_bytes: int, max_records: int) -> list[tuple[str, Any]]:
    """The records with what they are as objects. Raises Problem that names the bad ones."""
    good, bad, number = list[tuple[str, Any]](), list[dict[str, Any]](), 0
    try:
        for number, (text, value) in enumerate(found, 1):
            if number > max_records:
                raise Problem("too-long", f"more than {max_records:,} records", max_records=max_records)
            try:
                good.append((text, _object(text, value, record_bytes)))
            except _Bad as error:
                reason = Reason.OVERSIZED if error.args[1:] else Reason.UNPARSEABLE
                bad.append({"record": number, "reason": str(reason), "detail": str(error.args[0])})
    except _Bad as error:
        bad.append({"record": number + 1, "reason": str(Reason.UNPARSEABLE), "detail": str(error)})
    if not bad:
        return good
    first = bad[0]
    kind = "oversized" if first["reason"] == Reason.OVERSIZED else "unparseable"
    more = f", and {len(bad) - 1} more are bad" if bad[1:] else ""
    detail = f"record {first['record']}: {first['detail']}{more}"
    raise Problem(kind, detail, reason=first["reason"], errors=bad[:SHOWN])


def _object(text: str, value: Any, record_bytes: int) -> dict[str, Any]:
    if len(text) > record_bytes:
        raise _Bad(f"longer than {record_bytes:,} characters", True)
    try:
        value = SCAN.decode(text) if value is None else value
    except (ValueError, RecursionError) as error:
        raise _Bad(_told(error)) from None
    if not isinstance(value, dict):
        raise _Bad("it is not a JSON object")
    return value


def _told(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error)


def _identified(texts: list[str], headers: Mapping[str, str], facts: Mapping[str, str]) -> list[Record]:
    own = facts.get("cloudevents.id")
    sent = own or headers.get("webhook-id") or headers.get("idempotency-key", "")
    if sent.startswith('"') and sent.endswith('"') and len(sent) > 2 and not own:
        sent = sent[1:-1]  # an Idempotency-Key is a structured header, a text in quotes
    if len(sent) > LONGEST_ID:
        raise Problem("wrong-request", f"an id of more than {LONGEST_ID:,} characters")
    if not sent:
        return [Record(text, facts) for text in texts]
    if len(texts) == 1:
        return [Record(texts[0], {**facts, "http.id": sent})]
    return [Record(text, {**facts, "http.id": f"{sent}:{number}"}) for number, text in enumerate(texts, 1)]


def _cloud_event(part: tuple[str, Any], number: int, facts: Mapping[str, str]) -> Record:
    """The data of a CloudEvent in structured mode, as its text has it."""
    text, _ = part
    members = dict(_members(text))
    event = {name: json.loads(value) for name, value in members.items() if value.startswith('"')}
    lacking = [name for name in ("specversion", "id", "source", "type") if not event.get(name)]
    if lacking:
        raise _event_problem(number, f"a CloudEvent without {', '.join(lacking)}")
    if "data_base64" in members:
        raise _event_problem(number, "a CloudEvent with data_base64: its data must be JSON")
    data = members.get("data", "null")
    if not data.startswith("{"):
        raise _event_problem(number, "a CloudEvent whose data is not a JSON object")
    said = {f"cloudevents.{name}": event[name] for name in ATTRIBUTES if name in event}
    return Record(data, {**facts, **said, "http.id": event["id"]})


def _event_problem(number: int, detail: str) -> Problem:
    error = {"record": number, "reason": str(Reason.ENVELOPE), "detail": detail}
    return Problem("unparseable", f"record {number}: {detail}", reason=Reason.ENVELOPE, errors=[error])


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The members of an object that can be read: name, and the value's text."""
    at = _after_space(text, 1)
    while text[at] != "}":
        name, at = SCAN.raw_decode(text, at)
        at = _after_space(text, _after_space(text, at) + 1)
        _, end = SCAN.raw_decode(text, at)
        yield name, text[at:end]
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
