"""Services of the Compose file: a cluster with a bucket, and a project that they follow."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from lake.config import load_settings
from lake.ops.scaffold import init
from tests.cluster.sandbox import USER_ID, Sandbox, sandbox
from tests.cluster.test_cluster import FIRST, LATER, lake, land, tables
from tests.processes import until
from tests.servers import needed
from tests.servers.s3 import installed

SECRETS = {"aws_access_key_id": "of-a-bucket", "aws_secret_access_key": "its-secret", "spark_secret": "of-the-cluster"}
TABLES = """
import json
from pathlib import Path
from lake.config import load_settings
from lake.store.ledger.editions import latest_edition
edition = latest_edition(load_settings(Path("/project")))
print(json.dumps({name: (table.rows, table.content) for name, table in edition.tables.items()}))
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project of the containers' user, on a path that it can read."""
    folder = tmp_path_factory.mktemp("containers") / "shop"
    init(folder)
    change_owner(folder)
    return folder


@pytest.fixture(scope="module")
def box(shop: Path) -> Iterator[Sandbox]:
    """Return the services, none of them started."""
    needed(True if os.geteuid() == 0 else None, "networks and mounts of their own are made by root alone")
    needed(which("setpriv") and which("ip"), "setpriv or ip is missing: apt install util-linux iproute2")
    installed()
    jars = Path(sys.prefix) / "share/headwater"
    open_to_all = all(path.stat().st_mode & 0o005 == 0o005 for path in (jars, jars / "jars", jars / "s3proxy"))
    needed(open_to_all or None, "the jars are their owner's alone: lake setup opens them")
    variables = {"PROJECT": str(shop), "DRIVER_MEMORY": "1g", "EXECUTOR_MEMORY": "800m", "PARTITIONS": "2"}
    with sandbox(shop.parent / "box", SECRETS, **variables) as made:
        yield made


def change_owner(folder: Path) -> None:
    """Change the owner of a project to the containers' user."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER_ID, USER_ID)


def edition(box: Sandbox) -> int | None:
    """Return the newest edition as reported by a command beside the services."""
    newest: int | None = json.loads(box.call("cluster", "status", "--json"))["newest_edition"]
    return newest


@pytest.mark.cluster
def test_tables_of_containers_equal_those_of_one_machine(box: Sandbox, shop: Path) -> None:
    land(shop, "a [1] first.jsonl", FIRST)
    change_owner(shop)
    box.start("cluster")
    until(lambda: edition(box) == 1)
    land(shop, "later.jsonl", LATER)
    change_owner(shop / "landing")  # Without files that the services create and delete meanwhile
    until(lambda: edition(box) == 2)
    assert box.is_well("cluster")
    assert box.stop("cluster") in {0, 143}
    there = json.loads(box.call("cluster", "-c", TABLES, entrypoint=[*box.services["s3"].entrypoint, "python"]))
    here = shop.parent / "here"
    init(here)
    land(here, "a [1] first.jsonl", FIRST)
    land(here, "later.jsonl", LATER)
    lake(here, "run", LAKE_SPARK__MASTER="local[2]", LAKE_SPARK__DRIVER_MEMORY="1g")
    assert {name: tuple(table) for name, table in there.items()} == tables(load_settings(here))


@pytest.mark.cluster
def test_client_with_another_cluster_secret_is_refused(box: Sandbox) -> None:
    for name in ("s3", "worker"):
        if name not in box.running:
            box.start(name)
    secret = box.home / "spark_secret"
    secret.write_text("guessed-wrong")
    try:
        said = box.call("cluster", "doctor", code=1)
    finally:
        secret.write_text(SECRETS["spark_secret"])
    assert "FAIL" in said, said
    spoken = " ".join(box.said(name) for name in box.running) + said
    assert [name for name, value in SECRETS.items() if value in spoken] == []
