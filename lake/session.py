"""One Spark session for the process: embedded by default, Spark Connect where a server is named."""

from __future__ import annotations

import gc
import logging
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lake import cost, file_modes, jars, remote, s3
from lake.config import Settings
from lake.errors import DeclarationError, Unavailable, full
from lake.progress import step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Set for every session, Connect too: they decide results or cost, so no server default may.
RUNTIME_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",  # ${env:…} in a name or a text would be this machine's environment
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
    # Landing files are named one by one: from 33 on, Spark looks at each in a task of its own, here in one go.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.localRelationThreshold": "2MB",  # rows as objects take ten times the heap
    "spark.sql.codegen.hugeMethodLimit": "8000",  # bytes: HotSpot compiles no longer method, such a stage runs in parts
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # what is kept is read twice: packing it costs more
    "parquet.block.size": str(cost.ROW_GROUP),
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}

MIN_PARTITIONS: Final = "spark.sql.files.minPartitionNum"
PARTS: Final = 32
"""Into so many parts a cluster divides files at least. Left to it, that is by the cores that are there just now."""

# What a call says whose server has forgotten the session, what one whose embedded JVM has ended, and what a query says
# of rows that were on the disk of an executor that is no more.
FORGOTTEN: Final = ("SESSION_NOT_FOUND", "SESSION_CHANGED", "SESSION_CLOSED")
ENDED: Final = ("Py4JNetworkError", "ConnectionRefusedError")
LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

HANDED: Final = 32 << 20
"""Bytes handed to the JVM between two looks for what Python needs no more."""

_ESCAPED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
EXTENSIONS: Final = "spark.sql.extensions"
DELTA: Final = "io.delta.sql.DeltaSparkSessionExtension"


def start(settings: Settings) -> SparkSession:
    """The process's session, started on first use and reused afterwards.

    The output of an embedded JVM goes to .lake/spark/driver.log. Raises DeclarationError where the jars are missing
    or a server refuses the token, and Unavailable where the session does not start; see `lake doctor`.
    """
    if is_local(settings):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    else:  # of the executors
        os.environ.setdefault("PYSPARK_PYTHON", settings.spark.conf.get("spark.pyspark.python", "python3"))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    address = remote.server(settings)
    if _Started.session is not None:
        return _session(settings, address)
    with step("start", f"Spark at {remote.shown(address)}" if address else f"Spark, {settings.spark.master}"):
        return _session(settings, address)


def _session(settings: Settings, address: str | None) -> SparkSession:
    spark = remote.connected(settings, address) if address else _embedded(settings)
    for key, value in {**RUNTIME_CONF, MIN_PARTITIONS: _parts(settings, address)}.items():
        spark.conf.set(key, value)
    _hush()
    _Started.session = spark
    return spark


def _parts(settings: Settings, address: str | None) -> str:
    """Into how many parts files are divided at least, the same while the session lasts.

    A batch is read twice where some of its records conflict, and by which part it is in a record is known again.
    """
    master = re.fullmatch(r"local(?:\[(\d+|\*)[^]]*\])?", settings.spark.master)
    cores = (str(os.cpu_count()) if master[1] == "*" else master[1] or "1") if master and address is None else PARTS
    return settings.spark.conf.get(MIN_PARTITIONS, str(cores))


class _Started:
    """The session that `start` gave last; `brief` where it is expected to end soon."""

    session: SparkSession | None = None
    brief = False


def started() -> bool:
    """Whether this process has its session."""
    return _Started.session is not None


def expect_little() -> None:
    """Says that the work of this process is short: a JVM that it starts compiles soon rather than well."""
    _Started.brief = True


def interrupt() -> None:
    """Has Spark end what it is at work on for this process; a server goes on with it else."""
    if _Started.session is not None:
        with suppress(Exception):  # a session that is lost does nothing for us
            _Started.session.interruptAll()


class _Handed:
    """Bytes handed to the JVM since `let_go`."""

    size = 0


def hand_over(size: int) -> None:
    """Counts bytes of rows that are about to be handed to the JVM, and makes room for them now and then."""
    _Handed.size += size
    if _Handed.size > HANDED:
        let_go()


def let_go(*, keep: bool = False) -> None:
    """Has the JVM drop what it holds for DataFrames that are no more: rows, plans, what was broadcast, shuffles.

    PySpark's handles of them are in cycles of references, which Python looks for by how many objects there are, of
    which these are few, however much they hold. With `keep`, what there is now is passed over by later calls: these
    take a tenth of 0.2 s then.
    """
    _Handed.size = 0
    gc.collect()
    if keep:
        gc.freeze()


def _hush() -> None:
    """Keeps PySpark from printing its errors itself."""
    from pyspark.logger import PySparkLogger

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _embedded(settings: Settings) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.pop("SPARK_REMOTE", None)  # empty, it would still turn PySpark to Connect
    if is_local(settings):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log = file_modes.scratch(settings, "spark") / "driver.log"
    with _jvm_talks_to(log), _submitted_with(settings):
        try:
            spark: SparkSession = SparkSession.builder.getOrCreate()
        except Exception as error:
            raise Unavailable(
                f"Spark does not start: {first_line(error)}",
                where=str(log),
                fix="run lake doctor to check this machine",
            ) from error
    return spark


@contextmanager
def _submitted_with(settings: Settings) -> Iterator[None]:
    """A JVM started meanwhile has the settings from a file: what PySpark is told goes to its command line."""
    name, before = "PYSPARK_SUBMIT_ARGS", os.environ.get("PYSPARK_SUBMIT_ARGS")
    with properties(settings, embedded_conf(settings)) as file:
        os.environ[name] = f"--properties-file {shlex.quote(str(file))} {before or 'pyspark-shell'}"
        try:
            yield
        finally:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before


@contextmanager
def properties(settings: Settings, conf: Mapping[str, str]) -> Iterator[Path]:
    """`conf` as a file for `spark-submit --properties-file` that only its owner can read; gone when the block is left.

    A command line, which every user of the machine can list, is no place for what may be a password.
    """
    descriptor, name = tempfile.mkstemp(".properties", dir=file_modes.scratch(settings, "spark"))
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{_property(key)} {_property(value)}\n" for key, value in conf.items())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _property(text: str) -> str:
    """A key or a value as Java reads it from a file of properties."""
    return re.sub(r"[\\\s:=#!]", lambda found: _ESCAPED.get(found[0], f"\\{found[0]}"), text)


@contextmanager
def _jvm_talks_to(file: Path) -> Iterator[None]:
    """A JVM started meanwhile inherits `file` as its standard error, for as long as it lives."""
    ours = os.dup(2)
    sys.stderr.flush()
    with open(file, "ab", opener=_for_its_owner) as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# Hadoop calls chmod. A JVM that is killed while two of its threads start one leaves two helpers of the JDK, each of
# which waits for a pipe that the other holds open, and its sockets with it: whoever talks to the JVM waits for ever.
STARTING: Final = " -Djdk.lang.Process.launchMechanism=VFORK" if sys.platform == "linux" else ""


COMPILED_SOON: Final = " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Of a JVM that ends soon: its second compiler takes a third of the CPU, for code that has ended before that repays."""
S3_SCRATCH: Final = ("spark.hadoop.hadoop.tmp.dir", "spark.hadoop.fs.s3a.buffer.dir")
"""Where S3A keeps what it is about to put; on a cluster each machine has a place of its own."""


def is_local(settings: Settings) -> bool:
    """Whether an embedded session runs in its own JVM alone."""
    return f"{settings.spark.master}[".startswith("local[")


def shares_disk(settings: Settings) -> bool:
    """Whether Spark reads and writes the files of this machine."""
    return is_here(settings) if settings.spark.shares_disk is None else settings.spark.shares_disk


def is_here(settings: Settings) -> bool:
    """Whether all of Spark runs on this machine."""
    address = remote.server(settings)
    return remote.is_here(address) if address else is_local(settings)


def local_dir(settings: Settings) -> Path:
    """The folder into which a session of this machine puts what it does not hold in memory."""
    return Path(settings.spark.conf.get("spark.local.dir", settings.path(".lake/spark/local")))


def embedded_conf(settings: Settings) -> dict[str, str]:
    """The static settings of an embedded session or of a server of this project's own."""
    scratch = settings.path(".lake/spark")
    compiled = COMPILED_SOON if _Started.brief else ""
    return {
        "spark.app.name": "headwater",
        "spark.master": settings.spark.master,
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.driver.extraClassPath": class_path(settings),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch} -XX:+UseParallelGC{STARTING}{compiled}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.debug.maxToStringFields": "1000",
        # Else each call that makes a column asks the JVM four times more, to name that call in errors.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        EXTENSIONS: DELTA,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **(_of_this_machine(settings, scratch) if is_local(settings) else _of_a_cluster(settings)),
        **s3.spark_conf(settings),
        **settings.spark.conf,
    }


def _of_this_machine(settings: Settings, scratch: Path) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Else any user of the machine could ask the driver's ports for blocks. A local master makes the secret itself.
        "spark.authenticate": "true",
        # Hadoop's local file system sets what a file allows by this, whatever the process's umask.
        "spark.hadoop.fs.permissions.umask-mode": f"{file_modes.umask(settings):03o}",
        "spark.local.dir": str(local_dir(settings)),
        **(dict.fromkeys(S3_SCRATCH, str(local_dir(settings))) if settings.stores else {}),
        # With few partitions there is little to adapt, and looking for it costs a quarter of a small job.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
    }


def _of_a_cluster(settings: Settings) -> dict[str, str]:
    """Executors get the jars from the driver; how many partitions there are, Spark adapts to what there is to do."""
    return {"spark.jars": class_path(settings).replace(os.pathsep, ","), "spark.sql.adaptive.enabled": "true"}


def class_path(settings: Settings) -> str:
    """The Delta jars as a class path, in the order of their names, and what an object store needs."""
    folder = settings.path(settings.jars)
    files = sorted(folder.glob("*.jar"))
    if not files:
        raise DeclarationError(
            "the Delta jars are missing",
            where=str(folder),
            fix=f"{jars.FIX} fetches and verifies them (lake doctor shows what else)",
        )
    return os.pathsep.join([*map(str, files), *(s3.class_path(folder) if settings.stores else ())])


class Gone(Unavailable):
    """The session is lost."""


def gone(error: BaseException) -> Gone | None:
    """The Gone to raise where `error` means that the session is lost: its server or its JVM has ended."""
    if isinstance(error, Gone):
        return error
    message = f"{type(error).__name__} {error}"
    if remote.status(error) == "UNAVAILABLE" or any(sign in message for sign in FORGOTTEN):
        return Gone("the Spark Connect server has ended or has dropped this session", fix=remote.START)
    if any(sign in message for sign in ENDED) or (isinstance(error, Exception) and _jvm_has_ended()):
        return Gone("the JVM of the Spark session has ended", fix="see .lake/spark/driver.log and try again")
    return None


def lost(error: BaseException) -> Unavailable | None:
    """What `gone` says; or what to raise where an executor has ended, and with it what a query was to read."""
    if LOST in str(error):
        return Unavailable("an executor has ended that held rows of this command", fix="try again")
    return gone(error)


def _jvm_has_ended() -> bool:
    """Whether an embedded session's JVM is no more: what a call of it says then has many names."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    return process is not None and process.poll() is not None


def raise_if_gone(error: BaseException) -> None:
    """Raises Unavailable where `error` means a lost session or a full disk, so that no job or file is blamed for it."""
    if missing := lost(error) or full(error):
        raise missing from error


_PREFIX: Final = re.compile(r"^(?:[A-Z][\w ]{0,40}? [Ee]rror: )+")
_BUG: Final = re.compile(r"[^.:]*\bkernel bug\b[^.]*\.?", re.I)


def first_line(error: BaseException) -> str:
    """What `error` says, in one line: of a fault in the JVM what the JVM says, not that a call of it failed.

    Without what a library says of itself.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line.removeprefix(":").strip() for line in lines[1:] if line.startswith(":")), "")
    message = cause if type(error).__name__ == "Py4JJavaError" else ""
    message = re.sub(
        r' If necessary set "spark.sql.ansi.enabled".*error\.', "", message or (lines[0] if lines else "no message")
    )
    return _BUG.sub("", _PREFIX.sub("", message)).strip() or "no message"


def job_failure(error: BaseException) -> str:
    """Return what `first_line` does, without the names of the stage, the task and the executor that failed."""
    return re.sub(r"^.*most recent failure: .*?\(executor [^)]*\): |^Job aborted.*?\): ", "", first_line(error))
