"""A commit that lets those of a dead writer fail.

Who is killed while Spark writes for it does not stop Spark: a Connect server, and for a moment an embedded JVM, goes on
and commits, perhaps when the next writer has looked already. All commits of a log or table carry the next transaction
number of its app; this one takes that number and changes nothing, so Delta refuses the late one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lake.store import delta
from lake.store.delta import Position
from lake.store.storage import Address
from lake.store.torn import commit_file


def fence(path: Address, app: str) -> None:
    """Takes the next transaction number of `app` in the table at `path`; the caller holds its lease.

    What the dead writer's Spark has committed before is there to be seen afterwards; what it has not, never will be.
    """
    while delta.exists(path):
        standing, newest = delta.standing(path, app), next(delta.commits(path))
        data = standing.again().data if standing.data else {}
        if commit_nothing(path, newest, Position(app, standing.txn + 1, data)):
            return


def commit_nothing(path: Address, newest: Mapping[str, Any], position: Position) -> bool:
    """Commits `position` and no row after `newest`, by hand, as delta-rs refuses logs; False where there is one by now.

    Of a position without data only its number is taken.
    """
    at = newest["timestamp"] + 1
    info = {"inCommitTimestamp": at, "timestamp": at, "operation": "FENCE", "operationParameters": {}}
    told = {"userMetadata": position.metadata} if position.data else {}
    actions = [
        {"commitInfo": {**info, **told}},
        {"txn": {"appId": position.app, "version": position.txn, "lastUpdated": at}},
    ]
    file = commit_file(path, newest["version"] + 1)
    return file.put_if_absent("".join(json.dumps(action) + "\n" for action in actions).encode())
