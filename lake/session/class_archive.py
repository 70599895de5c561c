"""Archive of the JVM's classes, which it maps into memory instead of loading them from jars: JEP 350.

A JVM whose version or jars are not those of the archive starts without it. A truncated archive would crash the JVM, so
the size is recorded beside it.
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
    """Return the options of a JVM with the jars in `folder`, "" if there is no whole archive."""
    archive = folder / ARCHIVE
    with suppress(OSError):
        if archive.stat().st_size == _record(folder).get("bytes"):
            return f" {quoted(f'-XX:SharedArchiveFile={archive}')} -Xlog:cds=off -Xlog:cds+dynamic=off"
    return ""


def quoted(option: str) -> str:
    """Quote an option of a JVM for Spark's settings, which Spark divides at blanks."""
    escaped = option.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def make(folder: Path, on_progress: Callable[[str], None]) -> bool:
    """Archive the classes that `lake run` of a new project loads; return whether there is an archive.

    Nothing is done if the archive is of these jars and this Java. A failure is only reported: Spark starts without one.
    """
    fault = "lake run of a new project wrote none; lake doctor may tell why"
    try:
        made_of = _digest(folder)
        if java_options(folder) and _record(folder).get("made_of") == made_of:
            return True
        on_progress("archiving the classes of the JVM ...")
        _archive(folder, made_of)
    except OSError as error:
        fault = error.strerror or str(error)
    except PackageNotFoundError as error:
        fault = f"{error.name} is not installed"
    is_made = bool(java_options(folder))
    if not is_made:
        on_progress(f"no archive of classes: {fault}")
    return is_made


def _archive(folder: Path, made_of: str) -> None:
    (folder / RECORD).unlink(missing_ok=True)  # a JVM that uses an archive makes none
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
            record.write_text(json.dumps({"bytes": archive.stat().st_size, "made_of": made_of}), "utf-8")
            archive.chmod(0o644)
            for file in (archive, record):
                file.replace(folder / file.name)


def _record(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        record = json.loads((folder / RECORD).read_text("utf-8"))
        return record if isinstance(record, dict) else {}
    return {}


def _digest(folder: Path) -> str:
    java = Path(jars.java()).resolve()
    files = (folder / jars.LIST.name, java.parent.parent / "release")
    parts = [version("pyspark").encode(), str(java).encode(), *(file.read_bytes() for file in files if file.is_file())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
