"""Terminal escapes from producers: keys, values, columns and file names, in every command."""

from __future__ import annotations

import json
import logging
import shlex
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake import cli
from lake.cli.exits import as_fault
from lake.cli.recompute import changed_rows
from lake.errors import LakeError
from lake.quality import failures
from lake.text import as_markdown, as_table
from tests.bad_input.test_damage import COMMANDS
from tests.shop import order
from tests.warehouse import published

EVIL = "\x1b[31m\x1b]0;t\x07\x9b2J\rover\x00\x7f\u202etxt\u2066\u200b"
FILE = EVIL.replace("\x00", "") + ".jsonl"
Lake = Callable[..., tuple[int, str]]


def obeyed(text: str) -> list[str]:
    """Return the characters of `text` that a terminal would execute."""
    return [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs"} and c != "\n"]


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Lake:
    """Return a function that runs a command line in the current folder, and returns its exit code and output."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["lake", *words])
        code = cli._run()
        out, err = capfd.readouterr()
        return code, out + err

    monkeypatch.setattr("lake.quality.gate.warm_up", lambda _: None)
    return run


def jsonl(number: int, **values: str) -> str:
    return json.dumps(order(number, **values)) + "\n"


def test_printed_text_contains_no_terminal_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without Spark: readers of a warehouse, and the texts of messages and faults."""
    folder = tmp_path / "shop"
    settings = published(folder).settings
    monkeypatch.chdir(folder)
    (folder / "landing/orders" / FILE).write_text(jsonl(9))
    text = EVIL.replace("\0", "")
    queries = [f"select '{text}' as a", f'select 1 as "{text}"', "select chr(27) || chr(155)"]
    queries += [f"pivot (select '{text}' as a, 1 as b) on a using sum(b)"]
    lines = [["sql", query, *form] for query in queries for form in ([], ["--format", "md"])]
    lines += [["sql", f"select {EVIL}"], ["explain", "current_order", f"order_id={EVIL}"], ["tables", f"--{EVIL}"]]
    lines += [["log", EVIL], ["wait", f"{EVIL}@1"], ["append", "orders", EVIL], ["cut", "--label", EVIL]]
    lines += [["void", "orders", EVIL, "--reason", "x"], ["sql", "select 1", "-o", f"{EVIL}/a.csv"], ["status"]]
    lines += [["rebuild", EVIL], ["rebuild", EVIL, "--debug"], [EVIL], ["init", "/dev/null/\x1b[2J"]]
    for words in lines:
        _, told = lake(*(word.replace("\0", "") for word in words))
        assert told, words
        assert obeyed(told) == [], words
    click_talk = cli.Shell()
    logging.getLogger("lake").warning("of %s", EVIL)
    for fault in (LakeError(EVIL, where=EVIL, fix=EVIL), ValueError(EVIL), OSError(2, EVIL, EVIL)):
        click_talk.fail(as_fault(fault, settings=settings))
    click_talk.report(EVIL)
    click_talk.emit({}, [EVIL])
    out, err = capfd.readouterr()
    assert obeyed(out + err) == []
    result = {"type": "t", "kwargs": {"column": "c"}, "failed": 1, "rows": 1, "observed": None, "where": "q.json:1"}
    failed = failures.failure_message(result | {"examples": [{"c": f"{EVIL}\nlake: all is well"}]})
    row = {"k": f"{EVIL}\nlake: all is well", "change": "update", "columns": {"c": [f"{EVIL}\n", EVIL]}}
    tables = [*as_table([EVIL], [[EVIL]]), *as_markdown([EVIL], [[EVIL]], numeric=[False])]
    assert [line for line in [failed, *changed_rows("t", (row,)), *tables] if obeyed(line) or "\n" in line] == []


@pytest.mark.long
def test_command_prints_no_terminal_escape(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, lake: Lake
) -> None:
    """Escapes in keys, values, columns and names of files, through ingest, gates and every command."""
    assert lake("init", str(tmp_path / "shop"))[0] == 0
    monkeypatch.chdir(tmp_path / "shop")
    monkeypatch.setattr(cli.Shell, "spark", spark)
    landing = Path("landing/orders")
    refused = [jsonl(91, status=EVIL), f'{{"{EVIL[:5]}": 1}}\n', f"{EVIL}\n"]
    (landing / FILE).write_text("".join([jsonl(90, customer=EVIL), *refused]))
    text = EVIL.replace("\0", "").replace("\r", "")
    (landing / f"c{FILE[:-6]}.csv").write_text(f"order_id,customer,{text}\n1,ada,{text}\n")
    Path("x.jsonl").write_text(jsonl(92, customer=EVIL, amount=EVIL))
    assert obeyed(lake("run")[1]) == []
    later = jsonl(90, customer=EVIL, status="cancelled", changed_at="2024-04-20T00:00:00Z")
    (landing / "later.jsonl").write_text(later)
    expected = {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "customer", "value_set": ["ada"]}}
    stops = {"expectations": [expected | {"severity": "stop", "doc": "d"}]}
    Path("quality/customer_daily.json").write_text(json.dumps(stops))
    job = Path("jobs/silver/current_order.py")
    lines = [line for each in COMMANDS.values() for line in each]
    lines += [f"explain customer_daily customer={shlex.quote(text)} day=2024-03-30", "status --fail-if quarantine"]
    job.write_text(f"{job.read_text()}\n\nCHANGED = 1\n")
    printed = []
    for line in lines:
        code, told = lake(*shlex.split(line))
        printed.append(told)
        assert code in {0, 1, 2, 75}, told
        assert obeyed(told) == [], line
        assert "unexpected error" not in told, f"{line}: {told}"
    assert sum("\\x1b" in told for told in printed) > 5, "it is told, spelled out"
