"""Shop with its warehouse in a bucket, in one process with its own session: `python -m tests.s3.cycle PART`. It prints
the outcome as JSON. The caller sets the server's port in S3_PORT, and its key.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lake.config import Settings, SparkSettings
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild
from lake.engine.verify import verify
from lake.errors import LakeError, Unavailable, unreached
from lake.ingest.fsck import check_log
from lake.ops.backup import backup
from lake.ops.pipeline import run
from lake.project.project import Project, load
from lake.publish.cut import pick_cut
from lake.read.sql import reader
from lake.session.spark_session import start
from lake.store.log import Log
from lake.store.storage import address_of
from lake.testing import Commands, Lakehouse
from tests.kills import killed_at_request
from tests.s3.wire import SOON, Fault, Wire, nth, nth_write, wired
from tests.shop import new_shop, order
from tests.writers import IN_PROCESS_ROWS, WRITERS, writing

PORT: Final = int(os.environ["S3_PORT"])
REACHED: Final = {"LAKE_STORAGE__REGION": "us-east-1", "LAKE_STORAGE__PATH_STYLE": "true"}
QUERY: Final = "SELECT customer, day, orders, cancelled, amount FROM customer_daily ORDER BY ALL"
QUIET: Final = SparkSettings(master="local[2]", driver_memory="1g")


def project_of(home: Path, wire: Wire, prefix: str) -> Settings:
    """The shop, with its samples landed and the warehouse in the bucket `shop`."""
    shop = new_shop(home).land_samples()
    return replace(shop.settings, warehouse=f"s3://shop/{prefix}", storage=wire.storage, spark=QUIET)


def cycle(settings: Settings) -> None:
    """Run one cycle in the process's session. Raises like `lake run`."""
    done = run(settings, lambda: start(settings), lambda _: None)
    if done.held is not None:
        raise done.held.error


def fingerprints(project: Project) -> dict[str, list[str]]:
    """Return for every table whether it equals its recomputation, and the fingerprint of its rows."""
    inputs = Inputs(lambda: start(project.settings), project, pick_cut(project, None), recompute=True)
    verdicts = {name: verify(inputs, declaration) for name, declaration in project.tables.items()}
    return {name: [verdict.verdict, str(verdict.fingerprint)] for name, verdict in verdicts.items()}


def land(settings: Settings, number: int) -> None:
    """Land one more file of orders."""
    folder = settings.path(settings.landing) / "orders"
    records = [order(1000 + number), order(1 + number % 5, status="paid"), order(1000 + number, "ada")]
    (folder / f"more-{number:03}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def same(home: Path) -> dict[str, Any]:
    """Run the shop in a bucket and in a folder; return fingerprints, rows, and requests per step."""
    requests: dict[str, dict[str, int]] = {}
    with wired(PORT) as wire:
        settings = project_of(home, wire, "same")
        local = replace(settings, warehouse=home / "local")

        def counted(step: str, do: Callable[[], object]) -> object:
            before = wire.counted()
            result = do()
            requests[step] = dict(wire.counted() - before)
            return result

        for number, writer in enumerate(WRITERS, 1):
            those = replace(settings, in_process_rows=IN_PROCESS_ROWS[writer])
            with writing(writer):
                counted(f"run, {writer}", lambda those=those: cycle(those))  # type: ignore[misc] # called at once
                counted(f"run of nothing new, {writer}", lambda those=those: cycle(those))  # type: ignore[misc] # so too
            cycle(local)
            land(settings, number)
        cycle(settings)
        cycle(local)
        rows = counted("query", lambda: reader(settings).relation(QUERY).fetchall())
        project = load(settings)
        inside = counted("verify", lambda: fingerprints(project))
        inputs = Inputs(lambda: start(settings), project, pick_cut(project, None))
        counted("rebuild", lambda: [rebuild(inputs, table) for table in project.tables.values()])
        again = fingerprints(load(settings))
        return {
            "bucket": inside,
            "rebuilt": again,
            "folder": fingerprints(load(local)),
            "rows": str(rows),
            "rows in a folder": str(reader(local).relation(QUERY).fetchall()),
            "requests": requests,
            "secret is told": secret_is_told(settings),
        }


def secret_is_told(settings: Settings) -> bool:
    """Return whether a session reveals the key to its clients."""
    spark, secret = start(settings), os.environ["AWS_SECRET_ACCESS_KEY"]
    told = [str(row) for query in ("SET", "SET -v") for row in spark.sql(query).collect()]
    for name in ("spark.hadoop.fs.s3a.secret.key", "fs.s3a.secret.key"):
        told.append(str(spark.conf.get(name, "")))
    return any(secret in text for text in told)


def answers(home: Path, fault: Fault, most: int) -> dict[str, Any]:
    """Lose the answer of one PUT per run, or cut it; return the outcome of each run and of the next."""
    outcomes: list[str] = []
    with wired(PORT) as wire:
        settings = project_of(home, wire, f"answers-{fault}")
        cycle(settings)
        for number in range(1, most + 1):
            land(settings, number)
            writer = WRITERS[number % 2]
            wire.fails, wire.happened = nth(number, "PUT", "", fault), 0
            try:
                with writing(writer):
                    cycle(replace(settings, in_process_rows=IN_PROCESS_ROWS[writer]))
                outcome = "done"
            except Unavailable as error:
                outcome = f"unavailable: {error.what}"
            except (LakeError, OSError) as error:
                gone = None if isinstance(error, LakeError) else unreached(error)
                outcome = f"unavailable: {gone.what}" if gone else f"FAULT: {error}"
            wire.fails = lambda *_: None
            outcomes.append(outcome if wire.happened else "not reached")
            cycle(settings)
        return {"outcomes": outcomes, "tables": fingerprints(load(settings))}


def archives(home: Path, most: int = 12) -> dict[str, Any]:
    """Kill archiving at a different request each time, complete it, and return the state of the tables."""
    kills = 0
    with wired(PORT) as wire, Commands() as commands:
        settings = replace(project_of(home, wire, "archives"), cold="s3://shop/archived")
        house = Lakehouse(settings.project, home)
        house.settings = settings
        commands.environment |= {"LAKE_STORAGE__ENDPOINT": wire.url, **REACHED}
        for number in range(1, most + 1):
            cycle(settings)
            land(settings, number)
            line = ("archive", "orders", "--through", str(Log(settings, "orders").head().batch))
            fails = nth_write(number, ("lose", "cut")[number % 2])
            kills += killed_at_request(commands, wire, fails, *line, at=house, tuned=SOON)
            if number % 3:
                done = commands.lake(*line, at=house, tuned=SOON)
                assert done.code == 0, done.err
        cycle(settings)
        tables = fingerprints(load(settings))
        return {
            "kills": kills,
            "tables": tables,
            "faults": check_log(settings, "orders").faults,
            "seen": len(wire.requests),
        }


def moved(home: Path) -> dict[str, Any]:
    """Upload a backup of a folder into the bucket and continue there: fingerprints of both, and faults of the log."""
    with wired(PORT) as wire:
        settings = replace(project_of(home, wire, "moved"), keys=home / "keys.sqlite")
        local = replace(settings, warehouse=home / "local")
        cycle(local)
        backup(load(local), home / "copy", keys=None, on_progress=lambda _: None)
        for file in (home / "copy/warehouse").rglob("*"):
            if file.is_file():
                (address_of(settings, settings.warehouse) / str(file.relative_to(home / "copy/warehouse"))).put_file(
                    file
                )
        faults = check_log(settings, "orders").faults
        land(settings, 1)
        cycle(settings)
        cycle(local)
        return {"bucket": fingerprints(load(settings)), "folder": fingerprints(load(local)), "faults": faults}


PARTS: Final[dict[str, Callable[[Path], dict[str, Any]]]] = {
    "same": same,
    "lose": lambda home: answers(home, "lose", int(os.environ.get("S3_PUTS", "40"))),
    "cut": lambda home: answers(home, "cut", int(os.environ.get("S3_PUTS", "40"))),
    "archives": archives,
    "moved": moved,
}

if __name__ == "__main__":
    found: dict[str, Any]
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = {part: PARTS[part](Path(folder) / part) for part in sys.argv[1:]}
        except Exception:  # Reported to the parent process
            found = {"error": traceback.format_exc()}
        print(json.dumps(found), flush=True)
    os._exit(0)  # The JVM ends with its gateway
