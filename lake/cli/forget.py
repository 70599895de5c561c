"""The command that forgets a person."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from lake.cli import Shell, shared
from lake.errors import DeclarationError, LawError

if TYPE_CHECKING:
    from collections.abc import Collection

    from lake.erasure.audit import Proof
    from lake.project import Project

FORGET: Final = "lake forget with --yes removes it; what a reader or a pin still holds goes with a later lake run"
NAMED: Final = f"{FORGET}; file names stay in the log: have the producer stop putting personal data in them"
RENAMED: Final = (
    "the secret of the key store is lost too: people forgotten before are not recognised in new events; if any arrive, "
    "forget them again; re-delivered events count twice"
)


@click.command()
@click.argument("stream")
@click.argument("person", required=False, metavar="subject=WHO")
@click.option("--yes", is_flag=True, help="Do it. This cannot be undone.")
@click.option(
    "--proof",
    is_flag=True,
    help="Search every byte of the warehouse, and report what is found: with --yes, every value that only this "
    "person had; otherwise WHO and each --value.",
)
@click.option("--value", "values", multiple=True, metavar="TEXT", help="With --proof: also search for TEXT.")
@click.option("--lost", is_flag=True, help="Instead of subject=WHO: forget everyone in STREAM whose key is lost.")
@shared
def forget(
    shell: Shell, stream: str, person: str | None, yes: bool, proof: bool, values: tuple[str, ...], lost: bool
) -> None:
    """Forget a person, by crypto-shredding. Destroys the key of their data in STREAM and nulls it in every table.

    WHO is the value of the contract's subject field. Tables follow and a new edition is published; then earlier
    editions expire, and all earlier versions of every table are deleted, with their files and column statistics.
    Without --yes, only shows what would be done.

    \b
    lake forget orders subject=joan
    lake forget orders subject=joan --yes --proof
    lake forget orders subject=joan --proof --value joan@example.org
    """
    from lake.project import load

    if lost and (person is not None or proof or values):
        raise DeclarationError("--lost can be combined with STREAM and --yes only", fix=f"lake forget {stream} --lost")
    if values and not proof:
        raise DeclarationError("--value needs --proof", fix="add --proof")
    project = load(shell.settings)
    if lost:
        _give_up(shell, project, stream, yes=yes)
        return
    subject = _subject(person)
    theirs = {*values}
    if yes:
        theirs |= _forget(shell, project, stream, subject)
    elif not proof:
        _would(shell, project, stream, subject)
    if proof:
        _prove(shell, project, stream, subject, theirs)


def _subject(person: str | None) -> str:
    name, _, subject = (person or "").partition("=")
    if name != "subject" or not subject:
        found = repr(person) if person else "nobody"
        raise DeclarationError(f"no person to forget: found {found}", fix="lake forget STREAM subject=WHO")
    return subject


def _would(shell: Shell, project: Project, stream: str, subject: str) -> None:
    from lake.erasure.forget import about, whom
    from lake.erasure.search import quarantined
    from lake.store.ledger.editions import kept_editions

    contract, token = whom(project, stream, subject)
    events, values = about(project, shell.spark, contract, subject)
    refused = len(quarantined(project.settings, contract, subject, values))
    tables = [each.name for each in project.tables.values() if stream in project.logs(each)]
    expiring = [each.number for each in kept_editions(project.settings)]
    lines = [
        f"{events} events of {stream} are about this person: {', '.join(contract.sealed)} would become null for good",
        f"{refused} quarantined records are about this person: their text would be blanked",
        f"tables that would change: {', '.join(tables) or 'none'}",
        f"editions that would expire: {len(expiring)}",
    ]
    data = {"stream": stream, "person": token, "events": events, "quarantined": refused}
    shell.emit(data | {"tables": tables, "editions": expiring}, lines)
    shell.say("dry run, nothing was changed: run it again with --yes to forget this person; that cannot be undone")


def _forget(shell: Shell, project: Project, stream: str, subject: str) -> frozenset[str]:
    """Forgets, then brings tables and readers up to date. Returns the values that only this person had."""
    from lake.erasure.forget import forget as run
    from lake.erasure.forget import whom
    from lake.pipeline import catch_up

    whom(project, stream, subject)
    done = run(project, shell.spark, stream, subject)
    shell.say(
        f"forget  {stream}: the key of {done.token[:8]}… is destroyed, {done.quarantined} quarantined records blanked"
    )
    catch_up(project, lambda: shell.spark, shell.say)
    data = {"stream": stream, "person": done.token, "events": done.events, "quarantined": done.quarantined}
    shell.emit(data, f"forgotten: person {done.token[:8]}… of {stream}, {done.events} events")
    return done.values


def _prove(shell: Shell, project: Project, stream: str, subject: str, values: Collection[str]) -> None:
    from lake.erasure.audit import search_files
    from lake.erasure.forget import whom
    from lake.erasure.search import sought

    contract, token = whom(project, stream, subject)
    searched, left_out = sought(contract, subject, values)
    proof = search_files(project.settings, searched)
    report = project.settings.keys_path.with_name(f"forgotten-{stream}-{token[:8]}.json")
    record: dict[str, Any] = {"stream": stream, "person": token, **proof.record, "not_searched": left_out}
    report.write_text(json.dumps(record, indent=2) + "\n")
    unsearched = [f"not searched for: {what}" for what in left_out]
    shell.emit(record, [*_lines(proof), *unsearched, f"report: {click.format_filename(report)}"])
    if not proof.values:
        raise LawError(
            "nothing was searched for, so nothing was proved",
            where="; ".join(left_out),
            fix="name values of this person: --value TEXT, at least 4 characters, repeatable",
        )
    if not proof.holds:
        raise LawError(
            f"data of this person is still in {len(proof.found)} files",
            where=proof.found[0],
            fix=NAMED if proof.names else FORGET,
        )


def _lines(proof: Proof) -> list[str]:
    found = f"found in {len(proof.found)} of them" if proof.found else "found in none"
    lines = [f"{proof.values} values searched for in {proof.files} files, {proof.size:,} bytes: {found}"]
    lines += [f"  {file}" for file in proof.found]
    if proof.outside:
        lines.append(f"still in {len(proof.outside)} files outside the tables, which you have to delete yourself:")
        lines += [f"  {file}" for file in proof.outside]
    if proof.names:
        lines.append(f"in the names of {len(proof.names)} ingested files, which stay in the logs:")
        lines += [f"  {name}" for name in proof.names]
    return lines


def _give_up(shell: Shell, project: Project, stream: str, *, yes: bool) -> None:
    from lake.erasure.forget import give_up
    from lake.pipeline import catch_up

    if not yes:
        raise DeclarationError(
            "--lost needs --yes",
            fix="with --yes, the personal data of people whose key is lost becomes null for good, and all "
            f"quarantined records of {stream} are blanked; look for a copy of the key store first",
        )
    done = give_up(project, stream)
    catch_up(project, lambda: shell.spark, shell.say)
    lines = [f"forgotten for lack of a key: {done.people} people of {stream}", *([RENAMED] if done.renamed else [])]
    shell.emit({"stream": stream, **asdict(done)}, lines)
