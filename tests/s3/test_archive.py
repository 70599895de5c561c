"""`lake archive` in buckets: batches go to another one, and are read, proved and copied from there. No JVM of Spark."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lake.archive import archive
from lake.ingest.fsck import check
from lake.store import cold, delta
from lake.store.damage import damages
from lake.store.log import Log
from lake.store.scan import Scan
from tests import archived
from tests.servers.s3 import S3
from tests.store.test_archive import asked, no_spark, quiet, rows


@pytest.mark.long
def test_batches_go_to_another_bucket_and_are_read_as_one_with_the_log(s3: S3, tmp_path: Path) -> None:
    project = archived.project(tmp_path / "project")
    settings = replace(project, warehouse=f"{s3.bucket()}/w", storage=s3.storage, cold=f"{s3.bucket()}/old")
    archived.append(settings, random.Random(1), 5)
    archived.compact(settings)
    before, told, path = rows(settings), asked(settings), Log(settings, "readings").path
    for through in (2, 4):
        archive(settings, no_spark, "readings", through, dry_run=False, tell=quiet)
        assert (rows(settings), asked(settings)) == (before, told)
        assert check(settings, "readings") == []
    buckets = {urlsplit(file).netloc for file in Scan(path).files()}
    assert len(buckets) == 2
    archived.append(settings, random.Random(2), 1)
    assert check(settings, "readings") == []
    with delta.opened(path) as table:
        files = cold.files(path, table)
    assert delta.missing(path, files) == []
    gone = next(file for file in files if "/old/" in file)
    path.at(gone).delete()
    assert delta.missing(path, files) == [gone]
    [damage] = damages(settings)
    assert damage.file == gone
