"""Modules of `lake/` that may touch files. No JVM."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import lake
from tests.source.trees import tree

LAKE: Final = Path(lake.__file__).parent
ROOMS: Final = (
    "store/",
    "ingest/",
    "engine/",
    "quality/",
    "publish/",
    "privacy/",
    "read/",
    "ops/",
    "serve/decide/",
)
TOUCHING: Final = {"os", "shutil", "tempfile", "pathlib", "fcntl"}
LOCAL: Final = {
    "store/bucket_log.py": "delta-rs opens a copy of a table's log, which goes at once",
    "store/table_logs.py": "it is the folder's own: the newest commit is looked up by its name",
    "store/storage/__init__.py": "the first storage is a local folder",
    "store/storage/access_check.py": "a folder is checked by a file in it",
    "store/durable.py": "only a disk is written later than its files",
    "store/temporary_files.py": "what Spark cannot read here is uploaded; what crashes left on this machine is removed",
    "store/truncated_commit.py": "only on a disk is a commit cut short",
    "store/process.py": "the process of a command is one of this machine",
    "store/locks/__init__.py": "a holder is a process of this machine, and a lease a lock",
    "store/locks/lease.py": "so it is in a bucket too",
    "store/locks/activity.py": "so is being on the list of processes at work",
    "store/ledger/reads.py": "reads are noted on this machine's disk before they are booked",
    "store/keys/__init__.py": "a key store is a SQLite file beside the warehouse, unless it is in a database",
    "store/storage/objects.py": "an object has what a path has, and names have a beginning in common",
    "ingest/files.py": "landing files, and how they are archived",
    "ingest/landing.py": "where they are, and were",
    "ingest/record_frames.py": "Spark's tasks open landing files of this machine, and copies of objects",
    "ingest/delivery.py": "a landing file is read where it is",
    "ingest/append.py": "standard input is staged",
    "ingest/replay.py": "repairs are read from a file that is named",
    "ingest/crashed_readers.py": "the note of files being read lies beside the locks",
    "quality/suite.py": "expectations are files of the project",
    "quality/expectation_types.py": "their types are files of a library",
    "quality/gx.py": "its environment is set before it is imported",
    "engine/at_cut.py": "tables of an old cut go to a folder that is named, or to one that goes after the query",
    "privacy/audit.py": "the files outside the warehouse are named by the settings",
    "privacy/forget.py": "what Spark has written to its own log is cut off",
    "publish/verify_source.py": "the rows of a source are kept beside the warehouse while they are compared",
    "read/export.py": "results, and whole editions, go to a file that is named",
    "read/shell.py": "so do those of its shell, whose screen has a size",
    "read/open.py": "a project is named by its folder",
    "read/public_files.py": "copies without state columns lie beside the warehouse",
    "read/locked_database.py": "a large query spills to this machine's disk",
    "ops/backup.py": "a backup is a folder of this machine",
    "ops/doctor.py": "this machine is what is examined",
    "ops/idle.py": "what a run without news depends on are files of this machine",
    "ops/scaffold.py": "so is a new project",
}
"""Modules that touch files, and why. Files of a warehouse are touched by the first three and the locks alone."""
NAMING: Final = {"config.py", "session/file_modes.py", "ops/doctor.py", "testing/commands.py"} | {
    f"store/{name}" for name in ("temporary_files.py", "locks/lease.py", "locks/activity.py")
}
"""Modules that name the local folder of the warehouse. All others have its addresses."""
LOCALLY: Final = {
    "ops/backup.py",
    "store/durable.py",
    "store/truncated_commit.py",
    "read/public_files.py",
}
"""Modules that use an address as a local path."""


def modules() -> dict[str, ast.Module]:
    return {str(file.relative_to(LAKE)): tree(file) for file in LAKE.rglob("*.py")}


def touches(tree: ast.Module) -> bool:
    """Return whether a module could touch a file without an address."""
    for node in ast.walk(tree):
        match node:
            case ast.Import() if TOUCHING & {name.name for name in node.names}:
                return True
            case ast.ImportFrom() if node.module in TOUCHING:
                return True
            case ast.Call(func=ast.Name("open")):
                return True
    return False


def test_files_are_touched_only_by_listed_modules() -> None:
    rooms = {name: tree for name, tree in modules().items() if name.startswith(ROOMS)}
    assert {name for name, tree in rooms.items() if touches(tree)} == LOCAL.keys()


def test_local_warehouse_path_is_used_only_by_listed_modules() -> None:
    attributes = {
        name: {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for name, tree in modules().items()
    }
    naming = {name for name, accessed in attributes.items() if "warehouse_path" in accessed}
    assert naming == NAMING
    assert {name for name, accessed in attributes.items() if "local" in accessed} == LOCALLY
