"""How-to about commands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests import intake
from tests.servers.http import installed
from tests.shop import empty

PAGE: Final = Path(__file__).parents[2] / "docs/how-to/commands.md"


@pytest.mark.long
@pytest.mark.slow
def test_commands_page_shows_the_true_output_of_its_commands(tmp_path: Path) -> None:
    installed()
    page = PAGE.read_text("utf-8")
    blocks = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE))
    settings = empty(tmp_path / "bank")
    settings.path("sources").mkdir()
    for name, text in blocks.items():
        if "/" in name:
            settings.path(name).write_text(text)
    for name, code in (("accepted", 0), ("refused", 1), ("accepted", 0)):
        done = subprocess.run(
            ["sh", "-c", blocks[name]],
            cwd=settings.project,
            env=os.environ | {"PATH": f"{intake.LAKE.parent}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, (done.stdout + done.stderr).strip()) == (code, blocks[f"{name} says"].strip())
