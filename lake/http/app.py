"""Intake: POST /streams/<stream>, and how that is described to people."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.decide.decider import Decider
from lake.errors import LakeError, did_you_mean
from lake.http import bodies, pages, taken
from lake.http.access import Access
from lake.http.answering import answering
from lake.http.bodies import Record
from lake.http.checking import must_fit
from lake.http.commits import RETRY_SECONDS, Commits
from lake.http.deciding import Deciding, expected
from lake.http.describe import is_idempotent, named_headers, needs_id
from lake.http.editions import Editions
from lake.http.pressure import LOOK_SECONDS, BodyMemory, Pressure, Rate
from lake.http.problems import Problem
from lake.http.taken import Taken, Took
from lake.records.single import SingleReader
from lake.sources.http import Declared
from lake.sources.http_files import Writer

PARAMETERS: Final = {"wait", "timeout", "decide"}
PATIENCE: Final = 30.0
LONGEST: Final = 600.0
"""Seconds that ?wait=edition may take: by default, and at most."""


@dataclass
class Intake:
    """What takes events for one source. `decider` has begun, where events of any stream are decided on."""

    settings: Settings
    declared: Declared
    contracts: Mapping[str, Contract]
    access: Access
    writer: Writer
    decider: Decider | None = None
    commits: Commits = field(init=False)
    deciding: Deciding = field(init=False)
    decides: Collection[str] = field(init=False)
    pressure: Pressure = field(init=False)
    ending: asyncio.Event = field(init=False)

    def __post_init__(self) -> None:
        self.decides = self.decider.rules if self.decider else ()
        self.pressure = Pressure(self.declared.folder, self.declared.limits)
        self.rates = {stream: Rate(self.declared.limits.rate) for stream in self.declared.streams}
        self.headers = {stream: named_headers(self.contracts[stream]) for stream in self.declared.streams}
        self.readers = {
            stream: SingleReader(self.contracts[stream], self.settings.record_bytes)
            for stream in self.declared.streams
            if self.declared.check and stream not in self.decides
        }

    def stop(self) -> None:
        """Has those who wait for an edition answered now. Called by a signal, while the server runs."""
        self.ending.set()

    @property
    def routes(self) -> list[Route]:
        """What is posted to."""
        return [
            Route("/streams/{stream}", answering(self.post), methods=["POST"]),
            Route("/streams", answering(self.post_to_several), methods=["POST"]),
        ]

    async def post(self, request: Request) -> Response:
        """Takes the events of a request, all or none, and answers when the disk has them."""
        received, stream, decides = _now(), str(request.path_params["stream"]), _decides(request)
        if stream not in self.rates:
            hint = did_you_mean(stream, self.rates)
            raise Problem("no-stream", f"no stream {stream!r} here; {hint}")
        waits = _waits(request)
        options = {"named": self.headers[stream], **self._held_to(received)}

        def read(body: bytes, signed: Callable[[str], None]) -> dict[str, list[Record]]:
            signed(stream)
            return {stream: bodies.records(body, request.headers, **options)}

        took = await self._take(request, [stream], read, decides)
        return await self._answer(request, took, waits, {"token": took.each[0].token})

    async def post_to_several(self, request: Request) -> Response:
        """As `post`, for several streams at once: no cut has a part of it."""
        received, waits, decides = _now(), _waits(request), _decides(request)
        if not self.access.may_look(request.headers):
            raise Problem("no-token", "no token for any stream")

        def read(body: bytes, signed: Callable[[str], None]) -> dict[str, list[Record]]:
            options = {"named": self.headers, **self._held_to(received)}
            by_stream = bodies.of_several(body, request.headers, **options)
            for stream in by_stream:
                signed(stream)
            return by_stream

        took = await self._take(request, [], read, decides)
        return await self._answer(request, took, waits, {"tokens": {each.stream: each.token for each in took.each}})

    async def _answer(self, request: Request, took: Taken, waits: float | None, answer: dict[str, Any]) -> Response:
        answer["records"] = sum(each.records for each in took.each)
        answer["idempotent"] = all(is_idempotent(self.contracts[each.stream]) for each in took.each)
        headers = {}
        if took.decided is not None:
            answer |= taken.versions_of(took.decided, self.contracts)
            headers = {"etag": f'"{answer["version"]}"'} if "version" in answer else {}
        if waits is None:
            return JSONResponse(answer, 202, headers)
        seen = [await self._edition(request, each, waits) for each in took.each]
        answer["edition"] = None if None in seen else seen[-1]
        return JSONResponse(answer, 202 if None in seen else 200, headers)

    async def _take(
        self,
        request: Request,
        streams: list[str],
        read: Callable[[bytes, Callable[[str], None]], dict[str, list[Record]]],
        decides: bool,
    ) -> Taken:
        """Commits what `read` makes of the body, whose second argument is to be called for each stream.

        Where it `decides`, all of it if it is accepted. It raises Problem where the request may not post to it; for
        `streams`, that is known before the body has come.
        """
        headers = request.headers
        has_token = {stream: self.access.may_begin(stream, headers) for stream in streams}
        with self.pressure.request(has_token=all(has_token.values())) as memory:
            body = await self._body(request, memory)

            def signed(stream: str) -> None:
                if not (has_token[stream] if stream in has_token else self.access.may_begin(stream, headers)):
                    self.access.must_be_signed(stream, headers, body)

            by_stream = read(body, signed)
            for stream, records in by_stream.items():
                self._must_have_ids(stream, records)
            if not any(by_stream.values()):
                raise Problem("unparseable", "the body has no record")
            self._must_decide(by_stream, decides)
            for stream, records in by_stream.items():
                self.rates[stream].take(len(records))
            must_fit(by_stream, self.readers)
            by_stream = {stream: records for stream, records in by_stream.items() if records}
            if decides:
                decided, put = await self.deciding.decide(by_stream, expected(headers))
            else:
                every = [(stream, each) for stream, records in by_stream.items() for each in records]
                decided, put = None, await self.commits.put(every)
            if put is not None:
                self.pressure.kept(len(body))
                return Taken(taken.now(by_stream, self.declared.name, put), decided)
            assert decided is not None
            return Taken(taken.before(by_stream, decided), decided)

    def _must_decide(self, by_stream: Mapping[str, list[Record]], decides: bool) -> None:
        of_rules = [stream for stream in by_stream if stream in self.decides]
        if of_rules and not decides:
            raise Problem("must-decide", f"{of_rules[0]} accepts decided events only")
        if decides and not of_rules:
            raise Problem("wrong-request", f"nothing decides on {', '.join(by_stream)}: see docs/how-to/commands.md")

    def _must_have_ids(self, stream: str, records: list[Record]) -> None:
        if needs_id(self.contracts[stream]) and any("http.id" not in record.facts for record in records):
            raise Problem("missing-id", f"{stream} takes an event's id from the request, and this request has none")

    def _held_to(self, received: str) -> dict[str, Any]:
        limits = self.declared.limits
        return {
            "received": received,
            "record_bytes": self.settings.record_bytes,
            "max_records": limits.max_records,
        }

    async def _body(self, request: Request, memory: BodyMemory) -> bytes:
        """The whole body, unpacked. Raises Problem where it is too long, too slow, or more than memory may have."""
        packing = request.headers.get("content-encoding", "identity").strip().lower()
        if packing not in {"gzip", "x-gzip", "identity"}:
            raise Problem("wrong-encoding", f"found {packing!r}")
        unpacking = None if packing == "identity" else zlib.decompressobj(31)
        if unpacking is None:
            memory.check(int(request.headers.get("content-length", 0)))
        parts = list[bytes]()
        try:
            async with asyncio.timeout(self.declared.limits.body_seconds):
                async for chunk in request.stream():
                    parts.append(chunk if unpacking is None else bodies.unpacked(chunk, unpacking, memory.left))
                    memory.hold(len(parts[-1]))
        except TimeoutError:
            raise Problem("too-slow", f"the body took more than {self.declared.limits.body_seconds} s") from None
        except asyncio.CancelledError:
            raise Problem("stopping", "the server ended before the body was complete", after=RETRY_SECONDS) from None
        if unpacking is not None and not unpacking.eof:
            raise Problem("wrong-encoding", "the gzip stream is truncated")
        return b"".join(parts)

    async def _edition(self, request: Request, took: Took, seconds: float) -> int | None:
        try:
            return await self.editions.wait(
                took.stream,
                took.place.number,
                seconds=seconds,
                ending=self.ending,
                is_gone=request.is_disconnected,
            )
        except (LakeError, OSError):  # what was taken is safe, whatever readers see
            return None

    def page(self, base: str, *, local: bool) -> str:
        """Return the part of the page at `base` about streams; if `local`, with the path of the token's file."""
        waiting = self.pressure.waiting
        seconds = None if waiting.oldest is None else max(time.time() - waiting.oldest, 0.0)
        own = self.access.token_file
        return pages.streams(
            self.declared.name,
            self.taken,
            base,
            waiting=waiting,
            seconds=seconds,
            taken=(self.commits.groups, self.commits.records),
            token=f"TOKEN=$(cat {own})" if own and local else "ask whoever runs the server",
            decides=self.decides,
        )

    @property
    def taken(self) -> list[Contract]:
        """The contracts of the streams that events are taken for."""
        return [self.contracts[stream] for stream in self.declared.streams]

    def must_take(self) -> None:
        """Raises Problem where events are not taken at the moment: the disk or the backlog forbids it."""
        with self.pressure.request():
            pass

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Takes events while the block runs, and commits what it has."""
        self.commits, self.ending = Commits(self.writer), asyncio.Event()
        self.editions = Editions(self.settings, self.declared.name)
        if self.decider is not None:
            self.deciding = Deciding(self.decider, self.commits, begun=True)
        self.pressure.seen(*await asyncio.to_thread(self.pressure.look))
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            await self.commits.close()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(OSError):
                self.pressure.seen(*await asyncio.to_thread(self.pressure.look))
                if self.decider is not None:
                    self.decider.taken = await asyncio.to_thread(lambda: self.declared.folder.taken)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _decides(request: Request) -> bool:
    if request.query_params.get("decide", "") != "":
        raise Problem("wrong-request", f"decide={request.query_params['decide']}: write ?decide")
    return "decide" in request.query_params


def _waits(request: Request) -> float | None:
    """For how many seconds an edition is waited for; None for not at all. Raises Problem for a wrong parameter."""
    parameters = request.query_params
    for name in parameters:
        if name not in PARAMETERS:
            raise Problem("wrong-request", f"no parameter {name!r}: {did_you_mean(name, PARAMETERS)}")
    if parameters.get("wait", "edition") != "edition":
        raise Problem("wrong-request", f"wait={parameters['wait']}: write wait=edition")
    try:
        seconds = float(parameters.get("timeout", PATIENCE))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST:
        raise Problem("wrong-request", f"timeout={parameters['timeout']}: write seconds, at most {LONGEST:g}")
    return seconds if "wait" in parameters else None
