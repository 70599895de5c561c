"""The command line: parses options, calls the library and prints."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from importlib import import_module
from math import isfinite
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any, Final

import click

from lake.cli import exits, stdout
from lake.cli.stderr import JsonProgress, LineProgress, LiveProgress, coloured, stderr_is_terminal, without_panics
from lake.connectors import connector, connectors
from lake.errors import DeclarationError, LakeError, did_you_mean
from lake.lazy import SparkSession
from lake.progress import step, watch
from lake.session.warm_server import uses_server
from lake.text import as_table, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lake.config import Settings
    from lake.project.project import Project

# Modules of this package with their commands, in the order of help. A command imports only its own module.
MODULES: Final = (
    ("project", "init setup doctor"),
    ("logs", "schemas"),
    ("ingest", "ingest append"),
    ("logs", "log"),
    ("quarantine", "quarantine void"),
    ("tables", "cut advance check publish run"),
    ("recompute", "rebuild backfill"),
    ("verify", "verify"),
    ("recompute", "plan deploy"),
    ("upkeep", "wait maintain archive backup restore-keys"),
    ("queries", "sql export"),
    ("changes", "changes"),
    ("deliver", "deliver"),
    ("queries", "tables status graph explain diff"),
    ("reader", "reader"),
)
COMMANDS: Final = {command: module for module, commands in MODULES for command in commands.split()}
"""{command: its module}; connectors add commands."""

MAX_INTEGER = 2**63 - 1

ARROW_POOL = ("ARROW_DEFAULT_MEMORY_POOL", "system")
"""Read by Arrow on import: the system allocator saves `lake run` 40 MB."""


def command_names() -> list[str]:
    return [*COMMANDS, *(name for name in connectors("lake.commands") if name not in COMMANDS)]


class CommandGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return command_names()

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command: click.Command
        if name in COMMANDS:
            command = getattr(import_module(f"lake.cli.{COMMANDS[name]}"), name.replace("-", "_"))
        elif name in connectors("lake.commands"):
            command = connector("lake.commands", name, f"lake {name}")
        else:
            return None
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            known = command_names()
            if args[0] not in known:
                raise DeclarationError(f"no such command {args[0]!r}", fix=did_you_mean(args[0], known))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        os.environ.setdefault(*ARROW_POOL)
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return done


class FiniteNumber(click.FloatRange):
    def __init__(self, *, above: bool = False, most: float | None = None) -> None:
        super().__init__(min=0, min_open=above, max=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a valid number", param, ctx)
        return number


class WholeNumber(click.IntRange):
    name = "integer"

    def __init__(self, least: int = 0) -> None:
        super().__init__(min=least, max=MAX_INTEGER)

    def _describe_range(self) -> str:
        return f"x>={self.min}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and len(value) > len(str(MAX_INTEGER)) + 1 and value.strip("-+").isdigit():
            self.fail(f"a number of {len(value)} digits is too large", param, ctx)
        return super().convert(value, param, ctx)


class LocalPath(click.Path):
    """Local path. A URL is rejected, although it could be a folder's name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value) or "\0" in str(value):
            self.fail(f"{value!r} is not a file name", param, ctx)
        if "://" in str(value):
            self.fail(f"{value} is a URL, where a path of this machine is wanted", param, ctx)
        return super().convert(value, param, ctx)


EXISTING_FILE: Final = LocalPath(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER: Final = LocalPath(exists=True, file_okay=False, path_type=Path)


@dataclass
class Shell:
    project: Path | None = None
    json: bool = False
    quiet: bool = False
    log_format: str = "text"
    answered: bool = False
    has_warned: bool = False

    @cached_property
    def settings(self) -> Settings:
        from lake.store import process

        self._show()
        return process.begin(self.project, click.get_current_context().command_path)

    def load(self) -> None:
        """Import what Spark needs; commands that may start Spark call this first."""
        self._show()
        with step("load", "Headwater and Spark's client"):
            import_module("lake.project.project")

    def load_project(self) -> Project:
        from lake.project.project import load

        return load(self.settings)

    def _show(self) -> None:
        if not self.quiet:
            watch(self.progress)

    @cached_property
    def progress(self) -> LineProgress:
        if self.log_format == "json":
            return JsonProgress()
        return LiveProgress(self._last_durations) if stderr_is_terminal() else LineProgress()

    def _last_durations(self, verb: str) -> Mapping[str, float]:
        from lake.store.process import last_durations

        return last_durations(self.settings, verb)

    @cached_property
    def spark(self) -> SparkSession:
        from lake.session.spark_session import start

        return start(self.settings)

    @property
    def loaded_settings(self) -> Settings | None:
        return self.settings if "settings" in self.__dict__ else None

    def close(self) -> None:
        """Stop the session on a Spark Connect server, which would keep it for an hour."""
        if "spark" in self.__dict__ and uses_server(self.settings):
            self.spark.stop()

    def begin_answer(self) -> None:
        self.progress.stop()
        self.answered = True

    def emit(self, data: Any, text: str | Iterable[str] = ()) -> None:
        self.begin_answer()
        if self.json:
            click.echo(json.dumps(data, default=str, indent=2))
        else:
            for line in [text] if isinstance(text, str) else text:
                click.echo(_printable(line))

    def emit_outcomes(
        self, noun: str, done: Sequence[Mapping[str, Any]], failures: Mapping[str, LakeError], lines: Iterable[str]
    ) -> None:
        """Print what was done and what failed, unless one failure is all, and raise the first failure."""
        if done or len(failures) != 1:
            failed = {name: failure.record for name, failure in failures.items()}
            self.emit({noun: done, "failed": failed}, lines)
        for failure in failures.values():
            raise failure

    def fail(self, fault: LakeError) -> int:
        self.progress.stop()
        if self.log_format == "json":
            JsonProgress().record("error", **fault.record)
        else:
            click.echo(coloured(_printable(f"lake: {fault}")), err=True)
        if (self.json or "--json" in sys.argv) and not self.answered:  # even on a line that cannot be parsed
            self.json = True
            with suppress(OSError, LakeError):  # nobody reads it, or a full disk
                self.emit({"error": fault.record})
        return fault.exit_code

    def report_fault(self, subject: str, fault: LakeError) -> None:
        """Print the fault even if quiet."""
        if isinstance(self.progress, JsonProgress):
            self.progress.record("error", subject=subject, **fault.record)
        else:
            self.progress.report(_printable(f"lake: {subject}: {fault}"))

    def draw(self, data: Any, picture: RenderableType) -> None:
        from rich.console import Console
        from rich.segment import Segment, Segments

        if self.json:
            return self.emit(data)
        console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
        parts = [Segment(_printable(part.text), part.style, part.control) for part in console.render(picture)]
        with console.capture() as captured:
            console.print(Segments(parts), end="")
        for line in captured.get().splitlines():
            click.echo(line.rstrip())

    def report(self, text: str) -> None:
        if not self.quiet:
            self.progress.report(_printable(text))


_printable: Final = partial(printable, keep="\n")
"""Names and values come from others: without control characters of a terminal."""


class _WarningHandler(logging.Handler):
    def __init__(self, shell: Shell) -> None:
        super().__init__(logging.WARNING)
        self.shell = shell

    def emit(self, record: logging.LogRecord) -> None:
        self.shell.has_warned = True
        if not self.shell.quiet:
            self.shell.progress.report_warning(_printable(record.getMessage()))


def _store_option(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(ctx.ensure_object(Shell), str(parameter.name), value)


_stored_option = partial(click.option, expose_value=False, callback=_store_option)
_COMMON_OPTIONS: Final = (
    _stored_option(
        "--project",
        type=EXISTING_FOLDER,
        help="The project folder (default: the nearest one with [tool.lake] in its pyproject.toml).",
    ),
    _stored_option("--json", is_flag=True, help="Print the answer as JSON."),
    _stored_option("--quiet", is_flag=True, help="No progress messages on stderr."),
    _stored_option(
        "--log-format",
        type=click.Choice(["json", "text"]),
        envvar="LAKE_LOG_FORMAT",
        help="Progress and errors on stderr as text (default) or as JSON Lines; also by LAKE_LOG_FORMAT.",
    ),
    click.option("--debug", is_flag=True, expose_value=False, help="Show stack traces of errors."),
)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def checked(*arguments: Any, **values: Any) -> Any:
        context = click.get_current_context()
        _check_no_option_is_empty(context)
        return command(context.obj, *arguments, **values)

    for option in reversed(_COMMON_OPTIONS):
        checked = option(checked)
    return checked


def _check_no_option_is_empty(context: click.Context) -> None:
    """Raise BadParameter for an empty text, such as an unset variable of the shell: it would count as not given."""
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if isinstance(parameter, click.Option) and (value == "" or (isinstance(value, tuple) and "" in value)):
            raise click.BadParameter("it is empty", context, parameter)


def check_alone(name: str, others: Mapping[str, Any], fix: str = "use only one of them") -> None:
    """Raise DeclarationError if one of the `others`, values by option, is given beside the option `name`."""
    for other, value in others.items():
        if value is not None and value is not False and value != ():
            raise DeclarationError(f"{name} and {other} cannot be combined", fix=fix)


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headwater", prog_name="lake")
@click.pass_context
def lake(ctx: click.Context) -> None:
    """Tables that are reproducible functions of an event log."""
    ctx.ensure_object(Shell)


def table(rows: Iterable[Mapping[str, Any]], *columns: str) -> list[str]:
    records = [[row.get(column) for column in columns] for row in rows]
    numeric = [all(isinstance(record[i], int | float | None) for record in records) for i in range(len(columns))]
    cells = (["" if value is None else str(value) for value in record] for record in records)
    return [*as_table(columns, cells, numeric=numeric)]


def main() -> None:
    os.environ["TZ"] = "UTC"  # jobs' Python functions, here and in Spark's workers, see no zone of this machine
    time.tzset()
    exits.install_handlers()
    stdout.install()
    with nullcontext() if exits.stack_traces_wanted() else without_panics():
        code = _run()
    sys.stdout.flush()
    sys.stderr.flush()
    if "pyarrow" in sys.modules:
        from lake.store import process

        # With pyarrow and deltalake in one process, two in forty processes abort in destructors, after all work.
        process.end()
        os._exit(code)
    sys.exit(code)


def _run() -> int:
    shell = Shell()
    warnings = _WarningHandler(shell)
    logging.getLogger("lake").addHandler(warnings)
    try:
        result = lake.main(standalone_mode=False, obj=shell)
        shell.close()
    except click.exceptions.Exit as error:
        return error.exit_code
    except BaseException as error:  # a panic of delta-rs is no Exception
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        code = exits.exit_code(error)
        if code is not None or isinstance(error, click.exceptions.Abort):
            with suppress(Exception):
                shell.close()
            return 128 + SIGINT if code is None else code
        return shell.fail(exits.as_fault(error, settings=shell.loaded_settings))
    finally:
        shell.progress.stop()
        logging.getLogger("lake").removeHandler(warnings)
    return result if isinstance(result, int) else 0
