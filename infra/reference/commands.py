"""Commands with their options, exit codes and errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

import lake
from lake.cli import lake as command_line
from lake.errors import LakeError
from reference.words import Drift, cell

SHARED = ("project", "json", "quiet", "log_format", "debug", "help")


def commands() -> Iterator[str]:
    """Every command with its usage, help and options."""
    yield "# Commands\n"
    yield (
        "`lake COMMAND --help` prints the same; shells [complete](../index.md#install) commands and options. "
        "Every command takes `--project DIR` (default: the nearest folder with `[tool.lake]` in its `pyproject.toml`), "
        "`--json`, `--quiet` (nothing on standard error), "
        "`--log-format json` (progress and errors as JSON Lines) and `--debug` (the stack trace of an error). Standard "
        "output is data, standard error is progress and errors; [exit codes](exit-codes.md) are the same for all.\n"
    )
    context = click.Context(command_line)
    for name in command_line.list_commands(context):
        command = command_line.get_command(context, name)
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
        yield from (f"| `{_flag(each)}` | {cell(_option_help(each, context))} |" for each in own)
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


def exit_codes() -> Iterator[str]:
    """The codes that commands end with, and the errors behind them."""
    yield "# Exit codes and errors\n"
    yield "| code | meaning |\n|---|---|"
    yield "| 0 | done |"
    yield (
        "| 1 | the data is wrong: a gate stopped, a verification differed, a log is damaged, a Fold refuses an event; "
        "`lake doctor` or `lake status --fail-if` found something; or an unexpected error |"
    )
    yield (
        "| 2 | the command line, a setting, a contract, a job, a quality file or a source is wrong; what does not "
        "depend on it is done |"
    )
    yield "| 75 | another process is writing, or storage or the cluster does not answer: try the same command again |"
    yield "| 128 + n | ended by signal n: 130 after Ctrl-C, 143 after SIGTERM |\n"
    yield (
        "An error reports what was found, where, and how to fix it. `--debug` adds the stack trace. In Python each is "
        "an exception of `lake`:\n"
    )
    yield "| exception | code | meaning |\n|---|---|---|"
    kinds: list[type[LakeError]] = [LakeError, *LakeError.__subclasses__()]
    for kind in kinds:
        if getattr(lake, kind.__name__, None) is kind:
            yield f"| `lake.{kind.__name__}` | {kind.exit_code} | {cell(' '.join((kind.__doc__ or '').split()))} |"
    yield (
        "\n```text\nlake: no stream 'flihgts' (schemas/)\n  fix: did you mean 'flights'?\n```\n\n"
        "`tests/bad_input/` holds several hundred such cases: what is put where, the exit code, the message."
    )
