"""Settings, and environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from typing import Any

from lake.config import PublishSettings, ServeSettings, Settings, SparkSettings
from lake.connect.s3.place import S3Settings
from reference.words import ROOT, said_of, type_cell

NOUNS = {
    "Path": "path",
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "Path | str": "path or URL",
    "timedelta": "duration",
    "Mapping[str, str]": "table of texts",
    "Mapping[str, Sequence[str]]": "table of lists",
    "tuple[str, ...]": "list of texts",
}
GROUPS = {"publish": PublishSettings, "serve": ServeSettings, "spark": SparkSettings, "storage": S3Settings}
"""Settings that are a table of settings."""


def settings() -> Iterator[str]:
    """The settings with type, default, least value and meaning."""
    yield "# Settings\n"
    yield (
        "Write settings in `[tool.lake]` of the project's `pyproject.toml`, or set the environment variable, which "
        "wins. Relative paths begin at the project folder. An unknown setting is an error; all faults are reported at "
        "once.\n"
    )
    yield '```toml\n[tool.lake]\nkeep_days = 7\n\n[tool.lake.spark]\ndriver_memory = "4g"\n```\n'
    yield "| setting, environment variable | type | default | meaning |\n|---|---|---|---|"
    found = {each.name: each for each in fields(Settings) if each.name not in ("project", *GROUPS)}
    for group, those in GROUPS.items():
        found |= {f"{group}.{each.name}": each for each in fields(those)}
    said = said_of("settings", found)
    for name, each in found.items():
        kind = NOUNS.get(str(each.type).replace(" | None", ""), str(each.type))
        least = f", at least {_number(each.metadata['least'])}" if "least" in each.metadata else ""
        variable = f"LAKE_{name.upper().replace('.', '__')}"
        yield f"| `{name}`<br>`{variable}` | {type_cell(kind)}{least} | {_default(name, each)} | {said[name]} |"


def _default(name: str, setting: Field[Any]) -> str:
    value = setting.default
    if name == "jars":
        return "in the virtual environment"
    if value is MISSING or value is None or value in ("", ()):
        return "none"
    if isinstance(value, timedelta):
        return f"`{value.total_seconds():.0f} s`"
    return _number(value) if isinstance(value, int) and not isinstance(value, bool) else f"`{value}`"


def _number(value: float) -> str:
    """Return a number, with its size in MiB or GiB if it is a multiple of them."""
    if value < 1 << 20 or value % (1 << 20):
        return f"`{value}`"
    size = int(value)
    return f"`{size}` ({size >> 20} MiB)" if size < 1 << 30 else f"`{size}` ({size >> 30} GiB)"


def environment() -> Iterator[str]:
    """The environment variables that the code reads or sets, beside those of the settings."""
    yield "# Environment variables\n"
    yield "Each [setting](settings.md) has one, `LAKE_…`. A name that is nearly one is an error. Beside them:\n"
    yield "| variable | meaning |\n|---|---|"
    pattern = re.compile(r"environ(?:\.\w+\(|\[)\s*\"(\w+)\"")
    sources = (ROOT / "lake").rglob("*.py")
    read = {name for file in sources for name in pattern.findall(file.read_text("utf-8"))}
    read |= {
        "SPARK_CONNECT_AUTHENTICATE_TOKEN",
        "PYSPARK_SUBMIT_ARGS",
        "LAKE_CONTAINER",
        "LAKE_LOG_FORMAT",
    }  # by way of a constant, or click
    said = said_of("environment", read)
    yield from (f"| `{name}` | {said[name]} |" for name in said)
