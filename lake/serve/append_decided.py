"""`lake append --decide`: sends a file's events to the running server of their source for validation.

If none runs, this process locks the source's folder and validates them itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from lake.config import Settings
from lake.contracts.contract import known_stream, sound_contracts
from lake.errors import ContractError, DeclarationError, LakeError, Refused, Unavailable
from lake.project.project import sound_project
from lake.records.single_reader import SingleReader
from lake.serve import bodies
from lake.serve.access import Access
from lake.serve.bodies import Reception, check_contracts
from lake.serve.commits import Commits
from lake.serve.decide.command_validation import CommandValidator
from lake.serve.decide.rule import faulty_streams, rules
from lake.serve.decisions import Decisions, expected_version
from lake.serve.intake_folder import GroupWriter
from lake.serve.problems import KINDS, Problem
from lake.serve.receipt import Receipt
from lake.serve.server import address_of
from lake.serve.source import DeclaredIntake, find_declaration, intake_writer
from lake.sources.declared import decided_by
from lake.sources.source import DecisionRequest

JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
LOCK_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.05
ANSWER_SECONDS: Final = 60.0
REFUSAL_KINDS: Final = ("refused", "outdated", "sent-before")


def _headers(command: DecisionRequest) -> dict[str, str]:
    kind = JSON if len(command.streams) > 1 else JSON_LINES
    key = command.id or hashlib.sha256(command.body).hexdigest()[:32]
    headers = {"content-type": kind, "idempotency-key": key}
    if command.expect:
        headers["if-match"] = command.expect if command.expect == "*" else f'"{command.expect}"'
    return headers | ({"if-none-match": "*"} if command.new else {})


def append_decided(settings: Settings, command: DecisionRequest) -> dict[str, Any]:
    """Return the server's answer as of POST ?decide: token or tokens, records, idempotent, again, version or versions.

    Raises Refused for a rejected event or another version, ContractError for a bad record, DeclarationError without a
    rule, Unavailable if the folder is in use.
    """
    declared, ends = _declared_intake(settings, command.streams), time.monotonic() + LOCK_SECONDS
    while True:
        try:
            writer = intake_writer(settings, declared.name)
        except Unavailable:
            answer = _post(settings, declared, command)
            if answer is not None:
                return answer
            if time.monotonic() > ends:
                raise
            time.sleep(RETRY_SECONDS)
            continue
        try:
            return asyncio.run(_decide_here(settings, declared, writer, command))
        except Problem as problem:
            raise _error(problem.kind, problem.detail, problem.more) from None
        finally:
            writer.close()


def _declared_intake(settings: Settings, streams: Sequence[str]) -> DeclaredIntake:
    contracts, faults = sound_contracts(settings)
    for stream in streams:
        if stream in faults:
            raise faults[stream]
        known_stream(contracts, stream)
    source = next(filter(None, (decided_by(settings, stream) for stream in streams)), None)
    if source is None:
        raise DeclarationError(
            f"nothing decides on {', '.join(streams)}",
            where=f"{settings.sources}/",
            fix=f'a source of kind http does, with decide.{streams[0]} = "a table"; see docs/how-to/commands.md',
        )
    declared = find_declaration(settings, contracts, source)
    for stream in streams:
        if stream not in declared.streams:
            what = f"{source} takes no events of {stream}"
            raise DeclarationError(what, where=declared.where, fix=f"add {stream!r} to its streams")
    return declared


async def _decide_here(
    settings: Settings, declared: DeclaredIntake, writer: GroupWriter, command: DecisionRequest
) -> dict[str, Any]:
    (_, faults), (project, _) = sound_contracts(settings), sound_project(settings)
    faulty = faulty_streams(settings, declared, faults, project.tables)
    DeclarationError.raise_any(faulty[stream] for stream in command.streams if stream in faulty)
    commits = Commits(writer)
    validator = CommandValidator(declared, rules(project, declared, faulty), looks_up=True)
    decisions = Decisions(validator, commits)
    headers, several = _headers(command), len(command.streams) > 1
    received = datetime.now(UTC).isoformat(timespec="microseconds")
    reception = Reception(received, settings.record_bytes, declared.limits.max_records)
    try:
        if several:
            named = dict.fromkeys(command.streams, ())
            posted = bodies.records_by_stream(command.body, headers, reception, named=named, known=named)
        else:
            posted = {command.streams[0]: bodies.records(command.body, headers, reception)}
        by_stream = {stream: records for stream, records in posted.items() if records}
        if not by_stream:
            raise Problem("unparseable", "there is no record")
        if declared.check:
            others = by_stream.keys() - validator.rules.keys()
            check_contracts(
                by_stream, {stream: SingleReader(project.contracts[stream], settings.record_bytes) for stream in others}
            )
        await decisions.begin()
        decided, place = await decisions.decide(by_stream, expected_version(headers))
    finally:
        await commits.close()
    receipt = Receipt.new(by_stream, declared.name, place, decided) if place else Receipt.earlier(by_stream, decided)
    return receipt.answer(project.contracts, several=several)


def _post(settings: Settings, declared: DeclaredIntake, command: DecisionRequest) -> dict[str, Any] | None:
    try:
        url = address_of(settings, declared.name).read_text("utf-8").strip()
    except FileNotFoundError:
        return None
    tokens = Access.of(settings, declared).tokens
    token, *others = dict.fromkeys(tokens[stream] for stream in command.streams)
    if others:
        raise DeclarationError(
            f"{', '.join(command.streams)} have tokens of their own, and a request has one",
            where=declared.where,
            fix="have them share one, or stop the server of the source meanwhile",
        )
    headers = _headers(command) | {"authorization": f"Bearer {token}"}
    path = "streams" if len(command.streams) > 1 else f"streams/{command.streams[0]}"
    try:
        accepted, answer = _send(f"{url}/{path}?decide", command.body, headers)
    except TimeoutError:
        raise Unavailable(
            f"the server of {declared.name} has not answered after {ANSWER_SECONDS:g} s",
            where=url,
            fix="run the command again: with the same --id or content, events are not accepted twice",
        ) from None
    except (OSError, HTTPException, ValueError):  # nothing listens there, or a server that is not ours
        return None
    match answer:
        case {"records": _} if accepted:
            return dict(answer)
        case {"type": str(page), "detail": str(detail)} if (kind := page.rpartition("#")[2]) in KINDS:
            raise _error(kind, detail, answer)
    return None


def _send(url: str, body: bytes, headers: dict[str, str]) -> tuple[bool, Any]:
    """Return whether the events were accepted, and the JSON of the answer.

    Raises OSError, HTTPException; ValueError if `url` or the answer cannot be read.
    """
    request = Request(url, body, headers, method="POST")
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=ANSWER_SECONDS) as answer:
            return True, json.loads(answer.read())
    except HTTPError as error:
        return False, json.loads(error.read())


def _error(kind: str, detail: str, more: dict[str, Any]) -> LakeError:
    status, title, fix = KINDS[kind]
    where = ", ".join(f"{name} {more[name]}" for name in ("stream", "record", "version") if name in more)
    if kind in REFUSAL_KINDS:
        return Refused(f"{title.lower()}: {detail}", where=where, fix=fix)
    if status in {429, 503}:
        return Unavailable(f"{title.lower()}: {detail}", where=where, fix=fix)
    return ContractError(f"{title.lower()}: {detail}", where=where, fix=fix)
