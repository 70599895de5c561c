"""Output of query results: formats, files, devices, values of every type."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from lake import cli
from lake.cli import lake
from lake.config import Settings
from lake.errors import DeclarationError, LakeError, StorageError
from lake.read.export import EXTENSIONS, FORMATS, _output_file, export, write_database
from lake.read.query import run_query
from lake.read.sql import EditionReader, reader
from lake.store import commit, delta_writer
from lake.store.delta import start
from lake.store.table_log import delta_table
from lake.store.tables import Table
from lake.text import MEASURED_ROWS, as_table
from tests.checks import present
from tests.shop import empty
from tests.warehouse import publish, write

pytestmark = pytest.mark.slow

LAKE = Path(sys.executable).parent / "lake"


@pytest.fixture(scope="module")
def edition(tmp_path_factory: pytest.TempPathFactory) -> EditionReader:
    """Edition shared by tests that only read."""
    settings = empty(tmp_path_factory.mktemp("published"))
    write(settings, "gold", "day", "SELECT 'AA' AS carrier, 1 AS flights UNION ALL SELECT 'UA', 2")
    publish(settings, day=("gold", 0))
    return reader(settings)


def run(found: EditionReader, *words: str) -> Any:
    return CliRunner().invoke(lake, ["sql", *words, "--project", str(found.settings.project)])


def output(found: EditionReader, *words: str) -> str:
    done = run(found, *words)
    assert done.exit_code == 0, done.exception
    return str(done.stdout)


READ: dict[str, Callable[[Path], Any]] = {
    ".csv": lambda file: [tuple(row) for row in csv.reader(file.read_text().splitlines())][1:],
    ".json": lambda file: [tuple(row.values()) for row in json.loads(file.read_text())],
    ".jsonl": lambda file: [tuple(json.loads(line).values()) for line in file.read_text().splitlines()],
    ".md": lambda file: [tuple(line.strip("| ").split(" | ")) for line in file.read_text().splitlines()[2:]],
    ".parquet": lambda file: present(duckdb.sql(f"FROM '{file}'")).fetchall(),
}


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_file_name_determines_the_format(edition: EditionReader, tmp_path: Path, extension: str) -> None:
    file = tmp_path / f"answer{extension.upper()}"
    assert output(edition, "SELECT carrier, flights::VARCHAR FROM day ORDER BY 1 -- all;", "-o", str(file)) == ""
    assert READ[extension](file) == [("AA", "1"), ("UA", "2")]
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-o", "answer.txt"], "does not say the format\n  fix: use .csv, .json, .jsonl, .md or .parquet"),
        (["-o", "answer"], "the name 'answer' does not say the format"),
        (["-o", "answer.csv", "--json"], "the format json does not fit the file name 'answer.csv'"),
        (["-o", "answer.csv", "--format", "md"], "the format md does not fit the file name 'answer.csv'"),
        (["--json", "--format", "csv"], "--json and --format csv cannot be combined"),
        (["-o", "."], "--output is a folder (.)"),
        (["-o", "nothing/answer.csv"], "the folder of --output does not exist (nothing)"),
        (["--timeout", "3"], "--timeout needs --after"),
    ],
)
def test_wrong_target_of_an_export_is_rejected(edition: EditionReader, words: list[str], told: str) -> None:
    done = run(edition, "SELECT 1", *words)
    assert isinstance(done.exception, DeclarationError)
    assert told in str(done.exception)


@pytest.mark.parametrize("kind", FORMATS)
def test_begin_is_called_before_the_answer_is_written(
    edition: EditionReader, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    written: list[str] = []
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
    export(edition, "FROM day", kind, None, begin=lambda: written.append(out.getvalue().decode()))
    assert written[0] == ""
    assert out.getvalue()


def test_named_format_is_used_for_any_file_name(edition: EditionReader, tmp_path: Path) -> None:
    output(edition, "SELECT 1 AS one", "--format", "table", "-o", str(tmp_path / "answer.txt"))
    assert (tmp_path / "answer.txt").read_text() == "one\n---\n  1\n"


def test_concurrent_writers_of_an_answer_have_separate_files(tmp_path: Path) -> None:
    file = tmp_path / "answer.csv"
    with _output_file(file) as slow:
        slow.write(b"slow\n" * 3)
        with _output_file(file) as quick:
            quick.write(b"quick\n")
        assert file.read_text() == "quick\n"
        slow.write(b"slow\n")
    assert file.read_text() == "slow\n" * 4
    assert [*tmp_path.iterdir()] == [file]


def test_planted_link_is_not_followed(edition: EditionReader, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".answer.csv.part").symlink_to(victim)
    output(edition, "SELECT 1 AS one", "-o", str(tmp_path / "answer.csv"))
    assert victim.read_text() == "mine"
    assert (tmp_path / "answer.csv").read_text() == "one\n1\n"


@pytest.mark.parametrize("kind", ["table", "md", "csv", "json", "jsonl", "parquet"])
def test_full_device_is_reported(edition: EditionReader, kind: str) -> None:
    done = run(edition, "SELECT 1 AS one", "--format", kind, "-o", "/dev/full")
    assert isinstance(done.exception, LakeError)
    assert "the device is full: No space left on device (/dev/full)" in str(done.exception)


@pytest.mark.parametrize(
    "words",
    [
        *(["sql", "SELECT 1", "--format", kind] for kind in ("table", "csv")),
        *(["--help"], ["tables", "--help"], ["tables"], ["status", "--json"], ["changes", "day"]),
    ],
    ids=" ".join,
)
def test_full_standard_output_is_reported(edition: EditionReader, words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [LAKE, *words], cwd=edition.settings.project, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [
            "lake: the device is full: No space left on device (standard output)",
            "  fix: free some space there, or name another file",
        ],
    )


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl", "parquet", "md", "table"])
@pytest.mark.parametrize("query", ["SELECT error('no') FROM day", "SELECT carrier::INT FROM day", "SELEC", "FROM dai"])
def test_query_that_fails_leaves_the_file_as_it_was(
    edition: EditionReader, tmp_path: Path, kind: str, query: str
) -> None:
    file = tmp_path / "answer"
    file.write_text("before")
    assert isinstance(run(edition, query, "--format", kind, "-o", str(file)).exception, DeclarationError)
    assert (file.read_text(), [*tmp_path.iterdir()]) == ("before", [file])


def test_long_answer_keeps_its_order(edition: EditionReader, tmp_path: Path) -> None:
    output(edition, "SELECT i FROM range(300000) t(i) ORDER BY -i", "-o", str(tmp_path / "answer.csv"))
    assert (tmp_path / "answer.csv").read_text().split()[1:] == [str(i) for i in reversed(range(300000))]


def test_table_is_written_while_its_rows_arrive() -> None:
    read = 0

    def rows() -> Iterator[list[Any]]:
        nonlocal read
        for read in range(1, 10 * MEASURED_ROWS):
            yield ["long" if read <= MEASURED_ROWS else "longer than the others"]

    lines = as_table(["a"], rows())
    assert [next(lines) for _ in range(3)] == ["a", "----", "long"]
    assert read == MEASURED_ROWS
    *_, last = lines
    assert last == "longer than the others"


# SQL -> its text in a table, and its JSON if that differs.
VALUES: dict[str, tuple[str, Any]] = {
    "DATE 'infinity'": ("infinity", None),
    "DATE '-infinity'": ("-infinity", None),
    "TIMESTAMP 'infinity'": ("infinity", None),
    "TIMESTAMPTZ '-infinity'": ("-infinity", None),
    "DATE '10000-01-01'": ("10000-01-01", None),
    "TIMESTAMP '10000-01-01'": ("10000-01-01T00:00:00", None),
    "TIMESTAMPTZ '10000-01-01'": ("10000-01-01T00:00:00Z", None),
    "TIMESTAMPTZ '2013-01-01 05:00:00.5+02'": ("2013-01-01T03:00:00.500000Z", None),
    "TIMESTAMP_NS '2013-01-01 00:00:00.123456789'": ("2013-01-01T00:00:00.123456789", None),
    "TIMESTAMP_S '2013-01-01 00:00:01'": ("2013-01-01T00:00:01", None),
    "DATE '0044-03-15 (BC)'": ("0044-03-15 (BC)", None),
    "TIME '05:15:00'": ("05:15:00", None),
    "INTERVAL '1 month 2 days'": ("1 month 2 days", None),
    "1.50::DECIMAL(5, 2)": ("1.50", None),
    "99999999999999999999999999999999999.999::DECIMAL(38, 3)": ("99999999999999999999999999999999999.999", None),
    "170141183460469231731687303715884105727": (
        "170141183460469231731687303715884105727",
        170141183460469231731687303715884105727,
    ),
    "'inf'::DOUBLE": ("inf", None),
    "'nan'::FLOAT": ("nan", None),
    "0.5::DOUBLE": ("0.5", 0.5),
    "0.1::FLOAT": ("0.1", 0.1),
    "[0.1::FLOAT, 'inf'::FLOAT]": ('[0.1,"inf"]', [0.1, "inf"]),
    "3.4028235e38::FLOAT": ("3.4028235e+38", 3.4028235e38),
    "1e-45::FLOAT": ("1e-45", 1e-45),
    "true": ("true", True),
    "'00ff'::BLOB": ("30306666", None),
    "'null'": ("null", None),
    "'NULL'": ('"NULL"', "NULL"),
    "'\"NULL\"'": ('""NULL""', '"NULL"'),
    "''": ("", None),
    "chr(27) || 'x'": ("\\x1bx", "\x1bx"),
    "'{\"a\": 1}'::JSON": ('{"a": 1}', None),
    "'a'::ENUM('a')": ("a", None),
    "[1.50::DECIMAL(5, 2), NULL]": ('["1.50",null]', ["1.50", None]),
    "[['inf'::DOUBLE], [0.5], NULL]": ('[["inf"],[0.5],null]', [["inf"], [0.5], None]),
    "{'a': {'é\"': DATE 'infinity'}, 'b': []::INT[]}": (
        '{"a":{"é\\"":"infinity"},"b":[]}',
        {"a": {'é"': "infinity"}, "b": []},
    ),
    "MAP {DATE '2013-01-01': TIMESTAMPTZ '2013-01-01'}": (
        '{"2013-01-01":"2013-01-01T00:00:00Z"}',
        {"2013-01-01": "2013-01-01T00:00:00Z"},
    ),
    "union_value(x := 1)": ("1", None),
    "row(1, 2)": ("(1, 2)", None),
}


def test_value_of_any_type_is_shown_exactly(edition: EditionReader) -> None:
    """Select all values and a NULL in one query per format."""
    values = ", ".join(f"({value}) AS c{i}" for i, value in enumerate(VALUES))
    query = f"SELECT *, NULL::INT AS n FROM (SELECT {values})"
    [found] = json.loads(output(edition, query, "--json"))
    assert [*found.values()] == [shown if exact is None else exact for shown, exact in VALUES.values()] + [None]
    with edition.connect(query) as con:
        text_rows = con.execute(run_query(con, query).texts).fetchone()
    table = [*as_table([""], [[text] for text in text_rows or ()], numeric=[False])]
    assert table[2:] == [shown for shown, _ in VALUES.values()] + ["NULL"]
    [_, row] = csv.reader(io.StringIO(output(edition, query, "--format", "csv")))
    assert row == ["" if text is None else text for text in text_rows or ()]


def test_null_differs_from_its_name_and_from_empty_text(edition: EditionReader) -> None:
    query = "SELECT * FROM (VALUES (NULL), ('null'), ('NULL'), ('')) t(a)"
    assert output(edition, query).splitlines()[2:] == ["NULL", "null", '"NULL"', ""]
    assert output(edition, f"SELECT a, 1 AS b FROM ({query})", "--format", "csv") == 'a,b\n,1\nnull,1\nNULL,1\n"",1\n'


def test_cells_of_markdown_do_not_end_their_row(edition: EditionReader) -> None:
    query = "SELECT 'a|b' || chr(10) || '*c*' AS \"x|y\", 1 AS n"
    assert output(edition, query, "--format", "md") == "| x\\|y | n |\n| --- | ---: |\n| a\\|b\\\\n\\*c\\* | 1 |\n"


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT 1 AS a, 2 AS A, 3 AS a; -- ; the end", ["a", "A", "a_2"]),
        ("SHOW TABLES;", ["name"]),
        ("PIVOT day ON carrier USING sum(flights)", ["AA", "UA"]),
        ("EXPLAIN SELECT 1", ["explain_key", "explain_value"]),
        ("SELECT ';' AS \"é;\" /* ; */ ; /* ; */", ["é;"]),
    ],
)
def test_result_of_any_read_statement_can_be_written(
    edition: EditionReader, tmp_path: Path, query: str, names: list[str]
) -> None:
    found = json.loads(output(edition, query, "--json"))
    assert [*found[0]] == names
    if query.startswith("SHOW"):
        assert [row["name"] for row in found] == ["day"]
    for extension in EXTENSIONS:
        output(edition, query, "-o", str(tmp_path / f"answer{extension}"))


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", ["table", "md", "csv", "json", "jsonl"])
def test_terminal_gets_no_control_characters(edition: EditionReader, kind: str) -> None:
    ours, theirs = os.openpty()
    query = "SELECT chr(27) || '[2J' || chr(155) || chr(8238) || chr(7) || 'é' AS \"h\u202eh\""
    words: list[str | Path] = [LAKE, "sql", query, "--format", kind, "--project", edition.settings.project]
    with subprocess.Popen(words, stdout=theirs) as started:
        os.close(theirs)
        shown = b""
        while b"\xc3\xa9" not in shown:
            shown += os.read(ours, 4096)
        started.wait()
    os.close(ours)
    assert started.returncode == 0
    assert all(c.isprintable() or c in "\r\n" for c in shown.decode())


@pytest.mark.parametrize(("fails_at", "cut_off"), [(0, False), (900_000, True)])
def test_answer_that_fails_among_its_rows_is_cut_off(
    edition: EditionReader,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fails_at: int,
    cut_off: bool,
) -> None:
    query = f"SELECT CASE WHEN range >= {fails_at} THEN error('late') ELSE range END AS r FROM range(1_000_000)"
    monkeypatch.setattr("sys.argv", ["lake", "sql", "--json", query, "--project", str(edition.settings.project)])
    assert cli._run() == 2
    out = capfd.readouterr().out
    assert out.startswith('[\n{"r":0},\n') == cut_off
    assert ('"exit_code": 2' in out) != cut_off


def test_edition_is_exported_as_one_database_with_column_comments(project: Settings, tmp_path: Path) -> None:
    valid = "TIMESTAMPTZ '2024-01-01 00:00Z' AS valid_from, NULL::TIMESTAMPTZ AS valid_to, 'v' AS version_id"
    nested = "{'x': 1, 'tags': ['a', NULL]} AS s, MAP {'k': 1.50::DECIMAL(9, 2)} AS m, NULL::DATE AS d, 1 AS _state"
    write(project, "gold", "day", f"SELECT 'it''s' AS carrier, 1.10::DECIMAL(9, 2) AS \"Far-off\", {nested}")
    write(project, "silver", "past", f"SELECT 1 AS k, {valid} UNION ALL SELECT 2, {valid}")
    write(project, "silver", "none", "SELECT 1 AS k WHERE false")
    day = Table(project, "gold", "day", "day")
    said = {"carrier": {"comment": "whose'"}, "Far-off": {"comment": "how far", "unit": "a"}, "s": {"unit": "s"}}
    said["m"] = {"comment": "in metres [m]", "unit": "m"}
    commit.describe(with_position(day), "Days.", said)
    publish(project, day=("gold", day.version()), past=("silver", 0), none=("silver", 0))
    found, file = reader(project), tmp_path / "all.duckdb"
    file.write_text("something older")
    done = CliRunner().invoke(lake, ["export", "duckdb", str(file), "--json", "--project", str(project.project)])
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["tables"] == {"day": 1, "none": 0, "past": 2}
    assert [each for each in tmp_path.iterdir() if each.name.startswith(("all", ".lake-"))] == [file]
    with duckdb.connect(str(file), read_only=True) as con:
        for name in ("day", "gold.day", "past", "silver.past", "none", "past_at(now())"):
            wanted = found.relation(f"SELECT * FROM {name} ORDER BY ALL")
            got = con.sql(f"SELECT * FROM {name} ORDER BY ALL")
            assert (got.columns, got.types, got.fetchall()) == (wanted.columns, wanted.types, wanted.fetchall())
        for schema in ("main", "gold"):
            comments = con.execute(
                "SELECT column_name, comment FROM duckdb_columns()"
                " WHERE schema_name = ? AND table_name = 'day' AND comment IS NOT NULL",
                [schema],
            )
            described = {"carrier": "whose'", "Far-off": "how far [a]", "s": "[s]", "m": "in metres [m]"}
            assert dict(comments.fetchall()) == described
        assert con.execute("SELECT comment FROM duckdb_tables() WHERE table_name = 'day'").fetchall() == [("Days.",)]
        assert con.execute("SELECT number, cut FROM lake.edition").fetchall() == [(1, 1)]


def with_position(table: Table) -> Table:
    """Return `table` after a commit with a position."""
    position = start(table.app).next(verb="advance", cut=1, inputs={}, counts={})
    delta_writer.write(table.path, delta_table(table.path).to_pyarrow_table().slice(0, 0), position)
    return table


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere/x.duckdb"], "the folder of the file does not exist (nowhere)"),
        (["."], "a database is a file of its own (.)\n  fix: name a file"),
        (["/dev/null"], "a database is a file of its own (/dev/null)"),
        (["x.duckdb", "dai"], "no table 'dai' in edition 1\n  fix: did you mean 'day'?"),
        (["x.duckdb", "--edition", "9"], "no edition 9: only edition 1 exists"),
        (["x.duckdb", "day", "silver.day"], "no table 'silver.day' in edition 1"),
        (["open.duckdb"], "another process has the database open, or left changes to it behind (open.duckdb.wal)"),
        ([], "Missing argument 'FILE'"),
        (["a\0b"], "not a file name"),
    ],
)
def test_invalid_export_of_a_database_is_rejected_and_leaves_nothing(
    edition: EditionReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "open.duckdb.wal").touch()
    line = ["export", "duckdb", *words, "--project", str(edition.settings.project)]
    done = CliRunner().invoke(lake, line)
    assert told in str(done.exception).replace(f"{tmp_path}/", "").replace(str(tmp_path), ".") or told in done.output
    assert [each.name for each in tmp_path.iterdir()] == ["open.duckdb.wal"]


def test_named_tables_are_exported_once_each(edition: EditionReader, tmp_path: Path) -> None:
    assert write_database(edition, tmp_path / "one.duckdb", ["day", "gold.day", "DAY"], on_progress=lambda _: None) == {
        "day": 2
    }


def test_export_that_cannot_read_a_table_leaves_the_file_as_it_was(project: Settings, tmp_path: Path) -> None:
    write(project, "gold", "day", "SELECT 1 AS k")
    publish(project, day=("gold", 0))
    [parquet] = [*Path(str(Table(project, "gold", "day", "day").path)).glob("*.parquet")]
    parquet.write_bytes(b"PAR1 no more PAR1")
    file = tmp_path / "kept.duckdb"
    file.write_text("as it was")
    with pytest.raises(StorageError, match="edition 1 cannot be read"):
        write_database(reader(project), file, on_progress=lambda _: None)
    assert file.read_text() == "as it was"
    assert not [*tmp_path.glob(".lake-*.part")]
