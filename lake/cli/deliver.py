"""Command `deliver`: brings the targets of sinks to the current edition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from lake.cli import Shell, common_options, table
from lake.errors import DeclarationError, LakeError
from lake.text import counted

if TYPE_CHECKING:
    from lake.sinks.deliver import DeliveryOutcome
    from lake.sinks.kind import DeclaredSink


T = TypeVar("T")
Faults: TypeAlias = Mapping[str, DeclarationError]


def _mode(name: str, words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(name, "modes", flag_value=name, multiple=True, help=words)


@click.command()
@click.argument("sinks", nargs=-1, metavar="[SINK]...")
@_mode("--dry-run", "Only show which rows would be inserted, updated and deleted.")
@_mode("--resync", "Send all rows, replacing those of the target.")
@_mode("--repair", "Repair the rows that `lake verify --sink` finds, at the same edition.")
@_mode("--follow", "Keep delivering new editions, until SIGINT or SIGTERM.")
@_mode("--retry", "Send undelivered messages of a webhook again.")
@_mode("--give-up", "Never send undelivered messages of a webhook.")
@_mode("--forget", "Keep no edition for these sinks any more; their targets stay as they are.")
@common_options
def deliver(shell: Shell, sinks: tuple[str, ...], modes: tuple[str, ...]) -> None:
    """Bring the targets of sinks to the edition that readers see.

    Default: all sinks that sinks/*.toml declare. A target stores its edition, and is sent the net changes from there,
    of all tables of the sink at once, so that a crash or a repetition does no harm. An empty target is sent all rows.

    \b
    lake deliver
    lake deliver crm --dry-run
    lake deliver crm --follow
    """
    _check_options([*dict.fromkeys(modes)], sinks)
    from lake.sinks import deliver as delivery
    from lake.sinks.kind import chosen_sinks

    if "--forget" in modes:
        return _forget(shell, sinks)
    declared, faults = chosen_sinks(shell.settings, sinks)
    if "--repair" in modes:
        return _repair(shell, declared, faults)
    if "--retry" in modes or "--give-up" in modes:
        return retry_or_give_up(shell, declared, faults, "sink", given_up="--give-up" in modes)
    if "--follow" in modes:
        return _follow(shell, declared, faults)
    send = delivery.preview if "--dry-run" in modes else delivery.deliver_once
    resync = "--resync" in modes
    done, failures = _outcomes(shell, declared, faults, lambda sink: send(shell.settings, sink, resync=resync))
    rows = [row for outcome in done for row in _rows(outcome)]
    for outcome in done:
        _report_undelivered(shell, outcome.sink, outcome.undelivered)
    more = ["undelivered"] if any(outcome.undelivered for outcome in done) else []
    lines = table(rows, "sink", "edition", "table", "inserted", "updated", "deleted", "rejected", *more)
    return shell.emit_outcomes("sinks", [*map(asdict, done)], failures, lines)


def _forget(shell: Shell, sinks: Sequence[str]) -> None:
    from lake.sinks.deliver import forget_sink

    for name in sinks:
        forget_sink(shell.settings, name)
    shell.emit({"forgotten": sinks}, (f"sink {name}: forgotten, no edition is kept for it" for name in sinks))


def _follow(shell: Shell, sinks: list[DeclaredSink], faults: Faults) -> None:
    from lake.sinks.deliver import follow

    def failed(name: str, failure: LakeError) -> None:
        shell.report(f"deliver {name} failed: {failure}")

    report_faults(sinks, faults, failed)
    follow(shell.settings, sinks, on_done=lambda done: shell.report(f"deliver {done}"), on_failure=failed)


def report_faults(sound: Sequence[object], faults: Faults, failed: Callable[[str, LakeError], None]) -> None:
    """Call `failed` for each fault; raise them if nothing else is declared."""
    if not sound:
        DeclarationError.raise_any(faults.values())
    for name, fault in faults.items():
        failed(name, fault)


def _outcomes(
    shell: Shell, sinks: Sequence[DeclaredSink], faults: Faults, work: Callable[[DeclaredSink], T]
) -> tuple[list[T], dict[str, LakeError]]:
    """Return the results of `work` for each sink, and failures by name: those of declarations first."""
    done: list[T] = []
    failures: dict[str, LakeError] = {}

    def failed(name: str, failure: LakeError) -> None:
        failures[name] = failure
        if len(sinks) + len(faults) > 1:
            shell.report(f"deliver {name} failed: {failure}")

    report_faults(sinks, faults, failed)
    for sink in sinks:
        try:
            done.append(work(sink))
        except LakeError as failure:
            failed(sink.name, failure)
    return done, failures


def _rows(done: DeliveryOutcome) -> Iterator[dict[str, object]]:
    edition = f"{done.edition}" if done.since in {None, done.edition} else f"{done.since} → {done.edition}"
    common = {"sink": done.sink, "edition": edition}
    if not done.changed:
        lacking = {"rejected": done.rejected, "undelivered": done.undelivered}
        yield {**common, "table": "(nothing new)", "inserted": "", "updated": "", "deleted": "", **lacking}
    for sent in done.tables:
        yield {**common, **asdict(sent), "table": f"{sent.table} (all rows)" if sent.whole else sent.table}


def _report_undelivered(shell: Shell, sink: str, count: int) -> None:
    if count:
        why = "lake sql 'from lake.undelivered' shows the reasons"
        shell.report(f"deliver {sink}: {counted(count, 'row')} undelivered: {why}")


def _repair(shell: Shell, sinks: Sequence[DeclaredSink], faults: Faults) -> None:
    from lake.sinks.verify import repair

    def repaired(sink: DeclaredSink) -> list[dict[str, Any]]:
        edition, sent = repair(shell.settings, sink)
        return [{"sink": sink.name, "edition": edition, **asdict(table)} for table in sent]

    done, failures = _outcomes(shell, sinks, faults, repaired)
    rows = [*chain.from_iterable(done)]
    shell.emit_outcomes("repaired", rows, failures, table(rows, "sink", "edition", "table", "inserted", "deleted"))


def retry_or_give_up(shell: Shell, sinks: Sequence[DeclaredSink], faults: Faults, noun: str, *, given_up: bool) -> None:
    from lake.sinks.deliver import give_up, send_again

    work = give_up if given_up else send_again
    done, failures = _outcomes(shell, sinks, faults, lambda sink: work(shell.settings, sink))
    for result in done:
        _report_undelivered(shell, result.sink, result.left)
    what = "given up" if given_up else "taken"
    rows = [{noun: result.sink, what: result.taken, "left": result.left} for result in done]
    shell.emit_outcomes("again", [*map(asdict, done)], failures, table(rows, noun, what, "left"))


def _check_options(modes: Sequence[str], sinks: Sequence[str]) -> None:
    if len(modes) > 1 and set(modes) != {"--dry-run", "--resync"}:
        raise DeclarationError(f"{' and '.join(modes[:2])} cannot be combined", fix="use only one of them")
    alone = (["--repair"], ["--forget"], ["--resync"], ["--retry"], ["--give-up"])
    if modes in alone and not sinks:
        raise DeclarationError(f"{modes[0]} needs the name of a sink", fix=f"lake deliver NAME {modes[0]}")
