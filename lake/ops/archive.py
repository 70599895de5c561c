"""`lake archive`: moves old batches of a log to colder storage (lake.store.archive_tier).

1. Each part is written to a folder named by its stream and the digest of its last batch: a retry after a crash
   continues it, and no two logs share one.
2. Its files, read back, are verified by the fingerprints that the log's commits recorded, and flushed to disk.
3. One commit names it and removes its rows from the log. Readers of earlier versions keep their files until `lake
   maintain` deletes them.

Writers are locked out during the third step only. Each batch's counts and the chain of digests stay in the log, and
archived rows are searched and evaluated where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.errors import DeclarationError, LakeError, StorageError, Unavailable, full
from lake.progress import OnProgress, step
from lake.session import SessionFactory, file_modes
from lake.session.spark_session import first_line
from lake.store import archive_tier, delta, durable
from lake.store.archive_tier import ArchivedPart
from lake.store.delta_writer import set_truncated_aside
from lake.store.ledger.runs import recording
from lake.store.locks import activity
from lake.store.locks.lease import lease
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.log_rows import ranged
from lake.store.storage import Address
from lake.store.upkeep import archive_parts
from lake.store.upkeep.archive_parts import PartWriter
from lake.store.warehouse import Warehouse

DIGITS: Final = 16


@dataclass(frozen=True)
class Archived:
    """`files` of the log, of `bytes` in all, are removed; files that also have later batches are replaced by smaller
    ones.

    `unnamed` are folders beside the parts that no part names: an archive up to another batch was interrupted there.
    """

    stream: str
    through: int
    parts: list[ArchivedPart]
    moved: list[ArchivedPart]
    files: int
    bytes: int
    unnamed: list[str]
    dry_run: bool


def archive(  # noqa: PLR0913  which batches, and who does it
    settings: Settings, spark: SessionFactory, stream: str, through: int, *, dry_run: bool, on_progress: OnProgress
) -> Archived:
    """Archive the batches 1 to `through` of `stream`, and move older parts to the place in the settings.

    Raises DeclarationError if there is no such stream, batch or place; StorageError if rows are not those that the log
    recorded, or an archived part is gone; Unavailable if another archives, or the log has changed meanwhile. Then the
    log has all that it had.
    """
    contract = load_contract(settings, stream)
    place = _place(settings)
    log = Log(settings, stream)
    writer = PartWriter(spark, ranged(contract) or ["_offset"])
    activity.join(settings)
    recorded = recording(settings, "archive", stream, dry_run=dry_run, but=DeclarationError)
    with recorded as counts, lease(settings, f"archive.{stream}", hosts=not dry_run):
        heads = _heads(log, through)
        now = archive_tier.parts_of(log.path)
        wanted = _future_parts(place / stream, now, heads, through)
        archive_tier.check_parts(log.path, [part for part in wanted if part in now and part.first <= through])
        moved = [part for part in wanted if part not in now]
        counts["rows"] = sum(part.rows for part in moved)
        files, size = archive_parts.released_files(log.location, through) if moved else (0, 0)
        unnamed = _unnamed_folders(place / stream, wanted)
        if moved and not dry_run:
            _make_folder(settings, place, stream)
            wanted = [_verified(writer, log, part, heads, on_progress) if part in moved else part for part in wanted]
            with lease(settings, log.lease):
                _check_unchanged(log, now, heads[0])
                archive_parts.commit(log.location, wanted, writer)
            moved = [part for part in wanted if part not in now]
    return Archived(stream, through, wanted, moved, files, size, unnamed, dry_run)


def _check_unchanged(log: Log, parts: Sequence[ArchivedPart], head: LogHead) -> None:
    if archive_tier.parts_of(log.path) != parts or log.head_at(head.batch).content != head.content:
        raise Unavailable(
            f"the log of {log.stream} was archived, or made again, by another meanwhile",
            where=str(log.path),
            fix="try again: nothing was archived",
        )


def _place(settings: Settings) -> Address:
    place = Warehouse(settings).cold
    if place is None:
        raise DeclarationError(
            "no setting says where batches are archived",
            where="[tool.lake]",
            fix='cold = "/mnt/cold/lake", or a URL of the storage that has the warehouse',
        )
    return place


def _unnamed_folders(folder: Address, parts: Sequence[ArchivedPart]) -> list[str]:
    named, there = {part.place for part in parts}, list[str]()
    with suppress(OSError):  # it does not exist yet, or cannot: its creation reports that
        there += sorted(str(folder / entry.name[:-1]) for entry in folder.list() if entry.name.endswith("/"))
    return [at for at in there if at not in named]


def _heads(log: Log, through: int) -> list[LogHead]:
    heads = log.heads()
    last = heads[0].batch if heads else 0
    if not 1 <= through <= last:
        raise DeclarationError(
            f"there is no batch {through} of {log.stream}: its log has batches 1 to {last}"
            if last
            else f"{log.stream} has no batch yet",
            where=str(log.path),
            fix=f"lake log {log.stream} lists its batches",
        )
    return [head for head in heads if head.batch <= through]


def _future_parts(
    folder: Address, now: Sequence[ArchivedPart], heads: Sequence[LogHead], through: int
) -> list[ArchivedPart]:
    """Return the present parts, and one of all later batches. Version -1: it is not verified in `folder` yet."""
    digests = {head.batch: head.content["digest"][:DIGITS] for head in heads}
    last = max((part.through for part in now), default=0)
    wanted = list(now)
    if through > last:
        rows = archive_parts.rows_of(head for head in heads if head.batch > last)
        wanted.append(ArchivedPart(last + 1, through, "", -1, rows))
    places = [str(folder / digests[part.through]) if part.through in digests else part.place for part in wanted]
    return [
        part if part.place == at else replace(part, place=at, version=-1)
        for part, at in zip(wanted, places, strict=True)
    ]


def _make_folder(settings: Settings, place: Address, stream: str) -> None:
    try:
        if folder := (place / stream).on_disk:
            file_modes.cold(settings, folder)
    except OSError as error:
        raise DeclarationError(
            f"setting 'cold': nothing can be written there: {error.strerror}", where=str(place), fix="name another"
        ) from None


def _verified(
    writer: PartWriter, log: Log, part: ArchivedPart, heads: Sequence[LogHead], on_progress: OnProgress
) -> ArchivedPart:
    """Return the part, verified to have the rows of its batches; if missing, it is written first.

    A truncated commit of it is set aside, as in a log.
    """
    at, heads = part.path(log.path), [head for head in heads if part.first <= head.batch <= part.through]
    on_progress(f"archive {log.stream}: batches {part.first} to {part.through}, {part.rows} rows, to {part.place}")
    with step("archive", f"log {log.stream}") as work:
        set_truncated_aside(at)
        if not delta.exists(at) or archive_parts.faults(at, heads):
            _write(writer, log, part, at)
            if faults := archive_parts.faults(at, heads):
                raise StorageError(
                    f"what was archived of {log.stream} is not what its log recorded, and does not count: {faults[0]}",
                    where=at.url,
                    fix=f"lake log {log.stream} --check shows what is damaged: restore it from a backup, and try again",
                )
        durable.flush_all(at, delta.version(at))
        work.rows = part.rows
    return replace(part, version=delta.version(at))


def _write(writer: PartWriter, log: Log, part: ArchivedPart, at: Address) -> None:
    try:
        writer.write(log.path, (part.first, part.through), at)
    except LakeError:
        raise
    except Exception as error:
        if lacking := full(error, where=at.url):
            raise lacking from error
        if delta.exists(at):
            raise
        raise DeclarationError(
            f"setting 'cold': nothing can be written there: {first_line(error)}", where=at.url, fix="name another"
        ) from error
