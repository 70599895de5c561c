"""Command `tap`."""

from __future__ import annotations

import click

from lake.cli import Shell, common_options
from lake.cli.ingest import emit_batch


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("stream")
@click.argument("command", nargs=-1, required=True)
@common_options
def tap(shell: Shell, stream: str, command: tuple[str, ...]) -> None:
    """Append the rows of a Singer tap to the log of STREAM.

    COMMAND runs the tap. It continues after its last run: its STATE is in the log's commit with the rows up to it.
    A tap of several streams, or one that is run with `lake ingest`, is declared in sources/NAME.toml.

    \b
    Example: lake tap orders -- tap-shop --config shop.json
    """
    shell.load()
    from lake.connect.singer.tap import append_tapped

    counts = append_tapped(shell.settings, lambda: shell.spark, stream, command)
    emit_batch(shell, stream, counts)
