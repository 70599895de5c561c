"""Spark session of this process, embedded or of a warm or named server, and translation of its errors."""

from __future__ import annotations

import gc
import logging
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from lake import cost
from lake.config import Settings
from lake.errors import DeclarationError, Unavailable, full
from lake.lazy import SparkSession
from lake.progress import step
from lake.session import class_archive, file_modes, jars, remote, warm_server
from lake.session.in_process.mode import Unsupported
from lake.session.remote import is_local

# Set for every session, Connect too: they affect results or cost, so server defaults must not apply.
RUNTIME_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.chunkBase64String.enabled": "true",
    "spark.sql.variable.substitute": "false",  # ${env:…} in a name or text would be replaced by a variable
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
    # Landing files are listed one by one: from 33 on, Spark would look up each in its own task.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.localRelationThreshold": "2MB",  # rows as objects take ten times the heap
    "spark.sql.codegen.hugeMethodLimit": "8000",  # bytes: HotSpot compiles no longer method; such a stage runs in parts
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # cached data is read twice: compressing it costs more
    "parquet.block.size": str(cost.ROW_GROUP),
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # delta-rs alters far times of the default, INT96
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}
INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings to interpret plans instead of generating code for them."""
MIN_PARTITIONS: Final = "spark.sql.files.minPartitionNum"
CLUSTER_PARTITIONS: Final = 32
"""MIN_PARTITIONS on a cluster, whose default depends on the cores that happen to be available."""

# Signs in messages that the server lost the session, that the embedded JVM ended, and that an executor with rows did.
SESSION_LOST: Final = ("SESSION_NOT_FOUND", "SESSION_CHANGED", "SESSION_CLOSED")
JVM_ENDED: Final = ("Py4JNetworkError", "ConnectionRefusedError")
EXECUTOR_LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

NO_CONF: Final[Mapping[str, str]] = {}
COLLECT_BYTES: Final = 32 << 20
"""Bytes handed to the JVM before garbage is collected."""
_ESCAPED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
EXTENSIONS: Final = "spark.sql.extensions"
CONNECT: Final = "org.apache.spark.sql.connect.SparkConnectPlugin"
DELTA: Final = "io.delta.sql.DeltaSparkSessionExtension"


def start(settings: Settings) -> SparkSession:
    """Return the process's session, started on first use and reused afterwards.

    The output of an embedded JVM goes to .lake/spark/driver.log. Raises DeclarationError if the jars are missing or a
    server refuses the token, and Unavailable if the session does not start; see `lake doctor`.
    """
    executor_python = settings.spark.conf.get("spark.pyspark.python", "python3")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable if is_local(settings) else executor_python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    address = remote.server(settings)
    if _Started.session is not None:
        return _session(settings, address)
    name = "a warm server of Spark" if warm_server.is_wanted(settings) else f"Spark, {settings.spark.master}"
    with step("start", f"Spark at {remote.shown(address)}" if address else name):
        return _session(settings, address)


def _session(settings: Settings, address: str) -> SparkSession:
    if warm_server.is_wanted(settings):
        address = warm_server.join(settings, embedded_conf(settings))
    spark = remote.connected(settings, address) if address else embedded(settings)
    for key, value in {**RUNTIME_CONF, MIN_PARTITIONS: _min_partitions(settings, address)}.items():
        spark.conf.set(key, value)
    _silence_pyspark()
    _Started.session = spark
    return spark


def _min_partitions(settings: Settings, address: str) -> str:
    """Return a number that is constant while the session lasts.

    A batch is read twice if some of its records conflict, and the partition number of each record has to be the same.
    """
    master = re.fullmatch(r"local(?:\[(\d+|\*)[^]]*\])?", settings.spark.master)
    count = CLUSTER_PARTITIONS
    if master and not address:
        count = (os.cpu_count() or 1) if master[1] == "*" else int(master[1] or 1)
    return settings.spark.conf.get(MIN_PARTITIONS, str(count))


class _Started:
    session: SparkSession | None = None  # that `start` returned last
    is_short_run = False


def started() -> bool:
    return _Started.session is not None


def expect_short_run() -> None:
    """Declare that this process ends soon: a JVM that it starts compiles without optimizing."""
    _Started.is_short_run = True


@contextmanager
def configured(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        with suppress(Exception):  # of a session that is lost
            for key, previous in before.items():
                spark.conf.unset(key) if previous is None else spark.conf.set(key, previous)


def interrupt() -> None:
    """Cancel this process's work in Spark, which a server would continue."""
    if _Started.session is not None:
        with suppress(Exception):  # a lost session does no work
            _Started.session.interruptAll()


class _SinceCollection:
    size = 0  # bytes handed to the JVM


def hand_over(size: int) -> None:
    """Count bytes of rows handed to the JVM, and free its memory after each COLLECT_BYTES."""
    _SinceCollection.size += size
    if _SinceCollection.size > COLLECT_BYTES:
        free_jvm_objects()


def free_jvm_objects(*, keep: bool = False) -> None:
    """Let the JVM drop rows, plans, broadcasts and shuffles of DataFrames that no longer exist.

    PySpark's handles are in reference cycles, which Python collects only after many new objects. With `keep`, later
    calls skip the current objects, and take 0.02 s instead of 0.2 s.
    """
    _SinceCollection.size = 0
    gc.collect()
    if keep:
        gc.freeze()


def _silence_pyspark() -> None:
    from pyspark.logger import PySparkLogger

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def embedded(settings: Settings, more: Mapping[str, str] = NO_CONF, *, log: str = "driver.log") -> SparkSession:
    """Start a JVM, which ends with this process, and return its session. `more` overrides settings."""
    from pyspark.sql import SparkSession

    os.environ.pop("SPARK_REMOTE", None)  # even if empty, it turns PySpark to Connect
    if is_local(settings):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    file = file_modes.scratch(settings, "spark") / log
    with (
        jvm_stderr_to(file),
        submitted_with(settings, {**embedded_conf(settings), **more}),
        _interrupts_handled_as_before(),
    ):
        try:
            spark: SparkSession = SparkSession.builder.getOrCreate()
        except Exception as error:
            raise Unavailable(
                f"Spark does not start: {first_line(error)}",
                where=str(file),
                fix="run lake doctor to check this machine",
            ) from error
    return spark


def embedded_server(settings: Settings, port: int, *, log: str) -> SparkSession:
    """Return an embedded session that also serves Spark Connect on `port` of loopback, with the environment's token."""
    plugins = ",".join([CONNECT, *filter(None, [settings.spark.conf.get("spark.plugins")])])
    return embedded(settings, {**remote.DETACHED, **remote.binding_conf(port), "spark.plugins": plugins}, log=log)


@contextmanager
def _interrupts_handled_as_before() -> Iterator[None]:
    """Restore this process's own handler of SIGINT, if any: PySpark's ends the command at any point."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not signal.default_int_handler and signal.getsignal(signal.SIGINT) is not handler:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def submitted_with(settings: Settings, conf: Mapping[str, str]) -> Iterator[Path]:
    """Pass settings, with their passwords, to a JVM started in the block by a file that only its owner can read.

    PySpark would put them on its command line, which every user of the machine can list.
    """
    name, before = "PYSPARK_SUBMIT_ARGS", os.environ.get("PYSPARK_SUBMIT_ARGS")
    descriptor, path = tempfile.mkstemp(".properties", dir=file_modes.scratch(settings, "spark"))
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{_property(key)} {_property(value)}\n" for key, value in conf.items())
        os.environ[name] = f"--properties-file {shlex.quote(path)} {before or 'pyspark-shell'}"
        yield Path(path)
    finally:
        Path(path).unlink(missing_ok=True)
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def _property(text: str) -> str:
    return re.sub(r"[\\\s:=#!]", lambda found: _ESCAPED.get(found[0], f"\\{found[0]}"), text)


@contextmanager
def jvm_stderr_to(file: Path) -> Iterator[None]:
    """Let a JVM started in the block inherit `file` as its standard error."""
    ours, log = os.dup(2), os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stderr.flush()
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


# Hadoop starts chmod. If a JVM is killed while two threads start a process, two helpers of the JDK are left: each waits
# for a pipe that the other holds, and keeps the JVM's sockets open, so its clients wait forever.
PROCESS_START: Final = " -Djdk.lang.Process.launchMechanism=VFORK" if sys.platform == "linux" else ""

FAST_COMPILER: Final = " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Options of a JVM that ends soon: without the second compiler, which takes a third of the CPU."""


def local_dirs(settings: Settings) -> list[Path]:
    """Return the folders of spilled data of a session on this machine."""
    declared = settings.spark.conf.get("spark.local.dir", str(settings.path(".lake/spark/local")))
    return [Path(folder) for folder in os.environ.get("SPARK_LOCAL_DIRS", declared).split(",")]


def embedded_conf(settings: Settings) -> dict[str, str]:
    """Return the static settings of an embedded session or of this project's own server."""
    scratch = settings.path(".lake/spark")
    compiled = FAST_COMPILER if _Started.is_short_run and not warm_server.is_wanted(settings) else ""
    derby = class_archive.quoted(f"-Dderby.system.home={scratch}")
    options = f"-XX:+UseParallelGC{PROCESS_START}{class_archive.java_options(settings.path(settings.jars))}{compiled}"
    storage = settings.object_storage
    return {
        "spark.app.name": "headwater",
        "spark.master": settings.spark.master,
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.driver.extraClassPath": class_path(settings),
        "spark.driver.extraJavaOptions": f"{derby} {options}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.debug.maxToStringFields": "1000",
        # Otherwise each call that creates a column asks the JVM four times more, to name the call in errors.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        EXTENSIONS: DELTA,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **(_local_conf(settings, scratch) if is_local(settings) else _cluster_conf(settings)),
        **(storage.spark_conf(settings, local_dirs(settings)[0] if is_local(settings) else None) if storage else {}),
        **settings.spark.conf,
    }


def _local_conf(settings: Settings, scratch: Path) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Otherwise any user of the machine could read blocks from the driver. A local master generates the secret.
        "spark.authenticate": "true",
        # Hadoop's local file system sets file permissions by this and ignores the process's umask.
        "spark.hadoop.fs.permissions.umask-mode": f"{file_modes.umask(settings):03o}",
        "spark.local.dir": ",".join(map(str, local_dirs(settings))),
        # With few partitions there is little to adapt, and adaptive execution costs a quarter of a small job.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
    }


def _cluster_conf(settings: Settings) -> dict[str, str]:
    # Executors get the jars from the driver; Spark adapts the number of partitions to the work.
    return {
        "spark.executorEnv.TZ": "UTC",
        "spark.jars": class_path(settings).replace(os.pathsep, ","),
        "spark.sql.adaptive.enabled": "true",
    }


def class_path(settings: Settings) -> str:
    """Return the jars of Delta and an object storage as a class path. Raises DeclarationError if they are missing."""
    folder = settings.path(settings.jars)
    files = sorted(folder.glob("*.jar"))
    if not files:
        raise DeclarationError(
            "the Delta jars are missing",
            where=str(folder),
            fix=f"{jars.FIX} fetches and verifies them (lake doctor shows what else)",
        )
    kind = settings.object_storage
    return os.pathsep.join([*map(str, files), *(jars.storage_class_path(folder, kind) if kind else ())])


class Gone(Unavailable):
    """Loss of the session."""


def gone(error: BaseException) -> Gone | None:
    """Translate `error` if it means that the session is lost: its server or its JVM has ended."""
    if isinstance(error, Gone):
        return error
    message = f"{type(error).__name__} {error}"
    fix = "try again" if warm_server.is_joined() else remote.START
    if remote.status(error) == "UNAVAILABLE" or any(sign in message for sign in SESSION_LOST):
        return Gone("the Spark Connect server has ended or has dropped this session", fix=fix)
    if any(sign in message for sign in JVM_ENDED) or (isinstance(error, Exception) and has_jvm_ended()):
        return Gone("the JVM of the Spark session has ended", fix="see .lake/spark/driver.log and try again")
    return None


def lost(error: BaseException) -> Unavailable | None:
    """Translate `error` if the session is lost, or an executor with data of a query."""
    if EXECUTOR_LOST in str(error):
        return Unavailable("an executor with rows of this command has ended", fix="try again")
    return gone(error)


def has_jvm_ended() -> bool:
    """Return whether an embedded session's JVM has ended; calls to it then raise various errors."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    return process is not None and process.poll() is not None


def raise_if_gone(error: BaseException) -> None:
    """Raise Unavailable if `error` means a lost session or a full disk, so that no job or file is blamed for it.

    Raises `error` itself if it is Unsupported: Spark may accept what DuckDB rejects.
    """
    if isinstance(error, Unsupported):
        raise error
    if unavailable := lost(error) or full(error):
        raise unavailable from error


_PREFIX: Final = re.compile(r"^(?:[A-Z][\w ]{0,40}? [Ee]rror: )+")
_WORKER: Final = re.compile(r"Python worker(?s:.*)Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)")
_BUG: Final = re.compile(r"[^.:]*\bkernel bug\b[^.]*\.?", re.I)


def first_line(error: BaseException) -> str:
    """Return the message of `error` in one line; of a fault in the JVM or a Python worker, the message of that fault.

    Prefixes and remarks that libraries add are removed.
    """
    if worker_messages := _WORKER.findall(str(error)):
        return str(worker_messages[-1]).strip()
    message, *others = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    if type(error).__name__ == "Py4JJavaError":
        message = next((line.removeprefix(":").strip() for line in others if line.startswith(":")), "") or message
    message = re.sub(r' If necessary set "spark.sql.ansi.enabled".*error\.', "", message)
    return _BUG.sub("", _PREFIX.sub("", message)).strip() or "no message"


def job_failure(error: BaseException) -> str:
    """Return `first_line` without the names of the stage, the task and the executor that failed."""
    return re.sub(r"^.*most recent failure: .*?\(executor [^)]*\): |^Job aborted.*?\): ", "", first_line(error))
