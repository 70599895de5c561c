"""Truncated commit: the machine stopped while its JSON was written, so the file has only the beginning.

It does not count. Readers use the version before it. The next writer, once it holds the lease, moves the file to a
hidden name, and its own commit takes the number. If the table's past was ended at the truncated commit, an empty one
takes its place. `lake maintain` deletes data files that only it named.

A signpost, by which 0.2.0 kept readers by path from a retired table, does not count either: the next writer deletes it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lake.store.storage import Address
from lake.store.table_log import commit_file, metadata_of

SIGNPOST: Final = "headwater: "
"""Prefix of the unknown table feature that a signpost requires."""
COMMIT: Final = re.compile(r"\d{20}\.json")
RESTORED: Final = "numRestoredFile"
ADDED: Final = ("num_added_files", "num_target_files_added", "numFilesAdded", RESTORED)
REMOVED: Final = ("num_removed_files", "num_target_files_removed", "numFilesRemoved", "numRemovedFile")
"""Names in delta-rs of the numbers of files of WRITE, UPDATE and DELETE, of MERGE, of OPTIMIZE, of RESTORE."""


def truncated_version(path: Address) -> int | None:
    """Return the version of the newest commit if that is truncated or a signpost, else None."""
    if path.storage.is_durable:
        return None
    try:
        names = os.listdir((path / "_delta_log").url)
    except FileNotFoundError:
        return None
    newest = max((name for name in names if COMMIT.fullmatch(name)), default=None)
    version = None if newest is None else int(newest[:20])
    return None if version is None or is_complete(commit_file(path, version)) else version


def set_aside(path: Address, version: int, *, empty: bool) -> None:
    if signpost(commit_file(path, version)) is not None:
        return commit_file(path, version).delete()
    truncated = commit_file(path, version).local
    aside = truncated.with_name(f".{truncated.name}.torn")
    checksums = [f"{version:020}.crc", f".{version:020}.crc.crc", f".{truncated.name}.crc"]
    for file in map(truncated.with_name, checksums):
        file.unlink(missing_ok=True)
    if empty:
        shutil.copy2(truncated, aside)
        at = int(truncated.stat().st_mtime * 1000)
        temporary = truncated.with_name(f".{truncated.name}.tmp")
        temporary.write_text(json.dumps({"commitInfo": {"timestamp": at, "operation": "EMPTY"}}))
        temporary.replace(truncated)
    else:
        for file in [truncated.with_name("_last_checkpoint"), *checkpoints(path, version)]:
            file.unlink(missing_ok=True)
        truncated.replace(aside)
    logging.getLogger("lake").warning("version %s of %s was cut short and does not count: %s", version, path, aside)


def signpost(commit: Address) -> str | None:
    with suppress(ValueError, AttributeError):
        for line in commit.read().splitlines():
            features = json.loads(line).get("protocol", {}).get("readerFeatures") or ()
            for feature in features:
                if feature.startswith(SIGNPOST):
                    return str(feature.removeprefix(SIGNPOST))
    return None


def checkpoints(path: Address, version: int) -> list[Path]:
    return list((path / "_delta_log").local.glob(f"{version:020}.checkpoint*"))


def is_complete(commit: Address) -> bool:
    """Return whether a commit has all lines, its transaction and the files that it counts itself.

    Spark's checksum beside it, if any, has to match. A signpost is not a complete commit.
    """
    content = commit.read()
    try:
        actions = [next(iter(json.loads(line).items())) for line in content.splitlines()]
    except (ValueError, AttributeError, StopIteration):
        return False
    kinds = Counter(kind for kind, _ in actions)
    info: dict[str, Any] = next((action for kind, action in actions if kind == "commitInfo"), {})
    added, removed = (_counted(info, names) for names in (ADDED, REMOVED))
    if kinds["protocol"] and signpost(commit) is not None:
        return False
    # For a DELETE or a MERGE, delta-rs also counts files of the change feed.
    has_files = kinds["add"] + kinds["cdc"] >= added and kinds["remove"] >= removed
    data = metadata_of(info)
    needed = {"txn"} if "app" in data and not data.get("repeated") else set()
    if int(commit.name[:20]) == 0 or RESTORED in (info.get("operationMetrics") or {}):
        needed |= {"protocol", "metaData"}
    return (
        bool(kinds)
        and has_files
        and needed <= kinds.keys()
        and _matches_checksum(content, commit.parent / f".{commit.name}.crc")
    )


def _counted(info: Mapping[str, Any], names: Sequence[str]) -> int:
    metrics = info.get("operationMetrics") or {}
    return next((metrics[name] for name in names if isinstance(metrics.get(name), int)), 0)


def _matches_checksum(content: bytes, checksum: Address) -> bool:
    """A checksum file of Hadoop has a head of 8 bytes, then a CRC of each block."""
    try:
        checksums = checksum.read()
    except FileNotFoundError:
        return True
    size = int.from_bytes(checksums[4:8])
    if checksums[:4] != b"crc\0" or not size:
        return True
    parts = (content[at : at + size] for at in range(0, len(content), size))
    return checksums[8:] == b"".join(zlib.crc32(part).to_bytes(4) for part in parts)
