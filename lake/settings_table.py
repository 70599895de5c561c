"""Settings in a `[tool.lake]` table of TOML, read into dataclasses; an environment variable `LAKE_…` overrides each."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from datetime import timedelta
from math import inf
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from lake.errors import DeclarationError, did_you_mean
from lake.text import duration

NOUNS: Final = {int: "a whole number", float: "a number", str: "text", Path: "a path", bool: "true or false"}

COLLECTIONS: Final[Mapping[Any, str]] = {
    tuple[str, ...]: "a list of names",
    Mapping[str, str]: "a table of strings",
    Mapping[str, Sequence[str]]: "a table of lists of names",
}
EXAMPLES: Final = {
    "spark.conf": '{"spark.sql.shuffle.partitions" = "4"}',
    "publish.groups": '{sales = ["customer_daily"]}',
    "publish.after": '["name"]',
}
SECRET: Final = frozenset({"keys", "spark.conf", "spark.remote"})
"""Settings that may hold a password or a token: messages never show their values."""


def number(default: float, *, least: float) -> Any:
    return field(default=default, metadata={"least": least})


MOST: Final = 2**63
"""Upper bound of whole numbers, exclusive."""


def tool_lake(folder: Path) -> dict[str, Any] | None:
    """Return the table `[tool.lake]` of the project in `folder`; None without one. Raises DeclarationError."""
    file = folder / "pyproject.toml"
    if not file.is_file():
        return None
    try:
        tool = tomllib.loads(file.read_text("utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(
            f"not valid TOML: {error}", where=str(file), fix="correct it there: a setting is a line, name = value"
        ) from None
    section = tool.get("lake") if isinstance(tool, dict) else tool
    if section is None or isinstance(section, dict):
        return section
    raise DeclarationError(
        f"[tool.lake] must be a table, found {section!r}",
        where=str(file),
        fix="write [tool.lake], and below it name = value",
    )


@dataclass
class SettingsReader:
    """Reader of a project's settings; it collects `faults`.

    `classes` are those of tables whose class the project decides. A class without fields ignores its table.
    """

    folder: Path
    classes: Mapping[str, type]
    faults: list[DeclarationError] = field(default_factory=list)

    def read(self, group: type, values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yield the given settings of the dataclass `group` as (name, value); `prefix` is that of their names."""
        types = {**get_type_hints(group), **self.classes}
        settings = {setting.name: setting for setting in fields(group) if setting.name != "project"}
        for name in values:
            if settings and name not in settings:
                self._add(f"unknown setting {prefix + name!r}", prefix + name, did_you_mean(name, settings))
        for name, setting in settings.items():
            given = os.environ.get(variable(prefix + name), values.get(name))
            if is_dataclass(types[name]):
                inner = given if isinstance(given, Mapping) else {}
                if given is not None and not isinstance(given, Mapping):
                    what = f"setting {prefix + name!r}: expected a table, found {type(given).__name__}"
                    self._add(what, prefix + name, f"write [tool.lake.{name}], and below it name = value")
                yield name, types[name](**dict(self.read(types[name], inner, f"{prefix}{name}.")))
            elif given is not None:
                try:
                    yield name, _value(types[name], given, setting)
                except ValueError as error:
                    shown = "" if prefix + name in SECRET else f", found {given!r}"
                    what = f"setting {prefix + name!r}: expected {error}{shown}"
                    self._add(what, prefix + name, _example(prefix + name, types[name], setting))

    def _add(self, what: str, name: str, fix: str) -> None:
        self.faults.append(fault(what, name, self.folder, fix))


def _value(kind: Any, given: Any, setting: Field[Any]) -> Any:
    """Convert `given` to `kind`. Raises ValueError with the expected form."""
    if isinstance(given, str) and "\0" in given:
        raise ValueError("a text without a zero byte")
    if kind in COLLECTIONS:
        return _collection(kind, given)
    if get_origin(kind) is UnionType:
        if str in get_args(kind) and isinstance(given, str) and "://" in given:
            return given
        kind = get_args(kind)[0]
    if kind is bool:
        if isinstance(given, bool) or given in ("true", "false"):
            return given in (True, "true")
        raise ValueError(NOUNS[bool])
    if kind is Path and given == "":
        raise ValueError(NOUNS[Path])
    least = setting.metadata.get("least")
    if kind is timedelta:
        if (parsed := duration(given)) is None:
            raise ValueError('a duration such as "10 min"')
        return parsed
    noun = NOUNS[kind] if least is None else f"{NOUNS[kind]} of at least {least}"
    try:
        value = kind(given)
    except (TypeError, ValueError):
        raise ValueError(noun) from None
    exact = isinstance(given, str) or (kind in {int, float} and value == given and not isinstance(given, bool))
    if not exact or (least is not None and not least <= value < (MOST if kind is int else inf)):
        raise ValueError(noun)
    return value


def _example(name: str, kind: Any, setting: Field[Any]) -> str:
    last, default = name.rpartition(".")[2], setting.default
    if isinstance(default, str | int | float) and default != "":
        return f"for example {last} = {json.dumps(default)}, which is its default"
    if kind is timedelta:
        return f'for example {last} = "10 min", or leave it out'
    if bool in get_args(kind):
        return f"for example {last} = true, or leave it out"
    if name in EXAMPLES:
        return f"for example {last} = {EXAMPLES[name]}; in the environment, as JSON"
    return f'for example {last} = "{default or last}", or leave it out'


def _collection(kind: Any, given: Any) -> Any:
    """Convert a value of TOML, or JSON of the environment."""
    import msgspec  # most projects have no such setting

    try:
        return msgspec.json.decode(given, type=kind) if isinstance(given, str) else msgspec.convert(given, kind)
    except ValueError:
        raise ValueError(COLLECTIONS[kind]) from None


def fault(what: str, name: str, folder: Path, fix: str = "") -> DeclarationError:
    where = f"[tool.lake] in {folder / 'pyproject.toml'}, or {variable(name)}"
    return DeclarationError(what, where=where, fix=fix)


def variable(name: str) -> str:
    """Return the environment variable of a setting: `spark.master` is LAKE_SPARK__MASTER."""
    return f"LAKE_{name.upper().replace('.', '__')}"
