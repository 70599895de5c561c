"""A commit that lets those of a dead writer fail.

Who is killed while Spark writes for it does not stop Spark: a Connect server, and for a moment an embedded JVM, goes on
and commits, perhaps when the next writer has looked already. All commits of a log or table carry the next transaction
number of its app; this one takes that number and changes nothing, so Delta refuses the late one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lake.store import delta
from lake.store.delta import Position
from lake.store.torn import commit_file


def fence(path: Path, app: str) -> None:
    """Takes the next transaction number of `app` in the table at `path`; the caller holds its lease.

    What the dead writer's Spark has committed before is there to be seen afterwards; what it has not, never will be.
    """
    while delta.exists(path):
        standing, newest = delta.standing(path, app), next(delta.commits(path))
        if _committed(path, newest, Position(app, standing.txn + 1, standing.again().data, standing.version)):
            return


def _committed(path: Path, newest: dict[str, Any], position: Position) -> bool:
    """Makes the commit after `newest` by hand, which delta-rs refuses for logs; False where there is one by now.

    Where the table has no position yet, the commit has none either.
    """
    at = newest["timestamp"] + 1
    info = {"inCommitTimestamp": at, "timestamp": at, "operation": "FENCE", "operationParameters": {}}
    repeated = {"userMetadata": position.metadata} if position.version >= 0 else {}
    actions = [
        {"commitInfo": {**info, **repeated}},
        {"txn": {"appId": position.app, "version": position.txn, "lastUpdated": at}},
    ]
    file = commit_file(path, newest["version"] + 1)
    whole = file.with_name(f".{file.name}.tmp")
    whole.write_text("".join(json.dumps(action) + "\n" for action in actions))
    try:
        os.link(whole, file)
    except FileExistsError:
        return False
    finally:
        whole.unlink()
    return True
