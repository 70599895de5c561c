"""Error details for a gate that stopped: events behind failing rows, and the command that voids them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from lake.engine.explain.explain import ExplainedRow, explain_identity
from lake.engine.explain.selector import parse_key
from lake.engine.lookup import Few
from lake.errors import LakeError, QualityError
from lake.project.declaration import Input
from lake.quality import failures
from lake.session.spark_session import raise_if_gone
from lake.store.scan import to_arrow

if TYPE_CHECKING:
    from lake.engine.inputs import Inputs
    from lake.engine.lookup import Values
    from lake.project.declaration import Declaration
    from lake.store.ledger.checks import Check

ROWS: Final = 3  # expectations whose first failing row is traced
EVENTS: Final = 3
WEAK: Final = ("superseded", "deleted", "voided", "dropped", "refused", "has no")
"""Prefixes of roles of events that did not determine the row."""


def gate_error(inputs: Inputs, checks: Iterable[Check]) -> QualityError | None:
    checks = list(checks)
    error = failures.stop_error(checks)
    if error is None:
        return None
    causes = [behind for check in checks for behind in _failing_rows(inputs, check)]
    if not causes:
        return error
    lines = [*dict.fromkeys(f"  behind {row}: {', '.join(places)}" for row, places in causes)][:ROWS]
    stream, place = causes[0][1][0].split(" ", 1)
    fix = failures.fix_text(checks, f"{stream} {place.split(' ')[0]}")
    return QualityError("\n".join([error.what, *lines]), fix=fix)


def _failing_rows(inputs: Inputs, check: Check) -> Iterator[tuple[str, list[str]]]:
    declaration = inputs.project.tables[check.table]
    for result in failures.stopping_results(check)[:ROWS]:
        for example in result["examples"][:1]:
            row = {name: example[name] for name in declaration.kind.identity if name in example}
            if places := places_behind(inputs, declaration, row):
                yield " ".join(f"{name}={_text(value)}" for name, value in row.items()), places


def places_behind(inputs: Inputs, declaration: Declaration, row: Values) -> list[str]:
    """Return places of events behind a `row`, such as `orders 12:3:4711 (orders/a.jsonl:7)`, if known."""
    table = inputs.table(declaration)
    try:
        rows = None if table.exists() else inputs.no_rows(Input(declaration.name, declaration))
        schema = table.schema() if rows is None else to_arrow(rows).schema
        keys = parse_key(declaration, schema, [f"{name}={_text(value)}" for name, value in row.items()])
        made = explain_identity(inputs, declaration, keys.to_pylist()[0], Few(EVENTS, EVENTS))
        return list(dict.fromkeys(_event_places(made)))[:EVENTS]
    except LakeError:
        return []
    except Exception as error:
        raise_if_gone(error)
        logging.getLogger("lake").debug("events behind %s of %s: %s", row, declaration.name, error)
        return []


def _event_places(row: ExplainedRow) -> Iterator[str]:
    causes = [(side, cause) for side in row.sides for cause in side.causes]
    strong = [pair for pair in causes if not (pair[1].role or "").startswith(WEAK)]
    for side, cause in strong or causes:
        if cause.event is not None:
            yield f"{side.source} {cause.event.place} ({cause.event.source})"
        elif cause.row is not None:
            yield from _event_places(cause.row)


def _text(value: object) -> str:
    return "null" if value is None else str(value)
