"""From raw records to typed events: every field is read from its text, and the first that fails says why.

Records are taken apart as texts; what the contract does not know is kept as `_extra`, what is not JSON refused. Most
records need less, see `quick_parse`. Messages in an envelope are taken apart by `debezium`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from lake.contracts import expressions
from lake.contracts.cast_sql import EARLIEST, LATEST, defaulted, plain_form, value
from lake.contracts.contract import Contract
from lake.contracts.digits import (
    MARK,
    is_number,
    is_text,
    marked,
    number_name,
    numbers,
    plain,
    shown,
    text_name,
    unmarked,
)
from lake.contracts.event_id import bucket, identity, literal, quoted
from lake.contracts.fields import Field
from lake.contracts.reasons import Reason
from lake.ingest import drift
from lake.ingest.records import debezium, file_facts
from lake.ingest.records.file_facts import SOURCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BLANK: Final = "blank line"  # in the place of a reason: it is no record
PUNCTUATION: Final = "punctuation"  # the detail of a control message that a contract declares in its `horizon`

COLUMNAR: Final = r"\.(csv|csv\.gz|parquet)$"
SHOWN: Final = 200
PLACES: Final = ("_file", "_block", "_seq", "_raw")
OF_SOURCE: Final = ("_at", SOURCE)
"""What records have besides that came by a source: their place in it, what it says of them; see lake.sources.spool."""
ESCAPE: Final = r"\u"
ESCAPED: Final = r"(?<!\\)(?:\\\\)*+\\u"  # a backslash may itself be escaped
LONE: Final = rf"{ESCAPED}[dD][89abAB][0-9a-fA-F]{{2}}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..){ESCAPED}[dD][c-fC-F]"
ESCAPED_MARK: Final = rf"{ESCAPED}[fF]{{4}}"


def parse(records: DataFrame, contract: Contract, *, now: datetime, record_bytes: int) -> DataFrame:
    """The contract's columns of `records` (see `formats`), `_reason`, `_detail`, `_extra`, `_time`, `_bucket`, `_id`.

    Where fields are facts of files or sources, the records have them too (see `file_facts`).

    A record is accepted where `_reason` is null; the others keep the first `record_bytes` characters of their text, in
    `_raw`, and what their source said of them. `_numbers` names the fields of text for which a number came. `_id` is
    null as yet where an event is identified by its position.
    """
    fields = contract.fields
    reading = _opened(records, contract, record_bytes) if contract.envelope else _read(records, fields, record_bytes)
    checks = [*_record_checks(contract, record_bytes), *_shape_checks(contract, reading)]
    checks += field_checks(contract, reading)
    checked = reading.typed(contract).selectExpr("*", f"{_first_of(checks, *reading.verdicts)} AS _checked")
    evaluated = checked.selectExpr("*", *evaluations(contract, "_checked IS NULL"))
    judged = evaluated.selectExpr("*", f"{_first_of(event_checks(contract, reading, now), '_checked')} AS _refusal")
    *places, _ = _places(records)
    return judged.selectExpr(
        *(f"CASE WHEN _refusal IS NOT NULL THEN {name} END AS {name}" if name == SOURCE else name for name in places),
        f"CASE WHEN _refusal IS NOT NULL THEN left(_raw, {record_bytes}) END AS _raw",
        "_refusal.col1 AS _reason",
        "_refusal.col2 AS _detail",
        *(quoted(field.name) for field in fields),
        f"{reading.extra} AS _extra",
        f"nullif({_numbers(fields)}, '') AS _numbers",
        "_time",
        f"CASE WHEN _refusal IS NULL THEN {bucket_of(contract)} END AS _bucket",
        f"{id_of(contract)} AS _id",
        *lacking(contract, reading),
    )


def lacking(contract: Contract, reading: Reading) -> Iterator[str]:
    """Yield SQL of the columns with a bit for each field that a record lacks, see `lake.ingest.drift`."""
    for column, fields in drift.masks(contract).items():
        yield f"CASE WHEN {reading.has_all} THEN 0L ELSE {drift.mask(fields, reading.keys)} END AS {column}"


@dataclass(frozen=True)
class Reading:
    """Records taken apart: `texts` has their places, `_unread`, and what SQL is made of by

    `value` and `text`, a field's typed value and what to show of it; `keys` and `unknown`, the names of its fields, and
    those that the contract does not know, as arrays; `has_all`, whether it is known to have all fields; `extra`, what
    the contract does not know, as JSON; `lacks`, whether a record may lack a field that may not be null; `exact`,
    whether any text of a field has a value; `verdicts`, structs of reason and detail that come before other checks.
    """

    texts: DataFrame
    value: Callable[[Field], str]
    text: Callable[[Field], str]
    keys: str = ""
    has_all: str = "false"
    unknown: str = ""
    extra: str = ""
    lacks: Callable[[Field], str] = lambda _: "false"
    exact: Callable[[Field], bool] = lambda _: False
    verdicts: tuple[str, ...] = ()

    def typed(self, contract: Contract) -> DataFrame:
        """Return `texts` with the contract's fields."""
        return self.texts.selectExpr(
            "*", *(f"{self.value(field)} AS {quoted(field.name)}" for field in contract.fields)
        )


def _places(records: DataFrame) -> tuple[str, ...]:
    """What is handed on of `records`, their text last."""
    return (*PLACES[:-1], *(column for column in OF_SOURCE if column in records.columns), PLACES[-1])


def _read(records: DataFrame, declared: tuple[Field, ...], record_bytes: int) -> Reading:
    """Records that are events."""
    fields = tuple(field for field in declared if not field.is_fact)
    array = f"CASE WHEN {readable(record_bytes)} AND rtrim(_raw) LIKE '%}}' THEN {_objects('string')} END"
    read = (
        records.selectExpr("*", f"{array} AS _all")
        .selectExpr("*", "CASE WHEN size(_all) = 1 THEN _all[0] END AS _careful")
        .selectExpr("*", "map_keys(_careful) AS _keys")
    )
    texts = read.selectExpr(
        *_places(records),
        "_careful",
        "_keys",
        "_careful IS NULL AS _unread",
        *(f"{_careful_text(field)} AS {text_name(field)}" for field in fields),
        *numbers(fields, _in_careful),
        *facts_of(declared),
    )
    return Reading(
        texts,
        value=lambda field: value(field, text_name(field)),
        text=shown,
        keys="_keys",
        unknown=f"array_except(_keys, array({all_names(fields)}))",
        extra=_extra(fields),
    )


def facts_of(fields: Iterable[Field]) -> Iterator[str]:
    """Of fields that are facts their texts, or their defaults, as SQL of columns; numbers are no texts there."""
    for field in fields:
        if field.is_fact:
            text = plain_form(field, file_facts.column(field))
            text = text if field.default is None else f"coalesce({text}, {literal(field.default)})"
            yield f"{text} AS {text_name(field)}"
            if is_text(field):
                yield f"false AS {number_name(field)}"


def _opened(records: DataFrame, contract: Contract, record_bytes: int) -> Reading:
    """Records that are messages in an envelope, whose texts are plain by now."""
    return Reading(
        debezium.unwrapped(records.select(*_places(records)), contract, readable=readable(record_bytes)),
        value=lambda field: value(replace(field, encoding=""), text_name(field)),
        text=shown,
        unknown="json_object_keys(_beyond)",
        extra="_beyond",
        lacks=lambda field: debezium.lacks(field, contract),
        verdicts=("_verdict",),
    )


def _objects(kind: str) -> str:
    """SQL of all JSON objects in a record, as maps to `kind`, their numbers marked.

    Parsers stop at the end of the first object; read as an array, whatever follows it is seen.
    """
    return f"try_cast(try_parse_json(concat('[', {marked('_raw')}, ']')) AS array<map<string,{kind}>>)"


def readable(record_bytes: int) -> str:
    """SQL of whether a record may be looked into."""
    return f"octet_length(_raw) <= {record_bytes} AND is_valid_utf8(_raw)"


def _in_careful(field: Field) -> str:
    """What the careful reading found for `field`, under its name or a former one, marked where it is a number."""
    return first(f"_careful[{literal(name)}]" for name in field.names)


def _careful_text(field: Field) -> str:
    """The text of `field` in a careful reading: under its name or a former one, or its default."""
    text = plain(field, _in_careful(field))
    formed = plain_form(field, text)
    text = f"CASE WHEN {is_number(_in_careful(field))} THEN {text} ELSE {formed} END" if field.form.numeric else formed
    default = "NULL" if field.default is None else literal(field.default)
    return f"CASE WHEN _careful IS NOT NULL THEN {defaulted(field, text, default)} END"


def first(values: Iterable[str]) -> str:
    """SQL of the first of `values` that is not null."""
    values = list(values)
    return values[0] if len(values) == 1 else f"coalesce({', '.join(values)})"


def _extra(fields: tuple[Field, ...]) -> str:
    unknown = f"(name, _) -> name NOT IN ({all_names(fields)})"
    rest = unmarked(f"to_json(map_filter({_objects('variant')}[0], {unknown}))")
    return f"CASE WHEN size(map_filter(_careful, {unknown})) > 0 THEN {rest} END"


def all_names(fields: Iterable[Field]) -> str:
    """SQL of all names of `fields`, as a list."""
    return ", ".join(literal(name) for field in fields for name in field.names) or "''"


def _numbers(fields: Iterable[Field]) -> str:
    """SQL of the names of the fields of text for which a number came, with commas."""
    named = (f"CASE WHEN {number_name(field)} THEN {literal(field.name)} END" for field in fields if is_text(field))
    return f"concat_ws({', '.join([repr(', '), *named])})"


def _record_checks(contract: Contract, record_bytes: int) -> Iterator[tuple[str, str, str]]:
    size = "octet_length(_raw)"
    yield r"btrim(_raw, ' \t\r') = ''", BLANK, "''"
    yield f"{size} > {record_bytes}", Reason.OVERSIZED, f"concat({size}, ' bytes, limit {record_bytes}')"
    yield "NOT is_valid_utf8(_raw)", Reason.UNPARSEABLE, "'not valid UTF-8'"
    half, mark = unreadable()
    yield half, Reason.UNPARSEABLE, "'unpaired surrogate'"
    csv = r"lower(_file) LIKE '%.csv' OR lower(_file) LIKE '%.csv.gz'"
    no_character = f"U+{ord(MARK):X}, which is no character"
    encoded = literal(f"not valid {contract.csv.encoding or 'UTF-8'}, or {no_character}")
    yield mark, Reason.UNPARSEABLE, f"if({csv}, {encoded}, '{no_character}')"
    columns = literal(f"not as many columns as {'the contract has' if contract.csv.columns else 'the header'}")
    yield "_unread", Reason.UNPARSEABLE, f"if({csv}, {columns}, 'not one JSON object')"


def _shape_checks(contract: Contract, reading: Reading) -> Iterator[tuple[str, str, str]]:
    """Yield what a contract that refuses other fields than its own has against a record."""
    if contract.unknown == "refuse":
        names = f"left(concat_ws(', ', array_sort({reading.unknown})), {SHOWN})"
        yield f"size({reading.unknown}) > 0", Reason.UNKNOWN, names
    yield from missing_checks(contract, reading)


def missing_checks(contract: Contract, reading: Reading) -> Iterator[tuple[str, str, str]]:
    """Yield the check that a record has all fields; of CSV and Parquet, files are checked and not records."""
    if contract.missing == "refuse":
        fields = [field for field in contract.fields if not field.is_fact]
        cases = (f"CASE WHEN {drift.lacks(field, reading.keys)} THEN {literal(field.name)} END" for field in fields)
        names = f"concat_ws(', ', {', '.join(cases)})"
        yield f"{names} <> '' AND NOT lower(_file) RLIKE {literal(COLUMNAR)}", Reason.MISSING, names


def unreadable() -> tuple[str, str]:
    """SQL of whether a record has half a surrogate pair, and of whether it has U+FFFF."""
    escaped = f"contains(_raw, {literal(ESCAPE)}) AND regexp_like(_raw, %s)"
    return escaped % literal(LONE), f"contains(_raw, {literal(MARK)}) OR {escaped % literal(ESCAPED_MARK)}"


def field_checks(contract: Contract, reading: Reading) -> Iterator[tuple[str, str, str]]:
    """What is wrong with a field of a record where a test holds: test, reason, detail."""
    for field in contract.fields:
        text, column, name = reading.text(field), quoted(field.name), field.name
        shown = f"concat({literal(name + ': ')}, substring({text}, 1, 200), "
        if not field.nullable:
            lacking = f"{column} IS NULL AND {text} IS NULL AND NOT {reading.lacks(field)}"
            yield lacking, Reason.MISSING, literal(name)
        if not reading.exact(field):
            other = f"{shown}{literal(f' is not {field.type}{field.form.words}')})"
            yield f"{column} IS NULL AND {text} IS NOT NULL", Reason.WRONG_TYPE, other
        if field.text_only:
            yield number_name(field), Reason.WRONG_TYPE, f"{shown}' is a number, and the contract wants text')"
        if field.symbols:
            symbols = ", ".join(literal(symbol) for symbol in field.symbols)
            yield (
                f"{column} NOT IN ({symbols})",
                Reason.NOT_IN_ENUM,
                f"{shown}{literal(' is none of ' + ', '.join(field.symbols))})",
            )
        for bound, sign, words in ((field.minimum, "<", "below"), (field.maximum, ">", "above")):
            if bound is not None:
                limit = f"cast({literal(bound)} AS {field.type})"
                yield f"{column} {sign} {limit}", Reason.OUT_OF_BOUNDS, f"{shown}{literal(f' is {words} {bound}')})"


def event_checks(contract: Contract, reading: Reading, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield checks like those of `field_checks`, of the event as a whole."""
    punctuates = expressions.holds(contract, expressions.PUNCTUATION)
    keyless = f"({expressions.holds(contract, expressions.BROADCAST)} OR {punctuates})"
    for column, (name, condition) in expressions.conditions(contract).items():
        yield f"{column} IS NULL", Reason.EXPRESSION, _raised(name, condition, contract, reading)
    if contract.time is not None and expressions.is_expression(contract.time):
        raised = _raised("time", contract.time, contract, reading)
        yield expressions.time_raises(contract), Reason.EXPRESSION, raised
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
    yield (
        f"_time > {latest}",
        Reason.AHEAD,
        f"concat(_time, {literal(f' is more than {contract.max_ahead} ahead of its arrival')})",
    )
    if contract.horizon is not None and contract.horizon.punctuation:
        producer = contract.horizon.producer
        yield f"{punctuates} AND {quoted(producer)} IS NULL", Reason.MISSING, literal(producer)
        yield punctuates, debezium.CONTROL, literal(PUNCTUATION)


def evaluations(contract: Contract, sound: str) -> Iterator[str]:
    """Yield SQL of `_time` and of the outcomes of the contract's conditions, for records that are `sound`."""
    yield f"{_time(contract, sound)} AS _time"
    yield from expressions.outcomes(contract, sound)


def _raised(name: str, expression: str, contract: Contract, reading: Reading) -> str:
    """SQL of what is reported of a record on which an expression raises, with the values that it is about."""
    words = set(re.findall(r"\w+", expression))
    values = (
        f"concat({literal(f'{field.name} ')}, coalesce(substring({reading.text(field)}, 1, 100), 'null'))"
        for field in contract.fields
        if field.name in words
    )
    failed = literal(f"{name}: {expression} cannot be evaluated; ")
    return f"concat({failed}, concat_ws(', ', {', '.join(values) or literal('')}))"


def _first_of(checks: Iterable[tuple[str, str, str]], *verdicts: str) -> str:
    """SQL of the first verdict that is not null: of `verdicts`, then of `checks` as structs of reason and detail."""
    cases = (f"CASE WHEN {test} THEN struct('{reason}', {detail}) END" for test, reason, detail in checks)
    return f"coalesce({', '.join([*verdicts, *cases])})"


def bucket_of(contract: Contract) -> str:
    """SQL of the bucket of an event."""
    return f"CASE WHEN {expressions.holds(contract, expressions.BROADCAST)} THEN -1 ELSE {bucket(contract)} END"


def id_of(contract: Contract) -> str:
    """SQL of the id of an event; null as yet where its position is its id."""
    return "cast(NULL AS string)" if contract.identity == "position" else identity(contract)


def _time(contract: Contract, sound: str) -> str:
    """SQL of an event's time, by the receiver's clock where the contract names it; null beyond the years of SQL."""
    time = expressions.time(contract, sound)
    if contract.clock is None:
        return time
    late = f"{quoted(contract.clock.received)} - {quoted(contract.clock.sent)}"
    return f"try_add({time}, coalesce({late}, {expressions.NO_TIME}))"
