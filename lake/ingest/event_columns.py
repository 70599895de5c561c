"""SQL of an event's time, bucket and id, and of checks that need them; marker rows of a log.

Marker rows are broadcasts that record rejections, repairs and acceptances (see lake.store.log_rows).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from lake.contracts import expressions
from lake.contracts.contract import Contract
from lake.contracts.expressions import bucket, identity, literal, quoted
from lake.contracts.reasons import CONTROL, PUNCTUATION, Reason
from lake.kinds.columns import DELIVERED, ORDER, SIGN
from lake.lazy import DataFrame, F, SparkSession, pa
from lake.store.log_rows import BROADCAST, REFUSAL, REFUSED
from lake.store.quarantine import mark
from lake.store.scan import to_frame

if TYPE_CHECKING:
    from lake.ingest.delivery import QuarantineEvent

EARLIEST, LATEST = "0001-01-01", "9999-12-31 23:59:59.999999"
FACTS: Final = "_facts"


def with_event_columns(records: DataFrame, contract: Contract, *, now: datetime) -> DataFrame:
    """Add `_time`, `_bucket`, `_id`, and the rejections that depend on them.

    Accepted records have null in `_reason`, `_detail` and `_facts`.
    """
    accepted = "_reason IS NULL"
    evaluated = records.selectExpr(
        "*", f"{_time(contract, accepted)} AS _time", *expressions.outcomes(contract, accepted)
    )
    cases = " ".join(
        f"WHEN {test} THEN struct('{reason}' AS _reason, {detail} AS _detail)"
        for test, reason, detail in _checks(contract, now)
    )
    earlier = "WHEN _reason IS NOT NULL THEN struct(_reason, _detail)"
    checked = evaluated.selectExpr("*", f"CASE {earlier} {cases} END AS _refusal")
    replaced = {"_reason": "_refusal._reason", "_detail": "_refusal._detail"}
    replaced |= {FACTS: f"CASE WHEN _refusal IS NOT NULL THEN {FACTS} END"}
    return checked.selectExpr(
        *(f"{replaced[name]} AS {name}" if name in replaced else quoted(name) for name in records.columns),
        "_time",
        f"CASE WHEN _refusal IS NULL THEN {_bucket(contract)} END AS _bucket",
        f"{'cast(NULL AS string)' if contract.identity == 'position' else identity(contract)} AS _id",
    )


def _checks(contract: Contract, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield (SQL of the test for a rejection, reason, SQL of the detail)."""
    punctuates = expressions.holds(contract, expressions.PUNCTUATION)
    keyless = f"({expressions.holds(contract, expressions.BROADCAST)} OR {punctuates})"
    for column, (name, condition) in expressions.conditions(contract).items():
        yield f"{column} IS NULL", Reason.EXPRESSION, _raised(name, condition, contract)
    if contract.time is not None and expressions.is_expression(contract.time):
        yield expressions.time_raises(contract), Reason.EXPRESSION, _raised("time", contract.time, contract)
    for name in contract.key:
        yield f"{quoted(name)} IS NULL AND NOT {keyless}", Reason.NULL_KEY, literal(name)
    if contract.sealed:
        subject = contract.subject or ""
        yield f"{quoted(subject)} IS NULL AND NOT {keyless}", Reason.NULL_SUBJECT, literal(subject)
    if contract.time is None:
        return
    yield "_time IS NULL", Reason.NULL_TIME, literal(contract.time)
    years = f"_time NOT BETWEEN timestamp '{EARLIEST}' AND timestamp '{LATEST}'"
    yield years, Reason.EXPRESSION, literal(f"time: {contract.time} is not in the years 1 to 9999")
    latest = f"timestamp '{(now + contract.max_ahead).isoformat()}'"
    words = literal(f" is more than {contract.max_ahead} ahead of its arrival")
    yield f"_time > {latest}", Reason.AHEAD, f"concat(_time, {words})"
    if contract.horizon is not None and contract.horizon.punctuation:
        producer = contract.horizon.producer
        yield f"{punctuates} AND {quoted(producer)} IS NULL", Reason.MISSING, literal(producer)
        yield punctuates, CONTROL, literal(PUNCTUATION)


def _raised(name: str, expression: str, contract: Contract) -> str:
    """Return SQL of the detail of an expression that raised: its text, and the values of its fields."""
    words = set(re.findall(r"\w+", expression))
    values = (
        f"concat({literal(f'{field.name} ')}, coalesce(left(cast({quoted(field.name)} AS string), 100), 'null'))"
        for field in contract.fields
        if field.name in words
    )
    failed = literal(f"{name}: {expression} cannot be evaluated; ")
    return f"concat({failed}, concat_ws(', ', {', '.join(values) or literal('')}))"


def _bucket(contract: Contract) -> str:
    return f"CASE WHEN {expressions.holds(contract, expressions.BROADCAST)} THEN -1 ELSE {bucket(contract)} END"


def _time(contract: Contract, accepted: str) -> str:
    """Return SQL of the time by the receiver's clock if declared; null outside SQL's years."""
    time = expressions.time(contract, accepted)
    if contract.clock is None:
        return time
    late = f"{quoted(contract.clock.received)} - {quoted(contract.clock.sent)}"
    return f"try_add({time}, coalesce({late}, {expressions.NO_TIME}))"


def marker_rows(spark: SparkSession, batch: int, events: Iterable[QuarantineEvent]) -> DataFrame:
    rows = [
        {
            "_position": event.position,
            "_source": event.source,
            "_id": event.mark if event.what == REFUSED else f"{event.mark} {event.what} {batch}",
            REFUSAL: event.what,
            "_bucket": BROADCAST,
        }
        for event in events
    ]
    texts = dict.fromkeys(("_source", "_id", REFUSAL), pa.string())
    schema = pa.schema({"_position": pa.int64(), **texts, "_bucket": pa.int32()})
    return to_frame(spark, pa.Table.from_pylist(rows, schema))


def rejection_markers(rejected: DataFrame, contract: Contract, batch: int) -> DataFrame:
    dump = [quoted(contract.dump)] if contract.dump else []
    prefix = mark(batch, 0).removesuffix("0")
    return rejected.selectExpr(
        "_position",
        "_source",
        f"concat('{prefix}', _number) AS _id",
        f"'{REFUSED}' AS {REFUSAL}",
        f"{BROADCAST} AS _bucket",
        *dump,
    )


def with_delivery(rows: DataFrame, contract: Contract) -> DataFrame:
    """Add the column DELIVERED: see lake.kinds.snapshots."""
    file = "regexp_replace(_source, ':[0-9]+$', '')"
    own = f"cast({quoted(contract.dump)} as string)" if contract.dump else "cast(null as string)"
    event = "'refusal', cast(null as string), 'id', cast(null as string)"
    return rows.withColumn(DELIVERED, F.expr(f"named_struct('file', {file}, 'dump', {own}, {event})"))


def markers_with_delivery(rows: DataFrame, contract: Contract) -> DataFrame:
    """Return marker rows with the columns ORDER, SIGN and DELIVERED only."""
    markers = with_delivery(rows, contract)
    for name, value in {"refusal": F.col(REFUSAL), "id": F.expr("substring_index(_id, ' ', 1)")}.items():
        markers = markers.withColumn(DELIVERED, F.col(DELIVERED).withField(name, value))
    return markers.select(ORDER, SIGN, DELIVERED)
