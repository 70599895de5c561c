"""Output of `help(lake.Latest)` for each kind: every option, and examples that are declarations. No JVM."""

from __future__ import annotations

import inspect
import re
import textwrap
from datetime import timedelta
from typing import Any

import pytest

import lake
from tests.kinds.public import KINDS

PUBLIC = {name: getattr(lake, name) for name in lake.__all__} | {"timedelta": timedelta}
HIDDEN = {"Fold": {"rows", "id"}}
"""Options that `refusals` sets."""


def examples(kind: Any) -> list[str]:
    """Return the declarations below `Example:`."""
    block = textwrap.dedent((inspect.getdoc(kind) or "").partition("Example:\n")[2])
    return [text for text in re.split(rf"(?m)^(?={kind.__name__}\()", block) if text.strip()]


@pytest.mark.parametrize("name", KINDS)
def test_help_of_a_kind_shows_its_options_with_an_example_each(name: str) -> None:
    kind = KINDS[name]
    text, shown = inspect.getdoc(kind) or "", examples(kind)
    assert shown
    assert all(isinstance(eval(example, dict(PUBLIC)), kind) for example in shown)
    options = inspect.signature(kind).parameters.values()
    by_name = [
        each.name for each in options if each.kind is each.KEYWORD_ONLY and each.name not in HIDDEN.get(name, ())
    ]
    assert [option for option in by_name if not re.search(rf"\b{option}=", "".join(shown))] == []
    assert [option for option in by_name if not re.search(rf"`{option}|^ *{option}: ", text, re.MULTILINE)] == []
    assert "see Removal" not in text
