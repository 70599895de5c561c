"""Command `alert`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lake.cli import Shell, common_options, table
from lake.cli.deliver import Faults, report_faults, retry_or_give_up
from lake.errors import DeclarationError, LakeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lake.connect.alerts.declared import Alert


@click.command()
@click.argument("alerts", nargs=-1, metavar="[ALERT]...")
@click.option("--dry-run", is_flag=True, help="Only print the messages that would be sent.")
@click.option("--follow", is_flag=True, help="Keep checking until SIGINT or SIGTERM.")
@click.option("--from-now", is_flag=True, help="Skip earlier changes: send only rows that change from now on.")
@click.option("--retry", is_flag=True, help="Send undelivered messages again.")
@click.option("--give-up", is_flag=True, help="Never send undelivered messages.")
@common_options
def alert(
    shell: Shell, alerts: tuple[str, ...], *, dry_run: bool, follow: bool, from_now: bool, retry: bool, give_up: bool
) -> None:
    """Send messages on changed rows, and on measures above a limit.

    Default: all alerts that alerts/*.toml declare. They send rows that changed since the last check and meet a
    condition, and the begin and the end of a measure's time above its limit.

    \b
    lake alert
    lake alert large_day --dry-run
    """
    flags = {"--dry-run": dry_run, "--follow": follow, "--from-now": from_now, "--retry": retry, "--give-up": give_up}
    _check_options([flag for flag, is_set in flags.items() if is_set], alerts)
    from lake.connect.alerts.declared import RowAlert, chosen_alerts
    from lake.sinks.deliver import forget_position

    declared, faults = chosen_alerts(shell.settings, alerts)
    for declared_alert in declared if from_now else ():
        if isinstance(declared_alert, RowAlert):
            forget_position(shell.settings, declared_alert.sink.name)
    if retry or give_up:
        sinks = [row_alert.sink for row_alert in declared if isinstance(row_alert, RowAlert)]
        return retry_or_give_up(shell, sinks, faults, "alert", given_up=give_up)
    return _send(shell, declared, faults, dry_run=dry_run, follow=follow)


def _send(shell: Shell, declared: list[Alert], faults: Faults, *, dry_run: bool, follow: bool) -> None:
    from lake.connect.alerts import send

    failures: dict[str, LakeError] = {}

    def failed(name: str, failure: LakeError) -> None:
        failures[name] = failure
        if follow or len(declared) + len(faults) > 1:
            shell.report(f"alert {name} failed: {failure}")

    report_faults(declared, faults, failed)
    if follow:
        return send.follow(shell.settings, declared, lambda result: shell.report(f"alert {result}"), failed)
    results = [*(send.preview if dry_run else send.send_alerts)(shell.settings, declared, failed)]
    data = [*map(asdict, results)]
    rows = [row | {"of": row["about"]} for row in data]
    more = ["undelivered"] if any(result.undelivered for result in results) else []
    messages = [text for result in results for text in result.messages]
    lines = [*table(rows, "alert", "of", "sent", *more, "state"), *messages]
    return shell.emit_outcomes("alerts", data, failures, lines)


def _check_options(flags: Sequence[str], alerts: Sequence[str]) -> None:
    if len(flags) > 1:
        raise DeclarationError(f"{flags[0]} and {flags[1]} cannot be combined", fix="use only one of them")
    if flags == ["--from-now"] and not alerts:
        raise DeclarationError("--from-now needs the name of an alert", fix="lake alert NAME --from-now")
