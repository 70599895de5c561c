"""The official client of Delta Sharing, in an environment of its own: `make test S=sharing` installs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from lake.read import reader_grants
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
def fails(call):
    try:
        call()
    except Exception as error:
        return str(error)
client = SharingClient(file)
print(json.dumps([eval(each) for each in sys.argv[2:]]))
"""


@dataclass(frozen=True)
class Sharing:
    """A client; its profile files are in `folder`."""

    folder: Path

    def ask(self, site: Served, *expressions: str, tables: Sequence[str] = ("*",)) -> list[Any]:
        """What the client makes of expressions over `client`, `load`, `rows` and `fails`, for a reader of tables."""
        name = f"client-{len(list(self.folder.iterdir()))}"
        grant, token = reader_grants.grant(site.settings, name, tables)
        file = self.folder / f"{name}.share"
        file.write_text(reader_grants.profile(grant, token, site.serving.url))
        line = [str(PYTHON), "-W", "ignore", "-c", PROGRAM, str(file), *expressions]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answers: list[Any] = json.loads(done.stdout)
        return answers


@pytest.fixture
def sharing(tmp_path: Path) -> Sharing:
    """A client without any profile as yet."""
    needed(PYTHON if PYTHON.exists() else None, "delta-sharing is not installed: make test S=sharing")
    folder = tmp_path / "profiles"
    folder.mkdir()
    return Sharing(folder)
