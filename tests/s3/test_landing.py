"""Files landed in a bucket: the same rows, ids, batches and errors as from a folder, after any crash."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import obstore
import pytest
from obstore.store import S3Store

from lake import cost
from lake.config import Settings, load_settings
from lake.connect.s3 import KIND
from lake.contracts.contract import load_contracts
from lake.ingest import landing
from lake.session.jars import storage_faults
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.store.warehouse import Warehouse
from tests.ingest.every_file import CONTRACTS, files, lines
from tests.processes import ROOT
from tests.s3.wire import wired
from tests.servers import needed
from tests.servers.s3 import JARS, KEY, S3
from tests.shop import empty

LANDED: Final = 1_700_000_000
SMALL: Final = 'record_bytes = 10000\nbatch_files = 60\n[tool.lake.spark]\nmaster = "local[2]"\ndriver_memory = "1g"\n'


def client(s3: S3, bucket: str) -> S3Store:
    return S3Store(
        bucket.removeprefix("s3://"),
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        endpoint=s3.url,
    )


def started(s3: S3, settings: Settings, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command."""
    command = [sys.executable, "-c", "from lake.cli import main; main()", *words, "--project", str(settings.project)]
    env = {**os.environ, **s3.environment, **environment}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=env, **pipes)


def lake(s3: S3, settings: Settings, *words: str) -> tuple[int, str]:
    """Run a command that prints JSON; return its exit code and output."""
    process = started(s3, settings, *words)
    out, err = process.communicate()
    assert process.returncode in {0, 1}, err
    return process.returncode, out


def project(folder: Path, s3: S3, **places: str) -> Settings:
    """Return a project with these places."""
    named = "".join(f'{name} = "{where}"\n' for name, where in places.items())
    settings = empty(folder, f"{named}{SMALL}")
    for name, schema in CONTRACTS.items():
        settings.path(f"schemas/{name}.avsc").write_text(json.dumps(schema))
    storage = f'[tool.lake.storage]\nendpoint = "{s3.url}"\nregion = "us-east-1"\npath_style = true\n'
    with (folder / "pyproject.toml").open("a") as file:
        file.write(storage)
    return load_settings(folder)


def stream_state(settings: Settings) -> dict[str, Any]:
    """Return events, rejections, redeliveries and batches of each stream, without their times."""
    stored = {}
    for stream in load_contracts(settings):
        log, beside = Log(settings, stream), Warehouse(settings).beside(stream)
        rows = [
            duckdb_tables.rows(path, "SELECT * FROM t ORDER BY ALL") for path in (log.path, *(at.path for at in beside))
        ]
        stored[stream] = {
            "heads": [(head.batch, head.counts, [file["path"] for file in head.files]) for head in log.heads()],
            "rows": [[{name: row[name] for name in row if name != "_ingested_at"} for row in of] for of in rows],
        }
    return stored


@pytest.mark.spark
@pytest.mark.parametrize("read_bytes", [cost.READ_BYTES, 0], ids=["here", "tasks"])
def test_files_give_the_same_log_from_a_folder_and_from_a_bucket(s3: S3, tmp_path: Path, read_bytes: int) -> None:
    needed(None if storage_faults(JARS, KIND) else True, "the jars for S3 are missing: lake setup --s3")
    bucket = s3.bucket()
    local = project(tmp_path / "local", s3)
    inside = project(tmp_path / "inside", s3, landing=f"{bucket}/in/landing", archive=f"{bucket}/in/archive")
    whole = project(tmp_path / "whole", s3, warehouse=f"{bucket}/lake", landing=f"{bucket}/whole")
    store = client(s3, bucket)
    for name, content in files():
        file = local.path("landing") / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.parent.is_dir():
            file.write_bytes(content)
        for prefix in ("in/landing", "whole"):
            obstore.put(store, f"{prefix}/{name}", content)
    buckets = s3.home / "buckets" / bucket.removeprefix("s3://")
    for folder in (local.path("landing"), buckets / "in/landing", buckets / "whole"):
        for file in folder.rglob("*"):
            os.utime(file, (LANDED, LANDED))
    folders = (str(each.project) for each in (inside, local, whole))
    command = [sys.executable, "-m", "tests.s3.taking", str(read_bytes), *folders]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **KEY}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = done.stdout.splitlines()
    assert counts == counts[:1] * 3
    assert not list(inside.path(".lake/staging").glob("objects-*"))
    ours = stream_state(local)
    for each in (inside, whole):
        theirs = stream_state(each)
        for stream in CONTRACTS:
            for part in ("heads", "rows"):
                assert theirs[stream][part] == ours[stream][part], (each.project.name, stream, part)
    assert landing.list_files(inside, "placed") == []
    for stream in CONTRACTS:
        for mark in landing.ingested_marks(Log(inside, stream)):
            if not mark[0].startswith("quarantine:"):
                assert landing.find_file(inside, stream, mark), mark


DEATHS: Final = (
    ("PUT", "/lake/logs/plain/_delta_log/"),
    ("PUT", "/lake/meta/landed/"),
    ("PUT", "/done/plain/"),
    ("POST", r"\?delete"),
)
"""Requests before which a run dies: the commit of the log, what is noted of it, the copy to the archive, the delete."""


def killing(process: subprocess.Popen[str], method: str, pattern: str, died: list[str]) -> Callable[[str, str], None]:
    """Kill a process before one of its requests is passed on."""

    def fails(asked: str, path: str) -> None:
        if not died and asked == method and re.search(pattern, path):
            died.append(path)
            process.kill()

    return fails


@pytest.mark.spark
def test_landed_files_are_ingested_once_and_archived_after_any_crash(s3: S3, tmp_path: Path) -> None:
    needed(None if storage_faults(JARS, KIND) else True, "the jars for S3 are missing: lake setup --s3")
    bucket = s3.bucket()
    places = {
        name: f"{bucket}/{prefix}" for name, prefix in (("warehouse", "lake"), ("landing", "in"), ("archive", "done"))
    }
    settings, store = project(tmp_path / "project", s3, **places), client(s3, bucket)
    with wired(s3.port) as wire:
        for number, (method, pattern) in enumerate((*DEATHS, ("none", "none"))):
            for part in range(2):
                name, records = f"in/plain/{number} {part}.jsonl", ({"id": 10 * number + part}, {"id": "no number"})
                obstore.put(store, name, lines(*records))
            process = started(s3, settings, "run", LAKE_STORAGE__ENDPOINT=wire.url)
            died: list[str] = []
            wire.fails = killing(process, method, pattern, died)
            _, err = process.communicate()
            assert bool(died) == (method != "none"), (method, pattern, err)
    done = stream_state(settings)["plain"]
    assert sorted(row["id"] for row in done["rows"][0] if row["id"] is not None) == sorted(
        10 * number + part for number in range(len(DEATHS) + 1) for part in range(2)
    )
    assert landing.list_files(settings, "plain") == []
    marks = landing.ingested_marks(Log(settings, "plain"))
    assert len(marks) == 2 * (len(DEATHS) + 1)
    assert all(landing.find_file(settings, "plain", mark) for mark in marks)
    code, _ = lake(s3, settings, "log", "plain", "--check", "--json")
    assert code == 0
