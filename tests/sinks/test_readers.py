"""A serving copy as others' tools see it: by pgjdbc, by psqlODBC, and by SQLAlchemy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, Final

import psycopg
import pytest
from deltalake import DeltaTable

from lake.config import Settings
from lake.sinks.deliver import deliver
from lake.store.table_head import COMMENT, UNIT
from tests.processes import PATIENCE
from tests.servers import needed
from tests.servers.postgres import Postgres
from tests.sinks.walks import TYPES, edition, every_type, sink

DRIVER: Final = Path("/usr/lib/x86_64-linux-gnu/odbc/psqlodbcw.so")
JDBC: Final = Path(sys.prefix) / "share/headwater/pgjdbc"
COMMENTS: Final = {"exact": ("What was paid.", "EUR"), "day": ("It's the day.", "")}
SQL_TYPES: Final = {
    "id": "int8",
    "flag": "bool",
    "tiny": "int2",
    "small": "int2",
    "whole": "int4",
    "long": "int8",
    "single": "float4",
    "double": "float8",
    "exact": "numeric",
    "word": "text",
    "bytes": "bytea",
    "day": "date",
    "at": "timestamptz",
    "local": "timestamp",
    "words": "_text",
    "numbers": "_numeric",
    "part": "json",
    "pairs": "json",
}


@dataclass(frozen=True)
class Served:
    """A database with a copy of the table `one`, and how the role `tool`, which may read, connects."""

    parts: dict[str, str]

    @property
    def url(self) -> str:
        return f"postgresql://{self.parts['host']}:{self.parts['port']}/{self.parts['dbname']}"


@pytest.fixture
def served(project: Settings, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    dsn = postgres.database()
    monkeypatch.setenv("CRM_URL", dsn)
    edition(project, 1, "id", one=every_type(20))
    _say(project)
    edition(project, 2, "id", one=every_type(21))
    crm = sink(project, "crm", 'kind = "postgres"\nurl = "env:CRM_URL"\nreaders = ["tool"]\n[tables.one]\n')
    postgres.execute("CREATE ROLE tool LOGIN PASSWORD 'its own'")
    try:
        deliver(project, crm)
        yield Served({name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(dsn).items()})
    finally:
        postgres.execute("DROP OWNED BY tool", str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]))
        postgres.execute("DROP ROLE tool")


def _say(project: Settings) -> None:
    """Gives the table a sentence, and two of its columns what they mean."""
    table = DeltaTable(str(project.warehouse_path / "silver/one"))
    table.alter.set_table_description("One of each type.")
    for column, (comment, unit) in COMMENTS.items():
        table.alter.set_column_metadata(column, {COMMENT: comment, **({UNIT: unit} if unit else {})})


def test_jdbc_program_sees_types_comments_keys_and_values(served: Served) -> None:
    jars = sorted(JDBC.glob("*.jar"))
    needed(jars or None, "pgjdbc is missing: make test S=postgres")
    java = str(Path(os.environ["JAVA_HOME"]) / "bin/java") if os.environ.get("JAVA_HOME") else "java"
    needed(which(java), "a JDK is missing")
    call = [
        java,
        "-cp",
        str(jars[0]),
        str(Path(__file__).with_name("Reads.java")),
        f"jdbc:{served.url}?user=tool&password=its%20own",
    ]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env={**os.environ, "TZ": "UTC"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    [one, _] = sorted((line for line in lines if line.startswith("table ")), reverse=True)
    assert one == "table one: One of each type."
    columns = {line.split()[1]: line.split()[2] for line in lines if line.startswith("column ")}
    assert columns == SQL_TYPES
    assert "column exact numeric 37: What was paid. [EUR]" in lines
    assert "column day date 13: It's the day." in lines
    assert "key id" in lines
    assert [line for line in lines if line.startswith("row ")] == [
        "row 1: -99999999999999999999999999999999999.99|NULL|9999-12-31|2024-03-31T01:59:59.999999Z|[]|false|-0.0|"
        "[0, -1]",
        'row 2: 0.00|a,"b\n'.removesuffix("\n"),
        "row 4: null|null|null|null|null|null|null|null",
    ]
    assert lines[-2:] == ["cancelled 57014", "refused 42501"]


def test_odbc_program_sees_tables_types_and_values(served: Served) -> None:
    needed(find_spec("pyodbc"), "pyodbc is missing: make setup")
    needed(DRIVER if DRIVER.exists() else None, "psqlODBC is missing: apt install odbc-postgresql")
    import pyodbc

    parts = served.parts
    connection = pyodbc.connect(
        f"Driver={DRIVER};Server={parts['host']};Port={parts['port']};Database={parts['dbname']};Uid=tool;Pwd=its own",
        autocommit=True,
    )
    try:
        cursor = connection.cursor()
        tables = {row.table_name: row.remarks for row in cursor.tables(schema="lake", tableType="TABLE")}
        assert tables == {"one": "", "_headwater": ""}, "psqlODBC hands on no comments"
        columns = {row.column_name: (row.type_name, row.remarks) for row in cursor.columns("one", schema="lake")}
        assert set(columns) == {"id", *TYPES}
        assert columns["exact"] == ("numeric", "")
        assert [row.column_name for row in cursor.primaryKeys("one", schema="lake")] == ["id"]
        query = "select exact, word, day, flag, bytes, long from lake.one where id = ?"
        assert tuple(cursor.execute(query, 1).fetchone()) == (
            Decimal("-99999999999999999999999999999999999.99"),
            "NULL",
            date(9999, 12, 31),
            _false(cursor.execute(query, 1).description[3][1]),
            b"\x00\xff",
            0,
        )
        assert tuple(cursor.execute(query, 4).fetchone()) == (None,) * 6
        with cancelling(cursor), pytest.raises(pyodbc.Error, match=r"57014|cancel"):
            cursor.execute(f"select pg_sleep({PATIENCE})")
        with pytest.raises(pyodbc.Error, match="42501"):
            connection.cursor().execute("delete from lake.one")
    finally:
        connection.close()


@contextmanager
def cancelling(cursor: Any) -> Iterator[None]:
    """Cancels what the cursor does, again and again, as its query may not have begun."""
    over = threading.Event()

    def cancel() -> None:
        while not over.wait(0.2):
            cursor.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _false(kind: type) -> Any:
    """Return how this version of the driver writes false."""
    return False if kind is bool else "0"


def test_sqlalchemy_reflects_the_table_and_reads_it(served: Served) -> None:
    needed(find_spec("sqlalchemy"), "SQLAlchemy is missing: make setup")
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"postgresql+psycopg://tool:its%20own@{served.url.removeprefix('postgresql://')}")
    try:
        table = sqlalchemy.Table("one", sqlalchemy.MetaData(schema="lake"), autoload_with=engine)
        assert table.comment == "One of each type."
        assert table.c.exact.comment == "What was paid. [EUR]"
        assert [column.name for column in table.primary_key] == ["id"]
        assert str(table.c.at.type) == "TIMESTAMP"
        with engine.connect() as connection:
            row = connection.execute(sqlalchemy.select(table).where(table.c.id == 1)).mappings().one()
            assert row["at"] == datetime(2024, 3, 31, 1, 59, 59, 999999, tzinfo=UTC)
            assert row["words"] == []
            assert row["part"] == {"size": 1, "of": ["1.25"], "at": "2024-03-30 00:00:00+00"}
            assert row["exact"] == Decimal("-99999999999999999999999999999999999.99")
    finally:
        engine.dispose()
