"""Commands on a damaged warehouse: each reports a LakeError with place and fix.

The damages are generated: ways to damage each table and file of a warehouse; `make laws` tries all of them with all
commands.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import NoReturn

import pytest

from lake import cli
from lake.config import Settings, load_settings
from lake.errors import Unavailable
from lake.store import duckdb_tables, keys, quarantine
from lake.store.archive_tier import ArchivedPart
from lake.store.damage import damage
from lake.store.damage import damages as warehouse_damages
from lake.store.ledger import runs
from lake.store.upkeep import archive_parts
from lake.store.upkeep.archive_parts import PartWriter
from lake.store.warehouse import Warehouse
from tests.judgements import record_check
from tests.warehouse import published

AT = datetime(2026, 1, 1, tzinfo=UTC)
COMMANDS = {
    "init": ["init other"],
    "doctor": ["doctor"],
    "schemas": ["schemas"],
    "ingest": ["ingest"],
    "append": ["append orders x.jsonl"],
    "tap": ["tap orders -- true"],
    "log": ["log orders", "log orders --check"],
    "quarantine": ["quarantine", "quarantine list", "quarantine counts", "quarantine replay"],
    "void": ["void orders 1:1:0 --reason x"],
    "cut": ["cut"],
    "advance": ["advance"],
    "check": ["check"],
    "publish": ["publish", "publish --edition 1", "publish --resume"],
    "run": ["run"],
    "rebuild": ["rebuild current_order", "rebuild --all --dry-run"],
    "backfill": ["backfill current_order --from 2024-03-30 --to 2024-04-01"],
    "verify": ["verify"],
    "plan": ["plan", "plan current_order --diff"],
    "deploy": ["deploy"],
    "wait": ["wait orders@2 --timeout 0"],
    "maintain": ["maintain", "maintain --dry-run"],
    "archive": ["archive orders --through 1", "archive orders --through 1 --dry-run"],
    "backup": ["backup copy"],
    "restore-keys": ["restore-keys nowhere.sqlite"],
    "forget": ["forget orders subject=ada", "forget orders subject=ada --proof"],
    "sql": ["sql 'from customer_daily'", "sql 'show tables'", "sql --cut 1 'from current_order'"],
    "export": ["export duckdb all.duckdb"],
    "changes": ["changes current_order", "changes current_order --consumer crm"],
    "deliver": ["deliver"],
    "alert": ["alert"],
    "reader": ["reader list"],
    "tables": ["tables"],
    "status": ["status", "status --json", "status --fail-if stopped"],
    "graph": ["graph"],
    "explain": ["explain current_order order_id=1"],
    "diff": ["diff --from-edition 1 --to-edition 1 current_order"],
}
LINES = [line for lines in COMMANDS.values() for line in lines]
TABLES = [
    *(f"{folder}/orders" for folder in ("logs", "quarantine")),
    *("silver/current_order", "gold/customer_daily"),
    *(f"meta/{book}" for book in ("cuts", "editions", "runs", "checks", "contracts")),
    "cold/orders/first",
]
RAW = re.compile(
    r"Traceback|\b(Delta|Arrow|Parquet|IO|Operational|Overflow|Kernel|Panic|TableNotFound|Commit\w+)\w*(Error|Exception)\b"
    r"|ArrowInvalid|[Kk]ernel (error|bug)|<unknown>|Error: |panicked|Generic \w+"
)


def _newest(table: Path) -> Path:
    return max((table / "_delta_log").glob("0*.json"))


def _rows(table: Path) -> Path:
    return max(table.rglob("*.parquet"))


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("x")


GARBAGE = b"\xff\x00garbage"
TO_TABLES: dict[str, Callable[[Path], object]] = {
    "the newest commit is gone": lambda table: _newest(table).unlink(),
    "the first commit is gone": lambda table: min((table / "_delta_log").glob("0*.json")).unlink(),
    "the newest commit is cut": lambda table: _newest(table).write_bytes(_newest(table).read_bytes()[:-200]),
    "the newest commit is garbage": lambda table: _newest(table).write_bytes(GARBAGE),
    "the newest commit is empty": lambda table: _newest(table).write_bytes(b""),
    "the newest commit is other JSON": lambda table: _newest(table).write_text("[1,2]\n"),
    "the newest commit is a folder": lambda table: _a_folder(_newest(table)),
    "the first commit is garbage": lambda table: min((table / "_delta_log").glob("0*.json")).write_bytes(GARBAGE),
    "the log is gone": lambda table: shutil.rmtree(table / "_delta_log"),
    "the log is a file": lambda table: _a_file(table / "_delta_log"),
    "the table is a file": _a_file,
    "rows are gone": lambda table: _rows(table).unlink(),
    "rows are cut": lambda table: _rows(table).write_bytes(_rows(table).read_bytes()[:-20]),
    "rows are garbage": lambda table: _rows(table).write_bytes(GARBAGE * 100),
    "rows are empty": lambda table: _rows(table).write_bytes(b""),
    "rows are a folder": lambda table: _a_folder(_rows(table)),
}
TO_FILES: dict[str, Callable[[Path], object]] = {
    "is garbage": lambda file: file.write_bytes(GARBAGE * 1000),
    "is empty": lambda file: file.write_bytes(b""),
    "is a folder": _a_folder,
}
FILES = ["keys.sqlite", "keys.sqlite.secret", "warehouse/locks/table.current_order.holder", "warehouse/locks/reads/1.x"]


def damages() -> Iterator[tuple[str, str, Callable[[Path], object]]]:
    yield from ((f"warehouse/{table}", how, do) for how, do in TO_TABLES.items() for table in TABLES)
    yield from ((file, how, do) for how, do in TO_FILES.items() for file in FILES)


def some() -> list[tuple[str, str, str]]:
    """Return each command with one damage, over alternating ways and places."""
    every = [*damages()]
    ways = {how: [place for place, way, _ in every if way == how] for how in (*TO_TABLES, *TO_FILES)}
    alternating = zip(LINES, itertools.cycle(ways.items()), strict=False)
    return [(line, places[number % len(places)], how) for number, (line, (how, places)) in enumerate(alternating)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a shop with every kind of file."""
    folder = tmp_path_factory.mktemp("damage") / "shop"
    settings = published(folder).settings
    runs.record_run(settings, runs.Run("advance", "current_order", 1, "done", {}, AT, 0.5))
    record_check(
        settings,
        "current_order",
        home="current_order",
        scope="table",
        cut=1,
        version=0,
        suite="s",
        outcome="passed",
        results=[],
    )
    duckdb_tables.append(
        Warehouse(settings).quarantine("orders").path, quarantine.SCHEMA, [(1, 1, "type", "", "x", "f:1", AT)]
    )
    archive_first_batch(settings)
    keys.open_store(settings, make=True)
    for name in FILES[2:]:
        file = folder / ".lake" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    (folder / "x.jsonl").write_text("{}\n")
    return folder


def archive_first_batch(settings: Settings) -> None:
    """Archive the first batch below the warehouse, so that a copy of the folder includes it."""
    log, writer = Warehouse(settings).log("orders"), PartWriter(lambda: no_session(None), ["_offset"])
    part = ArchivedPart(1, 1, "cold/orders/first", 1, 2)
    writer.write(log.path, (1, 1), part.path(log.path))
    archive_parts.commit(log, [part], writer)


def no_session(_: object) -> NoReturn:
    raise Unavailable("no session is needed here", where="test", fix="none")


def answer_fault(folder: Path, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """Return the fault of a command's answer, or ""."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LAKE_COLD", str(folder / "old"))
    monkeypatch.setattr("sys.argv", ["lake", *shlex.split(line)])
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"")))
    code = cli._run()
    out, err = capfd.readouterr()
    if found := RAW.search(out + err):
        return f"raw: {found[0]}: {err}"
    if code not in {0, 1, 2, 75}:
        return f"exit {code}"
    if code and not (re.search(r"^lake: .+\(.+\)$", err, re.M) or "--fail-if" in line) and "doctor" not in line:
        return f"no place: {err}"
    return f"unexpected error: {err}" if "unexpected error" in err else ""


def try_all(
    cases: list[tuple[str, str, str]],
    sound: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("lake.session.spark_session.embedded", no_session)
    monkeypatch.setattr("lake.quality.gate.warm_up", lambda _: None)
    ways = {(place, how): do for place, how, do in damages()}
    wrong = []
    for number, (line, place, how) in enumerate(cases):
        folder = tmp_path / str(number)  # Read tables are cached by their path
        shutil.copytree(sound, folder)
        ways[place, how](folder / ".lake" / place)
        if problem := answer_fault(folder, line, monkeypatch, capfd):
            wrong.append(f"{line} | {place} | {how}: {problem}")
        shutil.rmtree(folder)
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)


def test_damage_is_tried_with_every_command() -> None:
    assert {*COMMANDS} | {"serve", "setup"} == {*cli.command_names()}


@pytest.mark.slow
def test_command_reports_sampled_damage(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    try_all(some(), sound, tmp_path, monkeypatch, capfd)


@pytest.mark.long
@pytest.mark.parametrize("at", [*(f"warehouse/{table}" for table in TABLES), *FILES])
def test_command_reports_every_damage(
    at: str, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    every = [(line, place, how) for line in LINES for place, how, _ in damages() if place == at]
    try_all(every, sound, tmp_path, monkeypatch, capfd)


@pytest.mark.parametrize("files", [["_delta_log/"], ["_delta_log/", "part-0.parquet"], ["part-0.parquet"]], ids=str)
def test_table_before_its_first_commit_is_not_damaged(sound: Path, tmp_path: Path, files: list[str]) -> None:
    """A writer that was killed, or another one at work, leaves such folders."""
    settings = load_settings(shutil.copytree(sound, tmp_path / "shop"))
    table = Warehouse(settings).book("new").path
    for file in map(table.local.joinpath, files):
        (file if file.name == "_delta_log" else file.parent).mkdir(parents=True, exist_ok=True)
        if file.suffix:
            file.write_bytes(b"PAR1")
    assert damage(table, quickly=True) is None
    assert [*warehouse_damages(settings, quickly=True)] == []
    for number in range(2):
        (table.local / f"part-{number}.parquet").write_bytes(b"PAR1")
    assert damage(table, quickly=True) is not None
