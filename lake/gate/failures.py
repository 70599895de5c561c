"""What failed checks say, for people: a gate that stops, `lake status`, lineage; light to import."""

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
"""What to do about the events where an expectation of a whole table names no row."""


def stopped(checks: Iterable[Check]) -> QualityError | None:
    """What the stopping ones of `checks` say, as one error; None where none stopped."""
    checks = list(checks)
    lines = failures(checks)
    return QualityError("\n".join(lines), fix=way_out(checks)) if lines else None


def way_out(checks: Iterable[Check], event: str = "STREAM PLACE") -> str:
    """What to do about `checks` that stopped: one of three things is wrong. `event`: one behind the rows, if any."""
    stopping = [check for check in checks if check.outcome == "stopped"]
    files = " and ".join(sorted({f"quality/{check.table}.json" for check in stopping}))
    of_rows = any(result["failed"] is not None for check in stopping for result in stops(check))
    return (
        f"{f'where the event is wrong, lake void {event} --reason …' if of_rows else NO_ROWS}; where the rule is,"
        f" correct {files}; where the job is, correct it and lake deploy; then lake run"
    )


def failures(checks: Iterable[Check]) -> list[str]:
    """What the expectations say for which `checks` stopped."""
    stopped = [check for check in checks if check.outcome == "stopped"]
    return [f"{check.table}: {failure(result)}" for check in stopped for result in stops(check)]


def warnings(checks: Iterable[Check]) -> list[str]:
    """What the expectations say of `checks` that failed and do not stop."""
    failed = [(check.table, result) for check in checks for result in check.results if not result["success"]]
    return [f"{table}: {failure(result)}" for table, result in failed if result["severity"] == "warn"]


def failure(result: Mapping[str, Any]) -> str:
    """One failed result of a check, for a person: the expectation, how many rows, which ones, where it is declared."""
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
    such = f": {rows}{more}" if rows else ""
    return f"{what} for {result['failed']} of {result['rows']} rows{such} ({result['where']})"


def stops(check: Check) -> list[Mapping[str, Any]]:
    """The results of a check that stop it."""
    return [result for result in check.results if not result["success"] and result["severity"] == "stop"]
