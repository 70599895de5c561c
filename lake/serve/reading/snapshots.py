"""Version of a table as Delta Sharing actions: protocol, metadata and files, without state columns.

There are two formats. All clients support `parquet`; only `delta` can express a timestamp without a zone.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lake.read.public_files import PublicFile
from lake.read.sql import EditionReader
from lake.store.snapshot import Published

WITHOUT_ZONE: Final = re.compile(r"\bTIMESTAMP\b")
FEATURES: Final = ("timestampNtz",)


@dataclass(frozen=True)
class Snapshot:
    """Table in an edition, published at `published_at` (milliseconds since 1970)."""

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
        """Return the action of a file, whose URL is valid until `ends` (seconds since 1970)."""
        known: dict[str, Any] = {"id": stable_id(part.place), "size": part.size, "expirationTimestamp": ends * 1000}
        stats, partition = json.dumps({"numRecords": part.rows}), dict[str, str]()
        if self.plain:
            return {
                "file": {"url": url, "partitionValues": partition, "stats": stats, "version": self.edition, **known}
            }
        add = {"path": url, "partitionValues": partition, "size": part.size, "stats": stats, "dataChange": True}
        return {"file": {**known, "deltaSingleAction": {"add": {**add, "modificationTime": self.published_at}}}}


def stable_id(*parts: str) -> str:
    """Return a UUID that depends on `parts` alone."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(["headwater", *parts])))
