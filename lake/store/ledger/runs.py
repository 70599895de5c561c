"""The runs of the project: what each verb did to its subject, and why it could not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lake.config import Settings
from lake.errors import DeclarationError, LakeError, QualityError, Unavailable
from lake.session import first_line
from lake.store.book import Book, instant

WHOLE: Final = ("build", "rebuild")
"""The verbs that evaluate a whole table; their commits say what its definition consisted of."""
EDITION: Final = "edition"
"""The subject of `publish`."""
STOPPED: Final = "its expectations stopped it"
"""Why a verb failed that a gate stopped, of which the checks tell more."""
SHOWN: Final = 300
"""So many characters of a reason are kept."""
_VALUES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|(?<==)\S+")


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


RUNS: Final = Book(
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
    what = (verb, subject, cut, outcome, counts, started_at, seconds)
    RUNS.note(settings, lambda number: list(asdict(Run(number, *what)).values()))


def last_runs(settings: Settings, *verbs: str, outcome: str | None = None) -> dict[str, Run]:
    """The newest run of each subject; of one of `verbs`, where some are given, and with one `outcome`."""
    newest = """SELECT max(number) FROM t WHERE (len($1) = 0 OR verb IN $1) AND ($2 IS NULL OR outcome = $2)
        GROUP BY subject"""
    rows = RUNS.find(settings, f"number IN ({newest})", list(verbs), outcome)
    return {
        row["subject"]: Run(**{**row, "counts": json.loads(row["counts"]), "started_at": instant(row["started_at"])})
        for row in rows
    }


@contextmanager
def failing(settings: Settings, verb: str, subject: str, cut: int | None = None) -> Iterator[None]:
    """Books that the block failed, where it did; not where it is only to be tried again."""
    began = datetime.now(UTC)
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        note(settings, verb, subject, cut, began, error=reason(error))
        raise


def note(settings: Settings, verb: str, subject: str, cut: int | None, began: datetime, **counts: Any) -> None:
    """Books what is done, and failed where `counts` has an `error`. Where that cannot be booked, nothing else fails."""
    outcome = "failed" if "error" in counts else "done"
    seconds = round((datetime.now(UTC) - began).total_seconds(), 3)
    with suppress(Exception):
        record_run(settings, verb, subject, cut, outcome, counts, began, seconds)


def nothing_to_do(settings: Settings, verb: str, subject: str, cut: int | None, began: datetime) -> None:
    """Books that there was nothing to do where the last time failed: it no longer does."""
    with suppress(Exception):
        last = last_runs(settings, verb).get(subject)
        if last is not None and last.outcome == "failed":
            note(settings, verb, subject, cut, began)


def reason(error: BaseException) -> str:
    """Why something failed, in one line, and where it is declared. The book keeps nothing quoted: it may be a value."""
    if isinstance(error, QualityError):
        return STOPPED
    declared = f" ({error.where})" if isinstance(error, DeclarationError) and error.where else ""
    what = error.what.partition("\n")[0] if isinstance(error, LakeError) else first_line(error)
    return f"{_VALUES.sub('…', what)[:SHOWN]}{declared}"
