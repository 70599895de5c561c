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
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from lake.session import jars

ARCHIVE: Final = "classes.jsa"
RECORD: Final = "classes.json"
LAKE: Final = (sys.executable, "-c", "from lake.cli import main; main()")


def java_options(folder: Path) -> str:
    """Return the options of a JVM with the jars in `folder`; none if there is no whole archive."""
    archive = folder / ARCHIVE
    with suppress(OSError):
        if archive.stat().st_size == _record(folder).get("bytes"):
            return f' "-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    return ""


def make(folder: Path, on_progress: Callable[[str], None]) -> bool:
    """Archive the classes that a run of the project of `lake init` loads; return whether there is an archive.

    Nothing is done if the archive is of these jars and this Java.
    """
    made_of = _digest(folder)
    if java_options(folder) and _record(folder)["made_of"] == made_of:
        return True
    on_progress("archiving the classes of the JVM ...")
    (folder / RECORD).unlink(missing_ok=True)  # a JVM that uses an archive makes none
    with tempfile.TemporaryDirectory(dir=folder, prefix=".archiving-") as scratch:
        archive, project = Path(scratch) / ARCHIVE, Path(scratch) / "project"
        options = {"spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}
        ours = {
            name: value for name, value in os.environ.items() if not name.startswith(("LAKE_", "SPARK_", "PYSPARK_"))
        }
        environment = ours | {"LAKE_JARS": str(folder), "LAKE_SPARK__CONF": json.dumps(options)}
        for command in (["init", str(project)], ["run", "--project", str(project)]):
            # The JVM holds the pipe until it has written the archive, after the command has ended.
            subprocess.run(
                [*LAKE, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
        if not archive.is_file():
            return False
        record = Path(scratch) / RECORD
        record.write_text(json.dumps({"bytes": archive.stat().st_size, "made_of": made_of}), "utf-8")
        archive.chmod(0o644)
        for file in (archive, record):
            file.replace(folder / file.name)
    return True


def _record(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        record = json.loads((folder / RECORD).read_text("utf-8"))
        return record if isinstance(record, dict) else {}
    return {}


def _digest(folder: Path) -> str:
    """Return a digest of the list of jars, of Spark's version and of Java's."""
    java = Path(jars.java()).resolve()
    release = java.parents[1] / "release"
    parts = [(folder / jars.LIST.name).read_bytes(), version("pyspark").encode(), str(java).encode()]
    parts += [release.read_bytes()] if release.is_file() else []
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
