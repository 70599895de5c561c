"""SQL over frames gives the same rows by DuckDB and by Spark, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.gold.carrier_league import carrier_league
from lake.session.in_process.mode import Unsupported, by_duckdb
from lake.store.scan import to_arrow, to_frame
from tests.in_process.rows import all_rows, comparable_column, in_process

COLUMNS = ["id", "int", "long", "money", "text", "day", "part", "items", "group"]
ANSWERED = (
    "select * from {rows}",
    "select ROWS.id, Rows.part.* from {rows} as rows",
    "select {rows}.id, * except (id, text) from {rows}",
    "select id as from, text `x y`, -1 as `left` from {rows} where id > {n} and text <> {word}",
    "select id -- the key\n, /* of all */ text from {rows} --",
    "select group, limit from (select group, id as limit from {rows}) order by limit desc nulls last limit 3",
    "select part.a, part.part.b from (select id as a, part from {rows}) part",
    "select distinct group, year(day) as year from {rows}",
    "select id, explode(items) as item from {rows}",
    "select id, row_number() over (partition by r.group order by r.id desc) as nth from {rows} r",
    # joins
    "select * from {rows} a, {rows} b where a.id = b.id + 1",
    "select a.*, b.word from {rows} a left join {other} b on a.id = b.id and a.group > 1 where b.id is null",
    "select b.*, a.text from {rows} a right outer join {other} b on a.id = b.number",
    "select a.id, b.id as other from {rows} a full join {other} b on a.id = b.number and b.word is not null",
    "select * from {rows} a left semi join {other} b on a.id = b.id",
    "select * from {rows} a anti join {other} b using (group, id)",
    "select * from {rows} a left join {other} b using (group, id)",
    "select a.*, word from {rows} a join {other} b using (id)",
    "select a.id, c.word from {rows} a join {other} b using (id) join {other} c using (id)",
    "select a.id from {rows} a, {other} b inner join {other} c on b.id = c.id where a.id = b.id",
    "select a.id from {rows} a cross join (select max(number) as most from {other}) where a.id < most",
    "select a.money / b.money as q from {rows} a join {rows} b on b.money <> 0",
    "select id, text from {rows} where id in (select id from {other})",
    "select a.id from {rows} a where a.int in (select b.number from {other} b where word is not null) and group > 1",
    "select id from {rows} where text in (select word from {other}) and id in (with t as (select 3L as id "
    "from {other}) select id from t)",
    "select id from {rows} where id + 1 in (select max(id) as m from {other} group by group) and text is not null",
    "select id from {rows} where part.a in (select part.a from {rows}) and day in "
    "(select day from {rows} where id < 9)",
    "select group, count(*) n from {rows} where int in (select int from {rows} where id > 4) group by group",
    # groups
    "select group, count(*) n, sum(int) total from {rows} group by group having count(*) > 2",
    "select r.group as k, max(id) m from {rows} r group by group having r.group < 3",
    "select (group + 1) * 2 as g, count(*) as n from {rows} group by group + 1",
    "select coalesce(text, 'none') as text, count(*) n from {rows} group by text having text > 'A' or max(int) = 17",
    "select max(id) m, 7 as seven from {rows} having max(id) < 100",
    "select group, count(*) n from {rows} group by group having n > 2 and not N in (3, 4)",
    "select group as k, max(id) + 1 as m, sum(id) s from {rows} group by group having m < s or k is null",
    "select text, 7 as seven, struct(max(id) as id) as most from {rows} group by text having seven > 1 and text > 'A'",
    "select sum(id) as n, count(*) as c from {rows} where id > 1000",
    "select 1 as one from {rows} group by group",
    "select group g, count(*) n from {rows} group by g",
    "select group % 2 as id, max(group % 3) n from {rows} group by group % 2",
    "select group % 2 as g, text, count(*) n from {rows} group by 2, g having count(*) < 9",
    "select group + 1 g, count(*) n from {rows} group by 1 order by n desc, g limit 2",
    "select group, count(distinct int) n, count(distinct text, int) m, avg(money) a from {rows} group by group",
    "select group, sort_array(collect_set(int)) s from {rows} group by group",
    "select id, text rlike '^a' as a, split(text, '-')[0] as first from {rows} where text is not null order by id",
    "select extract(year from day) y, count(*) n from {rows} group by extract(year from day)",
    "select id, sum(id) over (order by id rows between 1 preceding and current row) s from {rows}",
    "select * from (select id, group from {rows}) group by id, group",
    "select k.k.x from (select struct(id as x) as k, id as z from {rows}) k group by k",
    "select case when group > 1 then max(id) else min(id) end as some, max_by(text, struct(id)) t "
    "from {rows} group by group",
    "select group, sum(sum(id)) over (order by group) as s, max(text) filter (where id > 3) m "
    "from {rows} group by group",
    "select group, sort_array(collect_list(id)) ids from {rows} group by group order by group limit 3",
    "select sum(id) / count(*) as mean, sum(cast(id as decimal(6, 0))) / count(*) as exact from {rows}",
    # common tables, unions
    "with t as (select id, text from {rows}), u as (select id from t where id > 3) select U.*, T.text "
    "from u join t using (id)",
    "with t as (select id from {rows}) select a.id, b.id x from t a join t b on a.id = b.id + 1",
    "with t as (select id from {rows}) select * from (with u as (select id + 9 as id from t) select * from u) x",
    "select id from {rows} union select number from {other}",
    "select id from {rows} union all select id from {rows} union distinct select number from {other}",
    "select group from {rows} union select group from {other} union all select group from {other}",
    "select id from (select id, text from {rows} order by text) where id > 2 order by id",
    "select int from {rows} union all select money from {rows} union all select 5L as z from {other}",
    "(select id from {rows} order by id limit 2) union all (select number from {other} order by number limit 2)",
    "select id as x from {rows} union all select number from {other} order by x desc limit 5",
)
REFUSED = (
    "select id from nowhere join {rows} using (id)",
    "select ID from {rows}",
    "select id as x, x + 1 as y from {rows}",
    "select id + 1 from {rows}",
    "select count(*) from {rows}",
    "select id, from {rows}",
    "select id left from {rows}",
    "select all id from {rows}",
    "select (*) from {rows}",
    "select 1 as one",
    "from {rows} select id",
    "table {rows}",
    "select id from {rows};",
    "select /*+ broadcast(a) */ id from {rows} a",
    "select id /* of /* all */ */ from {rows}",
    "-- select id from {rows}",
    "select id from {rows} where text = '${{name}}'",
    "select :x as x from {rows}",
    "select id from {rows} left",
    "select id from {rows} as left join {other} as b on true",
    "select id from {rows} t(id)",
    "select id from {rows} tablesample (10 rows)",
    "select id from {rows} lateral view explode(items) t as item",
    "select id from ({rows})",
    "select id from {rows} where null",
    "select id from {rows} where id not in (select id from {other})",
    "select id from {rows} where not id in (select id from {other})",
    "select id from {rows} where id in (select id from {other}) or text is null",
    "select id, id in (select id from {other}) as x from {rows}",
    "select id from {rows} where id in (select id, word from {other})",
    "select id from {rows} a where id in (select b.id from {other} b where b.word = a.text)",
    "select id from {rows} where part in (select part from {rows})",
    "select id from {rows} where text in (select id from {other})",
    "select id from {rows} where id in (1, select id from {other})",
    "select group, count(*) n from {rows} group by group having n in (select id from {other})",
    "select id from {rows} where max(id) > 3",
    "select id from {rows} having id > 1",
    "select id from {rows} limit 3",
    "select id from (select id from {rows} order by id) limit 3",
    "select id from {rows} order by 1 limit 3",
    "select id from {rows} order by text limit 3",
    "select id from {rows} order by id nulls limit 3",
    "select id from {rows} order by id limit 3 offset 1",
    "select id from {rows} order by id limit 3000000000",
    "select lag(id) ignore as x from {rows}",
    # joins
    "select * from {rows} a join {other} b",
    "select * from {rows} a natural join {other} b",
    "select * from {rows} a cross join {other} b on a.id = b.id",
    "select * from {rows} a full join {other} b using (id)",
    "select * from {rows} a join {other} b using (id, id)",
    "select * from {rows} a join {other} b on a.id",
    "select * except (id) from {rows} a join {other} b on a.id = b.id",
    "select * except () from {rows}",
    "select b.* from {rows} a join {other} b using (id)",
    "select a.* from {rows} a join (select id from {other}) A using (id)",
    "select b.id from {rows} a left join {other} b using (id)",
    "select b.v from {rows} a join (select id, struct(id as v) as b from {other}) b using (id)",
    "select a.id from {rows} a, {other} b join {other} c on a.id = c.id",
    "select c.id from {rows} a join {other} b on a.id = b.id join (select 1L as id from {rows}) c using (id)",
    # groups
    "select id, max(id) m from {rows}",
    "select group g, id g, count(*) n from {rows} group by g",
    "select group, count(*) n from {rows} group by 0",
    "select group + 1 as id, count(*) n from {rows} group by id",
    "select group, count(*) n from {rows} group by 3",
    "select *, count(*) n from {rows} group by 1",
    "select count(*) n from {rows} group by 1",
    "select group, count(*) n from {rows} group by all",
    "select group, count(*) n from {rows} group by rollup(group)",
    "select group, sum(id) over (partition by group) as s from {rows} group by group",
    "select group, transform(array(1), x -> x + group) m from {rows} group by group",
    "select k.x as y from (select struct(id as x) as k, id as x from {rows}) k group by k",
    # common tables, unions
    "with t as (select id from {rows}), T as (select id from {rows}) select * from t",
    "with t as (select id from {rows}) select * from (with t as (select 1 as id from {rows}) select * from t)",
    "with t(x) as (select id from {rows}) select * from t",
    "with u as (select id from t), t as (select id from {rows}) select * from u",
    "select id from {rows} union all select number, id from {other}",
    "select id from {rows} except select number from {other}",
)
KINDS = ("join", "inner join", "left join", "right join", "full outer join", "left semi join", "anti join", ",")
VALUES = ("{a}.id + 1", "{b}.id - {a}.group", "{b}.group", "coalesce({b}.id, -1)", "cast({a}.id as decimal(9, 2)) / 7")
WINDOWS = (
    "row_number() over (partition by {a}.group order by {a}.id, {b}.id, {a}.n, {b}.n)",
    "max({b}.id) over (partition by {a}.group)",
)
AGGREGATES = (
    "count(*)",
    "max({b}.id)",
    "sum({a}.group) / 7.5",
    "max_by({a}.id, struct({b}.id as x, {a}.id as y))",
    "min({a}.n)",
)
KEYS = ("{a}.id", "{a}.group", "{b}.id % 3", "coalesce({b}.n, 0)", "{b}.n")
WHERE = ("", "", "where {a}.id > 5", "where {b}.id % 2 = 1 or {b}.group is null", "where not {a}.group <=> 2")


def generated(count: int) -> list[str]:
    """Return queries of common tables with the columns id, group and n, each over some of those before it."""
    dice, texts = Random(11), list[str]()
    first = "r as (select id, group, length(text) as n from {rows}), o as (select id, group, number as n from {other})"
    for _ in range(count):
        tables, steps = ["r", "o"], [first]
        for number in range(dice.randint(1, 4)):
            steps.append(f"t{number} as ({_step(dice, tables)})")
            tables.append(f"t{number}")
        texts.append(f"with {', '.join(steps)} select * from {tables[-1]}")
    return texts


def _step(dice: Random, tables: list[str]) -> str:
    source, b = f"{dice.choice(tables)} as a", "a"
    if dice.random() < 0.5:
        kind = dice.choice(KINDS)
        by = "" if kind == "," else dice.choice(("on a.id = b.id", "using (id)", "on a.n <=> b.group and b.id > 2"))
        source += f" {kind} {dice.choice(tables)} b {by}"
        b = "a" if "semi" in kind or "anti" in kind or "using" in by else "b"
    where = dice.choice(WHERE)
    if dice.random() < 0.4:
        key, value = dice.sample(KEYS, 2), dice.choice(AGGREGATES)
        text = f"select {key[0]} as id, {value} as group, count({key[1]}) as n from {source} {where} group by {key[0]}"
        text += dice.choice(("", "", " having count(*) > 1", f" having {key[0]} is not null"))
    else:
        value, distinct = dice.choice((*VALUES, *WINDOWS)), dice.choice(("", "", "distinct"))
        text = f"select {distinct} {dice.choice(('{a}', '{b}'))}.id, {{a}}.group, {value} as n from {source} {where}"
    text = text.replace("{a}", "a").replace("{b}", b)
    return f"{text} union all select id, n, group from {tables[0]}" if dice.random() < 0.1 else text


def frame_of(rows: DataFrame, text: str) -> DataFrame:
    other = rows.where("id % 3 = 0").selectExpr("id", "group", "text as word", "id + 5 as number")
    return rows.sparkSession.sql(text, rows=rows, other=other, n=4, word="a \\ 'b' \"c\"")


def result(rows: DataFrame, text: str) -> list[object]:
    frame = frame_of(rows, text)
    found = to_arrow(frame)
    columns = [comparable_column(found[n]) for n in range(found.num_columns)]
    return [frame.columns, sorted(map(repr, zip(*columns, strict=True)))]


def tried(spark: SparkSession, texts: list[str]) -> list[str]:
    """Return the texts that DuckDB answers; its rows and those of Spark are the same."""
    rows, answered = all_rows().select(COLUMNS), list[str]()
    by_spark = to_frame(spark, rows).cache()
    for text in texts:
        try:
            with by_duckdb():
                mine = result(to_frame(in_process(), rows), text)
        except Unsupported:
            continue
        answered.append(text)
        assert mine == result(by_spark, text), text
    by_spark.unpersist()
    return answered


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
def test_queries_give_the_rows_of_spark(spark: SparkSession, every: int) -> None:
    answered = [*ANSWERED][::every]
    assert tried(spark, [*answered, *generated(15 // every)])[: len(answered)] == answered


@pytest.mark.long
def test_generated_queries_give_the_rows_of_spark(spark: SparkSession) -> None:
    assert len(tried(spark, generated(200))) > 150


@pytest.mark.parametrize("text", REFUSED)
def test_query_is_refused(text: str) -> None:
    with by_duckdb(), pytest.raises(Unsupported):
        to_arrow(frame_of(to_frame(in_process(), all_rows().select(COLUMNS)), text))


BRACES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a missing argument": lambda rows: rows.sparkSession.sql("select {x} from {rows}", rows=rows),
    "one brace": lambda rows: rows.sparkSession.sql("select id from {rows} where text = '{'", rows=rows),
    "braces without a name": lambda rows: rows.sparkSession.sql("select id from {}", rows=rows),
    "a column": lambda rows: rows.sparkSession.sql("select {x} from {rows}", rows=rows, x=F.col("id")),
    "a parameter": lambda rows: rows.sparkSession.sql("select id from {rows}", {"x": 1}, rows=rows),
}


@pytest.mark.parametrize("name", BRACES)
def test_query_with_other_braces_is_refused(name: str) -> None:
    with by_duckdb(), pytest.raises(Unsupported):
        BRACES[name](to_frame(in_process(), all_rows()))


def test_rows_of_a_query_are_a_frame() -> None:
    with by_duckdb():
        rows = to_frame(in_process(), all_rows())
        found = frame_of(rows, "select group, max(id) as most from {rows} group by group")
        more = found.withColumn("next", found["most"] + 1).where("group > 0").drop("most")
        assert to_arrow(more).sort_by("group").to_pydict() == {"group": [1, 2, 3], "next": [22, 23, 24]}
        with pytest.raises(Unsupported):
            to_arrow(found.select(rows["group"]))


@pytest.mark.parametrize("limit", range(6))
def test_limit_between_different_rows_with_equal_keys_is_refused(limit: int) -> None:
    values = [(5, 1), (3, 2), (5, 3), (9, 4), (9, 4)]
    with by_duckdb():
        rows = to_frame(in_process(), pa.table({"key": [key for key, _ in values], "id": [id_ for _, id_ in values]}))
        found = rows.sparkSession.sql(f"select key, id from {{rows}} order by key limit {limit}", rows=rows)
        if limit == 2:
            with pytest.raises(Unsupported):
                to_arrow(found)
        else:
            pairs = [(row["key"], row["id"]) for row in to_arrow(found).to_pylist()]
            assert sorted(pairs) == sorted(values)[:limit]


def test_league_of_carriers_is_that_of_spark(spark: SparkSession) -> None:
    measures = ("flights", "cancelled", "arrived", "arrived_late", "arrival_delay")
    days = [{"carrier": f"C{n % 7}"} | {name: (n * 37 + len(name)) % 11 for name in measures} for n in range(50)]
    names = [{"carrier": f"C{n}", "name": f"{n}", "_batch": n, "_bucket": 0, "_offset": n} for n in range(5)]
    inputs = [pa.Table.from_pylist(rows) for rows in (days, [*names, *names[::-1]])]
    with by_duckdb():
        session = in_process()
        mine = to_arrow(_league(*(to_frame(session, rows) for rows in inputs)))
    theirs = to_arrow(_league(*(to_frame(spark, rows) for rows in inputs)))
    assert mine.sort_by("rank").to_pylist() == theirs.sort_by("rank").to_pylist()
    assert mine.num_rows == 7


def _league(days: DataFrame, airlines: DataFrame) -> DataFrame:
    found = carrier_league(days, airlines)
    assert isinstance(found, DataFrame)
    return found
