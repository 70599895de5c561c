"""The command that follows a table: changes."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterable

import click

from lake.cli import Number, Shell, shared
from lake.errors import DeclarationError


@click.command()
@click.argument("table")
@click.option("--consumer", metavar="NAME", help="Go on from the edition whose changes this consumer was given last.")
@click.option("--follow", is_flag=True, help="Go on with the changes of editions to come, until SIGINT or SIGTERM.")
@click.option("--from-edition", "since", type=Number(1), metavar="N", help="Begin after edition N, without a snapshot.")
@click.option("--start-over", is_flag=True, help="With --consumer: begin with a snapshot again.")
@click.option("--forget", is_flag=True, help="With --consumer: take it off the list; no edition is kept for it.")
@shared
def changes(
    shell: Shell,
    table: str,
    consumer: str | None,
    since: int | None,
    *,
    follow: bool,
    start_over: bool,
    forget: bool,
) -> None:
    """Follow the changes of TABLE, edition by edition. First come all of its rows, a snapshot.

    In a pipe, or with --json, each change is a line of JSON with the row before and after; a line `snapshot` says that
    what follows replaces everything before it, a line `complete` that an edition is whole. At a terminal it is a table.

    What a consumer was given is remembered once an edition's lines are out: the next call goes on from there. After a
    crash the same changes come again. `lake status` shows consumers, and how far behind they are.

    \b
    lake changes customer_daily --from-edition 3
    lake changes customer_daily --consumer crm --follow | ./apply
    lake changes customer_daily --consumer crm --forget
    """
    from lake.read.change_lines import as_json_lines, as_lines
    from lake.read.subscription import forget_consumer, subscribe

    if (start_over or forget) and consumer is None:
        raise DeclarationError(
            f"{'--forget' if forget else '--start-over'} needs --consumer", fix="name it; lake status lists consumers"
        )
    if forget and (follow or start_over or since is not None):
        raise DeclarationError("--forget cannot be combined with other options", fix="use only --consumer with it")
    if forget and consumer is not None:
        forget_consumer(shell.settings, consumer, table)
        data = {"table": table, "consumer": consumer, "forgotten": True}
        return shell.emit(data, f"consumer {consumer} of {table}: forgotten, no edition is kept for it")
    form = as_json_lines if shell.json or not sys.stdout.isatty() else as_lines
    given = subscribe(
        shell.settings,
        table,
        consumer=consumer,
        from_edition=since,
        follow=follow,
        start_over=start_over,
        waiting=_reader_is_there,
    )
    for edition in given:
        _write(form(edition), shell.begin_answer)
        edition.ack()
    return None


def _write(lines: Iterable[str], begin: Callable[[], None]) -> None:
    """Prints the lines of an edition, all of them before it returns."""
    for line in lines:
        begin()
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _reader_is_there() -> None:
    """Raises BrokenPipeError where nobody reads what is printed any more, which else only the next line would tell."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError
