"""Change data capture: a Debezium message becomes an event of the table that it tells about.

    "lake": {"envelope": "debezium", "table": "inventory.customers", "key": ["id"], …}

A record is one message, with or without the schema wrapper {"schema": …, "payload": …}. A field takes its value from
the row's column of its name (or of an alias): from `after`, and from `before` where op is d. With `from` it takes it
from anywhere in the envelope. A column that the contract does not know is kept in `_extra`, so that a column added to
the database's table is there, from its first change on, when a later contract names it.

    {"name": "op",  "type": "string", "from": "op"}
    {"name": "lsn", "type": ["null", "long"], "from": "source.lsn"}        null in snapshots of some connectors
    {"name": "old_email", "type": ["null", "string"], "from": "before.email"}
    {"name": "sent_at", "type": …timestamp-millis…, "from": "ts_ms", "transport": true}

What the columns other than the key are in a delete depends on the database (PostgreSQL: REPLICA IDENTITY): the key
alone may be there; so a delete may lack any other, also one that may not be null. (A large value that PostgreSQL did
not change is `__debezium_unavailable_value`: select nullif(body, '__debezium_unavailable_value') in a job.)

**Encodings.** With the wrapper, a message says how its decimals and times are written: org.apache.kafka.connect.data
and io.debezium.time Date, Timestamp, MicroTimestamp, NanoTimestamp, and Decimal. Without it `encoding` says it: for
times `days`, `millis`, `micros`, `nanos` (by default the unit of the Avro type); for decimals `base64` (Debezium's
decimal.handling.mode=precise; the scale is the type's), absent for `string` and `double`; for bytes `hex`, by default
base64. A decimal {"scale", "value"} and a time as text are seen as such; nanoseconds are cut to microseconds. A time
of day, a year, a duration is the number that it is; a geometry or JSON is text, or a record of the contract.

**What is no change of the table** is counted as `control` and goes no further: tombstones (null, an empty line),
transaction metadata (BEGIN, END), schema changes, heartbeats, logical messages (op m). A message of another table than
`table` (the end of database.schema.table) goes to quarantine, as does what is no envelope, an unknown op, a change
without its row; and op t, a truncate, unless the contract declares it: "broadcast": "op = 't'".

**Identity.** A connector that restarts sends messages again. Say what makes a change that change, by the place in the
database's own log: "id": ["lsn", "op"], or file, pos and row of MySQL's; or "content". The key is part of every id, so
the reads of a snapshot, which share one place, are told apart. Declare what may differ between the two deliveries
(ts_ms, when the connector saw the change) as `transport`, or leave it out.

**Order.** Never order by ts_ms: clocks run backwards, and many changes share one. Order by the place in the database's
log, ties by log order, which is the order of the topic. A snapshot's read (op r) has the place at which the snapshot
was taken: late, it does not win over newer changes; of a snapshot that is taken again, it corrects what was missed.
Our own reader of PostgreSQL (see `lake.sources.postgres.messages`) has in `source.lsn` the place of the commit: order
and identity are (lsn, ordinal) there, reads included.

    Latest(key="id", sequence="_lsn", deletes="_op = 'd'", truncate="_op = 't'")
    rows.selectExpr("id", …, "lsn AS _lsn", "op AS _op")

In a History a version begins when the source committed, or its snapshot was taken; of reads that say 0, none does:

    History(key="id", sequence=("since", "_lsn"), deletes="_op = 'd'")
    "nullif(committed_at, timestamp '1970-01-01') AS since"                       committed_at from source.ts_ms

Not covered yet, of other connectors than our own: deletes that they have missed, as a new snapshot does not say what
is gone; places that begin again, after a restore or on another server; reads without a place, which never win, without
a time, which begin no version, and those with the place at which they were sent. A changed primary key comes as a
delete and a create, and needs nothing; for writers that send one update with both keys there is `former`. Only values
are messages: a consumer that writes keys between them fills the quarantine. MongoDB's images, texts, are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from lake.contracts.cast_sql import decoded, defaulted
from lake.contracts.contract import Contract
from lake.contracts.digits import is_number, marked, numbers, plain, text_name, unmarked
from lake.contracts.event_id import literal, quoted
from lake.contracts.fields import Field
from lake.contracts.reasons import Reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Why a message is not an event: what is counted and goes no further, and reasons of the quarantine.
CONTROL: Final = "control message"

ROWS: Final[Mapping[str, str]] = {"c": "after", "r": "after", "u": "after", "d": "before"}
COLUMNS: Final = (
    "array<struct<field:string,fields:array<struct<field:string,name:string,parameters:struct<scale:string>>>>>"
)
SEMANTIC_TYPES: Final[Mapping[str, str]] = {
    "org.apache.kafka.connect.data.Decimal": "base64",
    "io.debezium.data.VariableScaleDecimal": "base64",
    "org.apache.kafka.connect.data.Date": "days",
    "org.apache.kafka.connect.data.Timestamp": "millis",
    "io.debezium.time.Date": "days",
    "io.debezium.time.Timestamp": "millis",
    "io.debezium.time.MicroTimestamp": "micros",
    "io.debezium.time.NanoTimestamp": "nanos",
}
ENCODED: Final = ("decimal", "date", "timestamp")


def unwrapped(messages: DataFrame, contract: Contract, *, readable: str) -> DataFrame:
    """`messages` with the text of each field of `contract` in its plain encoding (see `digits.text_name`), and

        _unread boolean     whether it is not one JSON value
        _verdict struct     reason and detail of a message that is no event; null where it is one
        _beyond string      the row's columns that the contract does not know, as JSON; null where there are none
        _op string          c, u, d, r or t

    Within nested values numbers are marked (see `digits`). `readable` is SQL for the records that may be looked into.
    """
    payload = f"CASE WHEN {_at('_message', 'op')} IS NULL THEN {_at('_message', 'payload')} END"
    first, second = (f"try_variant_get(_all, '$[{i}]', 'variant')" for i in (0, 1))
    both = f"try_parse_json(concat('[', {marked('_raw')}, ']'))"
    opened = (
        messages.selectExpr("*", f"CASE WHEN {readable} THEN {both} END AS _all")
        .selectExpr("*", f"CASE WHEN {second} IS NULL THEN {first} END AS _message")
        .selectExpr("*", f"coalesce({payload}, _message) AS _payload", f"{_schema(contract)} AS _columns")
        .selectExpr("*", f"{_text_at('_payload', 'op')} AS _op")
        .selectExpr("*", f"{_row()} AS _row")
        .selectExpr("*", "try_cast(_row AS map<string,variant>) AS _image")
        .selectExpr("*", *(f"{_variant(field)} AS {_variant_name(field)}" for field in contract.fields))
        .selectExpr("*", f"{_keys(contract.fields)} AS _keys", f"{_beyond(contract.fields)} AS _beyond")
    )
    verdicts = " ".join(f"WHEN {test} THEN {verdict}" for test, verdict in _verdicts(contract))
    return opened.selectExpr(
        *messages.columns,
        "_message IS NULL AS _unread",
        f"CASE {verdicts} END AS _verdict",
        "_beyond",
        "_op",
        *(f"{_text(field)} AS {text_name(field)}" for field in contract.fields),
        *numbers(contract.fields, lambda field: f"cast({_variant_name(field)} AS string)"),
    )


def lacks(field: Field, contract: Contract) -> str:
    """SQL of whether a message may have nothing for `field`: a truncate has no row, a delete may have the key alone."""
    ops = "('t')" if field.name in contract.key else "('t', 'd')"
    return f"coalesce(_op IN {ops}, false)" if _row_columns(field) else "false"


def _verdicts(contract: Contract) -> Iterator[tuple[str, str]]:
    """(condition, struct of reason and detail), the first that holds decides."""
    yield "trim(_raw) = ''", _struct(CONTROL, "'tombstone'")
    yield "_message IS NULL", "NULL"
    yield "is_variant_null(_payload)", _struct(CONTROL, "'tombstone'")
    schema_change = " OR ".join(
        f"{_at('_payload', name)} IS NOT NULL" for name in ("ddl", "tableChanges", "historyRecord")
    )
    for kind, test in (
        ("transaction", f"{_text_at('_payload', 'status')} IN ('BEGIN', 'END')"),
        ("schema change", schema_change),
        ("heartbeat", "json_object_keys(cast(_payload AS string)) = array('ts_ms')"),
    ):
        yield f"_op IS NULL AND ({test})", _struct(CONTROL, literal(kind))
    yield "_op IS NULL", _struct(Reason.ENVELOPE, "'no op, and no control message either'")
    yield "_op = 'm'", _struct(CONTROL, "'logical message'")
    ops = [*ROWS, "t"]
    unknown = f"concat('op ', _op, ' is none of {', '.join(ops)}, m')"
    yield f"_op NOT IN ({_literals(ops)})", _struct(Reason.ENVELOPE, unknown)
    if contract.table:
        names = ", ".join(_text_at("_payload", "source", name) for name in ("db", "schema", "table"))
        table = f"concat_ws('.', {names})"
        shown = f"if({table} = '', 'source names no table', {table})"
        yield f"NOT endswith(concat('.', {table}), {literal(f'.{contract.table}')})", _struct(Reason.OTHER_TABLE, shown)
    if not contract.broadcast:
        yield "_op = 't'", _struct(Reason.ENVELOPE, "'a truncate, and the contract declares no broadcast'")
    lacking = f"concat('op ', _op, ' without a row in ', {_case('_op', ROWS)})"
    yield "_op <> 't' AND _image IS NULL", _struct(Reason.ENVELOPE, lacking)


def _variant(field: Field) -> str:
    """What a message has for `field`, as a variant: that of JSON's null is not null."""
    if field.path:
        return _at("_payload", *field.path)
    return f"coalesce({', '.join(_at('_row', name) for name in field.names)}, NULL)"


def _text(field: Field) -> str:
    """The plain text of what was found for `field`."""
    variant = _variant_name(field)
    marks = f"cast({variant} AS string)"
    text = plain(field, marks)
    declared = literal(field.encoding) if field.encoding else "NULL"
    names = _row_columns(field)
    if field.type.startswith(ENCODED) and names:
        column = f"get(filter(_columns, c -> c.field IN ({_literals(names)})), 0)"
        encoding = f"coalesce({_case(f'{column}.name', SEMANTIC_TYPES)}, {declared})"
        scale = f"try_cast({unmarked(column + '.parameters.scale')} AS int)"
    else:
        encoding, scale = declared, "NULL"
    if field.type.startswith("decimal"):
        written = f"schema_of_variant({variant}) = 'STRING' AND NOT {is_number(marks)}"
        encoding = f"CASE WHEN {text} LIKE '{{%' THEN 'base64' WHEN {written} THEN {encoding} END"
    if encoding != "NULL":
        text = decoded(field, text, encoding, scale)
    return defaulted(field, text, "NULL" if field.default is None else literal(field.default))


def _row() -> str:
    """The row that a message tells of."""
    images = " ".join(f"WHEN '{op}' THEN {_at('_payload', image)}" for op, image in ROWS.items())
    return f"CASE _op {images} END"


def _keys(fields: Iterable[Field]) -> str:
    """The names of fields that a message has a value for, null included, where a default depends on it."""
    present = [
        f"CASE WHEN {_variant_name(field)} IS NOT NULL THEN {literal(field.name)} END"
        for field in fields
        if field.default is not None
    ]
    return f"cast(array({', '.join(present)}) AS array<string>)"


def _beyond(fields: Iterable[Field]) -> str:
    columns = [name for field in fields for name in _row_columns(field)]
    unknown = f"map_filter(_image, (name, _) -> name NOT IN ({_literals(columns)}))"
    return f"CASE WHEN size({unknown}) > 0 THEN {unmarked('to_json(' + unknown + ')')} END"


def _schema(contract: Contract) -> str:
    """How the message's schema describes the row's columns; null where no field depends on it."""
    if not any(field.type.startswith(ENCODED) and _row_columns(field) for field in contract.fields):
        return f"cast(NULL AS {COLUMNS})[0].fields"
    images = f"try_variant_get(_message, '$.schema.fields', '{COLUMNS}')"
    return f"get(filter({images}, i -> i.field IN ('before', 'after') AND i.fields IS NOT NULL), 0).fields"


def _row_columns(field: Field) -> tuple[str, ...]:
    """The names of the row's column that `field` is taken from; none where it is taken from elsewhere."""
    match field.path:
        case ():
            return field.names
        case ("before" | "after", name):
            return (name,)
        case _:
            return ()


def _variant_name(field: Field) -> str:
    return quoted(f"_found_{field.name}")


def _at(variant: str, *path: str, kind: str = "variant") -> str:
    """SQL of what is at `path` in a variant; null where nothing is."""
    places = "".join(f"['{name}']" for name in path)
    return f"try_variant_get({variant}, {literal('$' + places)}, '{kind}')"


def _text_at(variant: str, *path: str) -> str:
    return _at(variant, *path, kind="string")


def _case(text: str, values: Mapping[str, str]) -> str:
    cases = " ".join(f"WHEN '{name}' THEN '{value}'" for name, value in values.items())
    return f"CASE {text} {cases} END"


def _struct(reason: str, detail: str) -> str:
    return f"struct('{reason}', {detail})"


def _literals(texts: Iterable[str]) -> str:
    return ", ".join(map(literal, texts)) or "''"
