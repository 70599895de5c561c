"""Editions: published cuts, which readers see. A table under `meta/`, also of pins and expiry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.store import delta, durable
from lake.store.damage import Damage
from lake.store.ledger_table import LedgerHead, LedgerTable, as_state, columns_of, record_of, unknown_entry
from lake.store.view import view
from lake.store.warehouse import Warehouse


@dataclass(frozen=True)
class EditionTable:
    """Table in an edition: Delta `version` of `path` (relative to the warehouse), made by definition `fingerprint`.

    `content` is the fingerprint of its `rows`; None for personal data, whose fingerprint is only in the table's own
    commits and goes with them. `cut` is that of its group if it is behind the edition's. `identity` are the columns
    that identify a row.
    """

    layer: str
    path: str
    version: int
    fingerprint: str
    rows: int | None = field(default=None, compare=False)
    content: str | None = field(default=None, compare=False)
    cut: int | None = None
    identity: Sequence[str] = field(default=(), compare=False)

    @property
    def home(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Edition:
    """The exact version of every table checked at `cut`, or at an earlier one if its group is held."""

    number: int
    cut: int
    tables: Mapping[str, EditionTable]
    published_at: datetime

    def cut_of(self, table: str) -> int:
        entry = self.tables.get(table)
        return self.cut if entry is None or entry.cut is None else entry.cut

    @property
    def cuts(self) -> set[int]:
        return {self.cut_of(table) for table in self.tables} or {self.cut}


EDITIONS: Final = LedgerTable("editions", {"action": "VARCHAR", **columns_of(Edition)}, durable=True)


_NUMBERS = LedgerTable("numbers", {"what": "VARCHAR", "number": "BIGINT"}, durable=True)
"""Numbers of editions: if damage takes the table of editions, none of its numbers is given again."""
RESTORED: Final = 1_000_000
"""Editions of a restored warehouse begin after a multiple of it: later ones of the lost warehouse may be known."""


def latest_edition(settings: Settings) -> Edition | None:
    return _edition_of(EDITIONS.head(settings), "edition")


def current_edition(settings: Settings) -> Edition | None:
    head = EDITIONS.head(settings)
    return _edition_of(head, "pin") or _edition_of(head, "edition")


def pinned(settings: Settings) -> int | None:
    pin = _edition_of(EDITIONS.head(settings), "pin")
    return pin.number if pin else None


def get_edition(settings: Settings, number: int) -> Edition:
    """Raises DeclarationError if there is none or it expired."""
    head = EDITIONS.head(settings)
    latest = _edition_of(head, "edition")
    for edition in (latest, _edition_of(head, "pin")):
        if edition is not None and edition.number == number:
            return edition
    _must_be_kept(head, number)
    for row in EDITIONS.find(settings, "action = 'publish' AND number = ?", number):
        return record_of(Edition, row)
    raise unknown_entry("edition", number, latest.number if latest else 0, fix="lake run")


def edition_at(settings: Settings, cut: int) -> Edition:
    """Return the newest edition of `cut` or an earlier one. Raises DeclarationError if there is none or it expired.

    Its tables are at `cut` or before, as near to it as in any edition: a released group gets the cut of its edition.
    """
    if edition := _first(settings, "cut <= ? ORDER BY number DESC", cut):
        _must_be_kept(EDITIONS.head(settings), edition.number)
        return edition
    raise DeclarationError(f"no edition had been published by cut {cut}", fix="lake status")


def cut_of(settings: Settings, edition: Edition | None, table: str) -> int:
    """Return the cut at which readers of an edition see `table`; 0 without an edition, or if its group is not in it."""
    if edition is None or (settings.publish.groups and table not in edition.tables):
        return 0
    return edition.cut_of(table)


def edition_before(settings: Settings, number: int) -> Edition | None:
    return _first(settings, "number < ? ORDER BY number DESC", number)


def left_behind_at(settings: Settings, cut: int) -> datetime | None:
    edition = _first(settings, "cut > ? ORDER BY number", cut)
    return edition.published_at if edition else None


def edition_after(settings: Settings, number: int) -> Edition | None:
    return _first(settings, "number > ? ORDER BY number", number)


def edition_by(settings: Settings, moment: datetime) -> Edition | None:
    return _first(settings, "published_at <= ? ORDER BY number DESC", moment)


def edition_since(settings: Settings, moment: datetime) -> Edition | None:
    return _first(settings, "published_at >= ? ORDER BY number", moment)


def _first(settings: Settings, condition: str, value: int | datetime) -> Edition | None:
    rows = EDITIONS.find(settings, f"action = 'publish' AND {condition} LIMIT 1", value)
    return next((record_of(Edition, row) for row in rows), None)


def kept_editions(settings: Settings) -> list[Edition]:
    expired = _expired(EDITIONS.head(settings))
    rows = EDITIONS.find(settings, "action = 'publish' ORDER BY number DESC")
    return [record_of(Edition, row) for row in rows if not _within(row["number"], expired)]


def is_kept(settings: Settings, number: int) -> bool:
    head = EDITIONS.head(settings)
    latest = _edition_of(head, "edition")
    return latest is not None and 0 < number <= latest.number and not _within(number, _expired(head))


def expired_since(settings: Settings, number: int) -> list[Edition]:
    """Return the editions that running readers may still use: they expired since `number` was published."""
    entries = EDITIONS.find(settings, "action = 'expire' AND cut >= $1", number)
    parts = [part for entry in entries for part in json.loads(entry["tables"])]
    return [
        record_of(Edition, row)
        for row in EDITIONS.find(settings, "action = 'publish'")
        if _within(row["number"], parts)
    ]


def expired_ranges(settings: Settings) -> list[list[int]]:
    return _expired(EDITIONS.head(settings))


def expire_editions(settings: Settings, old: Iterable[int], *, dry_run: bool = False) -> list[int]:
    with EDITIONS.writing(settings) as head:
        expired = _expired(head)
        needed = [part["number"] for part in (head.state.get("edition"), head.state.get("pin")) if part]
        going = sorted(n for n in set(old) if n not in needed and not _within(n, expired))
        if going and not dry_run:
            # Instead of a cut, the newest edition at that time.
            entry = ["expire", going[-1], max(needed, default=0), _ranges(going), datetime.now(UTC)]
            head.add(entry, **{**head.state, "expired": _ranges([*going, *_numbers(expired)])})
            warehouse = Warehouse(settings)
            warehouse.root.storage.delete_all([warehouse.manifest(number).url for number in going])
        return going


def record_edition(
    settings: Settings, cut: int, tables: Mapping[str, EditionTable], *, seen: Edition | None = None
) -> Edition:
    """Publish `tables` at `cut` as the next edition; return the latest one if it is the same. A pin stays.

    The tables are flushed to disk before the edition, and the edition before this returns.

    Raises Unavailable if the newest edition is of a later cut, or has a table at a later one, or has tables by other
    definitions or in other places than both `tables` and the edition that the caller had `seen` at its start.
    """
    _flush_tables(settings, tables)
    with EDITIONS.hold_lease(settings), view():
        delta.prefetch(table.location(settings).path for table in (EDITIONS, _NUMBERS))
        head, numbers = EDITIONS.head(settings), _NUMBERS.head(settings)
        latest, last = _edition_of(head, "edition"), max(*_last_numbers(head, numbers), numbers.state.get("after", 0))
        if seen and _definitions(latest.tables if latest else {}) not in (
            _definitions(seen.tables),
            _definitions(tables),
        ):
            raise Unavailable("tables were deployed meanwhile", fix="try again with the jobs that were deployed")
        edition = Edition(last + 1, cut, dict(sorted(tables.items())), datetime.now(UTC))
        if latest and (latest.cut > cut or _goes_back(latest, edition)):
            raise Unavailable(
                f"edition {latest.number} of cut {latest.cut} was published meanwhile",
                fix=f"try again with a cut later than {cut}" if latest.cut > cut else "try again",
            )
        if latest and (latest.cut, dict(latest.tables)) == (cut, dict(tables)):
            _record_number(numbers, latest.number)
            return latest
        _change(head, "publish", edition, pin=head.state.get("pin"))
        _record_number(numbers, edition.number)
        return edition


def _flush_tables(settings: Settings, tables: Mapping[str, EditionTable]) -> None:
    latest, root = latest_edition(settings), Warehouse(settings).root
    before = {table.path: table.version for table in latest.tables.values()} if latest else {}
    new = {table.path: -1 for table in tables.values()} | before
    for table in tables.values():
        if before.get(table.path) != table.version:
            durable.flush(root / table.path, partial(new.__getitem__, table.path))


def flush(settings: Settings) -> None:
    """Flush the newest edition to disk if its writer died before: then it may be delivered to a sink."""
    for table in (EDITIONS, _NUMBERS):
        durable.flush(table.location(settings).path)


def pin_edition(settings: Settings, number: int) -> Edition:
    """Pin readers to the edition until `resume_editions`. Raises DeclarationError if there is none."""
    with EDITIONS.writing(settings) as head:
        edition = get_edition(settings, number)
        if head.state.get("pin") != _state(edition):
            _change(head, "pin", edition, pin=_state(edition))
        return edition


def resume_editions(settings: Settings) -> Edition | None:
    with EDITIONS.writing(settings) as head:
        latest = _edition_of(head, "edition")
        if latest and head.state.get("pin"):
            _change(head, "resume", latest, pin=None)
        return latest


def _change(head: LedgerHead, action: str, edition: Edition, pin: object) -> None:
    entry = _state(edition)
    state = {**head.state, "edition": entry if action == "publish" else head.state["edition"], "pin": pin}
    head.add([action, *(entry | {"published_at": edition.published_at}).values()], **state)


def _state(edition: Edition) -> dict[str, Any]:
    state = as_state(edition)
    tables = {name: {**table} for name, table in state["tables"].items()}
    for table in tables.values():
        if table["cut"] is None:
            del table["cut"]
    return state | {"tables": tables}


def _goes_back(latest: Edition, edition: Edition) -> bool:
    return any(latest.cut_of(name) > edition.cut_of(name) for name in latest.tables.keys() & edition.tables.keys())


def _record_number(numbers: LedgerHead, number: int) -> None:
    """The caller holds the lease of the editions."""
    if numbers.state.get("edition", 0) < number:
        numbers.add(["edition", number], **{**numbers.state, "edition": number})


def continue_elsewhere(settings: Settings) -> None:
    """Let a copy of the warehouse, which no other process knows yet, give its editions numbers of their own."""
    numbers = _NUMBERS.head(settings)
    if last := max(*_last_numbers(EDITIONS.head(settings), numbers), numbers.state.get("after", 0)):
        after = (last // RESTORED + 1) * RESTORED
        numbers.add(["after", after], **{**numbers.state, "after": after})


def lost_editions(settings: Settings) -> list[Damage]:
    last, remembered = _last_numbers(EDITIONS.head(settings), _NUMBERS.head(settings))
    if last >= remembered:
        return []
    path = EDITIONS.location(settings).path
    return [Damage(path, path.url, f"it ends at edition {last}, but edition {remembered} was published")]


def _last_numbers(head: LedgerHead, numbers: LedgerHead) -> tuple[int, int]:
    latest = head.state.get("edition")
    return latest["number"] if latest else 0, numbers.state.get("edition", 0)


def _definitions(tables: Mapping[str, EditionTable]) -> dict[str, tuple[str, str]]:
    return {name: (table.path, table.fingerprint) for name, table in tables.items()}


def _expired(head: LedgerHead) -> list[list[int]]:
    return head.state.get("expired") or []


def _must_be_kept(head: LedgerHead, number: int) -> None:
    expired, latest = _expired(head), _edition_of(head, "edition")
    if latest is None or not _within(number, expired):
        return
    kept = in_ranges(n for n in range(1, latest.number + 1) if not _within(n, expired))
    raise DeclarationError(
        f"edition {number} has expired; kept: {kept}",
        fix="read one of those; keep_editions and keep_days in [tool.lake] set how many lake maintain keeps",
    )


def _edition_of(head: LedgerHead, part: str) -> Edition | None:
    state = head.state.get(part)
    return record_of(Edition, state) if state else None


def in_ranges(numbers: Iterable[int]) -> str:
    """Format numbers for messages: `3, 7 to 9`; `none` if there are none."""
    parts = (str(first) if first == last else f"{first} to {last}" for first, last in _ranges(numbers))
    return ", ".join(parts) or "none"


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _numbers(ranges: Iterable[Sequence[int]]) -> Iterator[int]:
    return (number for first, last in ranges for number in range(first, last + 1))


def _within(number: int, ranges: Iterable[Sequence[int]]) -> bool:
    return any(first <= number <= last for first, last in ranges)
