"""Fault injection: kills before, within and after writes to a warehouse, and at a source.

A point is `<subject>.<moment>`. By path, a subject is `log`, `quarantine`, `redeliveries`, `table`, `edition`, `meta`
(other ledgers) or `cold` (archived batches); by operation, `compaction`, `checkpoint`, `vacuum` (each file deleted),
`removal` (each folder deleted), `archive` (each landing file moved), `spool` (a delivery on disk) or `acknowledge`.
At the moment `middle` the first new file of a commit exists and the commit does not, or a folder's first file is
deleted.

A commit can also fail with an error of the network: `before` it is made, or `after`, when only its answer is lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal

from deltalake.exceptions import CommitFailedError

from lake.config import Settings
from lake.ingest import files
from lake.sources import spool
from lake.sources.declared import DeclaredSource
from lake.sources.source import Progress, Source
from lake.store.storage import LocalFolder

COMMITS: Final = ("log", "quarantine", "redeliveries", "table", "meta", "edition", "cold", "compaction")
POINTS: Final = (
    *(f"{subject}.{moment}" for subject in (*COMMITS, "removal") for moment in ("before", "middle", "after")),
    *(
        f"{subject}.{moment}"
        for subject in ("checkpoint", "vacuum", "archive", "spool", "acknowledge")
        for moment in ("before", "after")
    ),
)

WRITING_SQL: Final = re.compile(r"\s*(MERGE INTO|OPTIMIZE|ALTER TABLE) delta\.`(.+?)`", re.IGNORECASE)
SUBJECT_BY_FOLDER: Final = {"logs": "log", "quarantine": "quarantine", "redeliveries": "redeliveries", "meta": "meta"}
COMMIT_FILE: Final = re.compile(r"\d{20}\.json")
POLL_SECONDS: Final = 0.0005  # seconds between checks for a first new file


@dataclass(frozen=True)
class Kill:
    """SIGKILL of the `victim` at the `nth` pass through `point`.

    `jvm` is the pid of a Spark Connect server; 0: the JVM of this process. With victim `answer` nothing dies: the write
    raises an error.
    """

    point: str
    nth: int = 1
    victim: Literal["python", "jvm", "answer"] = "python"
    jvm: int = 0


TRACE: Final = Kill("")
"""Kill at no point: passes are recorded, and nothing dies."""


@dataclass
class PassRecorder:
    """Recorder of passes through points, as lines of JSON in `notes`. It kills or raises at the pass of `kill`."""

    warehouse: Path
    notes: Path
    kill: Kill | None = None
    cold: Path | None = None
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def subject(self, path: Path) -> str | None:
        """Return the subject of points at writes to `path`; None outside of the warehouse and the cold folder."""
        if self.cold and path.is_relative_to(self.cold):
            return "cold"
        if not path.is_relative_to(self.warehouse):
            return None
        top, *rest = path.relative_to(self.warehouse).parts
        return "edition" if [top, *rest] == ["meta", "editions"] else SUBJECT_BY_FOLDER.get(top, "table")

    @contextmanager
    def around(self, path: Path | None, operation: str = "") -> Iterator[None]:
        subject = self.subject(path) if path is not None else None
        if path is None or subject is None:
            yield
            return
        name = operation or subject
        self.at(f"{name}.before", path)
        with self._watching(path, f"{name}.middle"):
            yield
        self.at(f"{name}.after", path)

    def at(self, point: str, path: Path) -> None:
        with self.lock:
            self.counts[point] += 1
            dies = self.kill and (self.kill.point, self.kill.nth) == (point, self.counts[point])
            with self.notes.open("a") as file:
                file.write(json.dumps({"point": point, "path": str(path), "dies": dies}) + "\n")
            if dies and self.kill and self.kill.victim == "answer":
                raise _lost_answer_error(self.kill)
            if dies:
                self._kill_victim()

    def _kill_victim(self) -> None:
        assert self.kill is not None
        pid = os.getpid() if self.kill.victim == "python" else self.kill.jvm or jvm_of(os.getpid())
        os.kill(pid, signal.SIGKILL)
        while _alive(pid):
            time.sleep(POLL_SECONDS)

    @contextmanager
    def _watching(self, path: Path, point: str) -> Iterator[None]:
        if self.kill is None or self.kill.point != point:
            yield
            return
        before, commits, ended = _data_files(path), _commit_count(path), threading.Event()

        def watch() -> None:
            while not ended.is_set() and _commit_count(path) == commits:
                if _data_files(path) - before and _commit_count(path) == commits:
                    self.at(point, path)
                    return
                time.sleep(POLL_SECONDS)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _lost_answer_error(lost: Kill) -> Exception:
    # Every second time a conflict: the library has retried a commit that was made.
    if lost.point.endswith(".after") and lost.nth % 2:
        return CommitFailedError("Commit failed: ConcurrentTransaction: a concurrent transaction has the same version")
    return OSError("Generic storage error: error sending request: connection closed before message completed")


def _data_files(path: Path) -> set[str]:
    return {str(file) for file in path.glob("**/*.parquet*") if "_delta_log" not in file.parts}


def _commit_count(path: Path) -> int:
    return len(list((path / "_delta_log").glob("*.json")))


def jvm_of(process: int) -> int:
    tasks = Path(f"/proc/{process}/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "java")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def inject_faults(passes: PassRecorder) -> None:
    """Wrap every call that writes to a warehouse or acknowledges to a source, in this process."""
    _wrap_delta_rs(passes)
    _wrap_spark(passes)
    _wrap_log_store(passes)
    _wrap_files(passes)
    _wrap_sources(passes)


def _wrap_delta_rs(passes: PassRecorder) -> None:
    import deltalake
    from deltalake.table import DeltaTable, TableMerger, TableOptimizer

    write = deltalake.write_deltalake
    wrapped = _recording(passes, write, lambda table, *_, **__: _path(table))
    for module in [module for name, module in sys.modules.items() if name.startswith("lake.")]:
        if getattr(module, "write_deltalake", None) is write:
            module.write_deltalake = wrapped  # type: ignore[attr-defined]
    _wrap(passes, DeltaTable, ("create_write_transaction", "delete", "restore"), _path)
    _wrap(passes, DeltaTable, ("create_checkpoint",), _path, "checkpoint")
    _wrap(passes, TableMerger, ("execute",), lambda merger: Path(merger._table.table_uri().removeprefix("file://")))
    _wrap(passes, TableOptimizer, ("compact", "z_order"), lambda optimizer: _path(optimizer.table), "compaction")
    create = DeltaTable.create
    DeltaTable.create = staticmethod(_recording(passes, create, lambda table, *_, **__: _path(table)))  # type: ignore


def _wrap_spark(passes: PassRecorder) -> None:
    from pyspark.sql import readwriter, session
    from pyspark.sql.connect import readwriter as connect_readwriter
    from pyspark.sql.connect import session as connect_session

    for writer in (readwriter.DataFrameWriter, connect_readwriter.DataFrameWriter):
        writer.save = _recording(passes, writer.save, lambda _, path=None, *__, **___: path and Path(path))  # type: ignore
    for each in (session.SparkSession, connect_session.SparkSession):
        each.sql = _recording_sql(passes, each.sql)  # type: ignore[method-assign]


def _recording_sql(passes: PassRecorder, sql: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(sql)
    def wrapper(spark: Any, query: str, *args: Any, **kwargs: Any) -> Any:
        statement = WRITING_SQL.match(query)
        operation = "compaction" if statement and statement[1].upper() == "OPTIMIZE" else ""
        with passes.around(Path(statement[2]) if statement else None, operation):
            return sql(spark, query, *args, **kwargs)

    return wrapper


def _wrap_log_store(passes: PassRecorder) -> None:
    put = LocalFolder.put_if_absent

    def recording_put(folder: LocalFolder, url: str, content: bytes) -> str | None:
        file = Path(url)
        with passes.around(file.parents[1] if COMMIT_FILE.fullmatch(file.name) else None):
            return put(folder, url, content)

    LocalFolder.put_if_absent = recording_put  # type: ignore[assignment, method-assign]


def _wrap_files(passes: PassRecorder) -> None:
    unlink, move, rmtree = Path.unlink, files.move_file, shutil.rmtree

    def recording_unlink(path: Path, missing_ok: bool = False) -> None:
        is_data = passes.subject(path) and "locks" not in path.parts and not path.name.startswith(".")
        if is_data:
            passes.at("vacuum.before", path)
        unlink(path, missing_ok)
        if is_data:
            passes.at("vacuum.after", path)

    def recording_move(path: Path, target: Path) -> None:
        passes.at("archive.before", path)
        move(path, target)
        passes.at("archive.after", path)

    def recording_rmtree(folder: Any, *args: Any, **options: Any) -> None:
        path = Path(folder)
        if passes.subject(path):
            passes.at("removal.before", path)
            if first := next((file for file in sorted(path.rglob("*")) if file.is_file()), None):
                unlink(first)
            passes.at("removal.middle", path)
        rmtree(folder, *args, **options)
        if passes.subject(path):
            passes.at("removal.after", path)

    Path.unlink, files.move_file = recording_unlink, recording_move  # type: ignore[assignment, method-assign]
    shutil.rmtree = recording_rmtree  # type: ignore[assignment]


def _wrap_sources(passes: PassRecorder) -> None:
    keep, opened = spool.keep, DeclaredSource.open

    def recording_keep(
        settings: Settings, source: str, number: int, writer: spool.SpoolWriter, progress: Progress
    ) -> spool.SpooledDelivery:
        passes.at("spool.before", writer.folder)
        result = keep(settings, source, number, writer, progress)
        passes.at("spool.after", result.folder)
        return result

    def recording_open(declared: DeclaredSource) -> Source:
        source, where = opened(declared), Path(declared.where)
        acknowledge = source.acknowledge

        def recording_acknowledge(upto: Progress) -> None:
            passes.at("acknowledge.before", where)
            acknowledge(upto)
            passes.at("acknowledge.after", where)

        source.acknowledge = recording_acknowledge  # type: ignore[method-assign]
        return source

    spool.keep = recording_keep
    DeclaredSource.open = recording_open  # type: ignore[method-assign, assignment]


def _path(table: Any) -> Path:
    return Path(str(getattr(table, "table_uri", table)).removeprefix("file://"))


def _wrap(
    passes: PassRecorder, owner: type, names: tuple[str, ...], path: Callable[[Any], Path], operation: str = ""
) -> None:
    for name in names:
        setattr(owner, name, _recording(passes, getattr(owner, name), lambda own, *_, **__: path(own), operation))


def _recording(
    passes: PassRecorder, function: Callable[..., Any], path: Callable[..., Path | None], operation: str = ""
) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with passes.around(path(*args, **kwargs), operation):
            return function(*args, **kwargs)

    return wrapper
