"""Delta tables by path, without a JVM: versions, positions, commits.

Every commit to a log or a derived table carries a *position*: the table's one app id, a transaction number that grows
by one, and a JSON object in `userMetadata`. The newest commit with the app id is the table's head. Commits of other
tools in between are skipped.

A position also records FORMAT, the format of all stored data. A table of another format is rejected when its head is
read. Releases before 0.2.0 recorded no format.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final
from urllib.parse import unquote

from deltalake import CommitProperties, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError

from lake.errors import StorageError
from lake.lazy import pa
from lake.store.storage import Address
from lake.store.table_log import TableState, metadata_of
from lake.store.table_logs import table_log
from lake.store.view import view

Unreadable = DeltaError
FORMAT: Final = 1
FILE_ACTIONS: Final = frozenset({"add", "remove", "cdc"})


def new_writer() -> str:
    return token_hex(8)


@dataclass(frozen=True)
class Position:
    """Transaction number `txn` of `app`, committed as Delta version `version` by the attempt `writer`."""

    app: str
    txn: int
    data: Mapping[str, Any] = field(default_factory=dict)
    version: int = -1
    writer: str = field(default_factory=new_writer, compare=False)

    def next(self, **data: Any) -> Position:
        return Position(self.app, self.txn + 1, data)

    @property
    def origin(self) -> int:
        """Version with the same rows: an older one if this commit only repeats the position."""
        origin: int = self.data.get("origin", self.version)
        return origin

    def again(self) -> Position:
        return Position(self.app, self.txn, {**self.data, "repeated": True, "origin": self.origin})

    @property
    def metadata(self) -> str:
        own = {"app": self.app, "txn": self.txn, "writer": self.writer, "format": FORMAT}
        return json.dumps({**own, **self.data}, separators=(",", ":"), sort_keys=True)

    @property
    def commit_properties(self) -> CommitProperties:
        """Properties of a delta-rs commit that is not rebased onto a later version."""
        return CommitProperties(
            custom_metadata={"userMetadata": self.metadata},
            max_commit_retries=0,
            app_transactions=[Transaction(self.app, self.txn)],
        )


def start(app: str) -> Position:
    return Position(app, 0)


def opened(path: Address, version: int | None = None) -> AbstractContextManager[TableState]:
    """Yield the table to be read, by default at its newest version.

    Raises TableNotFoundError, and StorageError if `version` is a truncated commit.
    """
    return table_log(path).opened(version)


def exists(path: Address) -> bool:
    return newest_version(path) is not None


def newest_checkpoint(path: Address) -> int:
    """Return -1 if none is complete. Readers need no earlier commit."""
    try:
        version: int = json.loads((path / "_delta_log" / "_last_checkpoint").read())["version"]
    except (FileNotFoundError, ValueError):
        return -1
    return version


def version(path: Address) -> int:
    """Raises TableNotFoundError."""
    return table_log(path).must_exist()


def newest_version(path: Address) -> int | None:
    return table_log(path).newest()


def open_table(path: Address, version: int | None = None) -> TableState | None:
    try:
        return table_log(path).state(version)
    except TableNotFoundError:
        return None


def prefetch(tables: Iterable[Address], *, whole: bool = False, beside: Callable[[], object] = lambda: None) -> None:
    """Look up `tables` of a remote warehouse in parallel and cache them in the view.

    Reads the newest commit of each, or its `whole` state. Calls `beside` meanwhile.
    """

    def look_up(path: Address) -> None:
        with suppress(Exception):  # the later reader gets the error
            next(commits(path), None)
            if whole:
                table_log(path).state()

    tables = list(tables)
    begun = tables[0].storage.begin(look_up, tables) if tables else {}
    beside()
    wait(begun.values())


def prefetch_rows(
    root: Address, tables: Iterable[Address], rows: Collection[Address], beside: Callable[[], object]
) -> None:
    """Read the logs of `tables` of a remote warehouse in the background, and the data of those in `rows`.

    Calls `beside` there.
    """
    if not root.storage.is_remote:
        return

    def work() -> None:
        with suppress(Exception), view():
            addresses = [*tables]
            prefetch(addresses, whole=True, beside=beside)
            for path in addresses:
                if path in rows:
                    path.missing(files(table_log(path).state()), to_read=True)

    threading.Thread(target=work, name="ahead", daemon=True).start()


def files(table: TableState) -> list[str]:
    return [unquote(file) for file in table.file_uris()]


def file_actions(table: TableState) -> pa.Table:
    """Return a row for each file of the table: its path, size, partition and statistics."""
    return pa.table(table.get_add_actions(flatten=True))


def metadata_action(table: TableState) -> dict[str, dict[str, Any]]:
    about = table.metadata()
    fields = {
        "id": str(about.id),
        "name": about.name,
        "description": about.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": about.partition_columns,
        "createdTime": about.created_time,
        "configuration": about.configuration,
    }
    return {"metaData": fields}


def positions(path: Address, app: str) -> Iterator[Position]:
    """Yield the positions of `app`, newest first. Raises StorageError if a commit has another format."""
    for commit in commits(path):
        data = metadata_of(commit)
        if data.pop("app", None) == app:
            _check_format(path, data.pop("format", None))
            txn, writer = data.pop("txn"), data.pop("writer")
            yield Position(app, txn, data, commit["version"], writer)


def _check_format(path: Address, found: int | None) -> None:
    if found == FORMAT:
        return
    if found is None:
        raise StorageError(
            f"{path.name} was written by a version of Headwater before 0.2.0, which this one does not read",
            where=str(path),
            fix="name a new folder as `warehouse` in [tool.lake], move archived files back to the landing folder, and"
            " lake run; or use the version that wrote it",
        )
    raise StorageError(
        f"{path.name} has format {found}, and this version of Headwater reads format {FORMAT}",
        where=str(path),
        fix="use the version that wrote it, or a newer one",
    )


def head(path: Address, app: str) -> Position | None:
    return next(positions(path, app), None)


def head_or_start(path: Address, app: str) -> Position:
    """Return the position that the next commit of `app` follows.

    If the commits with positions were removed, as `lake forget` does, it has only the newest transaction number.
    """
    newest = head(path, app)
    if newest is not None:
        return newest
    try:
        with opened(path) as table:
            return Position(app, table.transaction_version(app) or 0)
    except TableNotFoundError:
        return start(app)


def commits(path: Address) -> Iterator[dict[str, Any]]:
    """Yield the remaining commits of the table, newest first.

    They are read one by one: deltalake lists the whole log for them, and reads a truncated one.
    """
    log = table_log(path)
    newest = log.newest()
    for number in range(-1 if newest is None else newest, -1, -1):
        try:
            info = log.info(number)
        except FileNotFoundError:  # the table was truncated
            return
        yield info | {"version": number}


def commit_metadata(path: Address, version: int) -> dict[str, Any]:
    log = table_log(path)
    log.newest()
    try:
        return metadata_of(log.info(version))
    except FileNotFoundError:
        return {}


def feed_files(path: Address, actions: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, Address]]:
    files = [(kind, a) for kind, a in actions if kind == "cdc" or (kind in FILE_ACTIONS and a.get("dataChange", True))]
    read = [(kind, action) for kind, action in files if kind == "cdc"] or files
    return [(kind, path / unquote(action["path"])) for kind, action in read]


def actions(path: Address, version: int) -> list[tuple[str, dict[str, Any]]]:
    """Raises FileNotFoundError if the commit was removed."""
    return [next(iter(json.loads(line).items())) for line in table_log(path).content(version).splitlines()]
