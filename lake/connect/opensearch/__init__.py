"""OpenSearch as a target, a search index for each table. Options: docs/how-to/sink-opensearch.md.

A table is the alias `<prefix><table>` of one index. `_id` is the name of lake.sinks.json_rows, or a hash if that is too
long. There are no transactions, so changes are staged in another index (`staged_swap`).
"""

from __future__ import annotations

from typing import Final

from lake.connect.opensearch.indexes import IndexNames
from lake.connect.opensearch.server import OpenSearchServer
from lake.connect.opensearch.target import OpenSearchTarget
from lake.sinks.kind import SinkDeclaration, SinkKind
from lake.sinks.server import SERVER_OPTIONS
from lake.sinks.sink import Target


def _open(declaration: SinkDeclaration) -> Target:
    name, options, where = declaration.name, declaration.options, declaration.where
    server = OpenSearchServer.of(options, where)
    return OpenSearchTarget(name, server, IndexNames.of(options["prefix"] or f"{name.replace('_', '-')}-", where))


KIND: Final = SinkKind(
    _open,
    modes=("mirror", "upsert"),
    options={**SERVER_OPTIONS, "seconds": (int, 60)},
    table_options={"mapping": (dict, {}), "settings": (dict, {})},
)
