"""Sessions of the README and of the tutorial, line by line: commands print the output of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake.testing import Commands
from tests.docs.sessions import BLOCK, ROOT, SHOP, play, session, shown_as

PAGES = ("README.md", "docs/tutorial.md", "docs/how-to/subscribe.md")


@pytest.mark.parametrize("page", [PAGES[0], *(pytest.param(page, marks=pytest.mark.long) for page in PAGES[1:])])
def test_session_prints_the_output_of_the_page(tmp_path: Path, commands: Commands, page: str) -> None:
    play([page], tmp_path, commands.environment)


@pytest.mark.long
def test_session_of_a_wrong_number_prints_the_output_of_the_page(tmp_path: Path, commands: Commands) -> None:
    play([SHOP, "docs/how-to/explain.md"], tmp_path, commands.environment)


@pytest.mark.parametrize("page", PAGES)
def test_session_line_is_a_step(page: str) -> None:
    steps = [step for step in session(page) if step.command]
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    console = "".join(text for language, _, text in blocks if language == "console")
    assert console == "".join(f"$ {step.command}\n{step.expected}" for step in steps)
    assert len(steps) >= 8


def test_dots_match_any_text() -> None:
    assert shown_as("edition 1\n", "edition 1\n")
    assert shown_as("took … s\n", "took 0.3 s\n")
    assert not shown_as("edition 1\n", "edition 10\n")
    assert not shown_as("(a|b)\n", "a\n")
