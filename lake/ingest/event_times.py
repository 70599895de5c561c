"""In which spans of time a log has events: known of the batches up to one, and read of the newer ones alone.

What is known is in `.lake/times` of the project. It is a cache: it counts only where the log's commit of that batch has
the digest that it names, and else the whole log is read. Voids take no event from a log, and packing moves none to
another batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Final

from lake import file_modes
from lake.store import delta, duckdb_tables
from lake.store.log import Log, LogHead
from lake.store.scan import Scan
from lake.store.storage import Address

FOLDER: Final = "times"
MICROSECOND: Final = timedelta(microseconds=1)
Run = tuple[int, int]
"""The first and the last of spans that follow each other, by their numbers: 0 begins with 1970."""


def runs(log: Log, head: LogHead, every: timedelta) -> list[Run]:
    """The spans of length `every` in which the log has events up to `head`: runs in order, apart from each other."""
    file = _file(log, every)
    before, since = _known(log, head, file)
    if since == head.batch:
        return before
    after = joined([*before, *((number, number) for number in _numbers(log, since, head.batch, every))])
    if file is not None and head.batch:
        _keep(file, {"batch": head.batch, "digest": head.content["digest"], "runs": after})
    return after


def joined(parts: Iterable[Run]) -> list[Run]:
    """Runs in order, and apart from each other, of the same spans."""
    result: list[Run] = []
    for first, last in sorted(parts):
        if result and first <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    return result


def gaps(runs: Iterable[Run]) -> list[Run]:
    """The spans between `runs`, as runs."""
    return [(before + 1, after - 1) for (_, before), (after, _) in pairwise(runs)]


def _numbers(log: Log, after: int, upto: int, every: timedelta) -> list[int]:
    """The spans in which the batches after < number <= upto have events; files that have none of them are not read."""
    length = every // MICROSECOND
    begin = f"epoch_us(_time) - (epoch_us(_time) % {length} + {length}) % {length}"  # % has the sign of the time
    newer = f"_time IS NOT NULL AND _batch BETWEEN {after + 1} AND {upto}"
    with delta.opened(log.path) as table:
        files = Scan(log.path, table.version(), {"_batch": (after + 1, upto)}).files()
        if not files:
            return []
        with duckdb_tables.open_files(log.path, table, files) as (con, _):
            numbers = con.execute(f"SELECT DISTINCT ({begin}) // {length} FROM t WHERE {newer}").fetchall()
    return [number for (number,) in numbers]


def _file(log: Log, every: timedelta) -> Address | None:
    """Where it is kept; None where this user may not write there."""
    try:
        folder = file_modes.scratch(log.settings, FOLDER)
    except OSError:
        return None
    return Address(str(folder)) / f"{every // MICROSECOND}-{log.stream}.json"


def _known(log: Log, head: LogHead, file: Address | None) -> tuple[list[Run], int]:
    """The runs up to a batch that `file` has of this log, and the batch; none, and 0, where it has none."""
    try:
        content = json.loads(file.read()) if file else {}
        known = [(int(first), int(last)) for first, last in content["runs"]]
        batch, digest = int(content["batch"]), content["digest"]
    except (OSError, ValueError, TypeError, KeyError):
        return [], 0
    if batch > head.batch:
        return [], 0
    at = head if batch == head.batch else log.head_at(batch)
    return (known, batch) if (at.batch, at.content.get("digest")) == (batch, digest) else ([], 0)


def _keep(file: Address, content: dict[str, object]) -> None:
    with suppress(OSError):  # of another user, or on a full disk
        file.delete()
        file.put_if_absent(json.dumps(content).encode())
