"""Run log of the project: what each verb did to its subject, and why it failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from lake.config import Settings
from lake.errors import Busy, LakeError, QualityError
from lake.session.spark_session import first_line
from lake.store.ledger_table import LedgerTable, columns_of, record_of

WHOLE: Final = ("build", "rebuild")
"""Verbs that evaluate a whole table; their commits record the parts of its definition."""
EDITION: Final = "edition"
WAREHOUSE: Final = "warehouse"
ADVANCE: Final = "advance"
PUBLISH: Final = "publish"
INGEST: Final = "ingest"
WORK: Final[Mapping[str, str]] = (
    dict.fromkeys(("build", "rebuild", "backfill"), ADVANCE)
    | dict.fromkeys(("cut", "deploy", "rollback", "resume"), PUBLISH)
    | dict.fromkeys(("append", "tap"), INGEST)
)
"""Kind of work of a verb that shares it with others: a success of one ends a failure of another."""
STOPPED: Final = "its expectations stopped it"
"""Reason of a verb that a gate stopped; the checks have the details."""
REASON_LENGTH: Final = 300
_EVENT: Final = re.compile(r"; the event(?: is|s behind it are) \w+ \d+:\d+:\d+")
_RAISED: Final = re.compile(r"((?:reducer|step) \w+: \w+:|\[USER_RAISED_EXCEPTION\]) .*")
_VALUES: Final = re.compile(
    r"""(?P<own>\b(?:batch|batches|cut|edition|line|version|SQLSTATE:)\ \d+(?:\ to\ \d+)?\b
              |\b\d+\ (?:of\ \d+\ )?(?:events|files|records|rows|streams|tables|times?)\b|\bdecimal\(\d+,\ ?\d+\))
      |(?<!\w)'.*?'(?!\w)|"[^"]*"|`[^`]*`|(?<==)\S.*|[+-]?(?<!\w)\d(?:[\w.,:+/-]*\w)?""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Run:
    number: int = field(default=0, kw_only=True)
    verb: str
    subject: str
    cut: int | None
    outcome: str
    counts: Mapping[str, Any]
    started_at: datetime
    seconds: float

    @property
    def work(self) -> str:
        return WORK.get(self.verb, self.verb)


RUNS: Final = LedgerTable("runs", columns_of(Run))


def record_run(settings: Settings, run: Run) -> None:
    _do(partial(RUNS.record, settings, lambda number: [replace(run, number=number)]))


def _do(record: Callable[[], object]) -> None:
    if background := _background.get():
        background.submit(record)
    else:
        record()


@dataclass(frozen=True)
class _BackgroundRecorder:
    thread: ThreadPoolExecutor
    records: list[Future[object]] = field(default_factory=list)

    def submit(self, record: Callable[[], object]) -> None:
        context = copy_context()
        context.run(_background.set, None)
        self.records.append(self.thread.submit(context.run, record))

    def wait(self) -> None:
        for record in self.records:
            record.result()


_background: Final[ContextVar[_BackgroundRecorder | None]] = ContextVar("_background", default=None)


@contextmanager
def background_recording() -> Iterator[None]:
    """Run the block so that neither it nor threads with a copy of its context wait for runs to be recorded.

    All are recorded at its end. Raises there if that failed.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="runs") as thread:
        background = _BackgroundRecorder(thread)
        token = _background.set(background)
        try:
            yield
        finally:
            _background.reset(token)
    background.wait()


def wait_until_recorded() -> None:
    """Raises the first error of recording."""
    if background := _background.get():
        background.wait()


def last_runs(settings: Settings, *verbs: str, outcome: str | None = None) -> dict[str, Run]:
    newest = """SELECT max(number) FROM t WHERE (len($1) = 0 OR verb IN $1) AND ($2 IS NULL OR outcome = $2)
        GROUP BY subject"""
    return {run.subject: run for run in _runs(settings, newest, list(verbs), outcome)}


def newest_runs(settings: Settings) -> list[Run]:
    work = " ".join(f"WHEN '{verb}' THEN '{work}'" for verb, work in WORK.items())
    return _runs(settings, f"SELECT max(number) FROM t GROUP BY subject, CASE verb {work} ELSE verb END")


def _runs(settings: Settings, numbers: str, *parameters: Any) -> list[Run]:
    rows = RUNS.find(settings, f"number IN ({numbers}) ORDER BY number", *parameters)
    return [record_of(Run, row) for row in rows]


@contextmanager
def failing(
    settings: Settings, verb: str, subject: str, cut: int | None = None, *, but: type[LakeError] = Busy
) -> Iterator[None]:
    began = datetime.now(UTC)
    try:
        yield
    except (Busy, but):
        raise
    except Exception as error:
        record_outcome(settings, verb, subject, cut, began, error=reason(error).removeprefix(f"{subject}: "))
        raise


@contextmanager
def recording(
    settings: Settings, verb: str, subject: str, *, dry_run: bool = False, but: type[LakeError] = Busy
) -> Iterator[dict[str, Any]]:
    """Record the block as a run, unless it is dry: as done, with the counts that it sets, or as `failing` does."""
    counts: dict[str, Any] = {}
    if dry_run:
        yield counts
        return
    began = datetime.now(UTC)
    with failing(settings, verb, subject, but=but):
        yield counts
    record_outcome(settings, verb, subject, None, began, **counts)


def record_outcome(
    settings: Settings, verb: str, subject: str, cut: int | None, began: datetime, **counts: Any
) -> None:
    """Record a finished run, as failed if `counts` has an `error`. Ignores a failure to record."""
    outcome = "failed" if "error" in counts else "done"
    seconds = seconds_since(began)

    def quietly() -> None:
        with suppress(Exception):
            record_run(settings, Run(verb, subject, cut, outcome, counts, began, seconds))

    _do(quietly)


def seconds_since(began: datetime) -> float:
    return round((datetime.now(UTC) - began).total_seconds(), 3)


def record_nothing_to_do(settings: Settings, verb: str, subjects: Collection[str], cut: int | None = None) -> None:
    """Record a success of those `subjects` whose last run of the same work failed: nothing is left to do."""

    def quietly() -> None:
        with suppress(Exception):
            for run in newest_runs(settings):
                if run.subject in subjects and (run.work, run.outcome) == (verb, "failed"):
                    record_outcome(settings, verb, run.subject, cut, datetime.now(UTC))

    if subjects:
        _do(quietly)


def reason(error: BaseException) -> str:
    """Return the cause of a failure in one line, and the place of its declaration.

    The run log outlives the events, so values are masked: quoted text, what follows "=", numbers, dates, and text that
    a job raised. Headwater's own numbers (of batches, versions and the like) and the place of the event stay.
    """
    if isinstance(error, QualityError):
        return STOPPED
    declared = f" ({error.where})" if isinstance(error, LakeError) and error.where else ""
    what = error.what.partition("\n")[0] if isinstance(error, LakeError) else first_line(error)
    place = next(reversed([*_EVENT.finditer(what)]), None)
    text = _RAISED.sub(r"\1 …", what[: place.start()] if place else what)
    masked = _VALUES.sub(lambda value: value["own"] or "…", text)[:REASON_LENGTH]
    return f"{masked}{place[0] if place else ''}{declared}"
