"""Ingest several projects in one session: `python -m tests.s3.taking READ_BYTES FOLDER …`.

Batches of more than READ_BYTES are read by tasks. The first project has something in a bucket. It prints the counts of
each, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from lake import cost
from lake.config import load_settings
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.session.spark_session import start

if __name__ == "__main__":
    read_bytes, *folders = sys.argv[1:]
    cost.READ_BYTES = int(read_bytes)
    session = start(load_settings(Path(folders[0])))
    for folder in folders:
        settings = load_settings(Path(folder))
        counts = ingest(settings, lambda: session, load_contracts(settings))
        print(json.dumps({stream: asdict(of) for stream, of in sorted(counts.items())}), flush=True)
    os._exit(0)  # The JVM ends with its gateway
