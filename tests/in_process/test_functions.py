"""Functions, operators and casts that DuckDB evaluates give Spark's values, over all types, extremes and nulls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type

from lake.session.in_process import aggregates
from lake.session.in_process.expressions import LIST_AGGREGATES, OVER_ITEMS
from lake.session.in_process.functions import FUNCTIONS
from lake.session.in_process.mode import Unsupported, by_duckdb
from lake.store.duckdb_tables import in_process_session
from lake.store.scan import to_arrow, to_frame
from tests.in_process.rows import COLUMNS, all_rows, answered, by_spark, comparable_column, in_process

OPERATORS = ("=", "<=>", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "div")
TYPES = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(12, 2)",
    "decimal(38, 6)",
    "decimal(3, 0)",
    "string",
    "date",
    "timestamp",
    "timestamp_ntz",
)
LONG = "concat(sha2({0}, 256), sha2({0}, 256), sha2({0}, 256))"
SECRET = "unhex(sha2('a secret', 256))"
NONCE = "unhex(left(sha2(concat({0}, 'n'), 256), 24))"
SEALED = f"aes_encrypt(encode({{0}}, 'UTF-8'), {SECRET}, 'GCM', 'DEFAULT', {NONCE}, raw)"
OF_ONE_VALUE = (
    *("upper", "lower", "trim", "ltrim", "rtrim", "abs"),
    *("year", "quarter", "month", "day", "dayofmonth", "dayofyear", "dayofweek", "weekday", "weekofyear"),
    *("hour", "minute", "second", "last_day", "date", "timestamp", "int", "string", "bigint", "double"),
)
MAPS = (
    "map_from_entries(array(struct({0}, id))), map_from_entries(array(struct({0}, 'b')))",
    "map_from_entries(transform({0}, x -> struct(x, 'a'))), map_from_entries(array(struct(int, id)))",
    "map_from_entries(array(struct(int, id))), map_from_entries(transform({0}, x -> struct(x, 'b')))",
    "map_from_entries(array(struct(id as n, {0}), struct(-id as n, {0}))), map_from_entries(array(struct(2L, {0})))",
)
OF_ONE = (
    "- {0}",
    "{0} is null",
    "{0} is not null",
    "not {0}",
    "coalesce({0}, {0})",
    "length({0})",
    "left({0}, 2)",
    "left({0}, int)",
    "substring({0}, 1, 2)",
    *(f"{side}('0a :', {{0}})" for side in ("trim", "ltrim", "rtrim")),
    "rtrim('', {0})",
    "sha2({0}, 256)",
    "try_to_binary({0}, 'utf-8')",
    "xxhash64({0})",
    "xxhash64({0}, id, {0})",
    f"xxhash64({', '.join(['{0}', 'id'] * 8)})",
    "concat({0}, '|', {0})",
    "concat(raw, {0})",
    *(f"{name}({{0}}, 'UTF-8')" for name in ("encode", "decode")),
    *(f"{name}({{0}})" for name in ("base64", "unbase64", "unhex")),
    "sha2({0}, 256)",
    *(f"unbase64(base64(encode(left(concat({{0}}, {LONG}), {n}), 'utf-8')))" for n in (56, 57, 58, 114, 115, 171)),
    *(f"base64(encode(left(concat({{0}}, {LONG}), {n}), 'utf-8'))" for n in (0, 56, 57, 58, 114, 115, 171)),
    f"base64({SEALED})",
    f"decode(aes_decrypt({SEALED}, {SECRET}, 'GCM', 'DEFAULT', raw), 'UTF-8')",
    f"aes_decrypt({SEALED}, {SECRET}, 'GCM', 'DEFAULT', encode({{0}}, 'UTF-8'))",
    f"aes_decrypt(encode({{0}}, 'UTF-8'), {SECRET}, 'GCM', 'DEFAULT', raw)",
    f"aes_encrypt(encode({{0}}, 'UTF-8'), raw, 'GCM', 'DEFAULT', {SECRET}, raw)",
    "concat_ws('-', {0}, 'x', {0})",
    "unix_micros({0})",
    "timestamp_micros({0})",
    "timestamp_millis({0})",
    "timestamp_seconds({0})",
    "unix_date({0})",
    "date_from_unix_date({0})",
    "date_add({0}, 3)",
    "date_sub({0}, byte)",
    *(f"{name}({{0}}, {by})" for name in ("shiftright", "shiftleft", "shiftrightunsigned") for by in (3, 63, 70)),
    "shiftright({0}, int)",
    "shiftleft(1L, {0})",
    "bit_count({0})",
    "ln({0})",
    "ln(abs({0}))",
    *(f"{name}(- {{0}})" for name in ("round", "ln", "floor", "ceil", "sign")),
    "power({0}, 3)",
    "power(1.02d, {0})",
    "sign({0})",
    "ceil({0})",
    "floor({0})",
    "{0} * 0.25BD + floor({0} * 0.25BD)",
    "cast({0} as decimal(38, 0)) + whole",
    "cast({0} as decimal(38, 0)) - 9.9e37BD",
    "coalesce({0}, array())",
    "coalesce(array(), array({0}))",
    "map_entries(map_from_entries(array(struct({0}, id))))",
    "map_entries(map_from_entries(transform({0}, x -> struct(x, id))))",
    *(f"map_entries(map_zip_with({maps}, (k, x, y) -> struct(k, x, y)))" for maps in MAPS),
    "sort_array(array(struct({0} as x, 2 as y), struct({0} as x, 1 as y), null))",
    "sort_array(transform(items, x -> struct(x, {0})))",
    "sort_array(array({0}, null, {0}))",
    *(
        f"date_trunc('{unit}', {{0}})"
        for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
    ),
    "from_utc_timestamp({0}, 'UTC')",
    "to_utc_timestamp({0}, 'UTC')",
    "to_utc_timestamp({0}, 'Europe/Vienna')",
    "to_json({0})",
    "to_json(array({0}, null, {0}))",
    "to_json(named_struct('n', id, '{{ñ}}', {0}, 'x', struct({0})))",
    *(f"{name}({{0}})" for name in ("md5", "sha1", "sha", "char_length", "character_length", "octet_length", "hex")),
    *(f"{name}({{0}})" for name in ("sqrt", "log", "signum", "isnan", "unix_seconds", "unix_millis", "unix_timestamp")),
    *(f"{name}({{0}})" for name in ("to_unix_timestamp", "from_unixtime", "to_date", "to_timestamp", "dayname")),
    *(
        f"{name}({{0}})"
        for name in ("monthname", "array_max", "array_min", "array_compact", "cardinality", "array_size")
    ),
    "positive({0})",
    "right({0}, 2)",
    "right({0}, int)",
    *(f"{name}({{0}}, {size}, 'añ')" for name in ("lpad", "rpad") for size in (0, 1, 7)),
    "lpad({0}, 3)",
    *(f"repeat({{0}}, {n})" for n in (0, 1, 3)),
    *(f"split_part({{0}}, {by!r}, {n})" for by in ("-", "a", " x") for n in (1, 2, 9)),
    "translate({0}, 'a1-', 'b')",
    "locate('a', {0})",
    "position({0}, 'xax')",
    *(f"to_date({{0}}, {form!r})" for form in ("yyyy-MM-dd", "yyyyMMdd", "dd.MM.yyyy")),
    *(f"to_timestamp({{0}}, {form!r})" for form in ("yyyy-MM-dd", "yyyy-MM-dd HH:mm:ss")),
    "to_timestamp({0}, 'yyyy-MM-dd'T'HH:mm:ss.SSS')",
    "from_unixtime({0}, 'HH:mm')",
    "make_date(2000 + {0}, 2, 28)",
    "make_date({0}, {0}, {0})",
    *(f"date_part('{part}', {{0}})" for part in ("year", "quarter", "month", "week", "day", "doy", "hour", "minute")),
    "extract(year from {0})",
    "datepart('month', {0})",
    "date_diff(day, {0})",
    "pow({0}, 2)",
    "mod({0}, 3)",
    *(f"round({{0}}, {n})" for n in (0, 1, 2, 5)),
    "cast({0} as decimal(20, 4))",
    "equal_null({0}, {0})",
    *(f"try_cast({{0}} as {type_})" for type_ in ("bigint", "decimal(38, 6)", "tinyint")),
    "array_contains({0}, 3)",
    "array_contains(array({0}, null), {0})",
    "array_contains(array(1, 2), {0})",
    "array_position({0}, 3)",
    "array_position(array({0}), {0})",
    "array_remove({0}, 3)",
    "array_remove(array('a', {0}), 'a')",
    "array_join(array('a', null, {0}), '-')",
    "array_join(array({0}), '-')",
    "exists({0}, x -> x > 1)",
    "forall({0}, x -> x > 1)",
    "exists(array({0}), x -> x is null)",
    "forall(array({0}, {0}), x -> x = {0})",
    *(f"slice({{0}}, {first}, {size})" for first in (1, 2, 5) for size in (0, 1, 9)),
    "flatten(array({0}, {0}))",
    "flatten(array({0}, null))",
    "get({0}, 0)",
    "get({0}, 2)",
    "{0} + make_dt_interval(0, 0, 0, 90.5)",
    "{0} - make_dt_interval(0, 0, 0, 86400)",
    "struct({0}, id as n)",
    "named_struct('x', {0}).x",
    "array({0}, {0})",
    "array({0})[0]",
    "{0} in ({0}, null)",
    "nullif({0}, {0})",
    "nvl2({0}, 1, 2)",
    "if({0} is null, 'none', 'some')",
    "case when {0} = {0} then 1 when bool then 2 end",
    "case {0} when {0} then 'same' else 'other' end",
    "{0} between {0} and {0}",
    "{0} is distinct from null",
    "{0} + 1",
    "{0} * 2",
    "2 - {0}",
    "{0} + 1.5",
    "{0} * 10L",
    "pmod({0}, 7)",
    "{0} % 3",
    "{0} div 2",
    "{0} / 4",
    "{0} / 2.50",
    "{0} / 0.000001",
    "7 / {0}",
    "-1.00 / {0}",
    "{0} / nullif(cast(long as decimal(20, 0)), 0)",
    "cast({0} as decimal(12)) / nullif(long, 0)",
    "cast({0} as decimal(30, 4)) / 3",
    "part.b || {0}",
    "element_at(map(1, {0}, 2, {0}), group)",
    "try_cast({0} as decimal(10, 1))",
    "try_cast({0} as int)",
    *(f"{name}({{0}})" for name in OF_ONE_VALUE),
    "contains({0}, 'a')",
    "startswith({0}, text)",
    "endswith({0}, 'b')",
    "instr({0}, 'a')",
    "replace({0}, 'a', 'bc')",
    "{0} like 'a%_'",
    "{0} like '%'",
    "substring({0}, 2)",
    "trunc({0}, 'month')",
    "trunc({0}, 'week')",
    "date_format({0}, 'yyyyMMdd\\'T\\'HH:mm:ss')",
    "add_months({0}, int)",
    "add_months({0}, 1)",
    "datediff({0}, day)",
    *(f"timestampadd({unit}, {{0}}, at)" for unit in ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK")),
    "timestampadd(MINUTE, byte, {0})",
    *(f"{{0}} {sign} interval {n}" for sign in "+-" for n in ("1 day", "2 weeks", "-3 days", "26 hours", "0.5 second")),
    *(f"{{0}} {sign} interval {n}" for sign in "+-" for n in ("1 month", "-11 months", "3 years")),
    "interval 1 day + {0}",
    "interval 1 month + {0}",
    "{0} + interval 5 minutes",
    "{0} - interval '1.5' second",
    "round({0}, 1)",
    "round({0})",
    "~ {0}",
    "{0} | 5",
    "{0} & byte",
    "try_add({0}, {0})",
    "try_multiply({0}, {0})",
    "try_subtract({0}, int)",
    "size({0})",
    "element_at({0}, 1)",
    "element_at({0}, -1)",
    "array_sort({0})",
    "sort_array({0})",
    "array_distinct({0})",
    "array_union({0}, array(3, 1))",
    *(f"{name}({{0}}, array(3, null, 1))" for name in ("array_except", "array_intersect")),
    *(f"{name}(array(1, 2, 2), {{0}})" for name in ("array_except", "array_intersect")),
    "array_except(array({0}, {0}), array({0}))",
    "concat({0}, array(1))",
    "transform({0}, x -> x + 1)",
    "transform({0}, x -> struct(x, id))",
    "filter({0}, x -> x > 1)",
    "aggregate({0}, 0, (s, x) -> s + coalesce(x, 7))",
    "aggregate({0}, 0, (s, x) -> s + 1, s -> s * 10)",
    "aggregate({0}, named_struct('n', 0, 'last', cast(null as int)), (s, x) -> named_struct('n', s.n + 1, 'last', x))",
    "sequence({0}, 3)",
    "sequence(0, {0})",
    "sequence({0}, {0} + 6, 2)",
    "transform(sequence(0, 3), k -> date_sub({0}, k * 7))",
)
OF_TWO = (
    "{0} | {1}",
    "{0} & {1}",
    "{0} ^ {1}",
    "try_add({0}, {1})",
    "try_multiply({0}, {1})",
    "timestampadd(MINUTE, {0}, {1})",
    "datediff({0}, {1})",
    "date_add({0}, {1})",
    "instr({0}, {1})",
    "array_union({0}, {1})",
    "coalesce({0}, {1})",
    "greatest({0}, {1})",
    "least({0}, {1})",
    "nullif({0}, {1})",
    "if(bool, {0}, {1})",
    "pmod({0}, {1})",
    "{0} in ({1}, {0})",
    "bool and {0} or {1}",
    "concat({0}, {1})",
    "{0} between {1} and {0}",
)
AGGREGATES = (
    "avg({0})",
    "mean({0})",
    "count(distinct {0})",
    "count(distinct {0}, bool)",
    "count(distinct {0}) filter (where bool)",
    "sum(distinct {0})",
    "bit_xor({0})",
    "some({0})",
    "any({0})",
    "every({0})",
    "sort_array(collect_set({0}))",
    "sort_array(collect_set({0}), false)",
    "sort_array(collect_list({0}), false)",
    "sort_array(collect_list(struct({0}, part, id)), false)",
    "sort_array(array_agg({0}))",
    "size(sort_array(collect_set({0})))",
    "sort_array(collect_list({0}))",
    "sort_array(collect_list(struct({0}, id)))",
    "min({0})",
    "max({0})",
    "sum({0})",
    "count({0})",
    "count(*)",
    "count_if({0})",
    "bit_or({0})",
    "bit_and({0})",
    "min_by({0}, struct({0}, id))",
    "max_by({0}, struct(part, id))",
    "max(struct({0}, id))",
    "min(struct(part, {0}, id))",
    "max({0}) filter (where bool)",
    "sum(if(bool, {0}, null))",
    "bool_or({0})",
    "bool_and({0})",
)
WINDOWS = (
    "ntile(3) over (partition by group order by {0}, id)",
    "percent_rank() over (partition by group order by {0})",
    "cume_dist() over (partition by group order by {0})",
    "lag({0}, 2) over (partition by group order by id)",
    "lead({0}, 1, {0}) over (partition by group order by id)",
    "lag({0}, 1, 7) over (partition by group order by id)",
    "first_value({0}) over (partition by group order by id)",
    "last_value({0}) over (partition by group order by id)",
    "nth_value({0}, 2) over (partition by group order by id)",
    "sum({0}) over (partition by group order by id rows between 2 preceding and current row)",
    "max({0}) over (partition by group order by id rows between 1 preceding and 1 following)",
    "count({0}) over (partition by group order by id rows between current row and unbounded following)",
    "min({0}) over (partition by group order by id rows between unbounded preceding and 1 preceding)",
    "avg({0}) over (partition by group)",
    "row_number() over (partition by group order by {0}, id)",
    "row_number() over (partition by group order by {0} desc, id)",
    "row_number() over (order by {0} nulls last, id)",
    "rank() over (partition by bool order by {0})",
    "dense_rank() over (order by {0} desc, bool)",
    "lag({0}) over (partition by group order by id)",
    "lag({0}) ignore nulls over (partition by group order by id)",
    "lead({0}) over (partition by {0} order by id)",
    "max({0}) over (partition by group order by part, id)",
    "min({0}) over (partition by group)",
    "sum({0}) over (partition by group order by id)",
    "count({0}) over (partition by {0})",
    "max_by({0}, struct(part, id)) over (partition by group)",
    "max(struct({0}, id)) over (partition by group order by id)",
)


def texts() -> list[str]:
    made = [text.format(name) for text, name in product(OF_ONE, COLUMNS)]
    made += [f"cast({name} as {type_})" for name, type_ in product(COLUMNS, TYPES)]
    pairs = [*product(COLUMNS, COLUMNS)]
    made += [f"{one} {sign} {other}" for sign, (one, other) in product(OPERATORS, pairs)]
    return made + [text.format(one, other) for text, (one, other) in product(OF_TWO, pairs)]


@pytest.mark.long
def test_values_are_those_of_spark(spark: SparkSession) -> None:
    rows = all_rows()
    answers = answered(rows, texts())
    spoken = " ".join(answers)
    assert not [name for name in FUNCTIONS if name.isidentifier() and name not in spoken and name not in WRITTEN]
    assert differing(answers, by_spark(spark, rows, answers)) == {}


WRITTEN = {
    *("rlike", "regexp", "regexp_like", "regexp_replace", "regexp_extract", "regexp_extract_all", "split"),
    "isnull",
    "like",
    "try_divide",
    "boolean",
    "tinyint",
    "isnotnull",
    "when",
    "negative",
    "ifnull",
    "nvl",
    "substr",
}
"""Functions that texts call by an operator or another name."""


def test_spark_has_every_function_that_duckdb_accepts(spark: SparkSession) -> None:
    named = {*FUNCTIONS, *aggregates.AGGREGATES, *aggregates.WINDOW_FUNCTIONS, *LIST_AGGREGATES, *OVER_ITEMS}
    assert {name for name in named if name.isidentifier()} <= {row[0] for row in spark.sql("show functions").collect()}


def test_values_of_some_are_those_of_spark(spark: SparkSession) -> None:
    rows = all_rows()
    answers = answered(rows, texts()[::97])
    assert len(answers) > 12
    assert differing(answers, by_spark(spark, rows, answers)) == {}


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.long)])
def test_values_have_their_type_within_a_query(step: int) -> None:
    """One of a wider type would hide an overflow in what is computed from it."""
    session: Any = in_process_session()
    with by_duckdb():
        frame: Any = to_frame(session, all_rows().slice(0, 0))
        for text in [*texts()[::step], "length(text)"]:
            with suppress(Unsupported):
                relation = session.relation(frame.selectExpr(f"{text} as x")._plan.to_proto(session._client))
                made = session.result(relation).schema.field(0).type
                assert made == to_arrow_type(relation.schema[0].dataType, timezone="UTC"), text


def test_quotients_next_to_a_tie_are_those_of_spark(spark: SparkSession) -> None:
    """Ties, and quotients that 39 digits do not tell from one."""
    pairs = [(70166915976156916, 9031163265123113529), (26200192190049961, 9182603408180604853), (3, 1 << 22)]
    pairs = [(n + more, d) for n, d in [*pairs, (79250108933432314, 9184109587901446541)] for more in (-1, 0, 1)]
    dividends = pa.array([Decimal(sign * n) for n, _ in pairs for sign in (1, -1)], pa.decimal128(17, 0))
    rows = pa.table({"id": range(len(dividends)), "n": dividends, "d": [d for _, d in pairs for _ in range(2)]})
    answers = answered(rows, ["n / d", "n / -d", "d / nullif(n, 0)", "n / cast(d as decimal(19))"])
    assert [len(values) for values in answers.values()] == [len(dividends)] * 4
    assert differing(answers, by_spark(spark, rows, answers)) == {}


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.long)])
def test_windows_and_aggregates_are_those_of_spark(spark: SparkSession, step: int) -> None:
    """Over all rows at once, and over the first rows, in which no sum overflows."""
    windows = [text.format(name) for text, name in product(WINDOWS, COLUMNS)]
    sums = [f"{text.format(name)} over (partition by group)" for text, name in product(AGGREGATES, COLUMNS)]
    for rows in (all_rows(), all_rows().slice(0, 4)):
        answers = answered(rows, [*windows, *sums][::step], row_by_row=False)
        assert len(answers) > 200 // step
        assert differing(answers, by_spark(spark, rows, answers)) == {}


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.long)])
def test_aggregates_of_groups_are_those_of_spark(spark: SparkSession, step: int) -> None:
    rows, wanted, values = all_rows(), list[str](), dict[str, object]()
    some = [text.format(name) for text, name in product(AGGREGATES, COLUMNS)][::step]
    with by_duckdb():
        frame = to_frame(in_process(), rows)
        for text in some:
            with suppress(Unsupported):
                values[text] = grouped(frame, [text])[0]
                wanted.append(text)
    assert len(wanted) > 100 // step
    found = grouped(to_frame(spark, rows), wanted)
    assert {text for text, column in zip(wanted, found, strict=True) if column != values[text]} == set()


def grouped(frame: DataFrame, aggregates: Sequence[str]) -> list[object]:
    """Return the values of each aggregate, by groups in their order, and of all rows."""
    from pyspark.sql import functions as F

    columns = [F.expr(text).alias(f"x{n}") for n, text in enumerate(aggregates)]
    by_group = to_arrow(frame.groupBy("group").agg(*columns)).sort_by("group")
    alone = to_arrow(frame.where("group = 1").agg(*columns))
    return [(comparable_column(by_group[f"x{n}"]), comparable_column(alone[f"x{n}"])) for n in range(len(columns))]


def differing(answers: dict[str, dict[int, object]], spark: dict[str, dict[int, object]]) -> dict[str, object]:
    """Return the first row of each text for which the engines differ: (id, DuckDB's value, Spark's)."""
    return {
        text: next((n, value, spark[text][n]) for n, value in values.items() if value != spark[text][n])
        for text, values in answers.items()
        if values != spark[text]
    }
