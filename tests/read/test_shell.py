from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from lake.cli import lake, queries
from lake.config import Settings
from lake.errors import DeclarationError, LakeError
from lake.read.shell import ROWS, Conversation, SqlCompleter, _show, run_shell
from lake.read.sql import reader
from tests.warehouse import publish, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def talk(project: Settings) -> Conversation:
    write(project, "gold", "carrier_daily", "SELECT 'AA' AS carrier, 1::BIGINT AS flights, 0 AS _state")
    write(project, "silver", "flight", "SELECT 1 AS leg_id")
    publish(project, 1, carrier_daily=("gold", 0))
    publish(project, 2, carrier_daily=("gold", 0), flight=("silver", 0))
    return Conversation(reader(project))


def completions(talk: Conversation, text: str) -> list[str]:
    found = SqlCompleter(talk).get_completions(Document(text), CompleteEvent(completion_requested=True))
    return [each.text for each in found]


def test_query_is_answered_with_its_rows_and_time(talk: Conversation) -> None:
    *table, footer = talk.answer("SELECT * FROM carrier_daily;")
    assert table == ["carrier  flights", "-------  -------", "AA             1"]
    assert footer.startswith("(1 row, ")


def test_long_answer_is_cut(talk: Conversation) -> None:
    *_, footer = talk.answer(f"FROM range({ROWS + 1})")
    assert footer.startswith(f"(the first {ROWS} rows; \\o FILE takes all")


def test_backslash_d_lists_tables_and_columns(talk: Conversation) -> None:
    assert any(line.startswith("gold.carrier_daily") for line in talk.answer("\\d"))
    columns = [*talk.answer("\\d carrier_daily")]
    assert columns[0] == "gold.carrier_daily: One row per carrier_daily."
    assert [line.split()[0] for line in columns[3:]] == ["carrier", "flights"]


def test_wide_row_is_shown_column_by_column(talk: Conversation) -> None:
    assert [*talk.answer("\\x")] == ["One line a column."]
    long = "x" * 200
    lines = [*talk.answer(f"SELECT 1 AS one, '{long}' AS text, NULL AS nothing")][:-1]
    assert lines == ["-- row 1 --", "one      1", f"text     {long}", "nothing  NULL"]
    assert [*talk.answer("\\x")] == ["One line a row."]


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".json", ".md", ".parquet"])
def test_next_answer_goes_to_a_file_and_later_ones_do_not(talk: Conversation, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"answer{ending}"
    assert [*talk.answer(f"\\o {file}")] == [f"The next answer goes to {file}."]
    assert next(talk.answer(f"FROM range({ROWS + 1})")).startswith(f"({file}, ")
    assert file.stat().st_size > 0
    assert "42" in [*talk.answer("SELECT 42 AS answer")][2]


def test_answer_to_an_invalid_file_is_rejected_and_later_ones_are_shown(talk: Conversation, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="does not say the format"):
        [*talk.answer(f"\\o {tmp_path}/answer.xls")]
    with pytest.raises(DeclarationError, match="does not exist"):
        [*talk.answer(f"\\o {tmp_path}/nowhere/answer.csv")]
    assert "1" in [*talk.answer("SELECT 1")][2]


@pytest.mark.parametrize("query", ["SELEC 1", "FROM nowhere", "SELECT 1; SELECT 2", "SELECT error('no')"])
def test_answer_goes_to_the_named_file_after_a_query_that_failed(
    talk: Conversation, tmp_path: Path, query: str
) -> None:
    file = tmp_path / "answer.csv"
    [*talk.answer(f"\\o {file}")]
    with pytest.raises(LakeError):
        [*talk.answer(query)]
    assert not file.exists()
    [*talk.answer("SELECT 42 AS answer")]
    assert file.read_text().split() == ["answer", "42"]


@pytest.mark.parametrize("word", ["exit", "QUIT;", "\\q"])
def test_exit_words_of_other_shells_end_the_shell(talk: Conversation, word: str) -> None:
    with pytest.raises(EOFError):
        [*talk.answer(word)]


def test_commands_of_other_shells_are_understood(talk: Conversation) -> None:
    assert [*talk.answer("help")] == [*talk.answer("\\?")]
    assert [*talk.answer("\\dt")] == [*talk.answer("\\d")]


def test_long_or_wide_output_goes_through_a_pager(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paged: list[str] = []
    monkeypatch.setattr("lake.read.shell.click.echo_via_pager", paged.append)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "5")
    monkeypatch.setenv("LESS", "-SRFX")
    for lines in (["x" * 21], ["x"] * 5):
        _show(lines, pages=True)
        _show(lines, pages=False)
    _show(["x" * 20] * 4, pages=True)
    assert paged == ["x" * 21, "\n".join("x" * 5)]
    assert len(capsys.readouterr().out.splitlines()) == 1 + 5 + 4


def test_help_fits_the_smallest_usual_terminal(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr("lake.read.shell.click.echo_via_pager", pytest.fail)
    _show([*talk.answer("help")], pages=True)
    assert "cast them" in capsys.readouterr().out


def test_edition_can_be_changed(talk: Conversation) -> None:
    assert next(talk.answer("\\edition 1")).startswith("Edition 1 at cut 1")
    assert talk.reader.edition.number == 1
    assert next(talk.answer("\\edition")).startswith("Edition 2 at cut 2")


@pytest.mark.parametrize(
    "line",
    ["\\edition x", "\\edition ²", f"\\edition {'9' * 5000}", "\\edition 9", "\\d nothing", "\\nothing", "SELEC 1"],
)
def test_wrong_line_is_reported(talk: Conversation, line: str) -> None:
    with pytest.raises(DeclarationError):
        [*talk.answer(line)]


def test_help_warns_of_doubles(talk: Conversation) -> None:
    assert "avg(decimal) and a division of decimals are DOUBLE" in "\n".join(talk.answer("\\?"))


def test_names_are_completed(talk: Conversation) -> None:
    assert completions(talk, "select * from carr") == ["carrier_daily", "carrier"]
    assert completions(talk, "\\d fli") == ["flight"]
    assert completions(talk, "select leg_id from flight where le")[:2] == ["leg_id", "left"]
    assert "list_transform" in completions(talk, "select list_t")
    assert completions(talk, "SEL") == ["SELECT"]
    assert completions(talk, "sel") == ["select"]


def test_function_of_versions_at_a_time_is_completed_and_answers(project: Settings) -> None:
    first, second = "TIMESTAMPTZ '2024-03-30'", "TIMESTAMPTZ '2024-03-31'"
    versions = f"VALUES ('AA', {first}, {second}, 1), ('UA', {second}, NULL, 2)"
    write(project, "silver", "carrier_past", f"FROM ({versions}) t(carrier, valid_from, valid_to, version_id)")
    write(project, "silver", "flight", "SELECT 1 AS leg_id")
    publish(project, carrier_past=("silver", 0), flight=("silver", 0))
    talk = Conversation(reader(project))
    assert completions(talk, "from carrier_past_") == ["carrier_past_at"]
    assert completions(talk, "from flight_") == []
    assert completions(talk, "\\d carrier_past_") == []
    *table, _ = talk.answer(f"select carrier from carrier_past_at({first});")
    assert table == ["carrier", "-------", "AA"]


def test_conversation_continues_after_an_error_and_keeps_its_history(
    talk: Conversation, project: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    with create_pipe_input() as keys:
        keys.send_text("selec 1;\nselect 40 +\n 2 as answer;\n\\q\n")
        run_shell(reader(project), stdin=keys, stdout=DummyOutput())
    told = capsys.readouterr().out
    assert "syntax error" in told
    assert "42" in told
    assert "selec 1;" in project.path(".lake/sql_history").read_text()


@pytest.mark.parametrize(
    "line",
    [
        "SELECT * FROM read_text('/etc/passwd');",
        "COPY (SELECT 1) TO '/tmp/headwater.csv';",
        "ATTACH '/tmp/headwater.db';",
        "SELECT 1; SELECT 2;",
        "\\! ls",
        "\\d ../../etc/passwd",
        "\\edition ../1",
        ".shell ls",
    ],
)
def test_conversation_stays_in_the_edition(talk: Conversation, line: str) -> None:
    with pytest.raises(DeclarationError):
        list(talk.answer(line))


def test_shell_without_its_extra_names_it_and_queries_still_work(
    talk: Conversation, project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    monkeypatch.delitem(sys.modules, "lake.read.shell")
    monkeypatch.setattr("lake.cli.queries._query_text", lambda query, _: query)
    at = ["--project", str(project.project)]
    refused = CliRunner().invoke(lake, ["sql", *at])
    assert isinstance(refused.exception, DeclarationError)
    assert "a shell needs prompt_toolkit, which the extra `shell` installs" in str(refused.exception)
    assert 'pip install "headwater[shell] @ file:///' in refused.exception.fix
    answered = CliRunner().invoke(lake, ["sql", "SELECT 1 AS one", *at])
    assert (answered.exception, answered.stdout.split()) == (None, ["one", "---", "1"])


def test_extra_of_the_shell_lists_its_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert {name.replace("-", "_") for name in extras["shell"]} == {*queries.SHELL_PACKAGES}
    for file in (ROOT / "lake").rglob("*.py"):
        imported = set(re.findall(r"^\s*(?:from|import) (\w+)", file.read_text("utf-8"), re.MULTILINE))
        assert not imported & {*queries.SHELL_PACKAGES} or file.name == "shell.py", file
