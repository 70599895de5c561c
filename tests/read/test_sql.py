from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

import lake as headwater
from lake.cli import lake
from lake.config import Settings
from lake.errors import DeclarationError, LakeError, StorageError
from lake.read.sql import EditionChoice, EditionReader, open_reader, reader
from lake.store.ledger import runs
from lake.testing import Commands
from tests.checks import present
from tests.judgements import record_check
from tests.shop import contract, declare, empty, new_shop, order
from tests.warehouse import publish, write

DAILY = """
    SELECT * FROM (VALUES
      ('AA', DATE '2013-01-01', 10::BIGINT, 1.50::DECIMAL(18, 2), TIMESTAMPTZ '2013-01-01 05:15:00.25Z', 'x', 7),
      ('UA', DATE '2013-01-01', 20,         NULL,                 NULL,                                  '',  7),
      ('B6', DATE '2013-01-02', 30,         0.10,                 TIMESTAMPTZ '2013-07-01 00:00:00Z',    NULL, 7)
    ) t(carrier, "day", flights, delay, last_at, note, _state)"""
NESTED = """
    SELECT 1::BIGINT AS id, {'a': 1, 'price': 1.50::DECIMAL(5, 2), 'at': TIMESTAMPTZ '2013-01-01 00:00:00Z'} AS s,
           [1, NULL, 3] AS l, MAP {'k': 2} AS m"""


@pytest.fixture(scope="module")
def edition(tmp_path_factory: pytest.TempPathFactory) -> EditionReader:
    """Edition shared by tests that only read."""
    return publish_tables(empty(tmp_path_factory.mktemp("published")))


def publish_tables(project: Settings) -> EditionReader:
    write(project, "gold", "carrier_daily", DAILY)
    write(project, "silver", "flight", NESTED)
    publish(project, carrier_daily=("gold", 0), flight=("silver", 0))
    return reader(project)


def rows(found: EditionReader, query: str) -> list[tuple[Any, ...]]:
    return found.relation(query).fetchall()


def run(found: EditionReader, *args: str, stdin: str = "") -> Any:
    return CliRunner().invoke(lake, [*args, "--project", str(found.settings.project)], input=stdin)


@pytest.mark.parametrize("name", ["carrier_daily", "gold.carrier_daily", "CARRIER_DAILY", '"carrier_daily"'])
def test_table_is_named_with_or_without_its_layer(edition: EditionReader, name: str) -> None:
    assert rows(edition, f"SELECT sum(flights) FROM {name}") == [(60,)]


def test_values_keep_their_types(edition: EditionReader) -> None:
    query = "SELECT carrier, day, flights, delay, last_at FROM carrier_daily ORDER BY flights"
    assert rows(edition, query)[:2] == [
        ("AA", date(2013, 1, 1), 10, Decimal("1.50"), datetime(2013, 1, 1, 5, 15, 0, 250000, tzinfo=UTC)),
        ("UA", date(2013, 1, 1), 20, None, None),
    ]


def test_state_columns_are_hidden(edition: EditionReader) -> None:
    assert edition.relation("FROM carrier_daily").columns == ["carrier", "day", "flights", "delay", "last_at", "note"]


def test_listing_shows_every_table(edition: EditionReader) -> None:
    assert rows(edition, "SHOW TABLES") == [("carrier_daily",), ("flight",)]
    schemas = "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_schema <> 'main' ORDER BY ALL"
    assert rows(edition, schemas) == [("gold",), ("silver",)]


def test_edition_is_read_at_its_version_after_later_writes(project: Settings) -> None:
    edition = publish_tables(project)
    write(project, "gold", "carrier_daily", DAILY, mode="overwrite")
    later = write(project, "gold", "carrier_daily", DAILY)
    publish(project, 2, carrier_daily=("gold", later))
    assert rows(edition, "SELECT count(*) FROM carrier_daily") == [(3,)]
    assert rows(reader(project), "SELECT count(*) FROM carrier_daily") == [(6,)]
    assert rows(reader(project, 1), "SELECT count(*) FROM carrier_daily") == [(3,)]


def test_column_missing_in_older_files_is_null_there(project: Settings) -> None:
    write(project, "gold", "t", "SELECT 1::BIGINT AS a")
    write(project, "gold", "t", "SELECT 2::BIGINT AS a, 0.5::DECIMAL(5, 2) AS b", merge=True)
    publish(project, t=("gold", 1))
    found = reader(project)
    assert rows(found, "FROM t ORDER BY a") == [(1, None), (2, Decimal("0.50"))]
    assert str(found.relation("FROM t").types[1]) == "DECIMAL(5,2)"


def test_column_missing_in_all_files_is_null_with_its_type(project: Settings) -> None:
    write(project, "gold", "t", "SELECT 1::BIGINT AS a")
    version = write(project, "gold", "t", "SELECT 2::BIGINT AS a, now() AS at WHERE false", merge=True)
    publish(project, t=("gold", version))
    found = reader(project).relation("FROM t")
    assert (found.fetchall(), str(found.types[1])) == ([(1, None)], "TIMESTAMP WITH TIME ZONE")


def test_empty_table_has_its_columns_and_types(project: Settings) -> None:
    write(project, "gold", "t", f"FROM ({NESTED}) WHERE false")
    publish(project, t=("gold", 0))
    found = reader(project).relation("FROM t")
    assert found.fetchall() == []
    assert [str(kind) for kind in found.types] == [
        "BIGINT",
        'STRUCT(a INTEGER, price DECIMAL(5,2), "at" TIMESTAMP WITH TIME ZONE)',
        "INTEGER[]",
        "MAP(VARCHAR, INTEGER)",
    ]


def test_table_with_deletion_vectors_is_rejected(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, "gold", "t", "SELECT 1 AS a")
    publish(project, t=("gold", 0))
    log = project.warehouse_path / "gold/t" / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"],
            }
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(LakeError, match="t: its rows cannot be read from its files alone: deletionVectors"):
        rows(reader(project), "FROM t")


def test_query_that_builds_a_table_name_finds_it(edition: EditionReader) -> None:
    assert rows(edition, "SELECT count(*) FROM query_table('carrier_' || 'daily')") == [(3,)]


def test_table_name_may_have_capitals(project: Settings) -> None:
    write(project, "gold", "CarrierDaily", DAILY)
    publish(project, CarrierDaily=("gold", 0))
    assert rows(reader(project), "SELECT count(*) FROM carrierdaily") == [(3,)]
    assert rows(reader(project), "SELECT count(*) FROM gold.CarrierDaily") == [(3,)]


def test_file_that_is_gone_is_named(project: Settings) -> None:
    found = publish_tables(project)
    [file] = found.table("carrier_daily").files
    Path(file).unlink()
    with pytest.raises(StorageError, match="edition 1 cannot be read: a file is gone") as told:
        rows(found, "FROM carrier_daily")
    assert told.value.where == file
    assert rows(found, "SELECT count(*) FROM flight") == [(1,)]


def test_project_folder_may_have_any_name(tmp_path: Path) -> None:
    assert rows(publish_tables(empty(tmp_path / "Ann's projects, é")), "SELECT sum(flights) FROM carrier_daily") == [
        (60,)
    ]


READS = [
    "SELECT 1",
    "FROM carrier_daily",
    "TABLE carrier_daily",
    "VALUES (1)",
    "WITH a AS (SELECT 1) FROM a",
    "DESCRIBE carrier_daily",
    "SUMMARIZE carrier_daily",
    "SHOW TABLES",
    "EXPLAIN SELECT * FROM carrier_daily",
    "/* why */ EXPLAIN ANALYZE SELECT * FROM carrier_daily",
    "EXPLAIN (FORMAT json) SELECT * FROM carrier_daily",
    "EXPLAIN /* /* why */ */ SELECT 'é' FROM carrier_daily",
    "PIVOT carrier_daily ON carrier USING sum(flights) GROUP BY day",
    "SELECT * FROM carrier_daily; -- the end",
    "SELECT (update), sum(delete), '(COPY x' FROM (SELECT 1 AS update, 2 AS delete) GROUP BY ALL",
    "PIVOT (SELECT 1 AS copy, 'a' AS kind) ON kind USING sum(copy)",
]


@pytest.mark.parametrize("query", READS)
def test_reading_statements_are_answered(edition: EditionReader, query: str) -> None:
    with edition.connect(query) as con:
        assert con.execute(query).fetchall()


WRITES = [
    "COPY carrier_daily TO 'OUT/headwater.csv'",
    "COPY (SELECT 1) TO '/dev/stdout'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'OUT/headwater.csv'",
    "EXPLAIN /* */ ANALYZE /* */ COPY (SELECT 1) TO 'OUT/headwater.csv'",
    "ATTACH 'OUT/headwater.db'",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW carrier_daily AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "DROP VIEW carrier_daily",
    "INSERT INTO carrier_daily VALUES (1)",
    "WITH a AS (INSERT INTO carrier_daily VALUES (1)) SELECT 1",
    "UPDATE carrier_daily SET flights = 0",
    "DELETE FROM carrier_daily",
    "SET enable_external_access = true",
    "RESET enable_external_access",
    "SET lock_configuration = false",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "INSTALL httpfs",
    "LOAD httpfs",
    "EXPORT DATABASE 'OUT/headwater'",
    "IMPORT DATABASE 'OUT/headwater'",
    "USE memory",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "SELECT 1; DROP VIEW carrier_daily",
    "",
    "-- nothing",
    # Functions that read files.
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''/etc/passwd'')'))",
    "SELECT (SELECT max(content) FROM read_text('/etc/passwd'))",
    "SELECT * FROM 'http://127.0.0.1/x.parquet'",
    "SELECT getenv('HOME')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM read_text('.tmp/*')",
    "SELECT * FROM read_duckdb('OUT/headwater.db')",
    "SELECT * FROM read_single_csv_file('/etc/passwd')",
    "SELECT * FROM parquet_metadata('/etc/passwd')",
    "SELECT * FROM read_csv('/dev/stdin')",
    "SELECT * FROM read_text('file:///etc/passwd')",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "DESCRIBE SELECT * FROM read_text('/etc/passwd')",
    "SUMMARIZE '/etc/passwd'",
    "PIVOT (SELECT * FROM read_csv('/etc/passwd')) ON column0 USING count(*)",
    # Statements that write logs, profiles, secrets or the catalogue.
    "SELECT * FROM enable_logging(storage = 'file', storage_config = {'path': 'OUT/log'})",
    "SELECT * FROM enable_profiling(save_location = 'OUT/profile.json')",
    "SELECT * FROM which_secret('s3://a', 's3')",
    "CREATE SECRET s (TYPE s3)",
    "MERGE INTO carrier_daily USING (SELECT 1) ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE carrier_daily",
    "ALTER TABLE carrier_daily RENAME TO x",
    "COMMENT ON TABLE carrier_daily IS 'x'",
    "DETACH memory",
    "EXECUTE p",
    ".shell ls",
    # Comments that DuckDB nests, and options with a bracket as text.
    "EXPLAIN /* /* */ SELECT 1 -- */ ANALYZE CREATE TABLE t AS SELECT 1",
    "EXPLAIN /* /* */ SELECT 1 -- */ ANALYZE COPY (SELECT 1) TO 'OUT/headwater.csv'",
    "EXPLAIN -- \n ANALYZE COPY (SELECT 1) TO 'OUT/headwater.csv'",
    "EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO 'OUT/headwater.csv'",
    "EXPLAIN (FORMAT 'a) SELECT 1 --', ANALYZE) COPY (SELECT 1) TO 'OUT/headwater.csv'",
    "EXPLAIN EXPLAIN ANALYZE COPY (SELECT 1) TO 'OUT/headwater.csv'",
    # WITH bodies that write, which DuckDB counts as a SELECT.
    "WITH t AS (COPY (SELECT 1) TO 'OUT/headwater.csv') SELECT 1",
    "WITH t AS (SELECT 1), u AS (copy carrier_daily TO 'OUT/headwater.csv') FROM t",
    "WITH t AS (/* ( */ COPY (SELECT 1) TO 'OUT/headwater.csv'), u AS (FROM carrier_daily) PIVOT u ON carrier",
    "WITH t AS (WITH x AS (SELECT 1) COPY (FROM x) TO 'OUT/headwater.csv'), u AS (SELECT 1 AS a) PIVOT u ON a",
    "EXPLAIN ANALYZE WITH t AS (COPY (SELECT 1) TO 'OUT/headwater.csv') SELECT 1",
    "WITH t AS (INSERT INTO carrier_daily DEFAULT VALUES RETURNING *) FROM t",
    "WITH t AS (UPDATE carrier_daily SET flights = 0 RETURNING *) FROM t",
    "WITH t AS (DELETE FROM carrier_daily RETURNING *) FROM t",
    # Variables of Python, which are no tables.
    "SELECT * FROM secret",
]


@pytest.mark.parametrize("query", WRITES)
def test_query_reads_and_changes_nothing_but_the_edition(edition: EditionReader, query: str, tmp_path: Path) -> None:
    query = query.replace("OUT", str(tmp_path))
    secret = duckdb.values(1)
    with pytest.raises(DeclarationError), edition.connect(query) as con:
        con.execute(query).fetchall()
    assert secret.fetchall() == [(1,)]
    assert not list(tmp_path.iterdir())


OVERWRITES = [
    "COPY (SELECT 1) TO 'FILE' (FORMAT csv, USE_TMP_FILE false)",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'FILE' (FORMAT csv, USE_TMP_FILE false)",
    "EXPLAIN /* /* */ FROM carrier_daily -- */ ANALYZE COPY (SELECT 1) TO 'FILE' (FORMAT csv, USE_TMP_FILE false)",
    "EXPLAIN (ANALYZE) /* carrier_daily */ COPY (SELECT 1) TO 'FILE' (FORMAT csv, USE_TMP_FILE false)",
    "WITH t AS (COPY (SELECT 1) TO 'FILE' (FORMAT csv, USE_TMP_FILE false)) SELECT 1 -- carrier_daily",
    "WITH t AS (COPY (SELECT 1) TO 'FILE' (USE_TMP_FILE false)), u AS (FROM carrier_daily) PIVOT u ON carrier",
    "EXPLAIN ANALYZE WITH t AS (COPY (SELECT 1) TO 'FILE' (USE_TMP_FILE false)) SELECT 1 -- carrier_daily",
]


@pytest.mark.parametrize("query", OVERWRITES)
def test_file_of_the_edition_cannot_be_written(project: Settings, query: str) -> None:
    edition = publish_tables(project)
    file = Path(edition.table("carrier_daily").files[0])
    before = file.read_bytes()
    with pytest.raises(DeclarationError), edition.connect(query) as con:
        con.execute(query.replace("FILE", str(file))).fetchall()
    with pytest.raises(DeclarationError):
        rows(edition, query.replace("FILE", str(file)))
    assert file.read_bytes() == before


def test_spilled_files_of_another_query_are_not_read(project: Settings) -> None:
    edition = publish_tables(project)
    spilled = project.path(".lake/sql/headwater-1-other/spilled.tmp")
    spilled.parent.mkdir(parents=True)
    spilled.write_text("rows of another edition")
    for path in (spilled, spilled.parent.parent / "*" / "*", spilled.parent.parent / "**"):
        with pytest.raises(DeclarationError, match="the tables of the edition only"):
            rows(edition, f"SELECT * FROM read_text('{path}')")


@pytest.mark.parametrize(
    "call",
    [
        lambda answer, out: answer.write_csv(str(out)),
        lambda answer, out: answer.write_parquet(str(out)),
        lambda answer, out: answer.query("v", f"COPY v TO '{out}'"),
        lambda answer, out: answer.query("v", f"ATTACH '{out}'"),
        lambda answer, _: answer.query("v", "SET enable_external_access = true"),
        lambda answer, _: answer.query("v", "SELECT * FROM read_text('/etc/passwd')").fetchall(),
    ],
)
def test_lazy_relation_of_a_program_cannot_leave_the_edition(edition: EditionReader, tmp_path: Path, call: Any) -> None:
    with pytest.raises(duckdb.Error):
        call(headwater.open(edition.settings.project).sql("FROM carrier_daily").duckdb(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_files_of_the_warehouse_outside_the_edition_are_not_read(project: Settings) -> None:
    edition = publish_tables(project)
    write(project, "gold", "carrier_daily", DAILY)
    write(project, "gold", "draft", "SELECT 1 AS a")
    later = set(DeltaTable(str(project.warehouse_path / "gold/carrier_daily")).file_uris())
    inside = set(edition.table("carrier_daily").files)
    other = DeltaTable(str(project.warehouse_path / "gold/draft")).file_uris()
    [own] = inside
    outside = [
        *(later - inside),
        *other,
        other[0].replace("/draft/", "/carrier_daily/../draft/"),
        str(Path(own).parent / "*.parquet"),
    ]
    for file in outside:
        query = f"SELECT * FROM read_parquet('{file}'), (SELECT count(*) FROM carrier_daily)"
        with pytest.raises(DeclarationError, match="the tables of the edition only"):
            rows(edition, query)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (
            "SELECT * FROM carrier_dayly",
            "no table 'carrier_dayly' in edition 1 (line 1, column 15)\n  fix: did you mean 'carrier_daily'?",
        ),
        ("SELECT * FROM gold.flight", "no table 'gold.flight' in edition 1"),
        (
            "SELECT\n  flihgts FROM carrier_daily",
            "no column 'flihgts' (line 2, column 3)\n  fix: did you mean 'flights'?",
        ),
        (
            "SELECT d.flihgts FROM carrier_daily d",
            "no column 'flihgts' (line 1, column 8)\n  fix: did you mean 'flights'?",
        ),
        ("SELEC 1", 'syntax error at or near "SELEC" (line 1, column 1)'),
        ("SELECT carrier::INTEGER FROM carrier_daily", "Could not convert string 'AA' to INT32"),
        ("DROP VIEW carrier_daily", "DROP is not allowed: an edition is read-only"),
        ("SELECT 1; SELECT 2", "found 2 statements, one statement is allowed at a time"),
    ],
)
def test_wrong_query_is_reported_with_place_and_fix(edition: EditionReader, query: str, told: str) -> None:
    result = run(edition, "sql", query)
    assert isinstance(result.exception, DeclarationError)
    assert told in str(result.exception)


def test_project_without_an_edition_is_reported_with_a_fix(project: Settings) -> None:
    with pytest.raises(DeclarationError, match=r"no edition has been published yet(.|\n)*fix: run `lake run`"):
        reader(project)


def test_ledgers_are_readable_before_the_first_edition(project: Settings) -> None:
    query = "select verb, error from lake.runs, (select count(*) from lake.quarantine)"
    assert open_reader(project, query, EditionChoice()).relation(query).fetchall() == []
    runs.record_outcome(project, "ingest", "orders", None, datetime.now(UTC), error="no luck")
    assert open_reader(project, query, EditionChoice()).relation(query).fetchall() == [("ingest", "no luck")]
    declare(project, contract("orders", {"id": "int"}))
    for other in ("from orders", "from log.orders, lake.runs"):
        with pytest.raises(DeclarationError, match="no edition has been published yet"):
            open_reader(project, other, EditionChoice())


def test_stopping_gate_is_named_before_the_first_edition(project: Settings) -> None:
    result = {
        "type": "expect_column_values_to_not_be_null", "kwargs": {"column": "carrier"}, "severity": "stop",
        "where": "quality/carrier_daily.json:2", "success": False, "rows": 3, "failed": 1, "observed": None,
        "examples": [{"carrier": None}],
    }  # fmt: skip
    record_check(
        project, "carrier_daily", home="carrier_daily", scope="diff", cut=4, version=None, suite="s", outcome="stopped",
        results=[result],
    )  # fmt: skip
    with pytest.raises(DeclarationError) as told:
        reader(project)
    assert "a gate stopped cut 4" in str(told.value)
    assert "carrier_daily: expect_column_values_to_not_be_null(carrier) failed for 1 of 3 rows" in str(told.value)


@pytest.mark.long
def test_failure_and_its_fix_are_reported_before_the_first_edition(tmp_path: Path, commands: Commands) -> None:
    shop = new_shop(tmp_path)
    job = shop.source.path("jobs/silver/current_order.py")
    sound = job.read_text()

    def asked(code: int) -> str:
        """Run `lake run`, which ends with `code`, and return the error of a query."""
        ran = commands.lake("run", at=shop)
        assert ran.code == code, ran.err
        answer = commands.lake("sql", "select 1", at=shop)
        assert (answer.code, "run `lake run`" in answer.err) == (2, False), answer.err
        return answer.err

    job.write_text(sound.replace("orders.select", "orders.choose"))
    shop.land("orders", order(1))
    failed = asked(2)
    assert "advance current_order failed: " in failed
    assert "fix: correct that, then lake run" in failed

    job.write_text(f"{sound}\nbroken")
    assert "jobs/silver/current_order.py" in asked(2)

    job.write_text(sound)
    few = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 9}}
    shop.source.path("quality/current_order.json").write_text(json.dumps({"expectations": [few]}))
    shop.land("orders", *["{"] * 30)
    held = asked(1)
    assert "a gate stopped cut 2\ncurrent_order: expect_table_row_count_to_be_between failed: expected" in held
    assert "where events are missing, land them; where a delivery is wrong, lake void STREAM --batch N" in held
    assert "STREAM PLACE" not in held
    assert "orders: 30 of 31 records of batches 1 to 2 were refused" in held
    assert "`lake quarantine list orders` shows them" in held


TABLE = """\
carrier  flights  delay  last_at                      note
-------  -------  -----  ---------------------------  ----
AA            10   1.50  2013-01-01T05:15:00.250000Z  x
UA            20   NULL  NULL
B6            30   0.10  2013-07-01T00:00:00Z         NULL
"""
CSV = """\
carrier,flights,delay,last_at,note
AA,10,1.50,2013-01-01T05:15:00.250000Z,x
UA,20,,,""
B6,30,0.10,2013-07-01T00:00:00Z,
"""
JSON = [
    {"carrier": "AA", "flights": 10, "delay": "1.50", "last_at": "2013-01-01T05:15:00.250000Z", "note": "x"},
    {"carrier": "UA", "flights": 20, "delay": None, "last_at": None, "note": ""},
    {"carrier": "B6", "flights": 30, "delay": "0.10", "last_at": "2013-07-01T00:00:00Z", "note": None},
]
QUERY = "SELECT carrier, flights, delay, last_at, note FROM carrier_daily ORDER BY flights"


def test_answer_is_an_aligned_table(edition: EditionReader) -> None:
    assert run(edition, "sql", QUERY).stdout == TABLE


def test_csv_distinguishes_null_from_empty_text(edition: EditionReader) -> None:
    assert run(edition, "sql", QUERY, "--format", "csv").stdout == CSV


@pytest.mark.parametrize("option", [("--format", "json"), ("--json",)])
def test_json_keeps_decimals_exact(edition: EditionReader, option: tuple[str, ...]) -> None:
    assert json.loads(run(edition, "sql", QUERY, *option).stdout) == JSON
    assert json.loads(run(edition, "sql", f"FROM ({QUERY}) WHERE false", *option).stdout) == []


def test_nested_values_are_readable(edition: EditionReader) -> None:
    [row] = json.loads(run(edition, "sql", "FROM flight", "--format", "json").stdout)
    assert row == {
        "id": 1,
        "s": {"a": 1, "price": "1.50", "at": "2013-01-01T00:00:00Z"},
        "l": [1, None, 3],
        "m": {"k": 2},
    }


def test_cell_cannot_move_the_cursor(edition: EditionReader) -> None:
    assert "a\\x1b[2Jb\\nc" in run(edition, "sql", "SELECT 'a' || chr(27) || '[2Jb' || chr(10) || 'c' AS x").stdout


def test_columns_of_one_name_stay_apart_in_json(edition: EditionReader) -> None:
    assert json.loads(run(edition, "sql", "SELECT 1 AS a, 2 AS a", "--json").stdout) == [{"a": 1, "a_2": 2}]


def test_parquet_keeps_types(edition: EditionReader, tmp_path: Path) -> None:
    out = tmp_path / "answer.parquet"
    assert run(edition, "sql", QUERY, "--format", "parquet", "--output", str(out)).exit_code == 0
    types = dict(present(duckdb.sql(f"SELECT column_name, column_type FROM (DESCRIBE FROM '{out}')")).fetchall())
    assert (types["delay"], types["last_at"]) == ("DECIMAL(18,2)", "TIMESTAMP WITH TIME ZONE")


def test_failed_query_leaves_no_file(edition: EditionReader, tmp_path: Path) -> None:
    out = tmp_path / "answer.csv"
    run(edition, "sql", "SELECT carrier::INTEGER FROM carrier_daily", "--format", "csv", "--output", str(out))
    assert not list(tmp_path.glob("*answer*"))


def test_target_of_a_link_is_written_and_the_link_stays(edition: EditionReader, tmp_path: Path) -> None:
    link, target = tmp_path / "link.csv", tmp_path / "target.csv"
    link.symlink_to(target)
    run(edition, "sql", "SELECT 1 AS one", "--format", "csv", "--output", str(link))
    assert link.is_symlink()
    assert target.read_text() == "one\n1\n"


def test_pipe_is_written_to(edition: EditionReader, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        run(edition, "sql", "SELECT 1 AS one", "--format", "csv", "--output", str(pipe))
        assert read.result() == "one\n1\n"
    assert pipe.is_fifo()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["tables"], ["sql", "FROM range(100000)"]])
def test_reader_that_closes_its_pipe_early_causes_no_error(edition: EditionReader, words: list[str]) -> None:
    command: list[str | Path] = [Path(sys.executable).parent / "lake", *words, "--project", edition.settings.project]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout
        assert started.stderr
        started.stdout.close()
        assert (started.stderr.read(), started.wait()) == (b"", 0)


def test_query_comes_from_standard_input_or_a_file(edition: EditionReader, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(QUERY)
    assert run(edition, "sql", stdin=QUERY).stdout == TABLE
    assert run(edition, "sql", "-", stdin=QUERY).stdout == TABLE
    assert run(edition, "sql", "--file", str(tmp_path / "q.sql")).stdout == TABLE
    assert isinstance(run(edition, "sql", QUERY, "--file", str(tmp_path / "q.sql")).exception, DeclarationError)


def test_answer_in_python_converts_to_arrow_polars_pandas_and_duckdb(edition: EditionReader) -> None:
    found = headwater.open(edition.settings.project)
    assert (found.tables, found.edition.number) == (("carrier_daily", "flight"), 1)
    answer = found.sql("SELECT carrier, delay FROM carrier_daily ORDER BY flights")
    assert answer.arrow().to_pylist()[0] == {"carrier": "AA", "delay": Decimal("1.50")}
    assert answer.polars()["delay"].to_list() == [Decimal("1.50"), None, Decimal("0.10")]
    assert list(answer.pandas()["carrier"]) == ["AA", "UA", "B6"]
    assert answer.duckdb().filter("delay IS NULL").fetchall() == [("UA", None)]
    assert repr(answer).splitlines()[0].split() == ["carrier", "delay"]


def test_missing_polars_is_reported_with_its_extra(edition: EditionReader, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = headwater.open(edition.settings.project).sql("SELECT 1")
    monkeypatch.setattr("lake.read.open.find_spec", lambda package: None)
    with pytest.raises(DeclarationError, match=r'fix: pip install "headwater\[polars\] @ file:///'):
        answer.polars()


HEAVY = {"pyspark", "pyarrow", "pandas", "rich", "great_expectations", "prompt_toolkit", "polars"}


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.parametrize("command", [["sql", "FROM carrier_daily"], ["tables"], ["status"], ["graph"]])
def test_reading_starts_without_heavy_imports(edition: EditionReader, command: list[str]) -> None:
    code = f"""
import sys
from lake.cli import lake
lake({command!r} + ['--project', {str(edition.settings.project)!r}], standalone_mode=False)
print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.slow
def test_run_starts_without_pandas() -> None:
    """pyarrow imports Pandas for the first array that it makes: 0.2 s of a run without news."""
    code = "import sys, lake.ops.pipeline; print('pandas' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
