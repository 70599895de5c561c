"""The command line as a whole: exit codes, help, and unexpected faults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from lake import cli
from lake.cli import CommandGroup, Shell, command_names, lake, table
from lake.cli.recompute import changed_rows
from lake.config import Settings
from lake.engine.plan import _field
from lake.errors import DeclarationError, LawError, Unavailable
from tests.warehouse import published


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["lake", *words])
    return cli._run()


@pytest.mark.parametrize("name", command_names())
def test_command_has_help_with_an_example(name: Any) -> None:
    command = CommandGroup().get_command(click.Context(lake), name)
    assert command is not None
    assert f"lake {name}" in (command.help or "")


def test_list_of_commands_fits_a_terminal() -> None:
    lines = CliRunner().invoke(lake, ["--help"], terminal_width=80).stdout.splitlines()
    assert [line for line in lines if line.endswith("...")] == ["Usage: lake [OPTIONS] COMMAND [ARGS]..."]


@pytest.mark.parametrize(
    ("error", "code"),
    [(DeclarationError("no"), 2), (LawError("no"), 1), (Unavailable("no"), 75), (ValueError("no"), 1)],
)
def test_exit_code_follows_from_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Any, code: int
) -> None:
    def fail(_: Shell) -> None:
        raise error

    monkeypatch.setattr(Shell, "settings", property(fail))
    monkeypatch.delenv("LAKE_DEBUG", raising=False)
    assert run(monkeypatch, "cut") == code
    told = capsys.readouterr()
    assert "no" in told.err
    assert "Traceback" not in told.err
    assert not told.out


def test_unknown_command_is_reported_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "verfy") == 2
    assert "did you mean 'verify'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["log orders", "status"])
def test_commands_print_times_in_utc_to_the_second(tmp_path: Path, command: str) -> None:
    settings = published(tmp_path / "shop").settings
    told = CliRunner().invoke(lake, [*command.split(), "--project", str(settings.project)], obj=Shell()).stdout
    moments = re.findall(r"\d{4}-\d\d-\d\d[T ]\d\S*", told)
    assert moments
    assert not [each for each in moments if not re.match(r"\S{10} \d\d:\d\d:\d\dZ", each)], told


def test_init_prints_a_next_command_that_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(lake, ["init", "my shop"], obj=Shell()).stderr
    assert told.startswith("next: cd 'my shop' && ")


def test_text_table_aligns_numbers_to_the_right() -> None:
    rows: list[dict[str, Any]] = [{"a": "x", "n": 1}, {"a": None, "n": 100}]
    assert table(rows, "a", "n") == ["a    n", "-  ---", "x    1", "   100"]


@pytest.mark.parametrize("option", ["--quiet", "--json", "--log-format=json"])
def test_source_failure_is_reported_by_quiet_commands(
    project: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    project.path("sources").mkdir()
    project.path("sources/till.toml").write_text('kind = "fax"')
    monkeypatch.setattr(Shell, "spark", None)  # A faulty declaration is never read
    assert run(monkeypatch, "ingest", option, "--project", str(project.project)) == 2
    told = capsys.readouterr().err
    if "log-format" not in option:
        assert "lake: till: unknown kind 'fax' (sources/till.toml)\n  fix: known: " in told
        return
    [record] = [each for line in told.splitlines() if (each := json.loads(line))["event"] == "error"]
    assert (record["subject"], record["what"], record["exit_code"]) == ("till", "unknown kind 'fax'", 2)


def test_rows_and_definitions_are_printed_without_python_notation() -> None:
    row = {"k": None, "day": None, "change": "update", "columns": {"a": (None, [1, None]), "b": (True, {"x": None})}}
    assert list(changed_rows("t", (row,))) == ['t k=NULL day=NULL: update, a NULL → [1, null], b true → {"x": null}']
    shown = {
        "bigint None": "bigint",
        "string 'a b'": "string, default a b",
        'array<string> "[\\"a\\"]"': 'array<string>, default ["a"]',
        "struct<a: int> None": "struct<a: int>",
        "int 5 under a, b in version 1": "int, default 5 under a, b in version 1",
        "int None under a, b in version 1 or c in version 2": "int under a, b in version 1 or c in version 2",
    }
    assert {text: _field(text) for text in shown} == shown
