"""The run book: what each verb did to its subject, and why it could not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from lake.config import Settings
from lake.errors import DeclarationError, LakeError, QualityError, Unavailable
from lake.session import first_line
from lake.store.ledger import last_runs, record_run

EDITION: Final = "edition"
"""The subject of `publish`."""
SHOWN: Final = 300
"""So many characters of a reason are kept."""
_VALUES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|(?<==)\S+")


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
        return "its expectations stopped it"
    declared = f" ({error.where})" if isinstance(error, DeclarationError) and error.where else ""
    what = error.what.partition("\n")[0] if isinstance(error, LakeError) else first_line(error)
    return f"{_VALUES.sub('…', what)[:SHOWN]}{declared}"
