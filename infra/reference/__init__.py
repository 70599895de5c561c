"""The reference pages, made from the code: commands, settings, contracts, kinds, JSON, exit codes, environment.

`infra/docs_hook.py` hands them to MkDocs, so the site cannot drift from the code and no generated page is committed.
Prose about a name is in `words.toml`; a name that only one of the two has ends the build.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from reference import commands, data, kinds, settings, shapes
from reference.words import ROOT

MARKER = re.compile(r"^<!-- (options|errors): (.+?) -->$", re.MULTILINE)
COPIED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "infra/SECURITY.md": "security.md"}
"""Pages whose sources stand where a repository's readers look for them."""
NOTE = "<!-- Made from the code by infra/reference. -->\n"


def pages() -> dict[str, str]:
    """The generated pages by their path within the site's sources."""
    made: dict[str, Callable[[], Iterable[str]]] = {
        "reference/commands.md": commands.commands,
        "reference/settings.md": settings.settings,
        "reference/contracts.md": data.contracts,
        "reference/measures.md": kinds.measures,
        "reference/expectations.md": data.expectations,
        "reference/json.md": shapes.shapes,
        "reference/exit-codes.md": commands.exit_codes,
        "reference/environment.md": settings.environment,
    }
    generated = {path: NOTE + "\n".join(make()) + "\n" for path, make in made.items()}
    return generated | {page: _of_root(file) for file, page in COPIED.items()}


def _of_root(file: str) -> str:
    """A page of the repository's root, with its links as the site has them."""
    text = (ROOT / file).read_text("utf-8").replace("](docs/", "](")
    for other, page in COPIED.items():
        text = text.replace(f"]({other})", f"]({page})")
    return text


def filled(markdown: str) -> str:
    """The text of a page with its markers replaced."""

    def made(found: re.Match[str]) -> str:
        return "\n".join(kinds.option_table(found[2]) if found[1] == "options" else kinds.error_table(found[2]))

    return MARKER.sub(made, markdown)
