"""Hook of MkDocs: pages that are made from the code."""

from __future__ import annotations

from typing import Any

from reference import filled, pages


def on_files(files: Any, config: Any) -> Any:
    """MkDocs asks for the site's sources: the generated pages are among them."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs asks for a page's text: its markers become the options and the errors of what they name."""
    return filled(markdown)
