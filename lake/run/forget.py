"""Forget a person: their key is destroyed, and from the next cut on every table is what the log says without them.

1. Find what is personal of them, while it can still be read: what only they have.
2. Under the log's lease, blank the quarantined records that tell of them.
3. Record the erasure, which is what counts; destroy the key. A crash between the two is made good by `destroy_keys`.

What earlier versions of tables still hold, `purge` removes once an edition without the person is published.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from lake.config import Settings
from lake.errors import DeclarationError
from lake.project import Project
from lake.run.personal import BLANKED
from lake.store import delta, erasures, log
from lake.store.contracts import Contract, known_stream
from lake.store.identity import literal, quoted
from lake.store.keys import open_store
from lake.store.lease import lease
from lake.store.meta import record_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHORTEST: Final = 4
"""Shorter values are found anywhere by chance, so they are not searched for."""


@dataclass(frozen=True)
class Forgotten:
    """A person of `stream`, told by `token`, erased as number `number`; `values` are what only they had, in clear.

    `events` is how many events are about them, `quarantined` how many quarantined records were blanked.
    """

    stream: str
    token: str
    number: int
    events: int = 0
    quarantined: int = 0
    values: frozenset[str] = field(default=frozenset(), repr=False)


def whom(project: Project, stream: str, subject: str) -> tuple[Contract, str]:
    """The contract of `stream` and the token of a person in it.

    Raises DeclarationError where nothing in the stream is sealed, or nobody in it is called that.
    """
    contract = known_stream(project.contracts, stream)
    _must_seal(contract)
    store = open_store(project.settings, make="keys" not in log.head(project.settings, stream).position.data)
    token = store.token(stream, subject)
    if token not in erasures.subjects(project.settings, stream) and token not in store.known(stream):
        raise DeclarationError(
            f"{stream} knows nobody whose {contract.subject} is {subject!r}",
            where=contract.where,
            fix=f"write it as the events do: `subject` is the value of {contract.subject}",
        )
    return contract, token


def about(project: Project, spark: SparkSession, contract: Contract, subject: str) -> tuple[int, frozenset[str]]:
    """How many events are about a person, and the personal values that no one else in the stream has."""
    settings = project.settings
    head = log.head(settings, contract.name)
    events = log.read(spark, settings, contract, upto=head.batch)
    theirs = f"(cast({quoted(contract.subject or '')} AS string) <=> {literal(subject)})"
    values = _stacked(events, contract, theirs).groupBy("value").agg({"theirs": "min"})
    alone = {row["value"] for row in values.where("`min(theirs)`").collect() if len(row["value"]) >= SHORTEST}
    return events.where(theirs).count(), frozenset(alone | {subject})


def forget(project: Project, spark: SparkSession, stream: str, subject: str) -> Forgotten:
    """Erases a person; does nothing that was done before. Raises as `whom` does."""
    contract, token = whom(project, stream, subject)
    settings, began = project.settings, datetime.now(UTC)
    if token in erasures.subjects(settings, stream):
        destroy_keys(settings)
        return Forgotten(
            stream, token, erasures.record(settings, stream, [token], at=began), values=frozenset({subject})
        )
    events, values = about(project, spark, contract, subject)
    with lease(settings, f"log.{stream}"):
        blanked = _blank(settings, contract, subject, values)
        number = erasures.record(settings, stream, [token], at=began)
        destroy_keys(settings)
    _told(settings, stream, began, events=events)
    return Forgotten(stream, token, number, events, blanked, values)


def give_up(project: Project, stream: str) -> int:
    """Erases everybody in a stream whose key is lost. Returns how many."""
    contract = known_stream(project.contracts, stream)
    _must_seal(contract)
    settings, began = project.settings, datetime.now(UTC)
    store = open_store(settings, make=True)
    with lease(settings, f"log.{stream}"):
        lost = log.keyless(settings, stream, store)
        if lost:
            erasures.record(settings, stream, lost, at=began)
            destroy_keys(settings)
            _told(settings, stream, began, people=len(lost))
    return len(lost)


def destroy_keys(settings: Settings) -> None:
    """Destroys what keys there still are of people who were erased: after a crash, or where an old copy came back."""
    gone: dict[str, set[str]] = {}
    for each in erasures.entries(settings):
        gone.setdefault(each.stream, set()).add(each.subject)
    if not gone:
        return
    store = open_store(settings, make=True)
    for stream, tokens in gone.items():
        if left := tokens - store.destroyed(stream):
            store.destroy(stream, left)


def pattern(values: Iterable[str]) -> str:
    """A regular expression, as RE2 and Python have it, that finds any of `values` as a whole word."""
    words = "|".join(re.escape(value) for value in sorted(values, key=lambda value: (-len(value), value)))
    return f"(?:^|[^0-9A-Za-z])(?:{words})(?:$|[^0-9A-Za-z])"


def _must_seal(contract: Contract) -> None:
    if not contract.sealed:
        raise DeclarationError(
            f"nothing in {contract.name} is personal",
            where=contract.where,
            fix='a stream with people has a "subject", and fields that are "personal": true',
        )


def _stacked(events: DataFrame, contract: Contract, theirs: str) -> DataFrame:
    """Every personal value of the events: `value`, and whether it is `theirs`."""
    texts = ", ".join(f"cast({quoted(name)} AS string)" for name in contract.sealed)
    return events.selectExpr(f"{theirs} AS theirs", f"explode(array({texts})) AS value").where("value IS NOT NULL")


def _blank(settings: Settings, contract: Contract, subject: str, values: frozenset[str]) -> int:
    """Blanks the quarantined records with a value of the person. Returns how many; `purge` ends their past."""
    path = settings.quarantine_path(contract.name)
    longer = [value for value in values if len(value) >= SHORTEST]
    named = f'"{re.escape(contract.subject or "")}"\\s*:\\s*"?{re.escape(subject)}"?\\s*[,}}]'
    query = "SELECT _batch, _number FROM t WHERE regexp_matches(concat(raw, ' ', detail, ' ', source), $1)"
    rows = delta.rows(path, query, f"{pattern(longer)}|{named}" if longer else named)
    if rows:
        places = " OR ".join(f"(_batch = {row['_batch']} AND _number = {row['_number']})" for row in rows)
        with delta.opened(path) as table:
            table.update(predicate=places, new_values={"raw": "", "detail": BLANKED})
    return len(rows)


def _told(settings: Settings, stream: str, began: datetime, **counts: int) -> None:
    record_run(
        settings,
        verb="forget",
        subject=stream,
        cut=None,
        outcome="done",
        counts=counts,
        started_at=began,
        seconds=round((datetime.now(UTC) - began).total_seconds(), 3),
    )
