"""Comparison of an edition's tables with their published fingerprints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from lake.config import Settings
from lake.errors import DeclarationError, LakeError, LawError, StorageError, did_you_mean
from lake.store import delta
from lake.store.keys import open_store
from lake.store.ledger.editions import Edition, get_edition
from lake.store.proof.fingerprints import Fingerprint, of_version
from lake.store.warehouse import Warehouse


@dataclass(frozen=True)
class TableVerdict:
    table: str
    version: int
    verdict: Literal["identical", "differs", "unknown"]
    rows: int = 0
    fingerprint: str = ""
    why: str = ""


def verify_edition(settings: Settings, number: int, names: Sequence[str] = ()) -> list[TableVerdict]:
    """Verify the named tables (default: all). Raises DeclarationError for an unknown edition or table."""
    edition = get_edition(settings, number)
    if unknown := [name for name in names if name not in edition.tables]:
        raise DeclarationError(
            f"edition {number} has no table {unknown[0]!r}", fix=did_you_mean(unknown[0], edition.tables)
        )
    return [_verify_table(settings, edition, name) for name in names or edition.tables]


def check_unchanged(settings: Settings, edition: Edition, names: Iterable[str]) -> None:
    """Raise LawError if a table differs, StorageError if it has no recorded fingerprint."""
    for name in names:
        verdict = _verify_table(settings, edition, name)
        if verdict.verdict == "identical":
            continue
        where = str(Warehouse(settings).root / edition.tables[name].path)
        if verdict.verdict == "unknown":
            raise StorageError(
                f"{name}: {verdict.why}",
                where=where,
                fix="run the query without --verified, or run lake verify",
            )
        raise LawError(
            f"{name} is not what was published as edition {edition.number}: {verdict.why}",
            where=where,
            fix="lake verify shows what is wrong; restore the file from a backup, or lake rebuild and lake publish",
        )


def _verify_table(settings: Settings, edition: Edition, name: str) -> TableVerdict:
    entry = edition.tables[name]
    path = Warehouse(settings).root / entry.path
    recorded = entry.content or delta.commit_metadata(path, entry.version).get("content")
    verdict = partial(TableVerdict, name, entry.version)
    if recorded is None:
        return verdict("unknown", why="its fingerprint was not recorded; the next edition records it")
    try:
        # The fingerprint of personal data is keyed, and recorded only in the commits of its table.
        key = "" if entry.content else open_store(settings).derived("content")
        content = of_version(path, entry.version, key)
    except LakeError as error:
        return verdict("differs", why=f"{error.what} ({error.where})")
    except delta.Unreadable as error:
        return verdict("differs", why=f"it cannot be opened: {str(error).partition(chr(10))[0]}")
    if str(content) == recorded:
        return verdict("identical", content.rows, recorded)
    rows = Fingerprint.parse(recorded).rows
    why = (
        "its rows differ from those published"
        if content.rows == rows
        else f"{rows} rows were published, {content.rows} were found"
    )
    return verdict("differs", content.rows, str(content), why)
