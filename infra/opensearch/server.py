"""OpenSearch on this machine, one node in one process, until Ctrl-C: `make server S=opensearch`.

It listens on 127.0.0.1 alone, on --port and for other nodes, of which there are none, on the next one. It asks for
no password. Its data are in --home, by default .lake/opensearch, and stay there. Its jars are those of
infra/opensearch/jars.txt: `--fetch` puts them into --jars, verified, and ends.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from infra.server import OPENSEARCH


def main() -> None:
    """Reads the command line, writes the settings, and becomes the server."""
    parser = OPENSEARCH.parser("OpenSearch on this machine, until Ctrl-C.", port=9200)
    parser.add_argument("--memory", default="512m", help="most memory of its heap (default: 512m)")
    given = OPENSEARCH.parsed(parser)
    config = given.home / "config"
    config.mkdir(mode=0o700, parents=True, exist_ok=True)
    said = "".join(f"{name}: {value}\n" for name, value in settings(given).items())
    (config / "opensearch.yml").write_text(said)
    logging = f"-Dlog4j2.configurationFile={OPENSEARCH.folder / 'log4j2.properties'}"
    options = [f"-Dheadwater.home={given.home}", logging, "-Djava.awt.headless=true"]
    command = OPENSEARCH.command(given, given.memory, options)
    program = [str(OPENSEARCH.folder / "Server.java"), str(given.home)]
    OPENSEARCH.become([*command, *program], f"127.0.0.1:{given.port}, data in {given.home}")


def settings(given: argparse.Namespace) -> Mapping[str, object]:
    """The settings of a node that is alone, and that goes on where the disk is nearly full."""
    return {
        "cluster.name": "headwater",
        "node.name": "one",
        "network.host": "127.0.0.1",
        "http.port": given.port,
        "transport.port": given.port + 1,
        "discovery.type": "single-node",
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        "path.data": given.home / "data",
        "path.logs": given.home / "logs",
    }


if __name__ == "__main__":
    main()
