"""What the project has done: its cuts, editions, runs and checks, each a book under `meta/`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Final, Literal

from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.store import delta
from lake.store.book import Book, instant
from lake.store.lease import lease

WHOLE: Final = ("build", "rebuild")
"""The verbs that evaluate a whole table; their commits say what its definition consisted of."""


@dataclass(frozen=True)
class Cut:
    """A recorded, consistent prefix of all logs: `batches` is {stream: last batch}, `voids` the last void number."""

    number: int
    batches: Mapping[str, int]
    voids: int
    made_at: datetime


@dataclass(frozen=True)
class EditionTable:
    """A table in an edition: the Delta `version` of `path` (relative to the warehouse) made by `fingerprint`."""

    layer: str
    path: str
    version: int
    fingerprint: str


@dataclass(frozen=True)
class Edition:
    """A published cut: the exact version of every table that was checked at it."""

    number: int
    cut: int
    tables: Mapping[str, EditionTable]
    published_at: datetime


@dataclass(frozen=True)
class Run:
    """One verb's work on one subject (a table, a stream, or the edition)."""

    number: int
    verb: str
    subject: str
    cut: int | None
    outcome: str
    counts: Mapping[str, Any]
    started_at: datetime
    seconds: float


Scope = Literal["diff", "table"]
Outcome = Literal["passed", "warned", "stopped"]


@dataclass(frozen=True)
class Check:
    """A judgement of `table` at `cut`: of a diff before its commit (`version` is None), or of its `home`'s `version`.

    `suite` is the hash of its expectations. `results` holds one object per expectation, the keys of failing rows among
    them.
    """

    number: int
    table: str
    home: str
    scope: Scope
    cut: int
    version: int | None
    suite: str
    outcome: Outcome
    results: Sequence[Mapping[str, Any]]
    checked_at: datetime


_CUTS = Book(
    "cuts",
    {"number": "BIGINT", "batches": "VARCHAR", "voids": "BIGINT", "made_at": "TIMESTAMPTZ", "label": "VARCHAR"},
)
_EDITIONS = Book(
    "editions",
    {"action": "VARCHAR", "number": "BIGINT", "cut": "BIGINT", "tables": "VARCHAR", "published_at": "TIMESTAMPTZ"},
)
_RUNS = Book(
    "runs",
    {
        "number": "BIGINT",
        "verb": "VARCHAR",
        "subject": "VARCHAR",
        "cut": "BIGINT",
        "outcome": "VARCHAR",
        "counts": "VARCHAR",
        "started_at": "TIMESTAMPTZ",
        "seconds": "DOUBLE",
    },
)
_CHECKS = Book(
    "checks",
    {
        "number": "BIGINT",
        "table": "VARCHAR",
        "home": "VARCHAR",
        "scope": "VARCHAR",
        "cut": "BIGINT",
        "version": "BIGINT",
        "suite": "VARCHAR",
        "outcome": "VARCHAR",
        "results": "VARCHAR",
        "checked_at": "TIMESTAMPTZ",
    },
)


def latest_cut(settings: Settings) -> Cut | None:
    """The newest cut, None before the first."""
    return _cut_of(_CUTS.head(settings))


def get_cut(settings: Settings, number: int) -> Cut:
    """The cut `number`. Raises DeclarationError where there is none."""
    latest = latest_cut(settings)
    if latest is not None and latest.number == number:
        return latest
    for row in _CUTS.find(settings, "number = ?", number):
        return _cut(row)
    raise _unknown("cut", number, latest.number if latest else 0, fix="lake cut")


def record_cut(settings: Settings, batches: Mapping[str, int], voids: int, *, label: str | None = None) -> Cut:
    """Records a new cut at `batches` and `voids`; the latest cut, unchanged, where nothing has moved since.

    A `label` stands for one cut for ever: asked for again, that cut is returned, wherever the logs are by then.
    """
    with lease(settings, "meta.cuts"):
        head = _CUTS.head(settings)
        for row in _CUTS.find(settings, "label = ?", label) if label else ():
            return _cut(row)
        latest = _cut_of(head)
        if latest and (dict(latest.batches), latest.voids) == (dict(batches), voids):
            cut = latest
        else:
            cut = Cut(latest.number + 1 if latest else 1, dict(sorted(batches.items())), voids, datetime.now(UTC))
        if cut is not latest or label:
            _CUTS.add(settings, head, [*asdict(cut).values(), label], cut=_state(cut))
        return cut


def latest_edition(settings: Settings) -> Edition | None:
    """The newest edition, pinned or not; None before the first."""
    return _edition_of(_EDITIONS.head(settings), "edition")


def current_edition(settings: Settings) -> Edition | None:
    """The edition that readers see: the pinned one, else the newest; None before the first."""
    head = _EDITIONS.head(settings)
    return _edition_of(head, "pin") or _edition_of(head, "edition")


def homes(settings: Settings) -> dict[str, str]:
    """The folder of each table's live Delta table within its layer, as the newest edition has it."""
    return _homes(latest_edition(settings))


def pinned(settings: Settings) -> int | None:
    """The number of the edition that readers are kept at by a pin, None without a pin."""
    pin = _edition_of(_EDITIONS.head(settings), "pin")
    return pin.number if pin else None


def get_edition(settings: Settings, number: int) -> Edition:
    """The edition `number`. Raises DeclarationError where there is none."""
    head = _EDITIONS.head(settings)
    latest = _edition_of(head, "edition")
    for known in (latest, _edition_of(head, "pin")):
        if known is not None and known.number == number:
            return known
    for row in _EDITIONS.find(settings, "action = 'publish' AND number = ?", number):
        return _edition(row)
    raise _unknown("edition", number, latest.number if latest else 0, fix="lake run")


def edition_at(settings: Settings, cut: int) -> Edition:
    """The newest edition of `cut` or one before it. Raises DeclarationError where there is none."""
    for row in _EDITIONS.find(settings, "action = 'publish' AND cut <= ? ORDER BY number DESC LIMIT 1", cut):
        return _edition(row)
    raise DeclarationError(f"no edition had been published by cut {cut}", fix="lake status")


def record_edition(
    settings: Settings, cut: int, tables: Mapping[str, EditionTable], *, live: Mapping[str, str] | None = None
) -> Edition:
    """Publishes `tables` at `cut` as the next edition; the latest one, unchanged, where it is the same. A pin stays.

    Raises Unavailable where the newest edition's homes are not those that the caller took for `live`.
    """
    with lease(settings, "meta.editions"):
        head = _EDITIONS.head(settings)
        latest = _edition_of(head, "edition")
        if live is not None and _homes(latest) != live:
            raise Unavailable("tables were deployed meanwhile", fix="try again; with the jobs that were deployed")
        if latest and (latest.cut, dict(latest.tables)) == (cut, dict(tables)):
            return latest
        edition = Edition(latest.number + 1 if latest else 1, cut, dict(sorted(tables.items())), datetime.now(UTC))
        _change(settings, head, "publish", edition, pin=head.data.get("pin"))
        return edition


def pin_edition(settings: Settings, number: int) -> Edition:
    """Keeps readers at edition `number` until `resume_editions`. Raises DeclarationError where there is none."""
    with lease(settings, "meta.editions"):
        edition = get_edition(settings, number)
        head = _EDITIONS.head(settings)
        if head.data.get("pin") != _state(edition):
            _change(settings, head, "pin", edition, pin=_state(edition))
        return edition


def resume_editions(settings: Settings) -> Edition | None:
    """Lets readers see the newest edition again, and returns it; None before the first."""
    with lease(settings, "meta.editions"):
        head = _EDITIONS.head(settings)
        latest = _edition_of(head, "edition")
        if latest and head.data.get("pin"):
            _change(settings, head, "resume", latest, pin=None)
        return latest


def _change(settings: Settings, head: delta.Position, action: str, edition: Edition, pin: object) -> None:
    newest = _state(edition) if action == "publish" else head.data["edition"]
    _EDITIONS.add(settings, head, [action, *asdict(edition).values()], edition=newest, pin=pin)


def record_run(  # noqa: PLR0913, PLR0917 - the columns of one entry
    settings: Settings,
    verb: str,
    subject: str,
    cut: int | None,
    outcome: str,
    counts: Mapping[str, Any],
    started_at: datetime,
    seconds: float,
) -> None:
    """Books one verb's work on `subject`: how it ended (`done` or `failed`), what it counted, how long it took."""
    with lease(settings, "meta.runs"):
        head = _RUNS.head(settings)
        run = Run(head.txn + 1, verb, subject, cut, outcome, counts, started_at, seconds)
        _RUNS.add(settings, head, list(asdict(run).values()))


def last_runs(settings: Settings, *verbs: str) -> dict[str, Run]:
    """The newest run of each subject; of one of `verbs`, where some are given."""
    rows = _RUNS.find(
        settings,
        "(len($1) = 0 OR verb IN $1) QUALIFY row_number() OVER (PARTITION BY subject ORDER BY number DESC) = 1",
        list(verbs),
    )
    return {
        row["subject"]: Run(**{**row, "counts": json.loads(row["counts"]), "started_at": instant(row["started_at"])})
        for row in rows
    }


def record_check(  # noqa: PLR0913 - the columns of one entry
    settings: Settings,
    table: str,
    *,
    home: str,
    scope: Scope,
    cut: int,
    version: int | None,
    suite: str,
    outcome: Outcome,
    results: Sequence[Mapping[str, Any]],
) -> Check:
    """Books a judgement of `table`."""
    with lease(settings, "meta.checks"):
        head = _CHECKS.head(settings)
        check = Check(head.txn + 1, table, home, scope, cut, version, suite, outcome, list(results), datetime.now(UTC))
        _CHECKS.add(settings, head, list(asdict(check).values()))
        return check


def last_checks(settings: Settings, scope: Scope | None = None) -> dict[str, Check]:
    """The newest check of each table, of either scope or of one."""
    rows = _CHECKS.find(
        settings,
        '($1 IS NULL OR scope = $1) QUALIFY row_number() OVER (PARTITION BY "table" ORDER BY number DESC) = 1',
        scope,
    )
    return {row["table"]: _check(row) for row in rows}


def _check(row: Mapping[str, Any]) -> Check:
    # Entries made before tables had homes have none.
    home = row.get("home") or row["table"]
    read = {"home": home, "results": json.loads(row["results"]), "checked_at": instant(row["checked_at"])}
    return Check(**{**row, **read})


def _homes(edition: Edition | None) -> dict[str, str]:
    return {name: PurePath(table.path).name for name, table in edition.tables.items()} if edition else {}


def _cut_of(head: delta.Position) -> Cut | None:
    state = head.data.get("cut")
    return _cut(state) if state else None


def _cut(row: Mapping[str, Any]) -> Cut:
    return Cut(row["number"], _parsed(row["batches"]), row["voids"], instant(row["made_at"]))


def _edition_of(head: delta.Position, part: str) -> Edition | None:
    state = head.data.get(part)
    return _edition(state) if state else None


def _edition(row: Mapping[str, Any]) -> Edition:
    tables = {name: EditionTable(**table) for name, table in _parsed(row["tables"]).items()}
    return Edition(row["number"], row["cut"], tables, instant(row["published_at"]))


def _state(record: Cut | Edition) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(record).items()}


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _unknown(what: str, number: int, latest: int, fix: str) -> DeclarationError:
    known = f"{what}s 1 to {latest} exist" if latest else f"there is no {what} yet"
    return DeclarationError(f"no {what} {number}: {known}", fix="" if latest else fix)
