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


def _way(name: str, words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(name, "ways", flag_value=name, multiple=True, help=words)


@click.command()
@click.argument("sinks", nargs=-1, metavar="[SINK]...")
@_way("--dry-run", "Only show which rows would be inserted, updated and deleted.")
@_way("--resync", "Send all rows, replacing those of the target.")
@_way("--repair", "Repair the rows that `lake verify --sink` finds, at the same edition.")
@_way("--follow", "Keep delivering new editions, until SIGINT or SIGTERM.")
@_way("--retry", "Send undelivered messages of a webhook again.")
@_way("--give-up", "Never send undelivered messages of a webhook.")
@_way("--forget", "Keep no edition for these sinks any more; their targets stay as they are.")
@common_options
def deliver(shell: Shell, sinks: tuple[str, ...], ways: tuple[str, ...]) -> None:
    """Bring the targets of sinks to the edition that readers see.

    Default: all sinks that sinks/*.toml declare. A target stores its edition, and is sent the net changes from there,
    of all tables of the sink at once, so that a crash or a repetition does no harm. An empty target is sent all rows.

    \b
    lake deliver
    lake deliver crm --dry-run
    lake deliver crm --follow
    """
    _check_options([*dict.fromkeys(ways)], sinks)
    from lake.sinks import deliver as verb
    from lake.sinks.kind import chosen_sinks

    if "--forget" in ways:
        return _forget(shell, sinks)
    declared, faults = chosen_sinks(shell.settings, sinks)
    if "--repair" in ways:
        return _repair(shell, declared, faults)
    if "--retry" in ways or "--give-up" in ways:
        return retry_or_give_up(shell, declared, faults, "sink", given_up="--give-up" in ways)
    if "--follow" in ways:
        return _follow(shell, declared, faults)
    how = verb.preview if "--dry-run" in ways else verb.deliver_once
    done, failures = _outcomes(
        shell, declared, faults, lambda sink: how(shell.settings, sink, resync="--resync" in ways)
    )
    rows = [row for one in done for row in _rows(one)]
    for one in done:
        _report_undelivered(shell, one.sink, one.undelivered)
    more = ["undelivered"] if any(one.undelivered for one in done) else []
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
    """Call `failed` for each fault. Raises them if nothing else is declared."""
    if not sound:
        DeclarationError.raise_any(faults.values())
    for name, fault in faults.items():
        failed(name, fault)


def _outcomes(
    shell: Shell, sinks: Sequence[DeclaredSink], faults: Faults, work: Callable[[DeclaredSink], T]
) -> tuple[list[T], dict[str, LakeError]]:
    """Do the work of each sink. Return the results, and the failures by name: those of declarations first."""
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
    way = f"{done.edition}" if done.since in {None, done.edition} else f"{done.since} → {done.edition}"
    common = {"sink": done.sink, "edition": way}
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
        return [{"sink": sink.name, "edition": edition, **asdict(one)} for one in sent]

    done, failures = _outcomes(shell, sinks, faults, repaired)
    rows = [*chain.from_iterable(done)]
    shell.emit_outcomes("repaired", rows, failures, table(rows, "sink", "edition", "table", "inserted", "deleted"))


def retry_or_give_up(shell: Shell, sinks: Sequence[DeclaredSink], faults: Faults, noun: str, *, given_up: bool) -> None:
    from lake.sinks.deliver import give_up, send_again

    work = give_up if given_up else send_again
    done, failures = _outcomes(shell, sinks, faults, lambda sink: work(shell.settings, sink))
    for one in done:
        _report_undelivered(shell, one.sink, one.left)
    what = "given up" if given_up else "taken"
    rows = [{noun: one.sink, what: one.taken, "left": one.left} for one in done]
    shell.emit_outcomes("again", [*map(asdict, done)], failures, table(rows, noun, what, "left"))


def _check_options(ways: Sequence[str], sinks: Sequence[str]) -> None:
    if len(ways) > 1 and set(ways) != {"--dry-run", "--resync"}:
        raise DeclarationError(f"{' and '.join(ways[:2])} cannot be combined", fix="use only one of them")
    alone = (["--repair"], ["--forget"], ["--resync"], ["--retry"], ["--give-up"])
    if ways in alone and not sinks:
        raise DeclarationError(f"{ways[0]} needs the name of a sink", fix=f"lake deliver NAME {ways[0]}")
