"""What has landed for several projects, taken in by one process with one session: `python -m tests.s3.taking FOLDER …`.

The first has something in a bucket. It prints what came of each, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from lake.config import load_settings
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.session import start

if __name__ == "__main__":
    session = start(load_settings(Path(sys.argv[1])))
    for folder in sys.argv[1:]:
        settings = load_settings(Path(folder))
        counts = ingest(settings, lambda: session, load_contracts(settings))
        print(json.dumps({stream: asdict(of) for stream, of in sorted(counts.items())}), flush=True)
    os._exit(0)  # the JVM ends with its gateway
