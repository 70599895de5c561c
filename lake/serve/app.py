"""Intake: endpoints that accept posted events (`POST /streams/<stream>`, `POST /streams`)."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, LakeError, did_you_mean
from lake.records.single_reader import SingleReader
from lake.serve import bodies, pages
from lake.serve.access import Access
from lake.serve.backpressure import MEASURE_SECONDS, Backpressure, BodyMemory, Rate
from lake.serve.bodies import PostedRecord, Reception, check_contracts
from lake.serve.commits import Commits
from lake.serve.decide.command_validation import CommandValidator
from lake.serve.decisions import Decisions, expected_version
from lake.serve.describe import named_headers, needs_id
from lake.serve.intake_folder import GroupWriter
from lake.serve.periodic import repeated
from lake.serve.problems import Problem, handle_problems
from lake.serve.receipt import Editions, Receipt, StreamReceipt
from lake.serve.source import DeclaredIntake
from lake.text import span

PARAMETERS: Final = {"wait", "timeout", "decide"}
WAIT_SECONDS: Final = 30.0
MAX_WAIT_SECONDS: Final = 600.0
"""Limits of ?wait=edition: the default, and the most that ?timeout may ask for."""
FAULTY_SECONDS: Final = 600.0
"""Retry-After if a stream is faulty."""


@dataclass
class Intake:
    """Intake of one source. Streams with a rule are decided by `validator`, whose `begin` has been called.

    Events of `faulty` streams are rejected.
    """

    settings: Settings
    declared: DeclaredIntake
    contracts: Mapping[str, Contract]
    access: Access
    writer: GroupWriter
    validator: CommandValidator | None = None
    faulty: Mapping[str, DeclarationError] = field(default_factory=dict)
    commits: Commits = field(init=False)
    decisions: Decisions = field(init=False)
    decides: Collection[str] = field(init=False)
    pressure: Backpressure = field(init=False)
    ending: asyncio.Event = field(init=False)

    def __post_init__(self) -> None:
        self.decides = self.validator.rules if self.validator else ()
        self.pressure = Backpressure(self.declared.folder, self.declared.limits)
        self.rates = {stream: Rate(self.declared.limits.rate) for stream in self.declared.streams}
        self.headers = {
            stream: [] if stream in self.faulty else named_headers(self.contracts[stream])
            for stream in self.declared.streams
        }
        self.readers = {
            contract.name: SingleReader(contract, self.settings.record_bytes)
            for contract in self.accepted_contracts
            if self.declared.check and contract.name not in self.decides
        }

    def stop(self) -> None:
        self.ending.set()

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/streams/{stream}", handle_problems(self.post), methods=["POST"]),
            Route("/streams", handle_problems(self.post), methods=["POST"]),
        ]

    async def post(self, request: Request) -> Response:
        received, stream, known = _now(), request.path_params.get("stream"), self.access.streams(request.headers)
        if stream not in self.rates and not known:
            raise Problem("no-token", "no token for any stream")
        if stream is not None and stream not in self.rates:
            raise Problem("no-stream", f"no stream {stream!r} here; {did_you_mean(stream, known)}")
        seconds, decides = _wait_seconds(request), _decides(request)
        receipt = await self._accept(request, stream, received, decides)
        return await self._answer(request, receipt, seconds, several=stream is None)

    async def _answer(self, request: Request, receipt: Receipt, seconds: float | None, *, several: bool) -> Response:
        answer = receipt.answer(self.contracts, several=several)
        headers = {"etag": f'"{answer["version"]}"'} if "version" in answer else {}
        if seconds is None:
            return JSONResponse(answer, 202, headers)
        deadline = time.monotonic() + seconds
        editions = [await self._edition(request, of_stream, deadline) for of_stream in receipt.streams]
        answer["edition"] = None if None in editions else editions[-1]
        return JSONResponse(answer, 202 if None in editions else 200, headers)

    async def _accept(self, request: Request, stream: str | None, received: str, decides: bool) -> Receipt:
        """Commit the records of the body; if `decides`, validate them first.

        The token for `stream` is checked before the body is read, a signature before the body is parsed.
        """
        headers, has_token = request.headers, dict[str, bool]()
        if stream is not None:
            has_token[stream] = self.access.has_token_or_signature(stream, headers)
        with self.pressure.request(has_token=all(has_token.values())) as memory:
            body = await self._body(request, memory)
            reception = Reception(received, self.settings.record_bytes, self.declared.limits.max_records)
            if stream is None:
                by_stream = bodies.records_by_stream(
                    body, headers, reception, named=self.headers, known=self.access.streams(headers)
                )
                has_token = {name: self.access.has_token_or_signature(name, headers) for name in by_stream}
            for name, by_token in has_token.items():
                if not by_token:
                    self.access.check_signature(name, headers, body)
            if stream is not None:
                by_stream = {stream: bodies.records(body, headers, reception, named=self.headers[stream])}
            self._check(by_stream, decides)
            by_stream = {name: records for name, records in by_stream.items() if records}
            if decides:
                decided, place = await self.decisions.decide(by_stream, expected_version(headers))
            else:
                every = [(name, record) for name, records in by_stream.items() for record in records]
                decided, place = None, await self.commits.put(every)
            if place is not None:
                self.pressure.count_written(len(body))
                return Receipt.new(by_stream, self.declared.name, place, decided)
            assert decided is not None
            return Receipt.earlier(by_stream, decided)

    def _check(self, by_stream: dict[str, list[PostedRecord]], decides: bool) -> None:
        for stream, records in by_stream.items():
            if stream in self.faulty:
                raise Problem("faulty", f"{stream}: {self.faulty[stream]}", after=FAULTY_SECONDS)
            if needs_id(self.contracts[stream]) and any("http.id" not in record.facts for record in records):
                what = f"{stream} takes an event's id from the request, and this request has none"
                raise Problem("missing-id", what)
        if not any(by_stream.values()):
            raise Problem("unparseable", "the body has no record")
        self._check_decides(by_stream, decides)
        for stream, records in by_stream.items():
            self.rates[stream].take(len(records))
        check_contracts(by_stream, self.readers)

    def _check_decides(self, by_stream: Mapping[str, list[PostedRecord]], decides: bool) -> None:
        ruled = [stream for stream in by_stream if stream in self.decides]
        if ruled and not decides:
            raise Problem("must-decide", f"{ruled[0]} accepts decided events only")
        if decides and not ruled:
            raise Problem("wrong-request", f"nothing decides on {', '.join(by_stream)}: see docs/how-to/commands.md")

    async def _body(self, request: Request, memory: BodyMemory) -> bytes:
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"gzip", "x-gzip", "identity"}:
            raise Problem("wrong-encoding", f"found {encoding!r}")
        decompressor = None if encoding == "identity" else zlib.decompressobj(31)
        if decompressor is None:
            memory.check(int(request.headers.get("content-length", 0)))
        parts = list[bytes]()

        def add(chunk: bytes) -> None:
            parts.append(chunk if decompressor is None else bodies.decompress(chunk, decompressor, memory.left))
            memory.reserve(len(parts[-1]))

        await bodies.receive(request, self.declared.limits.body_seconds, add)
        if decompressor is not None and not decompressor.eof:
            raise Problem("wrong-encoding", "the gzip stream is truncated")
        return b"".join(parts)

    async def _edition(self, request: Request, receipt: StreamReceipt, deadline: float) -> int | None:
        try:
            return await self.editions.wait(
                receipt.stream,
                receipt.place.number,
                deadline=deadline,
                ending=self.ending,
                is_gone=request.is_disconnected,
            )
        except (LakeError, OSError):  # the events are committed; only the lookup failed
            return None

    def page(self, base: str, *, local: bool) -> str:
        waiting, token_file = self.pressure.waiting, self.access.token_file
        oldest = "nothing waits"
        if waiting.oldest is not None:
            oldest = f"the oldest for {span(timedelta(seconds=max(time.time() - waiting.oldest, 0.0)))}"
        facts = {
            "Waiting for lake ingest": f"{waiting.events:,} events in {waiting.files:,} files; {oldest}",
            "Since the start": f"{self.commits.records:,} events in {self.commits.groups:,} groups",
            "Token": f"TOKEN=$(cat {token_file})" if token_file and local else "ask whoever runs the server",
        }
        return pages.streams(self.declared.name, self.accepted_contracts, base, facts, decides=self.decides)

    @property
    def accepted_contracts(self) -> list[Contract]:
        return [self.contracts[stream] for stream in self.declared.streams if stream not in self.faulty]

    def check_capacity(self) -> None:
        with self.pressure.request():
            pass

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self.commits, self.ending = Commits(self.writer), asyncio.Event()
        self.editions = Editions(self.settings, self.declared.name)
        if self.validator is not None:
            self.decisions = Decisions(self.validator, self.commits, begun=True)
        self.pressure.update(*await asyncio.to_thread(self.pressure.measure))
        try:
            async with repeated("measuring the folder of events", self._measure, MEASURE_SECONDS):
                yield
        finally:
            await self.commits.close()

    async def _measure(self) -> None:
        self.pressure.update(*await asyncio.to_thread(self.pressure.measure))
        if self.validator is not None:
            self.validator.taken = await asyncio.to_thread(lambda: self.declared.folder.taken)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _decides(request: Request) -> bool:
    if request.query_params.get("decide", "") != "":
        raise Problem("wrong-request", f"decide={request.query_params['decide']}: write ?decide")
    return "decide" in request.query_params


def _wait_seconds(request: Request) -> float | None:
    parameters = request.query_params
    for name in parameters:
        if name not in PARAMETERS:
            raise Problem("wrong-request", f"no parameter {name!r}: {did_you_mean(name, PARAMETERS)}")
    if parameters.get("wait", "edition") != "edition":
        raise Problem("wrong-request", f"wait={parameters['wait']}: write wait=edition")
    try:
        seconds = float(parameters.get("timeout", WAIT_SECONDS))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise Problem("wrong-request", f"timeout={parameters['timeout']}: write seconds, at most {MAX_WAIT_SECONDS:g}")
    return seconds if "wait" in parameters else None
