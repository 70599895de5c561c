"""OpenSearch on this machine, one node in one process, until Ctrl-C: `make opensearch`.

It listens on 127.0.0.1 alone, on --port and for other nodes, of which there are none, on the next one. Nobody is asked
for a password. Its data are in --home, by default .lake/opensearch, and stay there. Its jars are those of
infra/opensearch/jars.txt: `--fetch` puts them into --jars, verified, and ends.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lake import jars
from lake.errors import LakeError

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
LIST: Final = HERE / "jars.txt"
JARS: Final = Path(os.environ.get("OPENSEARCH_JARS") or Path(sys.prefix) / "share/headwater/opensearch")
HOME: Final = Path(os.environ.get("OPENSEARCH_HOME") or ROOT / ".lake/opensearch")


def main() -> None:
    """Reads the command line, and becomes the server."""
    parser = argparse.ArgumentParser(description="OpenSearch on this machine, until Ctrl-C.")
    parser.add_argument("--home", type=Path, default=HOME, help="folder of its data")
    parser.add_argument("--jars", type=Path, default=JARS, help="folder of its jars")
    parser.add_argument("--port", type=int, default=9200, help="port of clients (default: 9200)")
    parser.add_argument("--memory", default="512m", help="most memory of its heap (default: 512m)")
    parser.add_argument("--fetch", action="store_true", help="fetch its jars, and end")
    given = parser.parse_args()
    if given.fetch:
        sys.exit(fetch(given.jars))
    if missing := jars.faults(given.jars, jars.listed(LIST)):
        sys.exit(f"opensearch: {missing[0]} ({given.jars})\n  fix: python infra/opensearch/server.py --fetch")
    start(given)


def fetch(folder: Path) -> int | str:
    """Makes `folder` hold the listed jars; what it ends with."""
    try:
        count = jars.provide(folder, print, file=LIST)
    except LakeError as error:
        return f"opensearch: {error}"
    done = f"{count} jars fetched and verified into {folder}" if count else f"all jars are in {folder}"
    print(f"opensearch: {done}")
    return 0


def start(given: argparse.Namespace) -> None:
    """Writes its settings, and becomes the server."""
    home = given.home.absolute()
    config = home / "config"
    config.mkdir(mode=0o700, parents=True, exist_ok=True)
    said = "".join(f"{name}: {value}\n" for name, value in settings(given, home).items())
    (config / "opensearch.yml").write_text(said)
    java = str(Path(os.environ["JAVA_HOME"]) / "bin/java") if os.environ.get("JAVA_HOME") else "java"
    logging = [f"-Dheadwater.home={home}", f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"]
    options = [f"-Xmx{given.memory}", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true", *logging]
    command = [java, *options, "-cp", f"{given.jars.absolute()}/*", str(HERE / "Server.java"), str(home)]
    print(f"opensearch: 127.0.0.1:{given.port}, data in {home}", flush=True)
    os.execvp(command[0], command)


def settings(given: argparse.Namespace, home: Path) -> Mapping[str, object]:
    """The settings of a node that is alone, and that goes on where the disk is nearly full."""
    return {
        "cluster.name": "headwater",
        "node.name": "one",
        "network.host": "127.0.0.1",
        "http.port": given.port,
        "transport.port": given.port + 1,
        "discovery.type": "single-node",
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        "path.data": home / "data",
        "path.logs": home / "logs",
    }


if __name__ == "__main__":
    main()
