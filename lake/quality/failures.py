"""Messages of failed checks: for a gate that stops, `lake status` and lineage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lake.errors import QualityError
from lake.quality.suite import named_columns
from lake.text import printable

if TYPE_CHECKING:
    from lake.store.ledger.checks import Check

NO_ROWS: Final = (
    "where events are missing, land them; where a delivery is wrong, lake void STREAM --batch N --reason …"
    " (lake log STREAM lists the batches)"
)
"""Fix for a whole-table expectation, which names no row."""


def stop_error(checks: Iterable[Check]) -> QualityError | None:
    checks = list(checks)
    lines = stop_messages(checks)
    return QualityError("\n".join(lines), fix=fix_text(checks)) if lines else None


def fix_text(checks: Iterable[Check], event: str = "STREAM PLACE") -> str:
    """Return the fix for checks that stopped; `event` is the place of an event behind the rows."""
    stopping = [check for check in checks if check.outcome == "stopped"]
    files = " and ".join(sorted({f"quality/{check.table}.json" for check in stopping}))
    of_rows = any(result["failed"] is not None for check in stopping for result in stopping_results(check))
    return (
        f"{f'where the event is wrong, lake void {event} --reason …' if of_rows else NO_ROWS}; where the rule is,"
        f" correct {files}; where the job is, correct it and lake deploy; then lake run"
    )


def stop_messages(checks: Iterable[Check]) -> list[str]:
    stopped = [check for check in checks if check.outcome == "stopped"]
    return [f"{check.table}: {failure_message(result)}" for check in stopped for result in stopping_results(check)]


def warning_messages(checks: Iterable[Check]) -> list[str]:
    failed = [(check.table, result) for check in checks for result in check.results if not result["success"]]
    return [f"{table}: {failure_message(result)}" for table, result in failed if result["severity"] == "warn"]


def failure_message(result: Mapping[str, Any]) -> str:
    kwargs = result["kwargs"]
    about = ", ".join(named_columns(kwargs))
    what = result["type"] + (f"({about}) failed" if about else " failed")
    if result["failed"] is None:
        bounds = ", ".join(f"{name} {value}" for name, value in kwargs.items() if not name.startswith("column"))
        observed = "" if result["observed"] is None else f", found {result['observed']}"
        return f"{what}: expected {bounds}{observed} ({result['where']})"
    rows = "; ".join(
        " ".join(f"{k}={'null' if v is None else printable(str(v))}" for k, v in row.items())
        for row in result["examples"]
    )
    more = " …" if result["failed"] > len(result["examples"]) else ""
    examples = f": {rows}{more}" if rows else ""
    return f"{what} for {result['failed']} of {result['rows']} rows{examples} ({result['where']})"


def stopping_results(check: Check) -> list[Mapping[str, Any]]:
    return [result for result in check.results if not result["success"] and result["severity"] == "stop"]
