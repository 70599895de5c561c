"""Delta tables by path, without a JVM: versions, positions, commits.

Every commit this project makes to a log or a derived table carries a *position*: the table's one app id with a
transaction number that grows by one a commit, and a JSON object in `userMetadata`. The newest commit that carries
the app id is the table's head; commits of other tools in between are passed over.

A position also records FORMAT, the format of all that is stored. A table of another format is refused when its head is
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
from lake.session import first_line
from lake.store.bucket_log import THREADS
from lake.store.storage import Address
from lake.store.table_log import TableState, metadata_of
from lake.store.table_logs import invalidate, table_log
from lake.store.view import view

if TYPE_CHECKING:
    import pyarrow as pa

Unreadable = DeltaError
"""What is raised for a table that cannot be read, whatever damaged it."""
Beaten = CommitFailedError
"""What is raised where another writer has made a commit that is to carry a position."""
FORMAT: Final = 1
LOOKED_BACK: Final = 100
"""Among so many of the newest commits one's own is looked for."""


def new_writer() -> str:
    """What tells one attempt to commit from every other."""
    return token_hex(8)


@dataclass(frozen=True)
class Position:
    """Where a table stands: transaction number `txn` of `app`, committed as Delta version `version`.

    `writer` tells the attempt to commit it from others.
    """

    app: str
    txn: int
    data: Mapping[str, Any] = field(default_factory=dict)
    version: int = -1
    writer: str = field(default_factory=new_writer, compare=False)

    def next(self, **data: Any) -> Position:
        """The position that a commit on top of this one carries."""
        return Position(self.app, self.txn + 1, data)

    @property
    def origin(self) -> int:
        """The version whose rows these are: an older one where this commit only repeats the position."""
        origin: int = self.data.get("origin", self.version)
        return origin

    def again(self) -> Position:
        """The position that a commit carries which changes no row: this one, marked as repeated."""
        return Position(self.app, self.txn, {**self.data, "repeated": True, "origin": self.origin})

    @property
    def metadata(self) -> str:
        """The text of the commit's `userMetadata`."""
        own = {"app": self.app, "txn": self.txn, "writer": self.writer, "format": FORMAT}
        return json.dumps({**own, **self.data}, separators=(",", ":"), sort_keys=True)

    @property
    def commit_properties(self) -> CommitProperties:
        """What a delta-rs commit takes: it is made on the version that it was prepared for, or not at all."""
        return CommitProperties(
            custom_metadata={"userMetadata": self.metadata},
            max_commit_retries=0,
            app_transactions=[Transaction(self.app, self.txn)],
        )


def at(path: Address, version: int) -> TableState:
    """Return the table at `path` at `version`, to be kept. Raises TableNotFoundError."""
    return table_log(path).state(version)


def create(path: Address, schema: Schema, properties: Mapping[str, str | None], **how: Any) -> None:
    """Makes an empty table, where there is none, with the `properties` and KEEP_LOGS, else as deltalake is told."""
    how |= {"mode": "ignore", "configuration": {**KEEP_LOGS, **properties}}
    try:
        with table_log(path).target() as (url, options):
            DeltaTable.create(url, schema, storage_options=options, **how)
    except TableNotFoundError:  # of commits that were lost, what Spark had written beside them is left
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
    """Write `rows` in one commit, which carries the `position`: append them, unless the options `how` differ.

    An error may come of a commit that is there all the same: the caller reads back.
    """
    how = {"mode": "append", "commit_properties": position.commit_properties, **how}
    how["writer_properties"] = _grouped(rows.num_rows, rows.nbytes)
    if isinstance(to, DeltaTable):
        write_deltalake(to, rows, **how)
    else:
        _write(to, rows, how)


def _write(path: Address, rows: pa.Table | Table, how: dict[str, Any]) -> None:
    """Write `rows` on top of the newest version known, which may be none."""
    log = table_log(path)
    if log.newest() is None:
        with log.target() as (url, options):
            write_deltalake(url, rows, storage_options=options, **how)
    else:
        with log.committing(reads=False) as table:
            write_deltalake(table, rows, **how)


def in_groups(table: DeltaTable, compression: str = "SNAPPY", level: int | None = None) -> WriterProperties | None:
    """How deltalake is told to write rows of a `table` anew: in groups of ROW_GROUP bytes, as its files have them.

    None where all of it is one. Of files without statistics nothing is known.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    files = pa.table(table.get_add_actions(flatten=True)).select(["num_records", "size_bytes"]).drop_null()
    rows, size = (pc.sum(column).as_py() or 0 for column in files.columns)
    return _grouped(rows, size, compression, level)


def _grouped(rows: int, size: int, compression: str = "SNAPPY", level: int | None = None) -> WriterProperties | None:
    """Once deltalake is told anything, it compresses nothing unless it is told how."""
    if size <= cost.ROW_GROUP:
        return None
    most = max(1, cost.ROW_GROUP * rows // size)
    return WriterProperties(max_row_group_size=most, compression=compression, compression_level=level)  # type: ignore[arg-type]


def add(path: Address, rows: pa.Table | Table, **how: Any) -> None:
    """Append `rows` in one commit without a position; `how` are options of deltalake. Raises as `read_back` does.

    It is tried once: delta-rs would take its own commit, if the answer to it was lost, for one of another writer, and
    append the rows a second time.
    """
    writer = new_writer()
    how |= {"commit_properties": CommitProperties(custom_metadata=_anonymous(writer), max_commit_retries=0)}
    how |= {"mode": "append", "writer_properties": _grouped(rows.num_rows, rows.nbytes)}
    with read_back(path, writer):
        _write(path, rows, how)


def committing(path: Address, *, reads: bool = False) -> AbstractContextManager[DeltaTable]:
    """Yield the table at `path` for one commit, which `reads` its rows or not. Raises as `TableLog.committing` does."""
    return table_log(path).committing(reads=reads)


@contextmanager
def changing(
    path: Address, again: Position | None = None, *, goes_back: bool = False
) -> Iterator[tuple[DeltaTable, CommitProperties]]:
    """The table at `path`, to be changed in one commit with the properties, which repeats the position `again`.

    Not for rows that are appended, see `add`. What `goes_back` to older versions says so. Raises as `read_back` does.
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
    """Lets the block make the commit of `writer` to the table at `path`; none of its errors counts if that is there.

    Over a network a commit may be there whose answer was lost: whoever tries again finds its number taken, and would
    blame another. Raises Unavailable where the commit is not there because its number was taken.
    """
    try:
        yield
    except Exception as error:
        invalidate(path)
        if landed(path, writer):
            return
        if isinstance(error, Beaten):
            raise Unavailable(
                f"{path.name} took no commit: {first_line(error)}",
                where=str(path),
                fix="run the command again: it starts from the table's new state",
            ) from error
        raise
    known_or_moved(path, writer)


def known_or_moved(path: Address, writer: str) -> None:
    """Have the table looked up again after the commit of `writer`, unless its log knows that commit."""
    if not table_log(path).knows(writer):
        invalidate(path)


def landed(path: Address, writer: str) -> bool:
    """Whether the commit of `writer` is among the newest of the table at `path`.

    Raises Unavailable where that cannot be read.
    """
    try:
        return any(metadata_of(commit).get("writer") == writer for commit in islice(commits(path), LOOKED_BACK))
    except Exception as error:
        raise Unavailable(
            f"{path.name}: whether a commit is there cannot be read: {first_line(error)}",
            where=str(path),
            fix="run the command again: it goes on from what is there",
        ) from error


def must_precede(table: TableState, position: Position) -> None:
    """Raises Beaten where the state `table`, on which a commit is to be made, is not that just before `position`."""
    if (table.transaction_version(position.app) or 0) != position.txn - 1:
        raise Beaten(
            f"{position.app} is at transaction {table.transaction_version(position.app)}; cannot commit {position.txn}"
        )


def start(app: str) -> Position:
    """The position before the first commit of `app`."""
    return Position(app, 0)


def opened(path: Address, version: int | None = None) -> AbstractContextManager[TableState]:
    """Yield the table at `path`, at `version` or its newest, to be read.

    Raises TableNotFoundError, and StorageError if `version` is that of a commit that was cut short.
    """
    return table_log(path).opened(version)


def exists(path: Address) -> bool:
    """Whether there is a Delta table at `path`."""
    return newest_version(path) is not None


def newest_checkpoint(path: Address) -> int:
    """Return the version of the newest checkpoint, before which no reader needs a commit; -1 if none is whole."""
    try:
        version: int = json.loads((path / "_delta_log" / "_last_checkpoint").read())["version"]
    except (FileNotFoundError, ValueError):
        return -1
    return version


def columns(path: Address) -> list[str]:
    """The names of the columns of the table at `path`."""
    with opened(path) as table:
        return [field.name for field in table.schema().fields]


def version(path: Address) -> int:
    """Return the newest version of the table at `path`. Raises TableNotFoundError."""
    return table_log(path).must_exist()


def newest_version(path: Address) -> int | None:
    """Return the newest version of the table at `path`; None if there is no table."""
    return table_log(path).newest()


def open_table(path: Address, version: int | None = None) -> TableState | None:
    """Return the table at `path`, at `version` or its newest, to be kept; None if there is none."""
    try:
        return table_log(path).state(version)
    except TableNotFoundError:
        return None


def prefetch(tables: Iterable[Address], *, whole: bool = False, beside: Callable[[], object] = lambda: None) -> None:
    """Look up `tables` of a bucket together; the view knows them then.

    Of each the newest commit is read, or its `whole` state. `beside` is called meanwhile.
    """

    def look(path: Address) -> None:
        with suppress(Exception):  # whoever asks for it is told
            next(commits(path), None)
            if whole:
                table_log(path).state()

    with ThreadPoolExecutor(THREADS) as pool:
        for path in tables:
            if not path.storage.may_tear:
                pool.submit(copy_context().run, look, path)
        beside()


def prefetch_rows(tables: Iterable[Address], rows: Collection[Address], beside: Callable[[], object]) -> None:
    """Read the logs of `tables` of a bucket in the background, and `rows`, the small ones among them.

    `beside` is called there as well.
    """

    def work() -> None:
        with suppress(Exception), view():
            there = [*tables]
            prefetch(there, whole=True, beside=beside)
            for path in there:
                if path in rows:
                    missing(path, files(table_log(path).state()), to_read=True)

    threading.Thread(target=work, name="ahead", daemon=True).start()


def files(table: TableState) -> list[str]:
    """The paths of the files that hold the rows of `table`, which deltalake gives in the form of URLs."""
    return [unquote(file) for file in table.file_uris()]


def missing(path: Address, files: Iterable[str], *, to_read: bool = False) -> list[str]:
    """Those of the `files` of the table at `path`, and of the archived parts of a log, that are gone.

    Of files in a store that are `to_read` in this process, and not many, the ends come with the answers.
    """
    files = list(files)
    if to_read and len(files) <= FETCHED and not path.storage.may_tear:
        with ThreadPoolExecutor(THREADS) as pool:
            there_to_read = list(pool.map(lambda file: path.storage.of(file).to_read(file), files))
        return [file for file, there in zip(files, there_to_read, strict=True) if not there]
    if path.storage.may_tear or len(files) < MANY_FILES:
        return [file for file in files if not path.at(file).exists()]
    by_table: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        by_table[file.partition("/_bucket=")[0] if "/_bucket=" in file else file.rpartition("/")[0]].append(file)
    there: set[str] = set()
    for some in by_table.values():
        common = os.path.commonprefix(some)  # noqa: RUF071  commonpath makes one slash of the two in s3://
        folder = path.at(common.rpartition("/")[0])
        with suppress(FileNotFoundError):  # all are gone
            there |= {f"{folder}/{entry.name}" for entry in folder.list(deep=True)}
    return [file for file in files if file not in there]


def meta_data(table: TableState) -> dict[str, dict[str, Any]]:
    """The Delta action that says of `table` what it says already."""
    about = table.metadata()
    said = {
        "id": str(about.id),
        "name": about.name,
        "description": about.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": about.partition_columns,
        "createdTime": about.created_time,
        "configuration": about.configuration,
    }
    return {"metaData": said}


def positions(path: Address, app: str) -> Iterator[Position]:
    """Yield the positions of `app` in the table at `path`, newest first.

    Raises StorageError if a commit has another format.
    """
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
    """The newest position of `app` in the table at `path`, None before the first."""
    return next(positions(path, app), None)


def standing(path: Address, app: str) -> Position:
    """Return what the next commit of `app` follows: its newest position, or the one before its first.

    If the commits with positions were removed, as `lake forget` does, the number is that of the newest.
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
    """The commits of the table at `path`, newest first, as far as they were not removed.

    Read one by one: deltalake lists the whole log for them, and reads one that was cut short.
    """
    log = table_log(path)
    newest = log.newest()
    for number in range(-1 if newest is None else newest, -1, -1):
        try:
            info = log.info(number)
        except FileNotFoundError:  # its past was ended
            return
        yield info | {"version": number}


def metadata(path: Address, version: int) -> dict[str, Any]:
    """What the commit `version` of the table at `path` carries; {} where it carries nothing, or its past was ended."""
    log = table_log(path)
    log.newest()
    try:
        return metadata_of(log.info(version))
    except FileNotFoundError:
        return {}


def has_rows(path: Address, version: int) -> bool:
    """Whether the commit `version` of the table at `path` adds or removes files."""
    return any(kind in {"add", "remove"} for kind, _ in actions(path, version))


def feed_files(path: Address, actions: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, Address]]:
    """The files that the change feed reads of a commit with these `actions`, each with what that does with it."""
    files = [(kind, a) for kind, a in actions if kind == "cdc" or (kind in FILE_ACTIONS and a.get("dataChange", True))]
    told = [(kind, action) for kind, action in files if kind == "cdc"] or files
    return [(kind, path / unquote(action["path"])) for kind, action in told]


FILE_ACTIONS: Final = frozenset({"add", "remove", "cdc"})
"""What a commit does with a file; `cdc` is of the change feed."""


def actions(path: Address, version: int) -> list[tuple[str, dict[str, Any]]]:
    """What the commit `version` does. Raises FileNotFoundError where it is gone."""
    return [next(iter(json.loads(line).items())) for line in table_log(path).content(version).splitlines()]


FETCHED: Final = 32
"""Of no more files the ends are asked for together, before they are read."""
MANY_FILES: Final = 3
"""From so many on, files of a store are listed, up to 1,000 by a request, and not asked for one by one."""

# Old versions stay readable until `lake maintain` says otherwise. Opening a table reads every commit since its last
# checkpoint, 0.4 ms each; writing one takes a few ms.
KEEP_LOGS: Final[Mapping[str, str | None]] = {
    "delta.checkpointInterval": "20",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": "interval 3650 days",
}
