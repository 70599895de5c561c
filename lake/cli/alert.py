"""The command that tells whoever is declared: alert."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lake.cli import Shell, shared, table
from lake.errors import DeclarationError, LakeError

if TYPE_CHECKING:
    from lake.sinks.alerts import Alert


@click.command()
@click.argument("alerts", nargs=-1, metavar="[ALERT]...")
@click.option("--dry-run", is_flag=True, help="Only print the messages that would be sent.")
@click.option("--follow", is_flag=True, help="Go on looking, until SIGINT or SIGTERM.")
@click.option("--from-now", is_flag=True, help="Forget what was looked at: rows that change from now on are told.")
@click.option("--retry", is_flag=True, help="Send again what the receivers have not taken.")
@click.option("--give-up", is_flag=True, help="Never send what the receivers have not taken.")
@shared
def alert(
    shell: Shell, alerts: tuple[str, ...], *, dry_run: bool, follow: bool, from_now: bool, retry: bool, give_up: bool
) -> None:
    """Tell people of changed rows, and of what should not be.

    Default: all alerts that alerts/*.toml declare. Told are rows that changed since the last look and meet a condition,
    and when a measure of the project's state is too high, and is no more.

    \b
    lake alert
    lake alert large_day --dry-run
    """
    ways = {"--dry-run": dry_run, "--follow": follow, "--from-now": from_now, "--retry": retry}
    ways["--give-up"] = give_up
    if len(given := [way for way, asked in ways.items() if asked]) > 1:
        raise DeclarationError(f"{given[0]} and {given[1]} cannot be combined", fix="use only one of them")
    from lake.alerts import begin_now, preview, tell
    from lake.alerts import follow as go_on
    from lake.sinks.alerts import RowAlert, declared_alerts

    if from_now and not alerts:
        raise DeclarationError("--from-now needs the name of an alert", fix="lake alert NAME --from-now")
    declared = declared_alerts(shell.settings, alerts)
    for one in declared if from_now else ():
        if isinstance(one, RowAlert):
            begin_now(shell.settings, one)
    if retry or give_up:
        return _again(shell, declared, given_up=give_up)
    failures: dict[str, LakeError] = {}

    def failed(name: str, failure: LakeError) -> None:
        failures[name] = failure
        if follow or len(declared) > 1:
            shell.say(f"alert {name} failed: {failure}")

    if follow:
        return go_on(shell.settings, declared, lambda told: shell.say(f"alert {told}"), failed)
    done = [*(preview(shell.settings, declared) if dry_run else tell(shell.settings, declared, failed))]
    rows = [{"alert": one.alert, "of": one.about, "sent": one.sent, "state": one.state} for one in done]
    lines = [*table(rows, "alert", "of", "sent", "state"), *(text for one in done for text in one.messages)]
    if done or len(declared) > 1:
        failed_ones = {name: failure.record for name, failure in failures.items()}
        shell.emit({"alerts": [asdict(one) for one in done], "failed": failed_ones}, lines)
    if failures:
        raise next(iter(failures.values()))
    return None


def _again(shell: Shell, alerts: list[Alert], *, given_up: bool) -> None:
    from lake.sinks.alerts import RowAlert
    from lake.sinks.webhook.retry import give_up, retry

    sinks = [alert.sink for alert in alerts if isinstance(alert, RowAlert)]
    done = [(give_up if given_up else retry)(shell.settings, sink) for sink in sinks]
    what = "given up" if given_up else "taken"
    rows = [{"alert": one.sink, what: one.taken, "left": one.left} for one in done]
    shell.emit({"again": [asdict(one) for one in done]}, table(rows, "alert", what, "left"))
