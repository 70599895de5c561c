"""What the project has done: its cuts, runs and checks, each a book under `meta/`. Editions are in `editions`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from deltalake.exceptions import DeltaError

from lake.config import Settings
from lake.store import delta
from lake.store.book import Book, as_state, instant, parsed, unknown
from lake.store.editions import latest_edition
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
    raise unknown("cut", number, latest.number if latest else 0, fix="lake cut")


def counted_voids(settings: Settings) -> int:
    """The greatest number of a void that a cut has counted, also of one that damage has taken since."""
    return max((row["voids"] for row in _CUTS.find(settings, "true ORDER BY voids DESC LIMIT 1")), default=0)


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
            cut = Cut(_newest(settings, latest) + 1, dict(sorted(batches.items())), voids, datetime.now(UTC))
        if cut is not latest or label:
            _CUTS.add(settings, head, [*asdict(cut).values(), label], cut=as_state(cut))
        return cut


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


def last_runs(settings: Settings, *verbs: str, outcome: str | None = None) -> dict[str, Run]:
    """The newest run of each subject; of one of `verbs`, where some are given, and with one `outcome`."""
    newest = """SELECT max(number) FROM t WHERE (len($1) = 0 OR verb IN $1) AND ($2 IS NULL OR outcome = $2)
        GROUP BY subject"""
    rows = _RUNS.find(settings, f"number IN ({newest})", list(verbs), outcome)
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
    newest = 'SELECT max(number) FROM t WHERE $1 IS NULL OR scope = $1 GROUP BY "table"'
    rows = _CHECKS.find(settings, f"number IN ({newest})", scope)
    return {row["table"]: _check(row) for row in rows}


def _check(row: Mapping[str, Any]) -> Check:
    # Entries made before tables had homes have none.
    home = row.get("home") or row["table"]
    read = {"home": home, "results": json.loads(row["results"]), "checked_at": instant(row["checked_at"])}
    return Check(**{**row, **read})


def _newest(settings: Settings, latest: Cut | None) -> int:
    """The greatest number that a cut has had: tables and editions know those that a damaged book has lost."""
    edition, known = latest_edition(settings), [latest.number if latest else 0]
    known += [edition.cut] if edition else []
    for layer in ("silver", "gold"):
        for log in (settings.warehouse_path / layer).glob("*/_delta_log"):
            with suppress(DeltaError):  # a table that cannot be read keeps no log from being counted
                known.append(delta.standing(log.parent, f"table:{log.parent.name}").data.get("cut", 0))
    return max(known)


def _cut_of(head: delta.Position) -> Cut | None:
    state = head.data.get("cut")
    return _cut(state) if state else None


def _cut(row: Mapping[str, Any]) -> Cut:
    return Cut(row["number"], parsed(row["batches"]), row["voids"], instant(row["made_at"]))
