"""Connectors: objects that an installed package declares as entry points.

- `lake.sources`: a kind of `sources/*.toml`; a SourceKind.
- `lake.sinks`: a kind of `sinks/*.toml`; a SinkKind.
- `lake.storage`: a scheme of URLs in `warehouse`, `landing`, `archive` and `cold`; a StorageKind.
- `lake.keys`: a scheme of the URL in the setting `keys`; a function of the URL, and of its form for messages, that
  returns a Home (lake.store.keys).
- `lake.commands`: a click.Command.
- `lake.after_publish`: a name in the setting `publish.after`; an AfterPublish.

A connector is imported when a project names it. An entry point may name an extra of its package, which provides the
packages that the connector needs: `kafka = "lake.connect.kafka.sink:KIND [kafka]"`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Final, Literal, TypeAlias

from lake.errors import DeclarationError, did_you_mean, install

Group: TypeAlias = Literal[
    "lake.sources", "lake.sinks", "lake.storage", "lake.keys", "lake.commands", "lake.after_publish"
]
OURS: Final = "headwater"
MODULE: Final = "lake"


def connectors(group: Group) -> list[str]:
    return sorted(_installed(group, tuple(sys.path)).names)


def kind_of(group: Group, options: Mapping[str, Any], where: str) -> str:
    kind = options.get("kind")
    if not isinstance(kind, str):
        raise DeclarationError("names no kind", where=where, fix=f"kind = one of {', '.join(connectors(group))}")
    return kind


def connector(group: Group, name: str, where: str) -> Any:
    """Raises DeclarationError if the connector is unknown or broken, or several packages have it."""
    with translated_import_errors(group, name, where) as entry:
        return entry.load()


@contextmanager
def translated_import_errors(group: Group, name: str, where: str) -> Iterator[EntryPoint]:
    """If the block cannot import a package, raise DeclarationError."""
    entry = _entry(group, name, where)
    try:
        yield entry
    except ImportError as error:
        if _is_ours(entry) and (error.name or "").partition(".")[0] == MODULE:
            raise
        extra = entry.extras[0] if entry.extras and _is_ours(entry) else ""
        package = entry.dist.name if entry.dist else name
        fix = install(extra) if extra else f"reinstall {package}; its maintainers know what it needs"
        raise DeclarationError(f"{name} needs {error.name or error}", where=where, fix=fix) from None
    except AttributeError as error:
        if _is_ours(entry):
            raise
        raise DeclarationError(f"{name} is broken: {error}", where=where, fix="reinstall its package") from error


@cache
def _installed(group: Group, path: tuple[str, ...]) -> EntryPoints:
    """Read entry points once for each `path`, which is `sys.path`."""
    return entry_points(group=group)


def _entry(group: Group, name: str, where: str) -> EntryPoint:
    entries = _installed(group, tuple(sys.path)).select(name=name)
    if not entries:
        names = connectors(group)
        fix = did_you_mean(name, names) if names else "install Headwater by pip: a bare folder has no connectors"
        raise DeclarationError(f"unknown kind {name!r}", where=where, fix=fix)
    packages = {entry.dist.name if entry.dist else "": entry for entry in entries}
    if len(packages) > 1:
        raise DeclarationError(
            f"{name!r} is in several packages: {', '.join(sorted(packages))}", where=where, fix="uninstall all but one"
        )
    return next(iter(packages.values()))


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == OURS
