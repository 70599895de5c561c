"""Base of servers on this machine: their options, their jars, and the JVM that each of them becomes.

A server's folder here holds `jars.txt`. Its jars are in share/headwater of the environment, unless NAME_JARS says
otherwise, and its data in .lake of the repository, unless NAME_HOME does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from infra.fetch import fetch
from lake.session import jars

INFRA: Final = Path(__file__).parent


class Server(NamedTuple):
    """A server: its folder here, its module there, and the folder of its jars."""

    name: str
    module: str
    program: str

    @property
    def folder(self) -> Path:
        return INFRA / self.name

    @property
    def listed(self) -> Path:
        """The list of its jars."""
        return self.folder / "jars.txt"

    @property
    def jars(self) -> Path:
        """Where its jars are, unless an option says otherwise."""
        own = os.environ.get(f"{self.program.upper()}_JARS")
        return Path(own) if own else Path(sys.prefix) / "share/headwater" / self.program

    @property
    def run(self) -> str:
        """The module that starts it, as `python -m` takes it."""
        return f"infra.{self.name}.{self.module}"

    def parser(self, about: str, *, port: int) -> argparse.ArgumentParser:
        """Options that each of them has."""
        home = os.environ.get(f"{self.program.upper()}_HOME") or INFRA.parent / ".lake" / self.name
        parser = argparse.ArgumentParser(prog=f"python -m {self.run}", description=about)
        parser.add_argument("--home", type=Path, default=Path(home), help="folder of its data")
        parser.add_argument("--jars", type=Path, default=self.jars, help="folder of its jars")
        parser.add_argument("--port", type=int, default=port, help=f"port of clients (default: {port})")
        parser.add_argument("--fetch", action="store_true", help="fetch its jars, and end")
        return parser

    def parsed(self, parser: argparse.ArgumentParser) -> argparse.Namespace:
        """The command line, `home` whole. Ends where the jars were to be fetched, and where one of them is missing."""
        given = parser.parse_args()
        given.home = given.home.absolute()
        if given.fetch:
            fetch(self.name, self.listed, given.jars)
            sys.exit()
        if missing := jars.faults(given.jars, jars.listed(self.listed)):
            sys.exit(f"{self.name}: {missing[0]} ({given.jars})\n  fix: python -m {self.run} --fetch")
        return given

    def command(self, given: argparse.Namespace, memory: str, options: Iterable[str]) -> list[str]:
        """A JVM that has its jars, up to its main class: it starts fast rather than runs fast."""
        java = str(Path(os.environ["JAVA_HOME"]) / "bin/java") if os.environ.get("JAVA_HOME") else "java"
        return [java, f"-Xmx{memory}", "-XX:TieredStopAtLevel=1", *options, "-cp", f"{given.jars.absolute()}/*"]

    def become(self, command: list[str], said: str) -> NoReturn:
        """Print its address, and become its JVM."""
        print(f"{self.name}: {said}", flush=True)
        os.execvp(command[0], command)


KAFKA: Final = Server("kafka", "broker", "kafka")
S3: Final = Server("s3", "server", "s3proxy")
OPENSEARCH: Final = Server("opensearch", "server", "opensearch")
