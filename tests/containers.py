"""Files of infra/container: services with their variables filled in, and their image."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.processes import ROOT

FOLDER: Final = ROOT / "infra/container"
COMPOSE: Final = FOLDER / "compose.yaml"
CONTAINERFILE: Final = FOLDER / "Containerfile"
VARIABLE: Final = re.compile(r"\$\{(\w+)(?:(:?)([-?])([^}]*))?\}")
"""As Compose has it: ${NAME}, ${NAME-default}, ${NAME:-default} also where it is empty, ${NAME:?what it is}."""


def fill_variables(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with its variables filled in. Fail if one without a default is missing."""

    def value(found: re.Match[str]) -> str:
        name, empty, kind, rest = found.groups()
        given = variables.get(name)
        if given is None or (empty and not given):
            assert kind == "-", f"{name} is not given: {rest}"
            return str(rest)
        return given

    return VARIABLE.sub(value, text)


def compose(**variables: str) -> dict[str, Any]:
    """Return the Compose file. Variables are filled in after parsing, as in Compose: they are text."""

    def value(read: Any) -> Any:
        if isinstance(read, dict):
            return {name: value(each) for name, each in read.items()}
        if isinstance(read, list):
            return [value(each) for each in read]
        return fill_variables(read, variables) if isinstance(read, str) else read

    read: dict[str, Any] = value(yaml.safe_load(COMPOSE.read_text()))
    return read


@dataclass(frozen=True)
class Service:
    """Service of the Compose file, with the process of its container."""

    name: str
    says: Mapping[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.says.get("environment", {}).items()}

    @property
    def entrypoint(self) -> list[str]:
        """Return the beginning of its commands."""
        return list(self.says.get("entrypoint") or image().entrypoint)

    @property
    def command(self) -> list[str]:
        """Return the started command."""
        return [*self.entrypoint, *self.says.get("command", image().command)]

    @property
    def health(self) -> list[str]:
        """Return the health check; empty without one."""
        test: list[str] = self.says.get("healthcheck", {}).get("test", ["NONE"])
        first, *words = test
        assert first == ("CMD" if words else "NONE")
        return words

    @property
    def secrets(self) -> Sequence[str]:
        return list(self.says.get("secrets", ()))

    @property
    def waits_for(self) -> Mapping[str, Mapping[str, Any]]:
        return dict(self.says.get("depends_on", {}))

    @property
    def volumes(self) -> list[tuple[str, str]]:
        """Return the mounts; the source of an unnamed volume is empty."""
        return [(source, there) for source, _, there in (str(each).rpartition(":") for each in self.says["volumes"])]

    @property
    def in_memory(self) -> list[str]:
        """Return the folders that disappear with the container."""
        return [str(each).partition(":")[0] for each in self.says.get("tmpfs", ())]


def services(**variables: str) -> dict[str, Service]:
    """Return the services by name, with these variables of Compose."""
    return {name: Service(name, says) for name, says in compose(**variables)["services"].items()}


@dataclass(frozen=True)
class Image:
    """Image of the Containerfile; `copied` maps a path in it to one of the repository."""

    user: str
    entrypoint: list[str]
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    copied: dict[str, str] = field(default_factory=dict)


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile, each a line: its word, and the rest."""
    text = re.sub(r"^\s*#.*\n", "", CONTAINERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def image() -> Image:
    """Return the image of the last stage, with the files copied by earlier ones."""
    last: dict[str, str] = {}
    copied: dict[str, str] = {}
    environment: dict[str, str] = {}
    for word, rest in instructions():
        if word == "FROM":
            last, environment = {}, {}
        elif word == "COPY" and "--from" not in rest:
            *sources, there = rest.split()
            copied |= {
                f"{there.rstrip('/')}/{Path(name).name}" if there.endswith("/") else there: name for name in sources
            }
        elif word == "ENV":
            environment |= dict(each.split("=", 1) for each in shlex.split(rest))
        last[word] = rest
    return Image(last["USER"], json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"]), environment, copied)
