"""`lake doctor`: checks of this machine and the project's settings, each with a fix."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lake.config import Settings, load_settings
from lake.errors import LakeError
from lake.lazy import SparkSession
from lake.session import class_archive, jars
from lake.session.file_modes import free, nearest
from lake.session.remote import is_local, server, shown
from lake.session.spark_session import DELTA, EXTENSIONS, first_line, start
from lake.session.warm_server import describe_servers, is_wanted
from lake.store import archive_tier
from lake.store.damage import damage, skip_unreadable
from lake.store.keys import has_store, open_store
from lake.store.log import Log
from lake.store.storage import Use, address_of
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PYTHON: Final = (3, 11)
JAVA: Final = 17
FREE_BYTES: Final = 2 << 30
# Network file systems: their locks and renames are unreliable.
REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs"}
)

PACKAGES: Final = ("duckdb", "pyarrow", "pandas", "msgspec", "avro")
CAUSE: Final = re.compile(r"^(?!\s*at ).*((Error|Exception)\b.*:|\[[A-Z_]+\]|error=\d+)")
"""A line with the cause of an error, among the lines of Spark's stack traces."""


@dataclass(frozen=True)
class Diagnosis:
    subject: str
    found: str
    fix: str = ""

    @property
    def ok(self) -> bool:
        return not self.fix


def examine(project: Path | None) -> list[Diagnosis]:
    findings = [_python(), java(), *_packages()]
    try:
        settings = load_settings(project)
    except LakeError as fault:
        found = Diagnosis("project", fault.what, fault.fix or fault.where)
        return [*findings, _jars(Settings.jars), _loopback(), found]
    return [
        *findings,
        _jars(settings.path(settings.jars)),
        _loopback(),
        Diagnosis("project", str(settings.project)),
        *_storage_jars(settings),
        _access("warehouse", settings, settings.warehouse, "commit"),
        _check_file_system(settings.warehouse_path),
        _space(settings.warehouse_path),
        *_cold(settings),
        _keys(settings),
        *_logs(settings),
        *_landing(settings),
        *_spark(settings),
    ]


def _python() -> Diagnosis:
    python = f"{sys.version.split()[0]} ({sys.executable})"
    return Diagnosis("python", python, "" if sys.version_info >= PYTHON else "install Python 3.11 or newer")


def java() -> Diagnosis:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(jars.java())
    fix = "install Java 17 or newer (apt install openjdk-17-jre-headless, brew install openjdk@17)"
    if java is None:
        runtime = f"no bin/java in JAVA_HOME={home}" if home else "no java on PATH"
        return Diagnosis("java", runtime, f"{fix}, or unset JAVA_HOME" if home else fix)
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError as error:
        output = str(error)
    number = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', output)
    if number is None:
        return Diagnosis("java", f"{java} does not print its version: {output.strip()[:80]!r}", fix)
    runtime = f"{number[1]} ({java}{', from JAVA_HOME' if home else ''})"
    return Diagnosis("java", runtime, "" if int(number[2]) >= JAVA else fix)


def _packages() -> Iterator[Diagnosis]:
    for requirement in requires("headwater") or ():
        if pin := re.fullmatch(r"([\w.-]+)(?:\[.*\])?==([\w.]+)", requirement):
            name, pinned = pin.groups()
            try:
                installed = version(name)
            except PackageNotFoundError:
                installed = "not installed"
            fix = "" if installed == pinned else f"install {name}=={pinned}: headwater was tested with it"
            yield Diagnosis(name, installed, fix)


def _jars(folder: Path) -> Diagnosis:
    fix = f"{jars.FIX} fetches and verifies them, or set `jars` to the folder that has them"
    if not any(folder.glob("*.jar")):
        return Diagnosis("jars", f"none in {folder}", fix)
    wanted = jars.listed()
    if faults := jars.faults(folder, wanted):
        return Diagnosis("jars", ", ".join(faults), fix)
    archived = ", with an archive of classes" if class_archive.java_options(folder) else ""
    return Diagnosis("jars", f"{len(wanted)} verified in {folder}{archived}")


def _loopback() -> Diagnosis:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return Diagnosis("loopback", f"ports available on 127.0.0.1, such as {server.getsockname()[1]}")
    except OSError as error:
        return Diagnosis("loopback", f"no port on 127.0.0.1: {error.strerror}", "bring the loopback interface up")


def _storage_jars(settings: Settings) -> Iterator[Diagnosis]:
    if kind := settings.object_storage:
        wrong = jars.storage_faults(settings.path(settings.jars), kind, verify=True)
        found = wrong[0] if wrong else f"{len(jars.listed(kind.jars))} verified"
        yield Diagnosis(f"jars for {kind.scheme}", found, f"{jars.FIX} --{kind.scheme}" * bool(wrong))


def _access(setting: str, settings: Settings, where: Path | str, use: Use) -> Diagnosis:
    try:
        folder = address_of(settings, where)
        return Diagnosis(setting, folder.storage.check(folder.url, setting, use))
    except LakeError as fault:
        return Diagnosis(setting, f"{fault.what} ({fault.where})" if fault.where else fault.what, fault.fix)


def _cold(settings: Settings) -> Iterator[Diagnosis]:
    # Copies of a warehouse may share a bucket, so writers race there. A folder needs no locks, even on another machine:
    # archiving holds a lease of the warehouse.
    if settings.cold is not None:
        yield (cold := _access("cold", settings, settings.cold, "commit"))
        if cold.ok and (folder := address_of(settings, settings.cold).on_disk):
            yield _space(folder, "cold disk")


def _keys(settings: Settings) -> Diagnosis:
    try:
        for log in _sealed_logs(settings):
            log.key_store()
        if not has_store(settings):
            return Diagnosis("keys", f"none yet, the first event with personal fields makes {settings.keys_name}")
        open_store(settings)
    except LakeError as fault:
        return Diagnosis("keys", f"{fault.what} ({fault.where})", fault.fix)
    return Diagnosis("keys", f"{settings.keys_name} can be read")


def _sealed_logs(settings: Settings) -> Iterator[Log]:
    for location in Warehouse(settings).folders("log"):
        log = Log(settings, location.name)
        is_sealed = False
        with skip_unreadable():  # a damaged log has a line of its own
            is_sealed = bool(log.head().keys)
        if is_sealed:
            yield log


def _logs(settings: Settings) -> Iterator[Diagnosis]:
    parts = 0
    try:
        for location in Warehouse(settings).folders("log"):
            if damaged := damage(location.path, quickly=True):
                yield Diagnosis(str(location), f"{damaged.found} ({damaged.file})", damaged.fault.fix)
            else:
                parts += len(archive_tier.parts_of(location.path))
    except LakeError as fault:
        yield Diagnosis("logs", f"{fault.what} ({fault.where})", fault.fix)
        return
    if parts:
        yield Diagnosis("archived batches", f"{parts} tables of them are there")


def _check_file_system(folder: Path) -> Diagnosis:
    kind = _file_system(nearest(folder))
    fix = "put the warehouse on a local disk: file locks are not reliable on this file system" if kind in REMOTE else ""
    return Diagnosis("file system", kind, fix)


def _file_system(folder: Path) -> str:
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    except OSError:
        return "unknown"
    holding = [(len(at), kind) for _, at, kind, *_ in mounts if folder.is_relative_to(at.replace("\\040", " "))]
    return max(holding, default=(0, "unknown"))[1]


def _space(folder: Path, subject: str = "disk") -> Diagnosis:
    left = free(folder)
    fix = "" if left >= FREE_BYTES else f"free some space: at least {FREE_BYTES >> 30} GB"
    return Diagnosis(subject, f"{left / (1 << 30):.1f} GB free", fix)


def _landing(settings: Settings) -> Iterator[Diagnosis]:
    yield _access("landing", settings, settings.landing, "read" if settings.archive is None else "move")
    if settings.archive is not None:
        yield _access("archive", settings, settings.archive, "write")


def _spark(settings: Settings) -> Iterator[Diagnosis]:
    address = server(settings)
    if settings.spark.keep_warm:
        unused = "none runs" if is_wanted(settings) else "not used: in a container, on a cluster or beside spark.remote"
        yield Diagnosis("warm server", "; ".join(describe_servers(settings)) or unused)
    if not address and is_local(settings):
        return
    subject, where = ("spark connect", shown(address)) if address else ("cluster", settings.spark.master)
    try:
        spark = start(settings)
        theirs, ours = spark.version, version("pyspark")
        fix = "" if theirs == ours else f"use a server of Spark {ours}, such as `lake serve connect` runs"
        yield Diagnosis(subject, f"Spark {theirs} at {where}", fix)
        yield _executors(spark)
        yield _extension(spark)
    except LakeError as fault:
        yield Diagnosis(subject, f"{fault.what} ({where})", fault.fix)


def _executors(spark: SparkSession) -> Diagnosis:
    def versions(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:  # pickled by value: no executor has lake
        import platform
        from importlib import import_module

        import pyarrow

        for _ in batches:
            found = ", ".join(f"{name} {import_module(name).__version__}" for name in PACKAGES)
            yield pyarrow.RecordBatch.from_pydict({"found": [f"Python {platform.python_version()}, {found}"]})

    try:
        found = spark.range(1).mapInArrow(versions, "found string").head()
    except Exception as error:
        reason = next((line for line in reversed(str(error).splitlines()) if CAUSE.search(line)), first_line(error))
        minor = ".".join(map(str, sys.version_info[:2]))
        packages = ", ".join(PACKAGES)
        fix = f'"spark.pyspark.python" has to be a Python {minor} on every executor, with {packages}'
        return Diagnosis("executors", reason.strip(), fix)
    assert found is not None
    return Diagnosis("executors", found["found"])


def _extension(spark: SparkSession) -> Diagnosis:
    fix = "start the server by `lake serve connect`, or with the settings that docs/how-to/cluster.md names"
    has_delta = DELTA in (spark.conf.get(EXTENSIONS, "") or "").split(",")
    return Diagnosis("delta", f"{'is' if has_delta else 'is not'} among Spark's extensions", "" if has_delta else fix)
