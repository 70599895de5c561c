"""One hundred kinds of bad input: the tables beside this file list each input, its place and its outcome.

An entry of a table has

    input      the fault
    files      {file of the project: its text, or [text, how often]}: put there; a file without text is removed
    change     {file of the project: [old, new]}: replaced in it once
    env        {environment variable: value}
    stdin      the piped text
    behind     true if the log has a batch that no edition includes
    large      true if no batch is small enough to be read without Spark
    spark      true if only Spark finds it
    run        the command line
    exit       its exit code
    says       the first line of the message: the fault, and its place in parentheses
    fix        the fix
    stdout     the answer in spite of the fault

The project is that of `lake init`, run and published; SHOP is its folder. No file of the landing folder or the
warehouse is lost, and readers keep the published edition.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lake import cli, cost
from lake.config import Settings, load_settings
from lake.read.sql import reader
from lake.session.spark_session import class_path
from lake.store.ledger.runs import newest_runs
from lake.store.log import Log
from tests.warehouse import fall_behind, published

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # The one in C if available
WHERE = re.compile(r"\(.+\)$|^lake: \d+ faults:$")
AREAS = ("contracts", "jobs", "expectations", "configuration", "command_line", "queries", "tokens")


def kinds(*areas: str) -> list[Any]:
    return [pytest.param(kind, id=f"{area}: {kind['input']}") for area in areas for kind in table(area)]


@cache
def table(area: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.load((HERE / f"{area}.yaml").read_text("utf-8"), LOADER)
    return entries


def no_jvm(settings: Settings) -> SparkSession:
    """Fail in place of an embedded session: faults are found before one is needed."""
    class_path(settings)
    raise AssertionError("this should have been refused before a JVM is started")


@dataclass
class Copies:
    """Copies of a published shop. A case that leaves the warehouse unchanged returns its copy for the next case."""

    shop: Path
    home: Path
    number: int = 0
    free: Path | None = None

    @cached_property
    def entries(self) -> Entries:
        return entries(self.shop)

    def take(self) -> Path:
        folder, self.free = self.free, None
        if folder is None:
            self.number += 1
            folder = Path(shutil.copytree(self.shop, self.home / str(self.number) / "shop"))
        return folder

    def give_back(self, folder: Path) -> None:
        """Restore the files beside the warehouse; discard a copy with other changes."""
        after = entries(folder)
        changed = after.items() ^ self.entries.items()
        if any(content is None or name.startswith(".lake/") for name, content in changed):
            return
        for name in {name for name, _ in changed}:
            if before := self.entries.get(name):
                (folder / name).write_bytes(before)
            else:
                (folder / name).unlink()
        self.free = folder


Entries = dict[str, bytes | None]


def entries(folder: Path) -> Entries:
    """Return everything in a project except locks, with the bytes of files."""
    below = {str(path.relative_to(folder)): path for path in folder.rglob("*") if "locks" not in path.parts}
    return {name: path.read_bytes() if path.is_file() else None for name, path in below.items()}


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    home = tmp_path_factory.mktemp("bad")
    published(home / "shop")
    return Copies(home / "shop", home)


@pytest.fixture
def folder(copies: Copies) -> Iterator[Path]:
    """Return the published shop, to be damaged."""
    folder = copies.take()
    yield folder
    copies.give_back(folder)


def spoil(folder: Path, kind: Mapping[str, Any]) -> None:
    for name, text in kind.get("files", {}).items():
        for file in list(folder.glob(name)) or [folder / name]:
            if text is None:
                file.unlink()
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            whole = text[0] * text[1] if isinstance(text, list) else text
            file.write_bytes(whole if isinstance(whole, bytes) else whole.encode())
    for name, (old, new) in kind.get("change", {}).items():
        before = (folder / name).read_text("utf-8")
        assert old in before, f"{name} has no {old}"
        (folder / name).write_text(before.replace(old, new, 1), "utf-8")


def stored_files(folder: Path) -> Entries:
    """Return the files that must never be lost: those of landing folders and warehouse."""
    return {
        name: of for name, of in entries(folder).items() if of and name.startswith(("landing/", ".lake/warehouse/"))
    }


def message_and_fix(err: str, folder: Path) -> tuple[str, str]:
    """Return the message's first line and its first fix."""
    text = re.sub(r"part-[\w-]+", "part", err.replace(str(folder), "SHOP"))
    start = text.find("lake: ")
    message = text[start:] if start >= 0 else text
    _, _, fix = message.partition("\n  fix: ")
    return message.partition("\n")[0], fix.partition("\n")[0]


@pytest.mark.parametrize("kind", kinds(*AREAS))
def test_bad_input_is_reported_and_harms_nothing(
    kind: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    request: pytest.FixtureRequest,
) -> None:
    session = request.getfixturevalue("spark") if kind.get("spark") else None
    settings = load_settings(folder)
    if kind.get("behind"):
        fall_behind(settings)
    if kind.get("large"):
        monkeypatch.setattr(cost, "READ_BYTES", -1)
    spoil(folder, kind)
    before = stored_files(folder)
    for name, value in kind.get("env", {}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", [word.replace("SHOP", str(folder)) for word in shlex.split(kind["run"])])
    piped = kind.get("stdin", b"")
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(piped if isinstance(piped, bytes) else piped.encode())))
    monkeypatch.setattr("lake.session.spark_session.embedded", no_jvm)
    monkeypatch.setattr("lake.quality.gate.warm_up", lambda _: None)
    if session:
        monkeypatch.setattr(cli.Shell, "spark", session)
    else:
        monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # another test may have started it
    code = cli._run()
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert (code, *message_and_fix(err, folder)) == (kind["exit"], kind["says"], kind["fix"])
    assert kind.get("stdout", "") in out
    assert WHERE.search(kind["says"]), "it says not where"
    if kind in table("command_line"):
        assert [run for run in newest_runs(settings) if run.outcome == "failed"] == []
    after = stored_files(folder)
    assert {name: after.get(name) for name in before} == before, "a byte was lost"
    damaged = any(name.startswith(".lake") for name in kind.get("files", {}))
    if after.keys() != before.keys() and not damaged:  # Otherwise readers find the same bytes
        assert reader(settings).relation("select sum(orders) from customer_daily").fetchall() == [(2,)]


@pytest.fixture
def faulty_shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the shop with a faulty contract and a faulty job beside its own."""
    (folder / "schemas/parcels.avsc").write_text("not a contract")
    (folder / "jobs/silver/parcel.py").write_text("not a job")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["log", "orders"],
        ["wait", "orders@2", "--timeout", "0"],
        ["sql", "select count(*) from current_order"],
        ["quarantine"],
        ["quarantine", "list", "orders"],
        ["void", "orders", "1:1:0", "--reason", "a test"],
    ],
)
def test_faulty_declaration_stops_no_command_on_another_stream(
    faulty_shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["lake", *words])
    assert cli._run() == 0
    assert "lake:" not in capsys.readouterr().err


@pytest.mark.turns
@pytest.mark.parametrize("words", [["ingest"], ["run"]])
def test_sound_stream_is_ingested_beside_a_faulty_declaration(
    faulty_shop: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    shutil.rmtree(faulty_shop / ".lake/warehouse")
    monkeypatch.setattr("lake.quality.gate.warm_up", lambda _: None)
    monkeypatch.setattr(cli.Shell, "spark", spark)
    monkeypatch.setattr("sys.argv", ["lake", *words])
    assert cli._run() == 2
    assert "not valid JSON: Expecting value (schemas/parcels.avsc:1)" in capsys.readouterr().err
    head = Log(load_settings(faulty_shop), "orders").head()
    assert dict(head.counts) == {"read": 8, "accepted": 6, "duplicates": 1, "quarantined": 1, "control": 0}


def test_bad_input_tables_have_a_hundred_distinct_entries() -> None:
    inputs = [(area, kind["input"]) for area in (*AREAS, "landing", "changes") for kind in table(area)]
    assert len(set(inputs)) == len(inputs) >= 100


def test_debug_option_prints_the_stack_trace(
    faulty_shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["tables", "--debug"], ["tables"]):
        monkeypatch.setattr("sys.argv", ["lake", *words])
        assert cli._run() == 2
        assert ("Traceback" in capsys.readouterr().err) == ("--debug" in words)
