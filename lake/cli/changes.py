"""Command `changes`: follows the changes of a table."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from lake.cli import Shell, WholeNumber, check_alone, common_options
from lake.errors import DeclarationError
from lake.text import as_table, plain, shown

if TYPE_CHECKING:
    from lake.read.net_changes import NetChange
    from lake.read.subscription import Changes


@click.command()
@click.argument("table")
@click.option("--consumer", metavar="NAME", help="Go on from the edition whose changes this consumer was given last.")
@click.option("--follow", is_flag=True, help="Go on with the changes of editions to come, until SIGINT or SIGTERM.")
@click.option(
    "--from-edition", "since", type=WholeNumber(1), metavar="N", help="Begin after edition N, without a snapshot."
)
@click.option("--start-over", is_flag=True, help="With --consumer: begin with a snapshot again.")
@click.option("--forget", is_flag=True, help="With --consumer: take it off the list; no edition is kept for it.")
@common_options
def changes(
    shell: Shell, table: str, consumer: str | None, since: int | None, *, follow: bool, start_over: bool, forget: bool
) -> None:
    """Follow the changes of TABLE, edition by edition. First come all of its rows, a snapshot.

    In a pipe, or with --json, each change is a line of JSON with the row before and after. After a line `snapshot` the
    following rows replace all earlier ones; a line `complete` ends an edition. On a terminal it is a table.

    A consumer's position moves once an edition's lines are written: the next call continues there. After a crash the
    same changes come again. `lake status` shows consumers, and how far behind they are.

    \b
    lake changes customer_daily --from-edition 3
    lake changes customer_daily --consumer crm --follow | ./apply
    lake changes customer_daily --consumer crm --forget
    """
    if (start_over or forget) and consumer is None:
        flag = "--forget" if forget else "--start-over"
        raise DeclarationError(f"{flag} needs --consumer", fix="name it; lake status lists consumers")
    if forget and consumer is not None:
        others = {"--follow": follow, "--start-over": start_over, "--from-edition": since}
        check_alone("--forget", others, fix="use only --consumer with it")
        return _forget(shell, table, consumer)
    from lake.read.subscription import subscribe

    form = as_json_lines if shell.json or not sys.stdout.isatty() else as_lines
    editions = subscribe(
        shell.settings,
        table,
        consumer=consumer,
        from_edition=since,
        start_over=start_over,
        on_wait=_check_reader if follow else None,
    )
    for edition in editions:
        _write(form(edition), shell.begin_answer)
        edition.ack()
    return None


def _forget(shell: Shell, table: str, consumer: str) -> None:
    from lake.read.subscription import forget_consumer

    forget_consumer(shell.settings, consumer, table)
    data = {"table": table, "consumer": consumer, "forgotten": True}
    shell.emit(data, f"consumer {consumer} of {table}: forgotten, no edition is kept for it")


def _write(lines: Iterable[str], begin: Callable[[], None]) -> None:
    for line in lines:
        begin()
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _check_reader() -> None:
    """Raise BrokenPipeError if stdout has no reader any more; otherwise only the next line would raise it."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


def as_json_lines(changes: Changes) -> Iterator[str]:
    """Yield a line per change, after `snapshot` if the consumer must discard its rows, then `complete`."""
    common = {"edition": changes.edition, "cut": changes.cut}
    if changes.snapshot:
        yield json.dumps({**common, "change": "snapshot"})
    count = 0
    for count, row in enumerate(changes, start=1):  # noqa: B007 - counted for the line below
        images = {"key": row.key, "before": row.before, "after": row.after}
        yield json.dumps({**common, "change": row.change, **plain(images)})
    yield json.dumps({**common, "change": "complete", "rows": count})


def as_lines(changes: Changes) -> Iterator[str]:
    rows = iter(changes)
    first = next(rows, None)
    origin = "snapshot" if changes.snapshot else f"from edition {changes.since}"
    yield f"edition {changes.edition} of cut {changes.cut}, {origin}{'' if first else ': no changes'}"
    if first is not None:
        columns = list({**(first.before or {}), **(first.after or {})})
        lines = ([row.change, *(_cell(row, column) for column in columns)] for row in chain([first], rows))
        yield from as_table(["change", *columns], lines)


def _cell(row: NetChange, column: str) -> str:
    images = [image[column] for image in (row.before, row.after) if image is not None and column in image]
    if len(images) == 2 and images[0] == images[1]:
        images.pop()
    return " → ".join(map(shown, images))
