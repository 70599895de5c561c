"""`lake archive` in buckets: batches move to another one, and are read, verified and copied from there. No JVM of
Spark.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lake.config import Settings
from lake.errors import Unavailable
from lake.ingest.fsck import check_log
from lake.ops import doctor
from lake.ops.archive import archive
from lake.ops.doctor import Diagnosis
from lake.store import archive_tier, delta
from lake.store.damage import damages
from lake.store.log import Log
from lake.store.scan import Scan
from lake.testing import Commands, Lakehouse
from tests import archived
from tests.checks import spark_forbidden
from tests.kills import killed_at_request
from tests.s3.wire import SOON, Fault, nth_write, wired
from tests.servers.s3 import S3
from tests.store.test_archive import asked, quiet, rows


@pytest.mark.long
def test_archived_batches_in_another_bucket_are_read_with_the_log(s3: S3, tmp_path: Path) -> None:
    project = archived.project(tmp_path / "project")
    settings = replace(project, warehouse=f"{s3.bucket()}/w", storage=s3.storage, cold=f"{s3.bucket()}/old")
    archived.append(settings, random.Random(1), 5)
    archived.compact(settings)
    before, told, path = rows(settings), asked(settings), Log(settings, "readings").path
    for through in (2, 4):
        archive(settings, spark_forbidden, "readings", through, dry_run=False, on_progress=quiet)
        assert (rows(settings), asked(settings)) == (before, told)
        assert check_log(settings, "readings").faults == []
    buckets = {urlsplit(file).netloc for file in Scan(path).files()}
    assert len(buckets) == 2
    archived.append(settings, random.Random(2), 1)
    assert check_log(settings, "readings").faults == []
    with delta.opened(path) as table:
        files = archive_tier.files(path, table)
    assert path.missing(files) == []
    assert [found.subject for found in examined(settings) if found.ok] == ["cold", "archived batches"]
    nowhere = replace(settings, cold="s3://no-such-bucket/old")
    with pytest.raises(Unavailable, match="there is no such bucket"):
        archive(nowhere, spark_forbidden, "readings", 4, dry_run=True, on_progress=quiet)
    [found] = doctor._cold(nowhere)
    assert (found.ok, found.found) == (False, "there is no such bucket (s3://no-such-bucket/old)")
    gone = next(file for file in files if "/old/" in file)
    path.at(gone).delete()
    assert path.missing(files) == [gone]
    [damage] = damages(settings)
    assert damage.file == gone
    assert [found.found for found in examined(settings) if not found.ok] == [f"a file is missing ({gone})"]
    shutil.rmtree(s3.home / "buckets" / urlsplit(gone).netloc)
    with pytest.raises(Unavailable, match="there is no such bucket"):
        check_log(settings, "readings")


def examined(settings: Settings) -> list[Diagnosis]:
    """Return the diagnoses of archives."""
    return [*doctor._cold(settings), *doctor._logs(settings)]


@pytest.mark.long
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("fault", ["lose", "cut"])
def test_archive_is_completed_by_the_same_command_after_a_kill_at_any_request(
    s3: S3, tmp_path: Path, fault: Fault, packed: bool
) -> None:
    """Kill by SIGKILL within each writing request, or after the store has done it, one after another. If the log is
    `packed`, remaining files have later batches too.
    """
    warehouse, old = f"{s3.bucket()}/w", f"{s3.bucket()}/old"
    project, theirs = archived.project(tmp_path / "project"), archived.project(tmp_path / "theirs")
    settings = replace(project, warehouse=warehouse, storage=s3.storage, cold=old)
    house = Lakehouse(project.project, tmp_path)
    house.settings = settings
    line, kills, missed = ("archive", "readings", "--through"), 0, 0
    with wired(s3.port) as wire, Commands(**(s3.environment | {"LAKE_STORAGE__ENDPOINT": wire.url})) as commands:
        for number in count(1):
            for each in (settings, theirs):
                archived.append(each, random.Random(f"{fault}-{number}"), 2)
            if packed:
                archived.compact(settings)
            through = str(Log(settings, "readings").head().batch - 1)
            landed = killed_at_request(commands, wire, nth_write(number, fault), *line, through, at=house, tuned=SOON)
            kills += landed
            assert_same_log(settings, theirs)
            done = commands.lake(*line, through, at=house, tuned=SOON)
            assert done.code == 0, done.err
            assert_same_log(settings, theirs)
            missed += not wire.happened
            if missed == 3:  # Some have more requests than others
                break
    print(f"{kills} kills")
    assert kills > 8


def assert_same_log(ours: Settings, theirs: Settings) -> None:
    """Assert that a log has the rows and the proof of another."""
    assert rows(ours) == rows(theirs)
    assert asked(ours) == asked(theirs)
    assert check_log(ours, "readings").faults == []
    assert Log(ours, "readings").heads()[0].content == Log(theirs, "readings").heads()[0].content
