"""A real Singer tap, tap-jsonl of PyPI, in an environment of its own: `make test S=singer` installs it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers import needed

TAP = Path(sys.prefix) / "share/headwater/tap/bin/tap-jsonl"


@dataclass(frozen=True)
class Singer:
    """A tap over the files of a folder."""

    folder: Path

    @property
    def command(self) -> list[str]:
        return [str(TAP), "--config", str(self.folder / "config.json")]

    def write(self, name: str, *numbers: int) -> None:
        """A file of rows."""
        lines = [json.dumps({"order_id": number, "amount": f"{number}.50"}) for number in numbers]
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def singer(tmp_path: Path) -> Singer:
    """A tap without any file as yet."""
    needed(TAP if TAP.exists() else None, "tap-jsonl is not installed: make test S=singer")
    folder = tmp_path / "rows"
    folder.mkdir()
    said = {"path": str(folder / "*.jsonl"), "stream_name": "orders", "primary_keys": ["order_id"]}
    (folder / "config.json").write_text(json.dumps(said))
    return Singer(folder)
