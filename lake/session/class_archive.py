"""Archive of classes (JEP 350), which a JVM maps into memory instead of loading them from jars.

A JVM of another version or with other jars starts without it. A truncated archive would crash the JVM, so its size is
recorded in a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from lake.session import jars

ARCHIVE: Final = "classes.jsa"
RECORD: Final = "classes.json"
LAKE: Final = (sys.executable, "-P", "-c", "from lake.cli import main; main()")


def java_options(folder: Path) -> str:
    """Return the options of a JVM with the jars in `folder`; "" if there is no complete archive."""
    archive = folder / ARCHIVE
    with suppress(OSError):
        if archive.stat().st_size == _record(folder).get("bytes"):
            return f" {quoted(f'-XX:SharedArchiveFile={archive}')} -Xlog:cds=off -Xlog:cds+dynamic=off"
    return ""


def quoted(option: str) -> str:
    """Quote an option of a JVM for Spark's settings, which Spark splits at blanks."""
    escaped = option.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def make(folder: Path, on_progress: Callable[[str], None]) -> bool:
    """Archive the classes that `lake run` of a new project loads. Return whether there is an archive.

    An archive of these jars and this Java is kept. A failure is only reported: Spark starts without an archive.
    """
    fault = "lake run of a new project wrote none; see lake doctor"
    try:
        source_digest = _source_digest(folder)
        if java_options(folder) and _record(folder).get("made_of") == source_digest:
            return True
        on_progress("archiving the classes of the JVM ...")
        _archive(folder, source_digest)
    except OSError as error:
        fault = error.strerror or str(error)
    except PackageNotFoundError as error:
        fault = f"{error.name} is not installed"
    exists = bool(java_options(folder))
    if not exists:
        on_progress(f"no archive of classes: {fault}")
    return exists


def _archive(folder: Path, source_digest: str) -> None:
    (folder / RECORD).unlink(missing_ok=True)  # a JVM that uses an archive writes none
    with tempfile.TemporaryDirectory(dir=folder, prefix=".archiving-", ignore_cleanup_errors=True) as scratch:
        archive, project = Path(scratch) / ARCHIVE, Path(scratch) / "project"
        options = {"spark.driver.defaultJavaOptions": quoted(f"-XX:ArchiveClassesAtExit={archive}")}
        ours = {
            name: value for name, value in os.environ.items() if not name.startswith(("LAKE_", "SPARK_", "PYSPARK_"))
        }
        spark_only = {"LAKE_IN_PROCESS_ROWS": "0", "LAKE_SPARK__CONF": json.dumps(options)}
        environment = ours | {"LAKE_JARS": str(folder)} | spark_only
        for command in (["init", str(project)], ["run", "--project", str(project)]):
            # The JVM holds the pipe until it has written the archive, after the command has ended.
            subprocess.run(
                [*LAKE, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
        if archive.is_file():
            record = Path(scratch) / RECORD
            record.write_text(json.dumps({"bytes": archive.stat().st_size, "made_of": source_digest}), "utf-8")
            archive.chmod(0o644)
            for file in (archive, record):
                file.replace(folder / file.name)


def _record(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        record = json.loads((folder / RECORD).read_text("utf-8"))
        return record if isinstance(record, dict) else {}
    return {}


def _source_digest(folder: Path) -> str:
    java = Path(jars.java()).resolve()
    files = (folder / jars.LIST.name, java.parent.parent / "release")
    parts = [version("pyspark").encode(), str(java).encode(), *(file.read_bytes() for file in files if file.is_file())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
