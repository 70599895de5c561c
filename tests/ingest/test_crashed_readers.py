"""Files that crash their reader: they are read one by one and quarantined, and all others are ingested."""

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
from lake.ingest.crashed_readers import Crashes, crashes, readable_at_once, reading_of
from lake.ingest.delivery import FileDelivery
from lake.ingest.files import File, Mark
from lake.ingest.replay import quarantined_records
from lake.records.reader import RecordReader
from lake.session.spark_session import Gone
from lake.store.log import Log
from tests.shop import declare
from tests.store.events import READING, Land, reading

MARKS: list[Mark] = [(f"readings/{n}.jsonl", n, n) for n in range(4)]
DIE = """
import os, signal, sys
from pathlib import Path
from lake.config import load_settings
from lake.ingest.crashed_readers import reading_of
with reading_of(load_settings(Path(sys.argv[1])), "readings", [("readings/a.jsonl", 1, 1)]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def die(project: Settings, *marks: Mark) -> None:
    with pytest.raises(Gone, match="ended while reading readings/"), reading_of(project, "readings", marks):
        raise Py4JNetworkError("Answer from Java side is empty")


def read(project: Settings, *marks: Mark) -> None:
    with reading_of(project, "readings", marks):
        pass


def at_once(project: Settings, *marks: Mark) -> list[Mark]:
    files = [File(name, Path(name), size, mtime) for name, size, mtime, *_ in marks]
    return [file.mark for file in readable_at_once(project, "readings", files)]


def test_files_are_read_one_by_one_after_two_crashes(project: Settings) -> None:
    new = ("readings/!new.jsonl", 1, 1)
    die(project, *MARKS)
    assert at_once(project, *MARKS) == MARKS
    die(project, *MARKS)
    assert at_once(project, new, *MARKS) == MARKS[:1]
    read(project, MARKS[0])
    assert at_once(project, new, *MARKS[1:]) == MARKS[1:2]
    die(project, MARKS[1])
    assert [bool(crashes(project, "readings").fault(mark)) for mark in MARKS] == [False, True, False, False]
    for mark in MARKS[1:]:
        assert at_once(project, new, *MARKS[MARKS.index(mark) :]) == [mark]
        read(project, mark)
    assert crashes(project, "readings") == Crashes()


def test_crash_is_forgotten_when_its_files_are_read_or_gone(project: Settings) -> None:
    die(project, *MARKS)
    read(project, *MARKS)
    assert crashes(project, "readings") == Crashes()
    die(project, *MARKS)
    die(project, ("readings/new.jsonl", 1, 1))
    assert crashes(project, "readings").deaths == 1


def test_ordinary_error_is_no_crash_and_a_damaged_note_is_ignored(project: Settings) -> None:
    for error in (ValueError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)), reading_of(project, "readings", MARKS):
            raise error
        assert crashes(project, "readings") == Crashes()
    assert list((project.warehouse_path / "locks").iterdir()) == []
    die(project, *MARKS)
    note = project.warehouse_path / "locks/log.readings.reading"
    note.write_text(note.read_text()[:50])
    assert crashes(project, "readings") == Crashes()


def test_killed_process_counts_as_a_crash(project: Settings) -> None:
    mark = ("readings/a.jsonl", 1, 1)
    for deaths in (1, 2, 3):
        done = subprocess.run([sys.executable, "-c", DIE, project.project], check=False)
        assert done.returncode == -signal.SIGKILL
        assert crashes(project, "readings").deaths == deaths
    assert crashes(project, "readings").fault(mark) == "the JVM or the process ended while it read this file alone"


@pytest.mark.long
def test_file_that_ends_the_jvm_is_quarantined_and_others_are_ingested(
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
    read_files = FileDelivery.read

    def deadly(files: FileDelivery, reader: RecordReader) -> pa.Table:
        if any("bomb" in file.name for file in files.good):
            raise Py4JNetworkError("Answer from Java side is empty")
        return read_files(files, reader)

    monkeypatch.setattr(FileDelivery, "read", deadly)
    monkeypatch.setattr(cli.Shell, "spark", spark)
    monkeypatch.setattr(sys, "argv", ["lake", "ingest", "--project", str(project.project)])
    said = []
    for _ in range(4):
        code = cli._run()
        said.append(
            (code, Log(project, "readings").head().batch, Log(project, "sound").head().batch, capsys.readouterr().err)
        )
    assert [each[:3] for each in said] == [(75, 0, 1), (75, 0, 1), (75, 1, 1), (0, 3, 1)]
    assert "while reading readings/a.jsonl, readings/bomb.jsonl, readings/c.jsonl" in said[0][3]
    assert "while reading readings/bomb.jsonl" in said[2][3]
    assert not any("Traceback" in each[3] or "Py4J" in each[3] for each in said)
    (row,) = quarantined_records(load_settings(project.project), ["readings"])
    assert (row.source, row.reason) == ("readings/bomb.jsonl", "file")
    assert row.detail == "the JVM or the process ended while it read this file alone"
    land("readings", "bomb.jsonl", reading("new"), reading("newer"))
    monkeypatch.setattr(FileDelivery, "read", read_files)
    assert cli._run() == 0
    assert Log(project, "readings").head().batch == 4
