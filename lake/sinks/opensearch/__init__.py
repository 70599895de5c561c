"""A search index in OpenSearch: kind = "opensearch". Needs the extra `opensearch`.

    kind = "opensearch"
    url = "env:SEARCH_URL"             http://host:9200 or https://…; a password is not for files
    username = "", password = ""       where the url does not say them; "env:NAME"
    certificates = ""                  a PEM file of authorities that TLS trusts; default: those of the client
    prefix = "search-"                 of all indexes; default: the sink's name and a hyphen. No other sink may have it
    seconds = 60                       how long a request may take
    [tables.post]
    mapping = { text = { type = "text", analyzer = "german" } }    in the place of what a column's type gives
    settings = { number_of_shards = 3 }                            of its index

A table is the alias `<prefix><table>` of one index; `_id` is the name of lake.sinks.json_rows, or a hash where that is
too long. There are no transactions: changes are tried in an index beside, then copied (lake.sinks.opensearch.switch).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lake.sinks.opensearch.names import Names
from lake.sinks.opensearch.server import OpenSearchServer
from lake.sinks.opensearch.target import OpenSearch

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


def of(name: str, options: Mapping[str, Any], where: str) -> OpenSearch:
    """The target that the file `where` declares; connects to nothing. Raises DeclarationError."""
    server = OpenSearchServer.of(options, where)
    return OpenSearch(name, server, Names.of(options["prefix"] or f"{name.replace('_', '-')}-", where))
