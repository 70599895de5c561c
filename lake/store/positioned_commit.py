"""Commits that carry a position, to a log or a derived table: numbered, by one writer, confirmed by reading back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from lake.errors import StorageError, Unavailable
from lake.session.spark_session import first_line
from lake.store import delta, delta_writer
from lake.store.delta import Position
from lake.store.delta_writer import CHECKPOINT_EVERY
from lake.store.staging_table import Action, StagingTable, lines, removed
from lake.store.storage import Address
from lake.store.table_log import delta_table
from lake.store.table_logs import invalidate
from lake.store.truncated_commit import commit_file
from lake.store.warehouse import Location


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
    try:
        yield
    except Exception as error:
        invalidate(at.path)
        if delta_writer.is_committed(at.path, position.writer):
            return
        if isinstance(error, delta_writer.Beaten):
            if delta.newest_version(at.path) != before:
                raise beaten from error
            raise StorageError(
                f"{at.path.name} takes no commit: {first_line(error)}",
                where=str(at.path),
                fix="another tool enabled a table feature that Headwater cannot write: disable it, or restore a backup",
            ) from error
        raise
    delta_writer.invalidate_unless_known(at.path, position.writer)


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
            actions += removed(table, changes=True)
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
    content = lines([{"commitInfo": info}, {"txn": transaction}, *actions])
    is_first = commit_file(path, version).put_if_absent(content)
    invalidate(path)
    if not is_first:
        raise delta_writer.Beaten(f"version {version} of {path.name} is there already")
    if (version + 1) % CHECKPOINT_EVERY == 0:  # delta-rs writes those after its own commits
        with suppress(Exception):  # the commit exists; the next checkpoint contains it
            delta_table(path).create_checkpoint()
