"""The reference pages, made from the code: commands, settings, contracts, kinds, JSON, exit codes, environment.

MkDocs calls it as a hook (`mkdocs.yml`), so the site cannot drift from the code and no generated page is committed.
Prose about a name is in `reference.toml`; a name that only one of the two has ends the build.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import click

import lake
from lake.cli import COMMANDS
from lake.cli import lake as command_line
from lake.config import Settings, SparkSettings
from lake.contracts import fields as field_types
from lake.contracts import options
from lake.contracts.reasons import Reason
from lake.errors import LakeError
from lake.kinds import join
from lake.quality import expectation_types, parking

ROOT = Path(__file__).resolve().parents[1]
WORDS: Mapping[str, Any] = tomllib.loads((ROOT / "infra/reference.toml").read_text("utf-8"))
SHARED = ("project", "json", "quiet", "debug", "help")
SHAPES = ROOT / "infra/json_shapes.md"
MARKER = re.compile(r"^<!-- (options|errors): (.+?) -->$", re.MULTILINE)
SHAPE = re.compile(r"^<!-- fields: (.+?) -->$", re.MULTILINE)
COPIED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "infra/SECURITY.md": "security.md"}
"""Pages whose sources stand where a repository's readers look for them."""
NOTE = "<!-- Made from the code by infra/reference.py. -->\n"
RAISED_BY = {
    "Latest": ("kinds/latest", "kinds/deletes"),
    "History": ("kinds/history", "kinds/deletes"),
    "Aggregate": ("kinds/aggregate",),
    "measures": ("kinds/measures/measure", "kinds/measures/sketches", "kinds/measures/variance"),
    "windows": ("kinds/windows/window", "kinds/windows/hopping", "kinds/windows/sessions", "kinds/windows/sliding"),
    "Fold": ("kinds/fold", "kinds/reducer"),
    "Enrich": ("kinds/enrich",),
    "Join": ("kinds/join",),
    "Pattern": ("kinds/pattern", "kinds/steps"),
    "View": ("kinds/view",),
    "declarations": (
        *("declaration", "kinds/kind", "jobfile", "job_loader", "evaluation/function_output", "evaluation/validate"),
        *("evaluation/determinism", "evaluation/decimals", "evaluation/unique"),
    ),
}
"""The modules whose errors a page lists."""
NOUNS = {"Path": "path", "str": "text", "int": "whole number", "float": "number", "Mapping[str, str]": "table of texts"}
JSON_TYPES: Mapping[str, str | Callable[[re.Match[str]], str]] = {
    r"Literal\[(.+)\]": lambda found: found[1].replace("'", "").replace(", ", " | "),
    r"\bdatetime\b": "text (an instant)",
    r"\btimedelta\b": "seconds",
    r"\b(?:str|Path|Decimal)\b": "text",
    r"\b(?:int|float)\b": "number",
    r"\bbool\b": "true or false",
    r"\bdict\[text, Any\]|\bMapping\[text, Any\]": "object",
    r"(?:Mapping|dict)\[text, (\w+)\]": r"object of \1s",
    r"(?:list|Sequence)\[(.+?)\]|tuple\[(\w+), \.\.\.\]": r"list of \1\2s",
    r"tuple\[(\w+), \1\]": r"two \1s",
    r"\b(?:\w+\.)+(?=[A-Z])": "",
}
TELLING = {"DeclarationError", "LakeError", "fault"}
MEASURES = (
    *("Count", "CountIf", "Sum", "Avg", "Min", "Max", "FirstValue", "LastValue", "Variance", "Stddev"),
    *("CountDistinct", "ApproxDistinct", "Quantile"),
)
WINDOWS = ("Calendar", "Tumbling", "Hopping", "Cumulative", "Sliding", "Session")
OF_MATCHES = ("FirstOf", "LastOf", "In")


class Drift(Exception):
    """The code and what the reference says of it have different names."""


def pages() -> dict[str, str]:
    """The generated pages by their path within the site's sources."""
    made: dict[str, Callable[[], Iterable[str]]] = {
        "reference/commands.md": commands,
        "reference/settings.md": settings,
        "reference/contracts.md": contracts,
        "reference/measures.md": measures,
        "reference/expectations.md": expectations,
        "reference/json.md": shapes,
        "reference/exit-codes.md": exit_codes,
        "reference/environment.md": environment,
    }
    generated = {path: NOTE + "\n".join(make()) + "\n" for path, make in made.items()}
    return generated | {page: _of_root(file) for file, page in COPIED.items()}


def _of_root(file: str) -> str:
    """A page of the repository's root, with its links as the site has them."""
    text = (ROOT / file).read_text("utf-8").replace("](docs/", "](")
    for other, page in COPIED.items():
        text = text.replace(f"]({other})", f"]({page})")
    return text


def on_files(files: Any, config: Any) -> Any:
    """MkDocs asks for the site's sources: the generated pages are among them."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs asks for a page's text: its markers become the options and the errors of what they name."""
    return filled(markdown)


def filled(markdown: str) -> str:
    """The text of a page with its markers replaced."""

    def made(found: re.Match[str]) -> str:
        return "\n".join(option_table(found[2]) if found[1] == "options" else error_table(found[2]))

    return MARKER.sub(made, markdown)


# Commands


def commands() -> Iterator[str]:
    """Every command with its usage, help and options."""
    yield "# Commands\n"
    yield (
        "`lake COMMAND --help` prints the same. Every command takes `--project DIR` (default: the nearest folder with "
        "`[tool.lake]` in its `pyproject.toml`), `--json`, `--quiet` (nothing on standard error) and `--debug` (the "
        "stack trace of an error). Standard output is data, standard error is talk; "
        "[exit codes](exit-codes.md) are the same for all.\n"
    )
    for name in COMMANDS:
        command = command_line.get_command(click.Context(command_line), name)
        if command is None:
            raise Drift(f"no command {name}")
        yield from _command(f"lake {name}", command)


def _command(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"## `{path}` {{ #{path.replace(' ', '-')} }}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{path} {usage}\n```\n"
    yield from _help(command.help or "")
    own = [each for each in command.params if isinstance(each, click.Option) and each.name not in SHARED]
    if own:
        yield "| option | meaning |\n|---|---|"
        yield from (f"| `{_flag(each)}` | {_cell(_option_help(each, context))} |" for each in own)
        yield ""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _command(f"{path} {name}", inner)


def _flag(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(click.Command('x')))}"
    return ", ".join(option.opts) + value


def _option_help(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    said = record[1] if record else ""
    return f"{said} Required." if option.required and "required" not in said else said


def _help(text: str) -> Iterator[str]:
    """A command's docstring: paragraphs, and verbatim blocks that click marks by \\b."""
    for block in inspect.cleandoc(text).split("\n\n"):
        if block.startswith("\b"):
            lines = [re.sub(r"^Example: ", "", line) for line in block.splitlines()[1:]]
            yield "```sh\n" + "\n".join(lines) + "\n```\n"
        else:
            yield f"{block}\n"


# Settings and the environment


def settings() -> Iterator[str]:
    """The settings with type, default, least value and meaning."""
    yield "# Settings\n"
    yield (
        "`[tool.lake]` in the project's `pyproject.toml`, each overridden by its environment variable. Relative paths "
        "are relative to the project folder. An unknown setting is an error, and all faults are told at once.\n"
    )
    yield "| setting, environment variable | type | default | meaning |\n|---|---|---|---|"
    found = {each.name: each for each in fields(Settings) if each.name not in ("project", "spark")}
    found |= {f"spark.{each.name}": each for each in fields(SparkSettings)}
    said = _said("settings", found)
    for name, each in found.items():
        kind = NOUNS.get(str(each.type).replace(" | None", ""), str(each.type))
        least = f", at least {each.metadata['least']:g}" if "least" in each.metadata else ""
        variable = f"LAKE_{name.upper().replace('.', '__')}"
        yield f"| `{name}`<br>`{variable}` | {_escaped(kind)}{least} | {_default(name, each)} | {said[name]} |"


def _default(name: str, setting: Field[Any]) -> str:
    value = setting.default
    if name == "jars":
        return "in the virtual environment"
    if value is MISSING or value is None or value == "":
        return "none"
    if isinstance(value, int) and value >= 1 << 20 and not value % (1 << 20):
        return f"`{value}` ({value >> 20} MiB)" if value < 1 << 30 else f"`{value}` ({value >> 30} GiB)"
    return f"`{value}`"


def environment() -> Iterator[str]:
    """The environment variables that the code reads or sets, beside those of the settings."""
    yield "# Environment variables\n"
    yield "Each [setting](settings.md) has one, `LAKE_…`. A name that is nearly one is an error. Beside them:\n"
    yield "| variable | meaning |\n|---|---|"
    pattern = re.compile(r"environ(?:\.\w+\(|\[)\s*\"(\w+)\"")
    sources = [*(ROOT / "lake").rglob("*.py"), *(ROOT / "dags").glob("*.py")]
    read = {name for file in sources for name in pattern.findall(file.read_text("utf-8"))}
    read |= {"SPARK_CONNECT_AUTHENTICATE_TOKEN", "PYSPARK_SUBMIT_ARGS"}  # by way of a constant
    said = _said("environment", read)
    yield from (f"| `{name}` | {said[name]} |" for name in said)


# Contracts


def contracts() -> Iterator[str]:
    """The attributes of contracts and fields, the types, the reasons of refusals."""
    yield "# Contracts\n"
    yield (
        "`schemas/<stream>.avsc` is an Avro record, named as its file. [Contracts and evolution]"
        "(../how-to/contracts.md) shows one, and what may change in it.\n"
    )
    yield "## Attributes of `lake`\n\n| attribute | meaning |\n|---|---|"
    said = _said("contract", options.FACTS)
    yield from (f"| `{name}` | {said[name]} |" for name in said)
    yield f'\nA duration is a number and one of {", ".join(options.UNITS)}, as `"90 minutes"`.\n'
    yield "## Attributes of a field\n"
    yield "Beside Avro's own `name`, `type`, `doc` and `default`:\n\n| attribute | meaning |\n|---|---|"
    said = _said("field", field_types.ATTRIBUTES)
    yield from (f"| `{name}` | {said[name]} |" for name in said)
    yield "\n## Types\n\n| Avro | Spark SQL |\n|---|---|"
    yield from (f"| `{avro}` | `{spark}` |" for avro, spark in field_types.PRIMITIVES.items())
    yield "| `bytes` or `fixed`, logical `decimal` | `decimal(precision, scale)`, up to 38 digits |"
    yield from (f"| `{avro}`, logical `{name}` | `{spark}` |" for (avro, name), spark in field_types.LOGICAL.items())
    yield "| `array`, `map`, `record` | `array`, `map<string, …>`, `struct` |\n"
    yield (
        'A field that may be null is `["null", type]`. Other unions are refused. Instants are kept in UTC to the '
        "microsecond, decimals with every digit.\n"
    )
    yield "## Encodings of an envelope\n\n| type | `encoding` |\n|---|---|"
    for kind, known in field_types.ENCODINGS.items():
        yield f"| `{kind}` | {', '.join(f'`{each}`' for each in known)} |"
    roots = ", ".join(f"`{each}`" for each in sorted(options.ENVELOPES["debezium"]))
    yield f"\n`from` begins with one of {roots}.\n"
    yield "## Why a record is rejected\n"
    yield "`lake quarantine counts` names the reason, the dead letter queue `lake quarantine list` the detail.\n"
    yield "| reason | meaning |\n|---|---|"
    said = _said("reasons", [str(each) for each in Reason])
    yield from (f"| `{name}` | {said[name]} |" for name in said)


# Kinds


def option_table(name: str) -> Iterator[str]:
    """The options of a kind, or of what a kind takes: type, default and meaning."""
    parameters = inspect.signature(getattr(lake, name)).parameters
    said = _said(f"kinds.{name}", parameters)
    yield "| option | type | default | meaning |\n|---|---|---|---|"
    for option, each in parameters.items():
        yield f"| `{option}` | {_type(each)} | {_given(each)} | {said[option]} |"


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
    return _escaped(re.sub(r"\b[a-z]+(?:\.\w+)*\.(?=[A-Z])", "", text))


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
    """What a kind refuses, as its modules say it; … stands for what was found."""
    yield "| error (exit code 2) | fix |\n|---|---|"
    for module in RAISED_BY[kind]:
        tree = ast.parse((ROOT / f"lake/{module}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            name = node.func if isinstance(node, ast.Call) else None
            called = getattr(name, "id", "") or getattr(name, "attr", "")
            if isinstance(node, ast.Call) and called in TELLING and node.args and _is_telling(node.args[0]):
                told = {each.arg: each.value for each in node.keywords}
                fix = _said_by(told["fix"]) if "fix" in told else ""
                yield f"| {_cell(_said_by(node.args[0]))} | {_cell(fix)} |"


def _is_telling(node: ast.expr) -> bool:
    """Whether a message says something in the source already."""
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
    yield from (_text(each) + "\n" for each in paragraphs)
    if retracts is not None and name not in OF_MATCHES:
        yield f"Retracts: {'yes' if retracts else 'no'}.\n"


def _arguments(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    """As Python writes them, with a * before those that are given by name alone."""
    named = False
    for each in parameters:
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        default = "" if each.default is inspect.Parameter.empty else f"={each.default!r}".replace("datetime.", "")
        yield each.name + default


# Expectations


def expectations() -> Iterator[str]:
    """Every type of expectation: what it looks at, whether it parks, its arguments."""
    yield "# Expectations\n"
    yield (
        "Types that `quality/<table>.json` may use, from the schemas that Great Expectations ships, and three of our "
        "own. [Quality gates](../how-to/quality.md) shows a file. *Row*: every change is judged before it is "
        "committed. *Table*: the table is judged before it is published. *Edition*: so it is, beside the last edition. "
        "*Parks*: may have the severity `park`.\n"
    )
    yield "| type | looks at | parks | arguments |\n|---|---|---|---|"
    for name in sorted(expectation_types.known_types()):
        rule = expectation_types.rule_of(name)
        if rule.refused:
            continue
        scope = "edition" if rule.since else "row" if rule.row_local else "table"
        shown = ", ".join(f"**`{each}`**" if each in rule.required else f"`{each}`" for each in sorted(rule.arguments))
        yield f"| `{name}` | {scope} | {'yes' if name in parking.MEETS else ''} | {shown} |"
    yield "\nArguments in bold are required. Types that cannot be used, and why:\n"
    for name in sorted(expectation_types.known_types()):
        if refused := expectation_types.rule_of(name).refused:
            yield f"- `{name}` {refused}"


# JSON


def shapes() -> Iterator[str]:
    """What `--json` prints, command by command. Records are expanded from the code's dataclasses."""
    text = SHAPES.read_text("utf-8")
    told = set(re.findall(r"^## `lake (\w+)", text, re.MULTILINE))
    if told != set(COMMANDS):
        raise Drift(f"json_shapes.md and the commands differ in {', '.join(sorted(told ^ set(COMMANDS)))}")

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
    return _escaped(text)


# Exit codes


def exit_codes() -> Iterator[str]:
    """The codes that commands end with, and the errors behind them."""
    yield "# Exit codes and errors\n"
    yield "| code | meaning |\n|---|---|"
    yield "| 0 | done |"
    yield "| 1 | the data is wrong: a gate stopped, a verification differed, a log is damaged |"
    yield "| 2 | the command line, a setting, a contract, a job or a quality file is wrong; no data was touched |"
    yield "| 75 | somebody else is writing, or storage or the cluster does not answer: try the same command again |"
    yield "| 128 + n | ended by signal n: 130 after Ctrl-C, 143 after SIGTERM |\n"
    yield (
        "An error says what was found, where, and how to fix it. `--debug` adds the stack trace. In Python each is an "
        "exception of `lake`:\n"
    )
    yield "| exception | code | meaning |\n|---|---|---|"
    kinds: list[type[LakeError]] = [LakeError, *LakeError.__subclasses__()]
    for kind in kinds:
        if getattr(lake, kind.__name__, None) is kind:
            yield f"| `lake.{kind.__name__}` | {kind.exit_code} | {_cell(' '.join((kind.__doc__ or '').split()))} |"
    yield (
        "\n```text\nlake: no stream 'flihgts' (schemas/)\n  fix: did you mean 'flights'?\n```\n\n"
        "`tests/bad_input/` holds several hundred such cases: what is put where, the exit code, the message."
    )


# Words


def _said(section: str, names: Iterable[str]) -> Mapping[str, str]:
    """What reference.toml says of exactly these names, in its order."""
    found: Any = WORDS
    for part in section.split("."):
        found = found.get(part, {})
    said: Mapping[str, str] = found
    if differing := sorted(set(said) ^ set(names)):
        raise Drift(f"reference.toml [{section}] and the code differ in {', '.join(differing)}")
    return said


def _text(paragraph: str) -> str:
    """A paragraph of a docstring as Markdown."""
    return re.sub(r"(?<!`)([*_<>\[\]])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", textwrap.dedent(paragraph))


def _escaped(text: str) -> str:
    """A type as one cell of a table."""
    plain = text.replace(" | None", " or null").replace(" | ", " or ")
    return f"`{plain}`" if re.search(r"[\[\]<>]", plain) else plain


def _cell(text: str) -> str:
    """Text as one cell of a table."""
    plain = " ".join(text.split())
    return re.sub(r"([|*_<>\[\]{}])", r"\\\1", plain)


def main(arguments: Sequence[str]) -> None:
    """Writes the generated pages below a folder, for a look at their sources."""
    for path, text in pages().items():
        file = Path(arguments[0]) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
