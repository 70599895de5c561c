"""Delta Sharing: an edition's tables as shares, schemas and tables. A table version is an edition number.

So one version read for several tables is consistent across them. Protocol:
github.com/delta-io/delta-sharing/blob/main/PROTOCOL.md. Files are served by URLs that expire.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from lake.errors import did_you_mean
from lake.read.public_files import PublicFile
from lake.read.sql import CURRENT, EditionChoice, EditionReader
from lake.serve.problems import Problem, problem_of
from lake.serve.reading.queries import PRIVATE, edition_headers, whole_body
from lake.serve.reading.request_context import RequestContext
from lake.serve.reading.request_parameters import json_object, parameters, whole_number
from lake.serve.reading.signed_urls import FileLink
from lake.store.ledger.editions import edition_by, edition_since
from lake.store.ledger.grants import Grant
from lake.store.ledger.reads import Read
from lake.store.snapshot import Published
from lake.store.warehouse import LAYERS

PREFIX: Final = "/delta-sharing"
LINES: Final = "application/x-ndjson; charset=utf-8"
BODY_BYTES: Final = 1 << 20
PARQUET: Final = "responseformat=parquet"
DELTA: Final = "responseformat=delta"
WITHOUT_ZONE: Final = re.compile(r"\bTIMESTAMP\b")
FEATURES: Final = ("timestampNtz",)
CHANGES: Final = ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp")
"""Members of a query that ask for the changes between versions."""


@dataclass(frozen=True)
class Sharing:
    context: RequestContext

    async def shares(self, request: Request) -> Response:
        reader = await self._reader(request)
        return _listed(request, [self._share] if reader.edition.tables else [])

    async def share(self, request: Request) -> Response:
        await self._share_reader(request)
        return JSONResponse({"share": self._share}, headers=PRIVATE)

    async def schemas(self, request: Request) -> Response:
        reader = await self._share_reader(request)
        found = sorted({entry.layer for entry in reader.edition.tables.values()})
        return _listed(request, [{"name": layer, "share": self._share["name"]} for layer in found])

    async def tables(self, request: Request) -> Response:
        reader = await self._share_reader(request)
        layer = str(request.path_params.get("schema", "")).lower()
        if layer and layer not in LAYERS:
            raise Problem("no-share", f"no schema {layer!r}")
        tables = reader.edition.tables.items()
        return _listed(
            request, [self._table(name, entry.layer) for name, entry in tables if layer in {"", entry.layer}]
        )

    async def version(self, request: Request) -> Response:
        """Answer with the current version, or the first one published at or after `startingTimestamp`."""
        reader, _ = await self._find_table(request, CURRENT)
        since = request.query_params.get("startingTimestamp")
        number = reader.edition.number
        if since is not None:
            after = await asyncio.to_thread(edition_since, self.context.settings, _moment(since))
            if after is None:
                raise Problem("no-edition", f"no edition was published at {since} or later")
            number = after.number
        return Response(None, 200, PRIVATE | {"delta-table-version": str(number)})

    async def metadata(self, request: Request) -> Response:
        reader, name = await self._find_table(request, await self._edition_choice(request.query_params))
        return await self._table_response(request, reader, name, ())

    async def query(self, request: Request) -> Response:
        grant = await self.context.grant(request)
        body = json_object(await whole_body(request, BODY_BYTES) or b"{}")
        if any(body.get(name) is not None for name in CHANGES):
            return await self.changes(request)
        seconds = self.context.serve.link_seconds
        with self.context.editions.keep_files(seconds=seconds):
            reader, name = await self._find_table(request, await self._edition_choice(body))
            parts = await asyncio.to_thread(self.context.public_files.parts, reader, name)
            edition, cut = reader.edition.number, reader.edition.cut_of(name)
            answer = await self._table_response(request, reader, name, parts, grant)
            read = Read(grant.name, grant.id, "share", (name,), None, edition, cut, "parquet")
            rows, size = sum(part.rows for part in parts), sum(part.size for part in parts)
            await self.context.access_log.record(read.ended("answered", rows=rows, size=size))
        return answer

    async def changes(self, request: Request) -> Response:
        await self._find_table(request, CURRENT)
        raise Problem("not-shared", "changes are not shared: read one version, then another; or lake changes")

    async def file(self, request: Request) -> Response:
        link = self.context.links.verify(str(request.path_params["link"]))
        if not await asyncio.to_thread(self.context.tokens.covers, link.grant, link.schema, link.table):
            raise Problem("expired", "the grant of the address was revoked, has expired, or does not cover the table")
        path = self.context.public_files.path(link.place)
        if not path.is_file():
            raise Problem("expired", "the file has gone: its edition has expired")
        return FileResponse(path, headers=PRIVATE, media_type="application/vnd.apache.parquet")

    @property
    def _share(self) -> dict[str, str]:
        name = self.context.serve.share
        return {"name": name, "id": stable_id(name)}

    def _table(self, name: str, layer: str) -> dict[str, str]:
        share = self._share
        shared = {"name": name, "schema": layer, "share": share["name"], "shareId": share["id"]}
        return shared | {"id": stable_id(share["name"], layer, name)}

    async def _reader(self, request: Request, asked: EditionChoice = CURRENT) -> EditionReader:
        return await self.context.reader(await self.context.grant(request), asked)

    async def _share_reader(self, request: Request, asked: EditionChoice = CURRENT) -> EditionReader:
        reader, share = await self._reader(request, asked), str(request.path_params["share"])
        if share.lower() != self._share["name"].lower() or not reader.edition.tables:
            raise Problem("no-share", f"no share {share!r}")
        return reader

    async def _find_table(self, request: Request, asked: EditionChoice) -> tuple[EditionReader, str]:
        reader = await self._share_reader(request, asked)
        layer, name = (str(request.path_params[part]).lower() for part in ("schema", "table"))
        for known, entry in reader.edition.tables.items():
            if (known.lower(), entry.layer) == (name, layer):
                return reader, known
        hint = did_you_mean(name, reader.edition.tables)
        raise Problem("no-table", f"no table {layer}.{name} in {reader.label}", hint=hint)

    async def _edition_choice(self, given: Mapping[str, Any]) -> EditionChoice:
        version, moment = given.get("version"), given.get("timestamp")
        if version is not None and moment is not None:
            raise Problem("bad-request", "version and timestamp cannot be combined")
        if version is not None:
            return EditionChoice(whole_number("version", version))
        if moment is None:
            return CURRENT
        edition = await asyncio.to_thread(edition_by, self.context.settings, _moment(str(moment)))
        if edition is None:
            raise Problem("no-edition", f"no edition had been published at {moment}")
        return EditionChoice(edition.number)

    async def _table_response(
        self,
        request: Request,
        reader: EditionReader,
        name: str,
        parts: Sequence[PublicFile],
        grant: Grant | None = None,
    ) -> Response:
        snapshot = await asyncio.to_thread(Snapshot.of, reader, name)
        capabilities = request.headers.get("delta-sharing-capabilities", "").lower()
        if not snapshot.plain and "delta" not in capabilities:
            raise Problem("not-shared", f"{name} has a timestamp without a zone: the client has to take {DELTA}")
        lines = [snapshot.protocol, snapshot.metadata(parts)]
        if grant is not None:
            ends = int(time.time() + self.context.serve.link_seconds)
            layer = reader.edition.tables[name].layer
            link = partial(FileLink, grant=grant.id, schema=layer, table=name, ends=ends)
            base = str(request.base_url).rstrip("/")
            for part in parts:
                url = f"{base}{PREFIX}/files/{self.context.links.sign(link(place=part.place))}"
                lines.append(snapshot.file(part, url, ends))
        headers = PRIVATE | edition_headers(reader, reader.edition.cut_of(name))
        headers |= {
            "delta-table-version": str(reader.edition.number),
            "delta-sharing-capabilities": PARQUET if snapshot.plain else DELTA,
        }
        return Response("".join(f"{json.dumps(line)}\n" for line in lines), 200, headers, LINES)


def _listed(request: Request, items: Sequence[Mapping[str, str]]) -> Response:
    given = parameters(request, "maxResults", "pageToken")
    first, most = (
        whole_number(name, given.get(name) or default) for name, default in (("pageToken", 0), ("maxResults", 500))
    )
    page: dict[str, Any] = {"items": list(items[first : first + most])}
    if first + most < len(items):
        page["nextPageToken"] = str(first + most)
    return JSONResponse(page, headers=PRIVATE)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Problem("bad-request", f"{text[:40]!r} is not an instant such as 2024-01-31T09:30:00Z") from None
    if moment.tzinfo is None:
        raise Problem("bad-request", f"{text!r} has no zone: write 2024-01-31T09:30:00Z")
    return moment


def protocol_problem(error: Exception) -> Problem:
    problem = problem_of(error)
    problem.more |= {"errorCode": problem.kind.upper().replace("-", "_"), "message": problem.detail}
    return problem


_SHARE: Final = f"{PREFIX}/shares/{{share}}"
_TABLE: Final = f"{_SHARE}/schemas/{{schema}}/tables/{{table}}"
ROUTES: Final = (
    (f"{PREFIX}/shares", "GET", Sharing.shares, "the share"),
    (_SHARE, "GET", Sharing.share, "the share"),
    (f"{_SHARE}/schemas", "GET", Sharing.schemas, "layers that have tables"),
    (f"{_SHARE}/schemas/{{schema}}/tables", "GET", Sharing.tables, "tables"),
    (f"{_SHARE}/all-tables", "GET", Sharing.tables, "tables"),
    (f"{_TABLE}/version", "GET", Sharing.version, "the version of a table, which is the number of an edition"),
    (f"{_TABLE}/metadata", "GET", Sharing.metadata, "what a table is"),
    (f"{_TABLE}/query", "POST", Sharing.query, "what a table is, and addresses of its files"),
    (f"{_TABLE}/changes", "GET", Sharing.changes, "changes, which are not shared"),
    (f"{PREFIX}/files/{{link}}", "GET", Sharing.file, "a file, by an address that was handed out. It needs no token"),
)
"""Path, method, endpoint, and description."""


@dataclass(frozen=True)
class Snapshot:
    """Table in an edition as actions, without state columns; `published_at` is in milliseconds since 1970.

    All clients support the format `parquet`; only `delta` can express a timestamp without a zone.
    """

    id: str
    table: Published
    edition: int
    published_at: int

    @classmethod
    def of(cls, reader: EditionReader, name: str) -> Snapshot:
        edition = reader.edition
        published_at = int(edition.published_at.timestamp() * 1000)
        return cls(stable_id(edition.tables[name].path), reader.table(name), edition.number, published_at)

    @property
    def plain(self) -> bool:
        return not any(WITHOUT_ZONE.search(column.type) for column in self.table.columns)

    @property
    def protocol(self) -> dict[str, Any]:
        if self.plain:
            return {"protocol": {"minReaderVersion": 1}}
        features = {"readerFeatures": FEATURES, "writerFeatures": FEATURES}
        return {"protocol": {"deltaProtocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}}

    def metadata(self, parts: Sequence[PublicFile]) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "id": self.id,
            "name": self.table.name,
            "description": self.table.doc,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.table.schema,
            "partitionColumns": [],
            "configuration": {},
        }
        sizes = {"size": sum(part.size for part in parts), "numFiles": len(parts)} if parts else {}
        if self.plain:
            return {"metaData": metadata | sizes}
        return {"metaData": {"deltaMetadata": metadata | {"createdTime": self.published_at}, **sizes}}

    def file(self, part: PublicFile, url: str, ends: int) -> dict[str, Any]:
        """`ends` is in seconds since 1970."""
        known: dict[str, Any] = {"id": stable_id(part.place), "size": part.size, "expirationTimestamp": ends * 1000}
        stats, partition = json.dumps({"numRecords": part.rows}), dict[str, str]()
        if self.plain:
            return {
                "file": {"url": url, "partitionValues": partition, "stats": stats, "version": self.edition, **known}
            }
        add = {"path": url, "partitionValues": partition, "size": part.size, "stats": stats, "dataChange": True}
        return {"file": {**known, "deltaSingleAction": {"add": {**add, "modificationTime": self.published_at}}}}


def stable_id(*parts: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(["headwater", *parts])))
