"""Staging tables: Delta tables to which Spark commits the rows of a log or of a derived table.

Spark never commits to a table of the warehouse itself, but to a folder within the table's own, whose log begins with
the table's columns and properties and, if the statement changes rows, with its files. Then this process commits Spark's
changes in one conditional write (`positioned_commit.commit_actions`). A Spark job that outlives its client writes to a
staging table that no reader knows, and `lake maintain` deletes it.

Files of the table are named by their URIs, which Delta's protocol allows (PROTOCOL.md of delta-io/delta, "Add File and
Remove File").
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from secrets import token_hex
from typing import Any, Final

from lake.store import delta
from lake.store.storage import Address
from lake.store.table_log import TableState
from lake.store.truncated_commit import commit_file
from lake.text import SPARK, quoted

Action = Mapping[str, Mapping[str, Any]]
KEPT: Final = ("inCommitTimestamp", "operation", "operationParameters", "operationMetrics", "engineInfo")
"""Fields of Spark's commit information that the table's commit repeats."""
CHANGED: Final = ("schemaString", "configuration")


@dataclass(frozen=True)
class StagingTable:
    table: Address
    version: int
    path: Address
    features: frozenset[str]

    @property
    def sql(self) -> str:
        return f"delta.{quoted(self.path.url, SPARK)}"

    def changes(self) -> tuple[dict[str, Any], list[Action]]:
        with delta.opened(self.table, self.version) as table:
            own = delta.metadata_action(table)["metaData"]
        about, files = dict[str, Mapping[str, Any]](), list[Action]()
        for kind, fields in self._committed():
            if kind in delta.FILE_ACTIONS:
                files.append({kind: {**fields, "path": self._relative(fields["path"])}})
            elif kind == "metaData":
                about[kind] = {**own, **{name: fields[name] for name in CHANGED}}
            elif kind != "txn":
                about[kind] = fields
        info = {name: value for name, value in about.pop("commitInfo", {}).items() if name in KEPT}
        return info, [*({kind: fields} for kind, fields in about.items()), *files]

    def delete_log(self) -> None:
        log = self.path / "_delta_log"
        log.storage.delete_folder(log.url)

    def _committed(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        with suppress(FileNotFoundError):
            for version in count(1):
                for line in commit_file(self.path, version).read().splitlines():
                    yield from json.loads(line).items()

    def _relative(self, path: str) -> str:
        above = f"{self.table.uri}/"
        return path.removeprefix(above) if path.startswith(above) else f"{self.path.name}/{path}"


def stage(path: Address, *, with_files: bool = False) -> StagingTable:
    with delta.opened(path) as table:
        begin = [_protocol(table), delta.metadata_action(table)]
        if with_files:
            begin += [{"add": {**file, "path": f"{path.uri}/{file['path']}"}} for file in _files(table, None)]
        features = frozenset(table.protocol().writer_features or ())
        staging = StagingTable(path, table.version(), path / f"staging-{token_hex(8)}", features)
    path.storage.make_folder((staging.path / "_delta_log").url)
    commit_file(staging.path, 0).put_if_absent(lines(begin))
    return staging


def removed(table: TableState, files: Collection[str] | None = None, *, changes: bool) -> list[Action]:
    about = {"deletionTimestamp": int(datetime.now(UTC).timestamp() * 1000), "extendedFileMetadata": True}
    names = ("path", "partitionValues", "size")
    return [
        {"remove": {**{name: file[name] for name in names}, **about, "dataChange": changes}}
        for file in _files(table, files)
    ]


def lines(actions: Collection[Action]) -> bytes:
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def _protocol(table: TableState) -> dict[str, dict[str, Any]]:
    protocol = table.protocol()
    known = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }
    return {"protocol": {name: value for name, value in known.items() if value is not None}}


def _files(table: TableState, wanted: Collection[str] | None) -> list[dict[str, Any]]:
    import pyarrow as pa

    found = pa.table(table.get_add_actions(flatten=True))
    parts = [name for name in found.column_names if name.startswith("partition.")]
    rows = found.select(["path", "size_bytes", "modification_time", "num_records", *parts]).to_pylist()
    chosen = None if wanted is None else set(wanted)
    return [
        {
            "path": row["path"],
            "partitionValues": {
                name.removeprefix("partition."): None if row[name] is None else str(row[name]) for name in parts
            },
            "size": row["size_bytes"],
            "modificationTime": row["modification_time"],
            "dataChange": False,
            **({} if row["num_records"] is None else {"stats": json.dumps({"numRecords": row["num_records"]})}),
        }
        for row in rows
        if chosen is None or row["path"] in chosen
    ]
