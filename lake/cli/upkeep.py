"""Commands of operation: wait, maintain, archive, backup, restore-keys."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lake.cli import FiniteNumber, LocalPath, Shell, WholeNumber, common_options, table
from lake.errors import DeclarationError, Unavailable
from lake.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lake.ops.maintenance import Kept, Upkeep


@click.command()
@click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")
@click.option(
    "--timeout", type=FiniteNumber(), default=60.0, metavar="SECONDS", help="Give up after this long (default: 60)."
)
@common_options
def wait(shell: Shell, tokens: tuple[str, ...], timeout: float) -> None:
    """Wait until readers see the batches of TOKENS. `lake append` and `lake ingest` print tokens.

    Exit code 75, with what is missing, if that takes longer than the timeout.

    \b
    lake wait flights@12 --timeout 300
    token=$(lake append flights late.jsonl) && lake run && lake wait $token
    """
    from lake.read.wait import wait as run

    edition = run(shell.settings, tokens, timeout=timeout)
    shell.emit(
        {"tokens": list(tokens), "edition": edition.number, "cut": edition.cut},
        f"edition {edition.number} of cut {edition.cut}",
    )


@click.command()
@click.argument("folder", metavar="DIR", type=LocalPath(path_type=Path))
@click.option(
    "--keys", type=LocalPath(path_type=Path), metavar="FILE", help="Also copy the key store, into a file elsewhere."
)
@common_options
def backup(shell: Shell, folder: Path, keys: Path | None) -> None:
    """Copy the warehouse into DIR, also while others write.

    DIR is a new folder.
    Personal data is in the copy only encrypted, without its keys, so that a person who is forgotten later is in no
    backup. Tables with unencrypted personal data are skipped: the first `lake run` after a restore builds them again.

    \b
    lake backup /backups/2013-01-31
    lake backup /backups/2013-01-31 --keys /elsewhere/keys.sqlite
    """
    from lake.ops.backup import backup as copy

    done = copy(shell.load_project(), folder, keys=keys, on_progress=shell.report)
    if done.left_out:
        shell.report(f"skipped (unencrypted personal data): {', '.join(done.left_out)}")
    shell.emit(asdict(done), f"{len(done.tables)} tables in {folder}")


@click.command("restore-keys")
@click.argument("file", metavar="FILE", type=LocalPath(path_type=Path))
@common_options
def restore_keys(shell: Shell, file: Path) -> None:
    """Make the key store of the copy in FILE.

    FILE is a key store, or what `lake backup --keys` wrote. The setting `keys` says where the store is made, in a file
    or in a database of PostgreSQL; there must be none yet.

    \b
    lake restore-keys /elsewhere/keys.sqlite
    LAKE_KEYS=postgresql://db.example.com/keys lake restore-keys .lake/keys.sqlite
    """
    from lake.ops.backup import restore_keys as run

    done = run(shell.settings, file)
    people = ", ".join(f"{count:,} people of {stream}" for stream, count in done.people.items()) or "nobody"
    shell.emit(asdict(done), f"keys of {people} are in {done.where}")


@click.command()
@click.option("--keep-editions", type=WholeNumber(1), metavar="N", help="Keep the newest N editions.")
@click.option("--keep-days", type=FiniteNumber(), metavar="DAYS", help="Keep every edition of the last DAYS.")
@click.option("--limit", type=WholeNumber(1), metavar="BYTES", help="Compact at most this many bytes.")
@click.option("--drop-retired", is_flag=True, help="Drop tables that the project no longer declares.")
@click.option("--yes", is_flag=True, help="With --drop-retired: drop them, instead of only listing them.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@common_options
def maintain(
    shell: Shell,
    keep_editions: int | None,
    keep_days: float | None,
    limit: int | None,
    drop_retired: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Compact files, expire old editions, vacuum unneeded files.

    Retention: an edition is kept while it is among the newest, or young, or pinned. Compaction changes no row and no
    number, which it proves each time. Files that a process of this machine reads are kept, and in a bucket all that
    are younger than --keep-days. Tables that a process is writing are skipped until the next call (exit code 75).

    \b
    lake maintain --dry-run
    lake maintain --keep-editions 10 --keep-days 7
    lake maintain --drop-retired --yes
    """
    shell.load()
    from lake.ops.maintenance import Policy
    from lake.ops.maintenance import maintain as run

    if yes and (dry_run or not drop_retired):
        what = "--yes and --dry-run cannot be combined" if dry_run else "--yes needs --drop-retired"
        raise DeclarationError(what, fix="lake maintain --drop-retired --yes, or lake maintain --dry-run")
    settings = shell.settings
    if drop_retired and not (yes or dry_run):
        return _list_retired(shell, alone=(keep_editions, keep_days, limit) == (None, None, None))
    editions = settings.keep_editions if keep_editions is None else keep_editions
    days = settings.keep_days if keep_days is None else keep_days
    policy = Policy(editions, days, limit or settings.maintain_bytes, drop_retired=drop_retired, dry_run=dry_run)
    done = run(shell.load_project(), lambda: shell.spark, policy, shell.report)
    shell.emit(_upkeep_data(done), _upkeep_lines(done, dry_run=dry_run))
    if done.skipped:
        skipped = "\n".join(f"{place} was skipped: {why}" for place, why in done.skipped.items())
        raise Unavailable(skipped, fix="run lake maintain again to do the rest")


@click.command()
@click.argument("stream")
@click.option("--through", type=WholeNumber(1), required=True, metavar="N", help="Archive the batches 1 to N.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")
@common_options
def archive(shell: Shell, stream: str, through: int, dry_run: bool) -> None:
    """Move old batches of a log to cheaper storage.

    Moves batches 1 to N of the log of STREAM to the place of the setting `cold`. Their rows are proved to be the same
    there before one commit removes them from the log; `lake maintain` deletes the old files. All commands read both as
    one. If `cold` has changed, earlier archives are moved as well.

    \b
    lake log flights
    lake archive flights --through 300 --dry-run
    lake archive flights --through 300
    """
    from lake.ops.archive import archive as run

    done = run(shell.settings, lambda: shell.spark, stream, through, dry_run=dry_run, on_progress=shell.report)
    data = asdict(done)
    for folder in done.unnamed:
        shell.report(
            f"{folder} is not named by this log: delete it, unless the log of a copy or of another warehouse names it"
        )
    if not done.moved:
        return shell.emit(data, f"{stream}: nothing to do, batches 1 to {through} are archived")
    rows = [
        {"batches": f"{part.first} to {part.through}", "rows": part.rows, "place": part.place} for part in done.moved
    ]
    shell.emit(data, table(rows, "batches", "rows", "place"))
    if dry_run:
        shell.report(f"dry run: nothing was done; {done.files} files of the log, {_size(done.bytes)}, would go")
    else:
        shell.report(f"{done.files} files of the log, {_size(done.bytes)}, are deleted by lake maintain")


def _list_retired(shell: Shell, *, alone: bool) -> None:
    from lake.publish.retention import retired

    if not alone:
        raise DeclarationError(
            "--drop-retired alone only lists retired tables: it neither keeps editions nor compacts",
            fix="add --yes or --dry-run, or leave out the other options",
        )
    homes = retired(shell.load_project())
    rows = [
        {"table": h.location.name, "path": str(h.location.path), "editions": h.editions, "drops": h.is_droppable}
        for h in homes
    ]
    shell.emit({"retired": rows}, [f"{home.location.name}: {home.fate}" for home in homes] or ["no retired tables"])
    if rows:
        shell.report("nothing was dropped: lake maintain --drop-retired --yes drops the tables listed")


def _upkeep_data(done: Upkeep) -> dict[str, Any]:
    return {
        "editions": {"expired": done.expired, "kept": done.kept},
        "running": [asdict(process) for process in done.running],
        "places": [
            {
                "kind": kept.place.kind,
                "name": kept.place.name,
                "due": kept.due,
                "left": kept.left,
                "compacted": asdict(kept.compacted) if kept.compacted else None,
                "removed_files": kept.files,
                "removed_bytes": kept.freed,
            }
            for kept in done.places
        ],
        "dropped": done.dropped,
        "cleared": done.cleared,
        "skipped": done.skipped,
        "left": done.left,
    }


def _upkeep_lines(done: Upkeep, *, dry_run: bool) -> Iterable[str]:
    yield f"editions: {done.editions}"
    rows = [row for kept in done.places if (row := _upkeep_row(kept))["compacted"] or row["deleted"] or row["left"]]
    if rows:
        yield from table(rows, "what", "compacted", "rows", "deleted", "left")
    yield from (f"dropped {name}" for name in done.dropped)
    yield from (f"cleared {name}" for name in done.cleared)
    yield from (f"kept for {process}" for process in done.running)
    if done.left:
        left = counted(done.left, "part")
        yield f"{left} left for the next call: --limit or maintain_bytes bounds what one call rewrites"
    if not (rows or done.dropped or done.cleared or done.expired or done.left):
        yield "nothing to do"
    elif dry_run:
        yield "dry run: nothing was done"


def _upkeep_row(kept: Kept) -> dict[str, Any]:
    done = kept.compacted
    would = counted(kept.due - kept.left, "part") if kept.due > kept.left else ""
    return {
        "what": str(kept.place),
        "compacted": f"{done.files[0]} files to {done.files[1]}" if done else would,
        "rows": done.rows if done else None,
        "deleted": f"{kept.files} files, {_size(kept.freed)}" if kept.files else "",
        "left": kept.left or None,
    }


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
