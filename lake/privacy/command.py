"""Command `forget`: erases a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from lake.cli import Shell, common_options
from lake.errors import DeclarationError
from lake.lazy import SparkSession

if TYPE_CHECKING:
    from lake.privacy.audit import Report
    from lake.privacy.forget import ErasureResult, Preview
    from lake.progress import OnProgress
    from lake.project.project import Project

SECRET_LOST: Final = (
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
@common_options
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
    shell.load()
    from lake.privacy.audit import prove
    from lake.privacy.forget import preview

    if lost and (person is not None or proof or values):
        raise DeclarationError("--lost can be combined with STREAM and --yes only", fix=f"lake forget {stream} --lost")
    if values and not proof:
        raise DeclarationError("--value needs --proof", fix="add --proof")
    project = shell.load_project()
    if lost:
        return _give_up(shell, project, stream, yes=yes)
    subject = _subject(person)
    if not (yes or proof):
        return _preview(shell, preview(project, lambda: shell.spark, stream, subject))
    done = forget_person(project, lambda: shell.spark, stream, subject, shell.report) if yes else None
    report = prove(project, stream, subject, {*values, *(done.values if done else ())}) if proof else None
    data, lines = dict[str, Any](), list[str]()
    if done:
        data |= {"stream": stream, "person": done.token, "events": done.events, "quarantined": done.quarantined}
        lines.append(f"forgotten: person {done.token[:8]}… of {stream}, {done.events} events")
    if report:
        data |= report.record
        lines += _proof_lines(report)
    shell.emit(data, lines)
    if report and (fault := report.fault):
        raise fault


def _subject(person: str | None) -> str:
    name, _, subject = (person or "").partition("=")
    if name != "subject" or not subject:
        found = repr(person) if person else "nobody"
        raise DeclarationError(f"no person to forget: found {found}", fix="lake forget STREAM subject=WHO")
    return subject


def _preview(shell: Shell, would: Preview) -> None:
    lines = [
        f"{would.events} events of {would.stream} are about this person: {', '.join(would.fields)} would become null "
        "for good",
        f"{would.quarantined} quarantined records are about this person: their text would be blanked",
        f"tables that would change: {', '.join(would.tables) or 'none'}",
        f"editions that would expire: {len(would.editions)}",
    ]
    shell.emit({name: value for name, value in asdict(would).items() if name != "fields"}, lines)
    shell.report("dry run, nothing was changed: run it again with --yes to forget this person; that cannot be undone")


def _proof_lines(report: Report) -> Iterator[str]:
    proof = report.proof
    searched = f"{proof.files_searched} files, {proof.bytes_searched:,} bytes"
    where = f"found in {len(proof.found)} of them" if proof.found else "found in none"
    yield f"{proof.values_searched} values searched for in {searched}: {where}"
    yield from (f"  {file}" for file in proof.found)
    if strays := proof.of_no_table:
        yield f"{len(strays)} of them are of no table, so lake forget does not reach them: delete them yourself:"
        yield from (f"  {file}" for file in strays)
    if outside := proof.outside_the_warehouse:
        yield f"still in {len(outside)} files outside the tables, which you have to delete yourself:"
        yield from (f"  {file}" for file in outside)
    if names := proof.names_of_files:
        yield f"in the names of {len(names)} ingested files, which stay in the logs:"
        yield from (f"  {name}" for name in names)
    yield from (f"not searched for: {what}" for what in report.left_out)
    yield from (f"not proved to be gone from {what}" for what in report.sinks)
    yield f"report: {click.format_filename(report.file)}"


def _give_up(shell: Shell, project: Project, stream: str, *, yes: bool) -> None:
    if not yes:
        raise DeclarationError(
            "--lost needs --yes",
            fix="with --yes, the personal data of people whose key is lost becomes null for good, and all "
            f"quarantined records of {stream} are blanked; look for a copy of the key store first",
        )
    from lake.ops.pipeline import catch_up
    from lake.privacy.forget import give_up

    done = give_up(project, stream)
    catch_up(project, lambda: shell.spark, shell.report).raise_held()
    lines = [f"forgotten for lack of a key: {done.people} people of {stream}", *([SECRET_LOST] if done.renamed else [])]
    shell.emit({"stream": stream, **asdict(done)}, lines)


def forget_person(
    project: Project, spark: Callable[[], SparkSession], stream: str, subject: str, on_progress: OnProgress
) -> ErasureResult:
    """Erase a person, then bring tables and readers to where none of the data is left. Raises as `find_person` does."""
    from lake.ops.pipeline import catch_up
    from lake.privacy import forget as erasure

    done = erasure.forget(project, spark, stream, subject)
    on_progress(
        f"forget  {stream}: the key of {done.token[:8]}… is destroyed, {done.quarantined} quarantined records blanked"
    )
    catch_up(project, spark, on_progress).raise_held()
    return done
