"""A signpost: the newest commit of a table that readers by path are not to read any more. It says what to read instead.

It asks for a feature of Delta that nobody has, and whose name is the sentence. So delta-rs, Spark and DuckDB refuse
the table, and say the name. To Headwater it is no commit, like one that was cut short: the version before it is read,
and who takes the lease takes it away, see `lake.store.torn`.
"""

from __future__ import annotations

import json

from lake.store import delta
from lake.store.storage import Address
from lake.store.torn import SIGNPOST, commit_file, signpost, torn


def put(path: Address, sentence: str) -> None:
    """Has readers of the table at `path` told the `sentence`, unless another commit comes first.

    The caller holds its lease.
    """
    features = [f"{SIGNPOST}{sentence}"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    actions = [{"commitInfo": {"operation": "SIGNPOST", "operationParameters": {}}}, {"protocol": protocol}]
    text = "".join(f"{json.dumps(action)}\n" for action in actions)
    try:
        commit_file(path, delta.version(path) + 1).put_if_absent(text.encode())
    except OSError:
        if standing(path) != sentence:
            raise


def standing(path: Address) -> str | None:
    """The sentence that readers of the table at `path` are told; None where they can read it."""
    version = torn(path)
    return None if version is None else signpost(commit_file(path, version))
