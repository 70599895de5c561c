"""The official client of Delta Sharing, in an environment of its own: `make test-sharing` installs it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from lake.read import granting
from tests.reading import Served
from tests.servers import needed

PYTHON: Final = Path(sys.prefix) / "share/headwater/sharing/bin/python"
PROGRAM: Final = """
import json, sys
import delta_sharing
from delta_sharing import SharingClient
file = sys.argv[1]
def load(table, **how):
    return delta_sharing.load_as_pandas(f"{file}#{table}", **how)
def rows(frame):
    return json.loads(frame.to_json(orient="records", date_format="iso", default_handler=str))
client = SharingClient(file)
print(json.dumps(eval(sys.argv[2])))
"""


@dataclass(frozen=True)
class Sharing:
    """A client; its profile files are in `folder`."""

    folder: Path

    def ask(self, site: Served, expression: str, *tables: str) -> Any:
        """What the client makes of a Python expression over `client`, `load` and `rows`, for a reader of tables.

        Raises AssertionError with its last line where it fails.
        """
        name = f"client-{len(list(self.folder.iterdir()))}"
        grant, token = granting.grant(site.settings, name, tables or ("*",))
        file = self.folder / f"{name}.share"
        file.write_text(granting.profile(grant, token, site.serving.url))
        line = [PYTHON, "-W", "ignore", "-c", PROGRAM, str(file), expression]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def sharing(tmp_path: Path) -> Sharing:
    """A client without any profile as yet."""
    needed(PYTHON if PYTHON.exists() else None, "delta-sharing is not installed: make test-sharing")
    folder = tmp_path / "profiles"
    folder.mkdir()
    return Sharing(folder)
