"""Commits of two JVMs by a log store: each version has one winner, which Delta's own for S3 does not see to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark
import pytest

from lake import s3
from lake.config import Settings
from lake.store.warehouse import Warehouse
from tests.servers import needed
from tests.servers.s3 import S3

ROUNDS: Final = 100
JARS: Final = Path(sys.prefix) / "share/headwater/jars"
THEIRS: Final = "io.delta.storage.S3SingleDriverLogStore"


def writer(settings: Settings, log_store: str, name: str) -> subprocess.Popen[str]:
    conf = s3.spark_conf(settings)
    told = [f"{key.removeprefix('spark.hadoop.')}={value}" for key, value in conf.items() if ".hadoop." in key]
    jars = [Path(pyspark.__file__).parent / "jars/*", JARS / "*", *s3.class_path(JARS)]
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, jars))]
    command += [str(Path(__file__).with_name("Race.java")), log_store, name, *told]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def races(settings: Settings, log_store: str, rounds: int) -> list[Sequence[str]]:
    """What two writers in lockstep say of each commit."""
    writers = [writer(settings, log_store, name) for name in ("one", "two")]
    try:
        for process in writers:
            say(process, f"{settings.store}/warm/")
        assert [heard(process) for process in writers] == ["ready", "ready"]
        told: list[Sequence[str]] = []
        for number in range(rounds):
            for process in writers:
                say(process, f"{settings.store}/t/_delta_log/{number:020}.json")
            told.append([heard(process) for process in writers])
        return told
    finally:
        for process in writers:
            process.kill()
            process.communicate()


@pytest.fixture
def settings(s3: S3, tmp_path: Path) -> Settings:
    needed(None if missing() else True, "the jars for S3 are missing: lake setup --s3")
    return Settings(project=tmp_path, warehouse=f"{s3.bucket()}/w", storage=s3.storage)


def missing() -> list[str]:
    return s3.faults(JARS)


def test_of_two_jvms_that_commit_the_same_version_one_wins(settings: Settings) -> None:
    told = races(settings, s3.LOG_STORE, ROUNDS)
    assert [sorted(both) for both in told] == [["lost", "won"]] * ROUNDS
    log = Warehouse(settings).root / "t/_delta_log"
    names = ["one", "two"]
    for number, both in enumerate(told):
        content = (log / f"{number:020}.json").read().decode()
        assert content == f"{names[both.index('won')]}\nthe end\n"


def test_of_a_jvm_and_this_process_one_wins(settings: Settings) -> None:
    """This process puts files as delta-rs commits: by the same library, with the same header."""
    log, process = Warehouse(settings).root / "t/_delta_log", writer(settings, s3.LOG_STORE, "one")
    try:
        say(process, f"{settings.store}/warm/")
        assert heard(process) == "ready"
        for number in range(ROUNDS):
            commit = log / f"{number:020}.json"
            say(process, commit.url)
            won = commit.put_if_absent(b"this")
            assert heard(process) == ("lost" if won else "won")
            assert commit.read() == (b"this" if won else b"one\nthe end\n")
    finally:
        process.kill()
        process.communicate()


def test_by_deltas_own_log_store_both_win(settings: Settings) -> None:
    """So the test above can fail."""
    told = races(settings, THEIRS, ROUNDS)
    assert told.count(["won", "won"]) > 0
