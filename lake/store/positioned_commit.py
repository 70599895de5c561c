"""Commits that carry a position, to a log or a derived table: numbered, by one writer, confirmed by reading back.

Spark never commits to a table of the warehouse itself, but to a staging table: a folder within the table's own, whose
log begins with the table's columns and properties and, if the statement changes rows, with its files. Then this process
commits what changed there in one conditional write (`commit_actions`). A Spark job that outlives its client writes to a
staging table that no reader knows, and `lake maintain` deletes it.

Files of the table are named by their URIs, which Delta's protocol allows (PROTOCOL.md of delta-io/delta, "Add File and
Remove File").
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from secrets import token_hex
from typing import Any, Final

from lake.errors import LakeError, StorageError, Unavailable
from lake.session.spark_session import first_line
from lake.store import delta, delta_writer
from lake.store.delta import Position
from lake.store.delta_writer import CHECKPOINT_EVERY
from lake.store.storage import Address
from lake.store.table_log import TableState, commit_file, delta_table
from lake.store.table_logs import invalidate
from lake.store.warehouse import Location
from lake.text import SPARK, quoted

Action = Mapping[str, Mapping[str, Any]]
KEPT: Final = ("inCommitTimestamp", "operation", "operationParameters", "operationMetrics", "engineInfo")
"""Fields of Spark's commit information that the table's commit repeats."""


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
        above = f"{self.table.uri}/"
        for kind, fields in self._committed():
            if kind in delta.FILE_ACTIONS:
                path: str = fields["path"]
                of_table = path.removeprefix(above) if path.startswith(above) else f"{self.path.name}/{path}"
                files.append({kind: {**fields, "path": of_table}})
            elif kind == "metaData":
                # Spark Connect names the default collation of texts, which delta-rs cannot read.
                schema = fields["schemaString"].replace('"string collate UTF8_BINARY"', '"string"')
                about[kind] = {**own, "schemaString": schema, "configuration": fields["configuration"]}
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


def stage(path: Address, *, with_files: bool = False) -> StagingTable:
    with delta.opened(path) as table:
        begin = [_protocol(table), delta.metadata_action(table)]
        if with_files:
            begin += [{"add": {**file, "path": f"{path.uri}/{file['path']}"}} for file in _files(table, None)]
        features = frozenset(table.protocol().writer_features or ())
        staging = StagingTable(path, table.version(), path / f"staging-{token_hex(8)}", features)
    path.storage.make_folder((staging.path / "_delta_log").url)
    commit_file(staging.path, 0).put_if_absent(as_lines(begin))
    return staging


def remove_actions(table: TableState, files: Collection[str] | None = None, *, changes: bool) -> list[Action]:
    about = {"deletionTimestamp": int(datetime.now(UTC).timestamp() * 1000), "extendedFileMetadata": True}
    names = ("path", "partitionValues", "size")
    return [
        {"remove": {**{name: file[name] for name in names}, **about, "dataChange": changes}}
        for file in _files(table, files)
    ]


def as_lines(actions: Collection[Action]) -> bytes:
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
    found = delta.file_actions(table)
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


@contextmanager
def only_writer(at: Location, position: Position, beaten: Unavailable) -> Iterator[None]:
    """Run the block, which commits `position`, if the table is just before it. Ignore its error if the commit is there.

    Raises `beaten` if another writer was first, and StorageError if delta-rs cannot write to the table at all. delta-rs
    does not compare transaction numbers, so they are compared here first. From then on the lease and the commit's
    number, which only one writer gets, keep other writers out.
    """
    if delta.head_or_start(at.path, at.app).txn != position.txn - 1:
        raise beaten
    before = delta.newest_version(at.path)

    def refused(error: Exception) -> LakeError:
        if delta.newest_version(at.path) != before:
            return beaten
        return StorageError(
            f"{at.path.name} takes no commit: {first_line(error)}",
            where=str(at.path),
            fix="another tool enabled a table feature that Headwater cannot write: disable it, or restore a backup",
        )

    with delta_writer.read_back(at.path, position.writer, refused):
        yield


def confirm(at: Location, position: Position, beaten: Unavailable) -> Position:
    """Read the head back and return it. Raises `beaten` if it is not the `position` just committed."""
    head = delta.head(at.path, at.app)
    if head is None or head.metadata != position.metadata:
        raise beaten
    return head


def commit_staged(staging: StagingTable, position: Position, *, overwrites: bool = False) -> None:
    info, actions = staging.changes()
    if overwrites:
        with delta.opened(staging.table, staging.version) as table:
            actions += remove_actions(table, changes=True)
    commit_actions(staging.table, position, actions, version=staging.version + 1, info=info)
    staging.delete_log()


def commit_actions(
    path: Address, position: Position, actions: Sequence[Action], *, version: int, info: Mapping[str, Any]
) -> None:
    """Commit Delta `actions` with `position` as `version` of the table; `info` is commit information.

    Raises Beaten if that version exists.
    """
    at = max(time.time_ns() // 1_000_000, next(delta.commits(path))["timestamp"] + 1)
    kinds = [kind for action in actions for kind in action]
    file_counts = {"num_added_files": kinds.count("add"), "num_removed_files": kinds.count("remove")}
    info = {
        "timestamp": at,
        "operationParameters": {},
        **info,
        "operationMetrics": {**info.get("operationMetrics", {}), **file_counts},
        "userMetadata": position.metadata,
    }
    transaction = {"appId": position.app, "version": position.txn, "lastUpdated": at}
    content = as_lines([{"commitInfo": info}, {"txn": transaction}, *actions])
    is_first = commit_file(path, version).put_if_absent(content)
    invalidate(path)
    if not is_first:
        raise delta_writer.Beaten(f"version {version} of {path.name} is there already")
    if (version + 1) % CHECKPOINT_EVERY == 0:  # delta-rs writes those after its own commits
        with suppress(Exception):  # the commit exists; the next checkpoint contains it
            delta_table(path).create_checkpoint()
