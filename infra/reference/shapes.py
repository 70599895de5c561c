"""Output of `--json`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import get_args

from lake.cli import command_names
from reference.words import Drift, type_cell

SHAPES = Path(__file__).with_name("shapes.md")
SHAPE = re.compile(r"^<!-- fields: (.+?) -->$", re.MULTILINE)
JSON_TYPES: Mapping[str, str | Callable[[re.Match[str]], str]] = {
    r"Literal\[(.+)\]": lambda found: found[1].replace("'", "").replace(", ", " | "),
    r"\bdatetime\b": "text (an instant)",
    r"\btimedelta\b": "seconds",
    r"\b(?:str|Path|Decimal)\b": "text",
    r"\b(?:int|float)\b": "number",
    r"\bbool\b": "true or false",
    r"\bdict\[text, Any\]|\bMapping\[text, Any\]": "object",
    r"(?:Mapping|dict)\[text, (\w+)\]": r"object of \1s",
    r"(?:list|Sequence|frozenset)\[(.+?)\]|tuple\[(\w+), \.\.\.\]": r"list of \1\2s",
    r"tuple\[(\w+), \1\]": r"two \1s",
    r"\b(?:\w+\.)+(?=[A-Z])": "",
}


def shapes() -> Iterator[str]:
    """Output of `--json`, command by command. Records are expanded from the code's dataclasses."""
    text = SHAPES.read_text("utf-8")
    told = set(re.findall(r"^## `lake ([\w-]+)", text, re.MULTILINE))
    if told != set(command_names()):
        raise Drift(f"shapes.md and the commands differ in {', '.join(sorted(told ^ set(command_names())))}")

    def expanded(found: re.Match[str]) -> str:
        return "\n".join(_record(found[1]))

    yield SHAPE.sub(expanded, text)


def _record(path: str) -> Iterator[str]:
    module, _, name = path.rpartition(".")
    record = getattr(import_module(module), name)
    if not is_dataclass(record):
        raise Drift(f"{path} is not a dataclass")
    yield f"`{name}`:\n"
    yield "| field | type |\n|---|---|"
    yield from (f"| `{each.name}` | {_json_type(str(each.type), module)} |" for each in fields(record))


def _json_type(text: str, module: str) -> str:
    """A Python type, as a record of `module` has it, in the words of JSON."""
    if choices := get_args(getattr(import_module(module), text, None)):
        return " or ".join(f"`{each}`" for each in choices)
    for python, json in JSON_TYPES.items():
        text = re.sub(python, json, text)
    return type_cell(text)
