"""Parser of request bodies: the text of each record, unchanged, and facts about it from the request.

    application/json                        one object, or an array of objects
    application/x-ndjson, application/jsonl an object per line; empty lines are skipped
    application/cloudevents+json            a CloudEvent whose `data` is the record
    application/cloudevents-batch+json      an array of CloudEvents

A JSON object with headers `ce-id`, `ce-source` … is a CloudEvent too (CloudEvents 1.0.2, HTTP protocol binding:
https://github.com/cloudevents/spec).

The fact "http.id" identifies a retry: the CloudEvent's id, else the header `webhook-id`, else `Idempotency-Key`. If one
header covers several records, their ids are `<id>:<ordinal>`, from 1. Other facts are "cloudevents.<attribute>" and
"http.headers.<name>".
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from lake.contracts.reasons import Reason
from lake.errors import did_you_mean
from lake.records.single_reader import RecordRejected, SingleReader
from lake.serve.problems import Problem
from lake.sources.json_text import SPACES, InvalidJson, elements, members, parse

if TYPE_CHECKING:
    from starlette.requests import Request

LINE_TYPES: Final = {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"}
ATTRIBUTES: Final = ("id", "source", "type", "time", "subject", "dataschema")
HEADERS: Final = "http.headers"
CLOUD_EVENT: Final = "application/cloudevents+json"
CLOUD_EVENTS: Final = "application/cloudevents-batch+json"
TYPES: Final = ("application/json", "application/x-ndjson", CLOUD_EVENT, CLOUD_EVENTS)
ID_CHARACTERS: Final = 1024
SURROGATE: Final = re.compile("[\ud800-\udfff]")
QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
ESCAPED: Final = re.compile(r"\\(.)")
LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class PostedRecord:
    text: str
    facts: Mapping[str, str]

    @property
    def utf8(self) -> bytes:
        return self.text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Reception:
    received: str
    record_bytes: int
    max_records: int


def records(
    body: bytes, headers: Mapping[str, str], reception: Reception, *, named: Iterable[str] = ()
) -> list[PostedRecord]:
    """Parse a body; headers `named` become facts. Raises Problem, which lists the first bad records."""
    kind, _, options = headers.get("content-type", "").partition(";")
    kind = kind.strip().lower()
    charset = re.search(r'charset\s*=\s*"?([^";\s]+)', options, re.I)
    if charset and charset[1].lower() not in {"utf-8", "us-ascii"}:
        raise Problem("wrong-type", f"found charset {charset[1]!r}; JSON is UTF-8")
    try:
        text = body.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise Problem("unparseable", f"not UTF-8 at byte {error.start}", reason=Reason.UNPARSEABLE) from None
    facts = {"http.received": reception.received}
    facts |= {f"{HEADERS}.{name}": headers[name] for name in named if name in headers}
    if kind in LINE_TYPES:
        parsed = _lines(text)
    elif kind in {CLOUD_EVENT, CLOUD_EVENTS}:
        parsed = _elements(text, many=kind == CLOUD_EVENTS)
    elif kind == "application/json" or kind.endswith("+json"):
        parsed = _elements(text, many=text.lstrip(SPACES).startswith("["))
        facts |= {
            f"cloudevents.{name}": _attribute(name, headers[f"ce-{name}"])
            for name in ATTRIBUTES
            if f"ce-{name}" in headers
        }
    else:
        found = f"found {kind or 'none'}: send {', '.join(TYPES)}; with curl, --json or -H 'Content-Type: …'"
        raise Problem("wrong-type", found)
    parts = _valid_texts(parsed, reception)
    if kind in {CLOUD_EVENT, CLOUD_EVENTS}:
        return [_cloud_event(text, number, facts) for number, text in enumerate(parts, 1)]
    return _with_ids(parts, headers, facts)


def records_by_stream(
    body: bytes,
    headers: Mapping[str, str],
    reception: Reception,
    *,
    named: Mapping[str, Iterable[str]],
    known: Collection[str] = (),
) -> dict[str, list[PostedRecord]]:
    """Return the records by stream of a body {stream: [record, …] or record, …}. Raises Problem as `records` does.

    `named` has the headers of each allowed stream; messages propose `known` streams. Ids are numbered by stream.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem("wrong-type", "records of several streams come as application/json")
    try:
        text = body.decode("utf-8").removeprefix("\ufeff").strip(SPACES)
        parts = list(members(text)) if isinstance(parse(text), dict) else []
    except (UnicodeDecodeError, InvalidJson) as error:
        raise Problem("unparseable", str(error), reason=Reason.UNPARSEABLE) from None
    names = [name for name, _ in parts]
    if not parts or len(set(names)) < len(names):
        raise Problem("unparseable", 'write {"stream": [record, …], …}, each stream once', reason=Reason.UNPARSEABLE)
    by_stream: dict[str, list[PostedRecord]] = {}
    for name, part in parts:
        if name not in named:
            raise Problem("no-stream", f"no stream {name!r} here; {did_you_mean(name, known)}")
        remaining = replace(reception, max_records=reception.max_records - sum(map(len, by_stream.values())))
        try:
            by_stream[name] = records(part.encode(), headers, remaining, named=named[name])
        except Problem as problem:
            if problem.kind == "too-long":
                raise _too_many(reception.max_records) from None
            raise Problem(problem.kind, f"{name}: {problem.detail}", stream=name, **problem.more) from None
    return by_stream


async def receive(request: Request, seconds: float, on_part: Callable[[bytes], None]) -> None:
    """Pass each part of the body to `on_part`. Raises Problem after `seconds`, or if the server ends."""
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                on_part(part)
    except TimeoutError:
        raise Problem("too-slow", f"the body took more than {seconds:g} s") from None
    except asyncio.CancelledError:
        raise Problem("stopping", "the server ended before the body was complete", after=10) from None


def decompress(chunk: bytes, stream: Any, limit: int) -> bytes:
    """Decompress a chunk of gzip into at most `limit` + 1 bytes. `stream` is zlib.decompressobj(31).

    Raises Problem if it is no gzip, or if anything follows its end: a second member would be lost.
    """
    try:
        part = bytes(stream.decompress(stream.unconsumed_tail + chunk, limit + 1))
    except zlib.error as error:
        raise Problem("wrong-encoding", f"not valid gzip: {error}") from None
    if stream.unused_data:
        raise Problem("wrong-encoding", "more follows the end of the gzip stream: send one member")
    return part


def _lines(text: str) -> Iterator[tuple[str, Any]]:
    for line in text.split("\n"):
        if line.strip(" \t\r"):
            yield line.strip(" \t\r"), None


def _elements(text: str, *, many: bool) -> Iterator[tuple[str, Any]]:
    if many:
        yield from elements(text.strip(SPACES))
    else:
        yield text.strip(SPACES), None


def _valid_texts(parsed: Iterator[tuple[str, Any]], limits: Reception) -> list[str]:
    good, bad, number = list[str](), list[dict[str, Any]](), 0
    try:
        for number, (text, value) in enumerate(parsed, 1):
            if number > limits.max_records:
                raise _too_many(limits.max_records)
            if len(text.encode()) > limits.record_bytes:
                detail = f"longer than {limits.record_bytes:,} bytes"
                bad.append({"record": number, "reason": str(Reason.OVERSIZED), "detail": detail})
                continue
            try:
                if not isinstance(parse(text) if value is None else value, dict):
                    raise InvalidJson("it is not a JSON object")
                good.append(text)
            except InvalidJson as error:
                bad.append({"record": number, "reason": str(Reason.UNPARSEABLE), "detail": str(error)})
    except InvalidJson as error:
        bad.append({"record": number + 1, "reason": str(Reason.UNPARSEABLE), "detail": str(error)})
    if not bad:
        return good
    first = bad[0]
    kind = "oversized" if first["reason"] == Reason.OVERSIZED else "unparseable"
    more = f", and {len(bad) - 1} more are bad" if bad[1:] else ""
    detail = f"record {first['record']}: {first['detail']}{more}"
    raise Problem(kind, detail, reason=first["reason"], errors=bad[:LISTED])


def _too_many(limit: int) -> Problem:
    return Problem("too-long", f"more than {limit:,} records", max_records=limit)


def _with_ids(texts: list[str], headers: Mapping[str, str], facts: Mapping[str, str]) -> list[PostedRecord]:
    event_id = facts.get("cloudevents.id")
    sent = event_id or headers.get("webhook-id") or headers.get("idempotency-key", "")
    if not event_id and (quoted := QUOTED.fullmatch(sent)):  # an Idempotency-Key is a text in quotes
        sent = ESCAPED.sub(r"\1", quoted[1])
    if len(sent) > ID_CHARACTERS:
        raise Problem("wrong-request", f"an id of more than {ID_CHARACTERS:,} characters")
    if not sent:
        return [PostedRecord(text, facts) for text in texts]
    if len(texts) == 1:
        return [PostedRecord(text, {**facts, "http.id": sent}) for text in texts]
    return [PostedRecord(text, {**facts, "http.id": f"{sent}:{number}"}) for number, text in enumerate(texts, 1)]


def _attribute(name: str, header: str) -> str:
    """Decode an attribute of a CloudEvent in binary mode (HTTP protocol binding, section 3.1.3.2)."""
    unquoted = QUOTED.sub(lambda quoted: ESCAPED.sub(r"\1", quoted[1]), header)
    try:
        return unquote(unquoted, errors="strict")
    except UnicodeDecodeError:
        raise Problem("wrong-request", f"the percent-encoding of ce-{name} is not UTF-8") from None


def _cloud_event(text: str, number: int, facts: Mapping[str, str]) -> PostedRecord:
    parts = dict(pairs := list(members(text)))
    if len(parts) < len(pairs):
        raise _event_problem(number, "a CloudEvent with an attribute twice")
    event = {name: json.loads(value) for name, value in parts.items() if value.startswith('"')}
    if any(map(SURROGATE.search, event.values())):
        raise _event_problem(number, "a CloudEvent with half a surrogate pair, which is no character")
    missing = [name for name in ("specversion", "id", "source", "type") if not event.get(name)]
    if missing:
        raise _event_problem(number, f"a CloudEvent without {', '.join(missing)}")
    if len(event["id"]) > ID_CHARACTERS:
        raise _event_problem(number, f"a CloudEvent with an id of more than {ID_CHARACTERS:,} characters")
    if "data_base64" in parts:
        raise _event_problem(number, "a CloudEvent with data_base64: its data must be JSON")
    data = parts.get("data", "null")
    if not data.startswith("{"):
        raise _event_problem(number, "a CloudEvent whose data is not a JSON object")
    attributes = {f"cloudevents.{name}": event[name] for name in ATTRIBUTES if name in event}
    return PostedRecord(data, {**facts, **attributes, "http.id": event["id"]})


def _event_problem(number: int, detail: str) -> Problem:
    error = {"record": number, "reason": str(Reason.ENVELOPE), "detail": detail}
    return Problem("unparseable", f"record {number}: {detail}", reason=Reason.ENVELOPE, errors=[error])


def check_contracts(by_stream: Mapping[str, Sequence[PostedRecord]], readers: Mapping[str, SingleReader]) -> None:
    """Raise Problem if a record violates its stream's contract. Streams without a reader are not checked."""
    bad = [
        bad_record(stream, index + 1, error)
        for stream in by_stream.keys() & readers.keys()
        for index, error in readers[stream].rejections([(record.utf8, record.facts) for record in by_stream[stream]])
    ]
    if bad:
        raise contract_problem(bad)


def bad_record(stream: str, number: int, error: RecordRejected) -> dict[str, Any]:
    return {"record": number, "stream": stream, "reason": str(error.reason), "detail": error.detail}


def contract_problem(bad: Sequence[Mapping[str, Any]]) -> Problem:
    first = bad[0]
    more = f", and {len(bad) - 1} more are bad" if bad[1:] else ""
    detail = f"record {first['record']}: {first['reason']}: {first['detail']}{more}"
    return Problem("not-by-contract", detail, reason=first["reason"], stream=first["stream"], errors=bad[:LISTED])
