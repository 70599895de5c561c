"""OpenSearch as a target, a search index for each table. Options: docs/how-to/sink-opensearch.md.

A table is the alias `<prefix><table>` of one index. `_id` is the name of lake.sinks.json_rows, or a hash if that is too
long. OpenSearch has no transactions: changes are staged in another index, see lake.sinks.opensearch.staged_swap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lake.sinks.opensearch.names import IndexNames
from lake.sinks.opensearch.server import OpenSearchServer
from lake.sinks.opensearch.target import OpenSearchTarget

MODES: Final = ("mirror", "upsert")
OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {
    "url": (str, None),
    "username": (str, ""),
    "password": (str, ""),
    "certificates": (str, ""),
    "prefix": (str, ""),
    "seconds": (int, 60),
}
TABLE_OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {"mapping": (dict, {}), "settings": (dict, {})}


def of(name: str, options: Mapping[str, Any], where: str) -> OpenSearchTarget:
    """Return the target, not connected. Raises DeclarationError."""
    server = OpenSearchServer.of(options, where)
    return OpenSearchTarget(name, server, IndexNames.of(options["prefix"] or f"{name.replace('_', '-')}-", where))
