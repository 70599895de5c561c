"""Files over which whoever reads them dies: taken fewer at a time, in the end quarantined; the others are taken in."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from lake import cli
from lake.config import Settings, load_settings
from lake.ingest import attempts
from lake.ingest.delivery import Files
from lake.ingest.files import File, Mark
from lake.ingest.replay import waiting
from lake.records.reader import RecordReader
from lake.session import Gone
from lake.store.log import Log
from tests.shop import declare
from tests.store.events import READING, Land, reading

MARKS: list[Mark] = [(f"readings/{n}.jsonl", n, n) for n in range(100)]
DIE = """
import os, signal, sys
from pathlib import Path
from lake.config import load_settings
from lake.ingest import attempts
with attempts.at_work(load_settings(Path(sys.argv[1])), "readings", [("readings/a.jsonl", 1, 1)]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def die(project: Settings, marks: list[Mark]) -> None:
    with pytest.raises(Gone, match="ended while reading readings/"), attempts.at_work(project, "readings", marks):
        raise Py4JNetworkError("Answer from Java side is empty")


def some(project: Settings, *marks: Mark) -> list[Mark]:
    files = [File(name, Path(name), size, mtime) for name, size, mtime, *_ in marks]
    return [file.mark for file in attempts.few(project, "readings", files)]


def test_what_somebody_died_over_is_read_in_smaller_parts_until_one_is_left(project: Settings) -> None:
    assert some(project, *MARKS) == MARKS
    die(project, MARKS)
    assert some(project, *MARKS) == MARKS[:3]
    with attempts.at_work(project, "readings", MARKS[:3]):
        pass
    assert some(project, *MARKS[3:]) == MARKS[3:6]
    die(project, MARKS[3:6])
    assert some(project, *MARKS[3:]) == MARKS[3:4]
    die(project, MARKS[3:4])
    known = attempts.suspects(project, "readings")
    assert known[MARKS[3]].fault
    assert not any(known[mark].fault for mark in MARKS[4:])
    new = ("readings/new.jsonl", 1, 1)
    assert some(project, new, *MARKS[3:]) == [new, MARKS[3]]


def test_an_ordinary_end_is_no_death_and_a_torn_note_is_none(project: Settings) -> None:
    for error in (ValueError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)), attempts.at_work(project, "readings", MARKS):
            raise error
        assert attempts.suspects(project, "readings") == {}
    assert list((project.warehouse_path / "locks").iterdir()) == []
    die(project, MARKS)
    note = project.warehouse_path / "locks/log.readings.reading"
    note.write_text(note.read_text()[:50])
    assert attempts.suspects(project, "readings") == {}


def test_a_process_that_is_killed_leaves_word(project: Settings) -> None:
    mark = ("readings/a.jsonl", 1, 1)
    for deaths in (1, 2):
        done = subprocess.run([sys.executable, "-c", DIE, project.project], check=False)
        assert done.returncode == -signal.SIGKILL
        assert attempts.suspects(project, "readings")[mark].deaths == deaths
    assert (
        attempts.suspects(project, "readings")[mark].fault
        == "the JVM or the process ended while it read this file, 2 times"
    )


@pytest.mark.long
def test_a_file_that_ends_the_jvm_goes_to_quarantine_and_nothing_else_waits_for_it(
    project: Settings,
    spark: SparkSession,
    land: Land,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for stream in ("readings", "sound"):
        declare(project, READING | {"name": stream})
    for name in ("a", "bomb", "c"):
        land("readings", f"{name}.jsonl", reading(name))
    land("sound", "a.jsonl", reading())
    read = Files.read

    def deadly(files: Files, reader: RecordReader) -> pa.Table:
        if any("bomb" in file.name for file in files.good):
            raise Py4JNetworkError("Answer from Java side is empty")
        return read(files, reader)

    monkeypatch.setattr(Files, "read", deadly)
    monkeypatch.setattr(cli.Shell, "spark", spark)
    monkeypatch.setattr(sys, "argv", ["lake", "ingest", "--project", str(project.project)])
    said = []
    for _ in range(4):
        code = cli._run()
        said.append(
            (code, Log(project, "readings").head().batch, Log(project, "sound").head().batch, capsys.readouterr().err)
        )
    assert [each[:3] for each in said] == [(75, 0, 1), (75, 1, 1), (0, 3, 1), (0, 3, 1)]
    assert "while reading readings/a.jsonl, readings/bomb.jsonl, readings/c.jsonl" in said[0][3]
    assert "while reading readings/bomb.jsonl" in said[1][3]
    assert not any("Traceback" in each[3] or "Py4J" in each[3] for each in said)
    (row,) = waiting(load_settings(project.project), ["readings"])
    assert (row.source, row.reason) == ("readings/bomb.jsonl", "file")
    assert row.detail == "the JVM or the process ended while it read this file, 2 times"
    land("readings", "bomb.jsonl", reading("new"), reading("newer"))
    monkeypatch.setattr(Files, "read", read)
    assert cli._run() == 0
    assert Log(project, "readings").head().batch == 4
