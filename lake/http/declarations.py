"""The source that a server takes events for, among the project's declared ones."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, did_you_mean
from lake.sources import http
from lake.sources.http import Declared

FOLDER: Final = "sources"


def declared(settings: Settings, contracts: Mapping[str, Contract], source: str | None) -> Declared:
    """The source of kind http that is called so, or the only one. Raises DeclarationError."""
    files = {file.stem: file for file in sorted(settings.path(FOLDER).glob("*.toml"))}
    said = {name: _read(settings, file) for name, file in files.items() if source in {None, name}}
    of_kind = {name: what for name, what in said.items() if what.get("kind") == http.KIND}
    example = f'write {FOLDER}/web.toml with the line: kind = "http"'
    if source is not None and source not in files:
        fix = did_you_mean(source, files) if files else example
        raise DeclarationError(f"no source {source!r}", where=f"{FOLDER}/", fix=fix)
    if not of_kind:
        what = f"{source} is of another kind than http" if source else "no source of kind http is declared"
        raise DeclarationError(what, where=f"{FOLDER}/", fix=example)
    if len(of_kind) > 1:
        fix = f"name one: {', '.join(of_kind)}"
        raise DeclarationError(f"{len(of_kind)} sources are of kind http", where=f"{FOLDER}/", fix=fix)
    [(name, table)] = of_kind.items()
    return http.declared(name, table, contracts, f"{FOLDER}/{name}.toml", settings)


def _read(settings: Settings, file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        where = str(file.relative_to(settings.path(".")))
        raise DeclarationError(f"not valid TOML: {error}", where=where, fix="correct it there") from None
