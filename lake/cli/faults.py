"""Conversion of errors to messages with what, where and fix."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from traceback import extract_tb, format_exception
from typing import TYPE_CHECKING, Final

import click

from lake.cli import stack_traces_wanted
from lake.errors import DeclarationError, LakeError
from lake.process import fault_of
from lake.session.spark_session import first_line
from lake.text import escape_controls

if TYPE_CHECKING:
    from lake.config import Settings

LINE: Final = 100


def as_fault(error: BaseException, *, settings: Settings | None = None) -> LakeError:
    """Convert `error` to a LakeError, with the command line as its place if it is a usage error."""
    if stack_traces_wanted():
        click.echo(escape_controls("".join(format_exception(error)), keep="\n"), err=True, nl=False)
    if isinstance(error, click.ClickException):
        return _usage_fault(error)
    fault = fault_of(error, settings)
    if fault is None:
        return _unexpected_fault(error)
    if isinstance(fault, DeclarationError) and not fault.where and not fault.lists_faults:
        fault.where = _command_line()
    if not fault.fix and not fault.lists_faults:
        fault.fix = "--debug shows the stack trace"
    return fault


def _usage_fault(error: click.ClickException) -> DeclarationError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else " ".join(["lake", *sys.argv[1:2]])
    what = error.format_message().rstrip(".")
    return DeclarationError(what[:1].lower() + what[1:], where=_command_line(), fix=f"{command} --help")


def _unexpected_fault(error: BaseException) -> LakeError:
    return LakeError(
        f"unexpected error: {first_line(error)}",
        where=_place(error),
        fix="--debug shows the stack trace; committed work is kept, and the command can be run again",
    )


def _place(error: BaseException) -> str:
    package = Path(__file__).parents[1]
    frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(package)]
    if not frames:
        return ""
    return f"{Path(frames[-1].filename).relative_to(package.parent)}:{frames[-1].lineno}"


def _quoted(word: str) -> str:
    return f'"{word}"' if "'" in word and not set(word) & set('"\\$`!') else shlex.quote(word)


def _command_line() -> str:
    line = " ".join(["lake", *map(_quoted, sys.argv[1:])])
    return line if len(line) <= LINE else f"{line[: LINE - 1]}…"
