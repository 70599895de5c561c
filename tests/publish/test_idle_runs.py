"""`lake run` without news: the answer of the last run is repeated, until anything that a run depends on has changed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
from click.testing import CliRunner, Result

from lake import cli
from lake.cli import lake
from lake.config import Settings, load_settings
from lake.ops import idle, pipeline
from lake.ops.scaffold import init
from lake.store.ledger.editions import pin_edition
from tests.checks import answer
from tests.publish.news import NEWS, job_file
from tests.shop import declare, order

MODULES = """
import atexit, sys
from lake.cli import main
from lake.ops import idle
idle.TICK = 0
atexit.register(lambda: print(*sorted({"duckdb", "numpy", "pandas", "pyarrow", "pyspark"} & sys.modules.keys())))
sys.argv = ["lake", "run", "--quiet"]
main()
"""


def _shop(folder: Path) -> Settings:
    """Return the shop of `lake init`, with its samples."""
    init(folder / "shop")
    return load_settings(folder / "shop")


@pytest.fixture
def idle_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the shop of `lake init`, whose last run found nothing new. The process has imported a module beside it."""
    monkeypatch.setattr(idle, "TICK", 0)
    (tmp_path / "library").mkdir()
    (tmp_path / "library/discounts.py").write_text("RATE = 2")
    monkeypatch.setitem(sys.modules, "discounts", Mock(__file__=str(tmp_path / "library/discounts.py")))
    settings = _shop(tmp_path)
    for _ in range(2):
        answer(settings.project, "run")
    return settings


@pytest.fixture
def cycle(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Count cycles."""
    counted = Mock(wraps=pipeline.run)
    monkeypatch.setattr(pipeline, "run", counted)
    return counted


def run(settings: Settings) -> Result:
    return CliRunner().invoke(lake, ["run", "--project", str(settings.project)])


def _rewrite(file: Path, old: str, new: str) -> None:
    """Change a file, but neither its size nor its time of modification."""
    before = file.stat()
    file.write_text(file.read_text().replace(old, new))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def _rewrite_landed(settings: Settings) -> None:
    file = next(settings.path(settings.landing).rglob("*.jsonl"))
    file.write_text(file.read_text().replace("placed", "PLACED"))


def _change_library(settings: Settings) -> None:
    _rewrite(settings.project.parent / "library/discounts.py", "2", "3")


def _set(settings: Settings) -> None:
    file = settings.project / "pyproject.toml"
    file.write_text(file.read_text().replace("[tool.lake]\n", "[tool.lake]\nkeep_editions = 7\n"))


def _link(settings: Settings, target: str, name: str = "day.jsonl") -> None:
    """Let a link in the landing folder lead to a file beside it, whose name says that it is no landed file."""
    folder = settings.path(settings.landing) / "orders"
    (folder / target).write_text(json.dumps(order(80 + len(target))) + "\n")
    (folder / "new").symlink_to(target)
    (folder / "new").replace(folder / name)


def _make_fifo(settings: Settings) -> None:
    os.mkfifo(settings.path(settings.landing) / "orders/pipe.jsonl")


def _restore(settings: Settings) -> None:
    """Put a copy in the place of the warehouse, with the times of its files."""
    copy = settings.warehouse_path.with_name("copy")
    shutil.copytree(settings.warehouse_path, copy)
    shutil.rmtree(settings.warehouse_path)
    copy.rename(settings.warehouse_path)


def _lose_file(settings: Settings) -> None:
    next(settings.warehouse_path.glob("logs/orders/_bucket=*/*.parquet")).unlink()


def _change_keys(settings: Settings) -> None:
    with sqlite3.connect(settings.keys_path) as keys:
        keys.execute("CREATE TABLE more (a)")


def _declare_source(settings: Settings) -> None:
    settings.path(settings.sources).mkdir(exist_ok=True)
    (settings.path(settings.sources) / "new.toml").write_text('kind = "http"\nstream = "orders"\n')


MORE_NEWS: dict[str, Callable[[Settings], object]] = NEWS | {
    "a landed file that is replaced": _rewrite_landed,
    "a job that differs by a letter": lambda settings: _rewrite(job_file(settings), "lake", "lake"),
    "an imported module": _change_library,
    "a setting": _set,
    "a restored warehouse": _restore,
    "a lost file of a log": _lose_file,
    "another key store": _change_keys,
    "a link in the landing folder": lambda settings: _link(settings, ".day"),
    "a pipe in the landing folder": _make_fifo,
    "a source": _declare_source,
}


def test_run_without_news_repeats_the_last_answer(idle_shop: Settings, cycle: Mock) -> None:
    last = answer(idle_shop.project, "run")
    assert not cycle.called
    (idle_shop.project / ".lake/idle/run.json").unlink()
    assert answer(idle_shop.project, "run") == last
    assert cycle.called


@pytest.mark.parametrize("news", MORE_NEWS.values(), ids=MORE_NEWS)
@pytest.mark.turns
def test_run_with_news_is_a_cycle(idle_shop: Settings, cycle: Mock, news: Callable[[Settings], object]) -> None:
    news(idle_shop)
    run(idle_shop)
    assert cycle.called


def test_link_that_leads_to_another_file_is_ingested(idle_shop: Settings) -> None:
    _link(idle_shop, ".day1")
    for _ in range(3):
        run(idle_shop)
    _link(idle_shop, ".other_day")
    assert answer(idle_shop.project, "run")["streams"]["orders"]["accepted"] == 1


@pytest.mark.parametrize("options", [[], ["--quiet"]], ids=str)
def test_run_that_warns_of_a_file_is_a_cycle(
    idle_shop: Settings,
    cycle: Mock,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def warn(*_: object, **__: object) -> object:
        logging.getLogger("lake").warning("a file stays")
        return DEFAULT

    cycle.side_effect = warn
    (idle_shop.project / ".lake/idle/run.json").unlink()
    monkeypatch.setattr(sys, "argv", ["lake", "run", "--project", str(idle_shop.project), *options])
    for count in range(1, 4):
        assert cli._run() == 0
        assert (cycle.call_count, "a file stays" in capsys.readouterr().err) == (count, not options)


def test_run_while_readers_are_pinned_is_a_cycle(idle_shop: Settings, cycle: Mock) -> None:
    pin_edition(idle_shop, 1)
    assert all("pinned to edition 1" in run(idle_shop).stderr for _ in range(3))
    assert cycle.call_count == 3


def test_run_with_an_alert_is_a_cycle(idle_shop: Settings, cycle: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    (idle_shop.project / "alerts").mkdir()
    monkeypatch.setenv("ALERTS_SECRET", "c2VjcmV0" * 4)
    receiver = 'url = "http://127.0.0.1:9/"\nsecret = "env:ALERTS_SECRET"\n'
    alert = f'measure = "age"\nabove = 1000000\nafter_publish = true\n{receiver}'
    (idle_shop.project / "alerts/old.toml").write_text(alert)
    assert [run(idle_shop).exit_code for _ in range(3)] == [0, 0, 0]
    assert cycle.call_count == 3


def test_note_that_cannot_be_written_leaves_no_file(idle_shop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (idle_shop.project / ".lake/idle/run.json").unlink()
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError("full")))
    assert run(idle_shop).exit_code == 0
    assert [*(idle_shop.project / ".lake/idle").iterdir()] == []


def test_run_with_another_environment_is_a_cycle(
    idle_shop: Settings, cycle: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_TABLES_AT_ONCE", "3")
    run(idle_shop)
    assert cycle.called


def test_warnings_are_repeated(idle_shop: Settings, cycle: Mock) -> None:
    rule = {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "status", "value_set": ["lost"]}}
    text = json.dumps({"expectations": [rule | {"severity": "warn", "doc": "Orders are lost."}]})
    idle_shop.path("quality/current_order.json").write_text(text)
    lines = [[line for line in run(idle_shop).stderr.splitlines() if line.startswith("warning")] for _ in range(4)]
    assert [len(found) for found in lines] == [1] * 4
    assert lines[1:] == lines[1:2] * 3
    assert cycle.call_count == 2


def test_waiting_for_a_silent_producer_is_not_repeated(
    tmp_path: Path, cycle: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "TICK", 0)
    settings = _shop(tmp_path)
    contract = json.loads(settings.path("schemas/orders.avsc").read_text())
    contract["lake"]["horizon"] = {"producer": "status", "idle": "2 hours"}
    declare(settings, contract)
    for _ in range(3):
        assert run(settings).exit_code == 0
    assert cycle.call_count == 3


def test_files_that_changed_just_before_are_looked_at_again(
    tmp_path: Path, cycle: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "TICK", 10**12)
    settings = _shop(tmp_path)
    for _ in range(3):
        run(settings)
    assert cycle.call_count == 3


def test_corrupt_note_is_ignored(idle_shop: Settings, cycle: Mock) -> None:
    (idle_shop.project / ".lake/idle/run.json").write_bytes(b"\0" * 80)
    assert run(idle_shop).exit_code == 0
    assert cycle.called


def test_run_without_news_imports_little(idle_shop: Settings) -> None:
    done = [
        subprocess.run(
            [sys.executable, "-c", MODULES], cwd=idle_shop.project, capture_output=True, text=True, check=True
        )
        for _ in range(4)
    ]
    assert done[-1].stdout.splitlines()[1:] == ["duckdb"]


def test_order_that_lands_between_runs_is_in_the_tables(idle_shop: Settings) -> None:
    (idle_shop.path(idle_shop.landing) / "orders/late.jsonl").write_text(json.dumps(order(77)) + "\n")
    assert answer(idle_shop.project, "run")["streams"]["orders"]["accepted"] == 1
    rows = answer(idle_shop.project, "sql", "SELECT count(*) AS n FROM current_order WHERE order_id = 77")
    assert "1" in json.dumps(rows)
