"""The fields of events in DuckDB's SQL, as contracts of now read them; `lake.contracts.evolution` has them in Spark's.

Nothing that is personal is opened: it is null. A field that an event's contract did not know is taken from the event's
unknown fields where it is written as JSON has it, and times as ISO 8601 has them; a query that comes upon another
spelling, which Spark alone reads, ends with an error that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from lake.contracts import origins
from lake.contracts.cast_sql import EARLIEST, LATEST, WHOLE, places, widest
from lake.contracts.contract import Contract
from lake.contracts.fields import Field
from lake.quoting import literal, quoted
from lake.store.log import DELTA
from lake.store.snapshot import duckdb_type

NUMBER: Final = r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\s*"
DAY: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
ZONE: Final = "(Z|[-+][0-9]{2}:[0-9]{2})"
MOMENT: Final = rf"{DAY}([T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}(\.[0-9]{{1,9}})?)?{ZONE}?)?"
EXACT_DIGITS: Final = 15
"""So many digits a number of JSON keeps in DuckDB, which makes a double of one with a point."""
TRUE: Final = "('t', 'true', 'y', 'yes', '1')"
FALSE: Final = "('f', 'false', 'n', 'no', '0')"


def type_of(field: Field) -> str:
    """DuckDB's type of `field`."""
    if field.type.startswith("array"):
        return f"{type_of(field.parts[0])}[]"
    if field.type.startswith("map"):
        return f"MAP(VARCHAR, {type_of(field.parts[0])})"
    if field.nested:
        return f"STRUCT({', '.join(f'{quoted(part.name)} {type_of(part)}' for part in field.parts)})"
    return duckdb_type(DELTA.get(field.type, field.type))


def note(field: Field, contracts: Sequence[Contract]) -> str:
    """Why `field` is null, or may be, where an event has a value; "" where it never is."""
    if field.personal:
        return "personal, so always null here"
    if contracts[-1].sealed and any(True for _ in _members(field, contracts)):
        return "null of events that may have carried it before the contract knew that name: they have it sealed"
    return ""


def given(contracts: Sequence[Contract]) -> Iterator[str]:
    """SQL of the members of `_extra` that fields are read from, as JSON; `values` reads them."""
    read = (_members(field, contracts) for field in contracts[-1].fields)
    for name, column in dict.fromkeys(member for members in read for member in members):
        path = literal(f"/{name.replace('~', '~0').replace('/', '~1')}")
        text = f"nullif(CAST(json_extract(_extra, {path}) AS VARCHAR), 'null')"
        yield f"CASE WHEN json_valid(_extra) THEN CAST({text} AS JSON) END AS {column}"


def values(contracts: Sequence[Contract]) -> Iterator[str]:
    """SQL of the fields of the newest contract, over the physical columns of all and what `given` gives."""
    places = origins.origins(contracts)
    for field in contracts[-1].fields:
        value = "NULL" if field.personal else origins.reading(field, places[field.name], DuckDB())
        yield f"CAST({value} AS {type_of(field)}) AS {quoted(field.name)}"


def _members(field: Field, contracts: Sequence[Contract]) -> Iterator[tuple[str, str]]:
    """The members of `_extra` that `field` is read from, each with its column of `given`."""
    if not field.personal:
        carried = (each for version in origins.origins(contracts)[field.name] for each in version if not each.column)
        yield from ((each.name, _given(each.name)) for each in carried)


def _given(name: str) -> str:
    """Identifiers of DuckDB are alike if only case tells them apart, and members are not."""
    return quoted(f"_given_{name.encode().hex()}")


class DuckDB:
    """DuckDB's SQL, in which nothing sealed is opened, over what `given` gives."""

    def stored(self, origin: origins.Origin, field: Field) -> str:
        return _widened(origin.before or field, quoted(origin.column), field)

    def default(self, of: Field, field: Field) -> str:
        return "NULL" if of.default is None else _widened(of, _default(of, literal(of.default)), field)

    def carried(self, name: str, field: Field) -> str:
        json = _given(name)
        text = f"({json} ->> '$')"
        if field.nested or field.encoding or not field.form.plain:
            return f"CASE WHEN {json} IS NOT NULL THEN {_other_spelling(field)} END"
        digits = f"length(regexp_replace({text}, '[^0-9]', '', 'g'))"
        inexact = f"json_type({json}) = 'DOUBLE' AND {digits} > {EXACT_DIGITS}"
        if field.type == "string":
            inexact = f"json_type({json}) IN ('DOUBLE', 'OBJECT', 'ARRAY')"
        elif not field.type.startswith("decimal"):
            return _typed(field, text)
        return f"CASE WHEN {inexact} THEN {_other_spelling(field)} ELSE {_typed(field, text)} END"

    def first(self, values: Sequence[tuple[bool, str]]) -> str:
        """A sealed `_extra` may have the value of any member: what comes after the first one is not known."""
        known = takewhile(lambda value: not value[0], values)
        sealed = "coalesce(_extra, '') <> '' AND NOT json_valid(_extra)"
        before = f"coalesce({', '.join(['NULL', *(sql for _, sql in known)])})"
        value = f"coalesce({', '.join(sql for _, sql in values)})"
        return f"CASE WHEN {sealed} THEN {before} ELSE {value} END" if any(carried for carried, _ in values) else value


def _widened(before: Field, value: str, field: Field) -> str:
    """A float becomes the double that its shortest decimal text says, as Spark reads it."""
    shortest = before.type == "float" and field.type != "float"
    return f"CAST({f'CAST({value} AS VARCHAR)' if shortest else value} AS {type_of(field)})"


def _default(field: Field, text: str) -> str:
    if field.nested:
        return f"CAST(CAST({text} AS JSON) AS {type_of(field)})"
    return _other_spelling(field) if field.encoding else _typed(field, text)


def _other_spelling(field: Field) -> str:
    """Ends the query; the version is in it, so that nothing is worked out ahead of the rows."""
    what = f"{field.name} of events of contract version "
    return f"error({literal(what)} || _version || ' is written so that only Spark reads it')"


def _typed(field: Field, text: str) -> str:
    """The typed value of `field` in the SQL string `text`; null where it is none of that type."""
    kind, to = field.type, type_of(field)
    if kind in WHOLE or kind.startswith("decimal"):
        return _number(kind, to, text)
    if kind == "date" or kind.startswith("timestamp"):
        return _moment(field, to, text)
    if kind in {"float", "double"}:
        number = f"try_cast({text} AS {to})"
        return f"CASE WHEN isfinite({number}) OR NOT regexp_matches({text}, '[0-9]') THEN {number} END"
    if kind == "boolean":
        word = f"lower(trim({text}))"
        return f"CASE WHEN {word} IN {TRUE} THEN true WHEN {word} IN {FALSE} THEN false END"
    return f"TRY(from_base64({text}))" if kind == "binary" else text


def _number(kind: str, to: str, text: str) -> str:
    """A cast rounds, so the digits of the text are counted; an exponent moves its point."""
    exact = WHOLE.get(kind, kind)
    wide, most = f"try_cast({text} AS {widest(exact)})", places(widest(exact))
    after = rf"length(regexp_extract({text}, '\.([0-9]*)', 1))"
    shift = f"coalesce(try_cast(nullif(regexp_extract({text}, '[eE](.*)$', 1), '') AS INTEGER), 0)"
    beyond = rf"regexp_matches({text}, '\.[0-9]{{{most}}}0*[1-9]')"
    kept = f"CASE WHEN {shift} <> 0 THEN {after} - {shift} <= {most} ELSE NOT {beyond} END"
    fits = f"regexp_full_match({text}, '{NUMBER}') AND {wide} = try_cast({wide} AS {exact}) AND {kept}"
    return f"CASE WHEN {fits} THEN try_cast({wide} AS {to}) END"


def _moment(field: Field, to: str, text: str) -> str:
    """ISO text, or a whole number of days or of parts of a second since 1970; null outside the years 1 to 9999."""
    whole = f"try_cast({text} AS BIGINT)"
    since = f"DATE '1970-01-01' + try_cast({text} AS INTEGER)"
    if field.type != "date":
        since = f"TRY(make_timestamp({whole} * {1_000_000 // (field.epoch or 1)}))"
        since = f"({since} AT TIME ZONE 'UTC')" if field.type == "timestamp" else since
    micros = rf"regexp_replace({text}, '(\.[0-9]{{6}})[0-9]+', '\1')"
    local = f"regexp_replace({micros}, '{ZONE}$', '')" if field.type == "timestamp_ntz" else micros
    moment = (
        f"CASE WHEN regexp_full_match({text}, '-?[0-9]+') THEN {since}"
        f" WHEN regexp_full_match({text}, '{DAY if field.type == 'date' else MOMENT}') THEN try_cast({local} AS {to})"
        rf" WHEN regexp_matches({text}, '^\s*[-+]?[0-9]{{4}}') THEN {_other_spelling(field)} END"
    )
    within = f"CAST({{0}} AS {to}) BETWEEN {to} '{EARLIEST}' AND {to} '{LATEST}'"
    return f"list_transform([{moment}], lambda moment: CASE WHEN {within.format('moment')} THEN moment END)[1]"
