"""Delta tables by path, without a JVM: versions, positions, commits.

Every commit to a log or a derived table carries a *position*: the table's one app id, a transaction number that grows
by one, and a JSON object in `userMetadata`. The newest commit with the app id is the table's head. Commits of other
tools in between are skipped.

A position also records FORMAT, the format of all stored data. A table of another format is rejected when its head is
read. Releases before 0.2.0 recorded no format.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import islice
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from arro3.core import Table
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from lake import cost
from lake.errors import StorageError, Unavailable
from lake.session.spark_session import first_line
from lake.store.bucket_log import THREADS
from lake.store.storage import Address
from lake.store.table_log import TableState, metadata_of
from lake.store.table_logs import invalidate, table_log
from lake.store.view import view

if TYPE_CHECKING:
    import pyarrow as pa

Unreadable = DeltaError
"""Raised for a table that cannot be read."""
Beaten = CommitFailedError
"""Raised if another writer has already made the commit."""
FORMAT: Final = 1
LOOKED_BACK: Final = 100
"""Number of newest commits that are searched for the process's own."""


def new_writer() -> str:
    """Return an id for one attempt to commit."""
    return token_hex(8)


@dataclass(frozen=True)
class Position:
    """Transaction number `txn` of `app`, committed as Delta version `version`.

    `writer` identifies the attempt to commit it.
    """

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
        """Return this position marked as repeated, for a commit that changes no row."""
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


def at(path: Address, version: int) -> TableState:
    """Return the table at `version`, to be kept. Raises TableNotFoundError."""
    return table_log(path).state(version)


def create(path: Address, schema: Schema, properties: Mapping[str, str | None], **how: Any) -> None:
    """Create an empty table if there is none, with `properties` and KEEP_LOGS; `how` are options of deltalake."""
    how |= {"mode": "ignore", "configuration": {**KEEP_LOGS, **properties}}
    try:
        with table_log(path).target() as (url, options):
            DeltaTable.create(url, schema, storage_options=options, **how)
    except TableNotFoundError:  # Spark's checksums of lost commits are left
        log = path / "_delta_log"
        for entry in log.list():
            if entry.name.endswith(".crc"):
                (log / entry.name).delete()
        DeltaTable.create(path.url, schema, storage_options=path.storage.options, **how)
        invalidate(path)
    except Exception:
        if not exists(path):
            raise


def write(to: Address | DeltaTable, rows: pa.Table | Table, position: Position, **how: Any) -> None:
    """Write `rows` in one commit with `position`; the default of the options `how` is to append.

    The commit may exist although an error is raised: the caller reads back.
    """
    how = {"mode": "append", "commit_properties": position.commit_properties, **how}
    how["writer_properties"] = _row_groups(rows.num_rows, rows.nbytes)
    if isinstance(to, DeltaTable):
        write_deltalake(to, rows, **how)
    else:
        _write(to, rows, how)


def _write(path: Address, rows: pa.Table | Table, how: dict[str, Any]) -> None:
    log = table_log(path)
    if log.newest() is None:
        with log.target() as (url, options):
            write_deltalake(url, rows, storage_options=options, **how)
    else:
        with log.committing(reads=False) as table:
            write_deltalake(table, rows, **how)


def row_group_properties(
    table: DeltaTable, compression: str = "SNAPPY", level: int | None = None
) -> WriterProperties | None:
    """Return the properties by which deltalake rewrites rows of `table` in row groups of ROW_GROUP bytes.

    Returns None if all rows fit one group. Files without statistics are ignored.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    files = pa.table(table.get_add_actions(flatten=True)).select(["num_records", "size_bytes"]).drop_null()
    rows, size = (pc.sum(column).as_py() or 0 for column in files.columns)
    return _row_groups(rows, size, compression, level)


def _row_groups(rows: int, size: int, compression: str = "SNAPPY", level: int | None = None) -> WriterProperties | None:
    if size <= cost.ROW_GROUP:
        return None
    most = max(1, cost.ROW_GROUP * rows // size)
    # Properties without a compression turn compression off.
    return WriterProperties(max_row_group_size=most, compression=compression, compression_level=level)  # type: ignore[arg-type]


def add(path: Address, rows: pa.Table | Table, **how: Any) -> None:
    """Append `rows` in one commit without a position; `how` are options of deltalake. Raises as `read_back` does.

    There is one attempt: if the response was lost, delta-rs would take its own commit for another writer's and append
    the rows twice.
    """
    writer = new_writer()
    how |= {"commit_properties": CommitProperties(custom_metadata=_anonymous(writer), max_commit_retries=0)}
    how |= {"mode": "append", "writer_properties": _row_groups(rows.num_rows, rows.nbytes)}
    with read_back(path, writer):
        _write(path, rows, how)


def committing(path: Address, *, reads: bool = False) -> AbstractContextManager[DeltaTable]:
    """Yield the table for one commit, which `reads` its rows or not. Raises as `TableLog.committing` does."""
    return table_log(path).committing(reads=reads)


@contextmanager
def changing(
    path: Address, again: Position | None = None, *, goes_back: bool = False
) -> Iterator[tuple[DeltaTable, CommitProperties]]:
    """Yield the table and the properties for one commit that changes it and repeats the position `again`.

    Not for appends, see `add`. `goes_back` allows to restore an older version. Raises as `read_back` does.
    """
    writer = again.writer if again else new_writer()
    metadata = {"userMetadata": again.metadata} if again else _anonymous(writer)
    table_at = table_log(path).writable() if goes_back else committing(path, reads=True)
    with read_back(path, writer), table_at as table:
        yield table, CommitProperties(custom_metadata=metadata)


def _anonymous(writer: str) -> dict[str, str]:
    return {"userMetadata": json.dumps({"writer": writer})}


@contextmanager
def read_back(path: Address, writer: str) -> Iterator[None]:
    """Run the block, which commits as `writer`. Ignore its error if the commit is in the log afterwards.

    Over a network the response to a successful commit may be lost; a retry would find its number taken and blame
    another writer. Raises Unavailable if the commit is not there because its number was taken.
    """
    try:
        yield
    except Exception as error:
        invalidate(path)
        if is_committed(path, writer):
            return
        if isinstance(error, Beaten):
            raise Unavailable(
                f"{path.name} took no commit: {first_line(error)}",
                where=str(path),
                fix="run the command again: it starts from the table's new state",
            ) from error
        raise
    invalidate_unless_known(path, writer)


def invalidate_unless_known(path: Address, writer: str) -> None:
    """Invalidate the table after the commit of `writer`, unless its cached log has that commit."""
    if not table_log(path).knows(writer):
        invalidate(path)


def is_committed(path: Address, writer: str) -> bool:
    """Return whether the commit of `writer` is among the newest. Raises Unavailable if they cannot be read."""
    try:
        return any(metadata_of(commit).get("writer") == writer for commit in islice(commits(path), LOOKED_BACK))
    except Exception as error:
        raise Unavailable(
            f"{path.name}: whether a commit is there cannot be read: {first_line(error)}",
            where=str(path),
            fix="run the command again: it goes on from what is there",
        ) from error


def must_precede(table: TableState, position: Position) -> None:
    """Raise Beaten if the state `table` is not the one just before `position`."""
    if (table.transaction_version(position.app) or 0) != position.txn - 1:
        raise Beaten(
            f"{position.app} is at transaction {table.transaction_version(position.app)}; cannot commit {position.txn}"
        )


def start(app: str) -> Position:
    """Return the position before the first commit of `app`."""
    return Position(app, 0)


def opened(path: Address, version: int | None = None) -> AbstractContextManager[TableState]:
    """Yield the table at `version`, by default its newest, to be read.

    Raises TableNotFoundError, and StorageError if `version` is a truncated commit.
    """
    return table_log(path).opened(version)


def exists(path: Address) -> bool:
    """Return whether there is a Delta table at `path`."""
    return newest_version(path) is not None


def newest_checkpoint(path: Address) -> int:
    """Return the version of the newest checkpoint, -1 if none is complete. Readers need no earlier commit."""
    try:
        version: int = json.loads((path / "_delta_log" / "_last_checkpoint").read())["version"]
    except (FileNotFoundError, ValueError):
        return -1
    return version


def columns(path: Address) -> list[str]:
    """Return the names of the columns."""
    with opened(path) as table:
        return [field.name for field in table.schema().fields]


def version(path: Address) -> int:
    """Return the newest version. Raises TableNotFoundError."""
    return table_log(path).must_exist()


def newest_version(path: Address) -> int | None:
    """Return the newest version; None if there is no table."""
    return table_log(path).newest()


def open_table(path: Address, version: int | None = None) -> TableState | None:
    """Return the table at `version`, by default its newest, to be kept; None if there is none."""
    try:
        return table_log(path).state(version)
    except TableNotFoundError:
        return None


def prefetch(tables: Iterable[Address], *, whole: bool = False, beside: Callable[[], object] = lambda: None) -> None:
    """Look up `tables` of a bucket in parallel and cache them in the view.

    Reads the newest commit of each, or its `whole` state. Calls `beside` meanwhile.
    """

    def look_up(path: Address) -> None:
        with suppress(Exception):  # the later reader gets the error
            next(commits(path), None)
            if whole:
                table_log(path).state()

    with ThreadPoolExecutor(THREADS) as pool:
        for path in tables:
            if not path.storage.may_tear:
                pool.submit(copy_context().run, look_up, path)
        beside()


def prefetch_rows(tables: Iterable[Address], rows: Collection[Address], beside: Callable[[], object]) -> None:
    """Read the logs of `tables` of a bucket in the background, and the data of those in `rows`.

    `beside` is called there as well.
    """

    def work() -> None:
        with suppress(Exception), view():
            addresses = [*tables]
            prefetch(addresses, whole=True, beside=beside)
            for path in addresses:
                if path in rows:
                    missing(path, files(table_log(path).state()), to_read=True)

    threading.Thread(target=work, name="ahead", daemon=True).start()


def files(table: TableState) -> list[str]:
    """Return the paths of the files with the rows of `table`; deltalake gives escaped URLs."""
    return [unquote(file) for file in table.file_uris()]


def missing(path: Address, files: Iterable[str], *, to_read: bool = False) -> list[str]:
    """Return those of `files`, of the table at `path` or of archived parts, that do not exist.

    If a few files of a bucket are `to_read` in this process, their ends are fetched and cached by the same requests.
    """
    files = list(files)
    if to_read and len(files) <= FETCHED and not path.storage.may_tear:
        with ThreadPoolExecutor(THREADS) as pool:
            exist = list(pool.map(lambda file: path.storage.of(file).to_read(file), files))
        return [file for file, exists in zip(files, exist, strict=True) if not exists]
    if path.storage.may_tear or len(files) < MANY_FILES:
        return [file for file in files if not path.at(file).exists()]
    by_table: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        by_table[file.partition("/_bucket=")[0] if "/_bucket=" in file else file.rpartition("/")[0]].append(file)
    existing: set[str] = set()
    for some in by_table.values():
        common = os.path.commonprefix(some)  # noqa: RUF071  commonpath makes one slash of the two in s3://
        folder = path.at(common.rpartition("/")[0])
        with suppress(FileNotFoundError):  # all were deleted
            existing |= {f"{folder}/{entry.name}" for entry in folder.list(deep=True)}
    return [file for file in files if file not in existing]


def metadata_action(table: TableState) -> dict[str, dict[str, Any]]:
    """Return the Delta action `metaData` that repeats the metadata of `table`."""
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
    """Return the newest position of `app`, None before the first."""
    return next(positions(path, app), None)


def head_or_start(path: Address, app: str) -> Position:
    """Return the position that the next commit of `app` follows: its newest, `start` before the first.

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
    """Return the `userMetadata` of commit `version`; {} if it has none or the commit was removed."""
    log = table_log(path)
    log.newest()
    try:
        return metadata_of(log.info(version))
    except FileNotFoundError:
        return {}


def has_rows(path: Address, version: int) -> bool:
    """Return whether commit `version` adds or removes files."""
    return any(kind in {"add", "remove"} for kind, _ in actions(path, version))


def feed_files(path: Address, actions: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, Address]]:
    """Return the files of a commit with these `actions` that the change feed reads, each with its action."""
    files = [(kind, a) for kind, a in actions if kind == "cdc" or (kind in FILE_ACTIONS and a.get("dataChange", True))]
    read = [(kind, action) for kind, action in files if kind == "cdc"] or files
    return [(kind, path / unquote(action["path"])) for kind, action in read]


FILE_ACTIONS: Final = frozenset({"add", "remove", "cdc"})
"""Kinds of actions on files; `cdc` files belong to the change feed."""


def actions(path: Address, version: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the actions of commit `version`. Raises FileNotFoundError if it was removed."""
    return [next(iter(json.loads(line).items())) for line in table_log(path).content(version).splitlines()]


FETCHED: Final = 32
"""Maximum number of files whose ends are fetched in parallel before they are read."""
MANY_FILES: Final = 3
"""From this number on, files of a bucket are listed, up to 1,000 a request, and not looked up one by one."""

# Old versions stay readable until `lake maintain` removes them. Opening a table reads every commit since its last
# checkpoint, 0.4 ms each; writing one takes a few ms.
KEEP_LOGS: Final[Mapping[str, str | None]] = {
    "delta.checkpointInterval": "20",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": "interval 3650 days",
}
