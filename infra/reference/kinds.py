"""Options and errors of the kinds, measures and windows."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import get_args

import lake
from lake.kinds import join
from reference.words import ROOT, cell, prose, said_of, type_cell

RAISED_BY = {
    "Latest": ("kinds/latest", "kinds/snapshots"),
    "History": ("kinds/history", "kinds/snapshots"),
    "Aggregate": ("kinds/aggregate", "kinds/finality"),
    "measures": ("kinds/measures/measure", "kinds/measures/sketches", "kinds/measures/variance"),
    "windows": ("kinds/windows/window", "kinds/windows/hopping", "kinds/windows/event_windows"),
    "Fold": ("kinds/fold", "kinds/reducer"),
    "Enrich": ("kinds/enrich", "kinds/finality"),
    "Join": ("kinds/join", "kinds/finality"),
    "Pattern": ("kinds/pattern", "kinds/steps", "kinds/finality"),
    "View": ("kinds/view",),
    "declarations": (
        *(
            "project/declaration",
            "kinds/columns",
            "project/jobfile",
            "engine/function",
            "engine/faults",
        ),
        *("engine/analysis", "engine/compare", "kinds/sql/rounding"),
    ),
}
"""The modules whose errors a page lists."""
TELLING = {"DeclarationError", "LakeError", "fault"}
MEASURES = (
    *("Count", "CountIf", "Sum", "Avg", "Min", "Max", "FirstValue", "LastValue", "Variance", "Stddev"),
    *("CountDistinct", "ApproxDistinct", "Quantile"),
)
WINDOWS = ("Calendar", "Tumbling", "Hopping", "Cumulative", "Sliding", "Session")
OF_MATCHES = ("FirstOf", "LastOf", "In")


def option_table(name: str) -> Iterator[str]:
    """The options of a kind, or of what a kind takes: type, default and meaning."""
    parameters = inspect.signature(getattr(lake, name)).parameters
    said = said_of(f"kinds.{name}", parameters)
    yield "| option | type | default | meaning |\n|---|---|---|---|"
    for option, meaning in said.items():
        yield f"| `{option}` | {_type(parameters[option])} | {_given(parameters[option])} | {meaning} |"


def _type(parameter: inspect.Parameter) -> str:
    text = str(parameter.annotation).removesuffix(" | None")
    if choices := get_args(getattr(join, text, None)):
        return " or ".join(f"`{each!r}`" for each in choices)
    if text.startswith("Literal["):
        return " or ".join(f"`{each}`" for each in text[8:-1].split(", "))
    for long, short in {
        "str | Sequence[str]": "column or columns",
        "timedelta": "duration",
        "Sequence": "list",
        "Mapping": "dict",
        "lake.kinds.": "",
    }.items():
        text = text.replace(long, short)
    return type_cell(re.sub(r"\b[a-z]+(?:\.\w+)*\.(?=[A-Z])", "", text))


def _given(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return "one or more"
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, timedelta):
        return "zero" if not value else f"`{value}`"
    if value is None or (isinstance(value, str | tuple | Mapping | MappingProxyType) and not value):
        return "none"
    return f"`{value!r}`"


def error_table(kind: str) -> Iterator[str]:
    """Yield the errors of a kind, from its modules; … stands for the value found."""
    yield "| error | fix |\n|---|---|"
    for module in RAISED_BY[kind]:
        tree = ast.parse((ROOT / f"lake/{module}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            name = node.func if isinstance(node, ast.Call) else None
            called = getattr(name, "id", "") or getattr(name, "attr", "")
            if isinstance(node, ast.Call) and called in TELLING and node.args and _is_telling(node.args[0]):
                told = {each.arg: each.value for each in node.keywords}
                fix = _said_by(told["fix"]) if "fix" in told else ""
                code = " (exit code 1)" if called == "LakeError" else ""
                yield f"| {cell(_said_by(node.args[0]))}{code} | {cell(fix.removeprefix('…'))} |"


def _is_telling(node: ast.expr) -> bool:
    """Return whether a message is a text in the source."""
    return len(re.findall(r"[A-Za-z]{2,}", _said_by(node))) > 1


def _said_by(node: ast.expr) -> str:
    """The text of a string in the source; … for what is only known when it runs."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_said_by(part) for part in parts)
        case ast.IfExp(body=body, orelse=other):
            return f"{_said_by(body)} / {_said_by(other)}"
    return "…"


def measures() -> Iterator[str]:
    """Measures and windows: signature, meaning, and what each refuses."""
    yield "# Measures and windows\n"
    yield (
        "What an [Aggregate](../kinds/aggregate.md) and a [Pattern](../kinds/pattern.md) calculate. A value is SQL "
        "over the function's columns. A measure that *retracts* subtracts a row that is gone (a retraction); one that "
        "does not evaluates its group again.\n"
    )
    for title, names in (("Measures", MEASURES), ("Measures of a match", OF_MATCHES), ("Windows", WINDOWS)):
        yield f"## {title}\n"
        for name in names:
            yield from _described(name)


def _described(name: str) -> Iterator[str]:
    found = getattr(lake, name)
    shown = ", ".join(_arguments(inspect.signature(found).parameters.values()))
    retracts = getattr(found, "retracts", None)
    yield f"### {name}\n\n```python\n{name}({shown})\n```\n"
    paragraphs = inspect.cleandoc(found.__doc__ or "").split("\n\n")
    yield from (prose(each) + "\n" for each in paragraphs)
    if retracts is not None and name not in OF_MATCHES:
        yield f"Retracts: {'yes' if retracts else 'no'}.\n"


def _arguments(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    """As Python writes them, required ones first, with a * before those that are given by name alone."""
    named = False
    for each in sorted(parameters, key=lambda each: (each.kind, each.default is not inspect.Parameter.empty)):
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        default = "" if each.default is inspect.Parameter.empty else f"={each.default!r}".replace("datetime.", "")
        yield each.name + default
