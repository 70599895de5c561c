"""Archiving of log batches by `lake archive`. A log keeps all its rows, and one commit makes the change."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from click.testing import CliRunner, Result

from lake.cli import lake
from lake.config import Settings, load_settings
from lake.contracts.contract import load_contract
from lake.engine import integrity
from lake.errors import DeclarationError, LakeError, StorageError, Unavailable
from lake.ingest.fsck import check_log
from lake.ops import doctor
from lake.ops.archive import Archived, archive
from lake.ops.backup import backup
from lake.ops.maintenance import Policy, maintain
from lake.privacy.audit import search_files
from lake.project.project import load
from lake.read.logs import relation
from lake.store import archive_tier, delta, delta_writer, duckdb_tables
from lake.store.damage import damages
from lake.store.duckdb_tables import TableFiles
from lake.store.ledger.cuts import latest_cut
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.storage import LocalFolder
from lake.store.table_logs import forget_all
from lake.store.upkeep import archive_parts, compaction, vacuum
from lake.testing import Commands, Kill, Lakehouse
from lake.testing.fault_injection import TRACE
from tests import archived
from tests.archived import append, compact
from tests.checks import fault, spark_forbidden

pytestmark = pytest.mark.slow

Rows = list[str]


def quiet(_: object) -> None:
    pass


def run(settings: Settings, through: int, *, dry_run: bool = False) -> Archived:
    return archive(settings, spark_forbidden, "readings", through, dry_run=dry_run, on_progress=quiet)


def rows(settings: Settings, version: int | None = None, bounds: Mapping[str, tuple[int, int]] | None = None) -> Rows:
    """Return every stored row of the log, sorted."""
    return sorted(map(repr, Scan(Log(settings, "readings").path, version, bounds or {}).arrow().to_pylist()))


def asked(settings: Settings) -> list[Any]:
    """Return the rows of the log by `lake sql`, and sums of all stored rows by DuckDB."""
    cut = latest_cut(settings)
    assert cut is not None
    log = relation(settings, load_contract(settings, "readings"), cut)
    with duckdb_tables.connection() as con:
        found = repr(con.execute(f"FROM ({log.query}) ORDER BY ALL").fetchall())  # no NaN equals another
    path = Log(settings, "readings").path
    return [found, duckdb_tables.rows(path, "SELECT count(*) AS n, sum(_offset) AS s, max(volts)::VARCHAR AS v FROM t")]


def hot_batches(settings: Settings) -> set[int]:
    """Return the batches with rows in the log itself."""
    path = Log(settings, "readings").path
    with delta.opened(path) as table:
        files = delta.files(table)
        if not files:
            return set()
        with duckdb_tables.open_files(TableFiles(path, table, files)) as (con, _):
            return {batch for (batch,) in con.execute("SELECT DISTINCT _batch FROM t").fetchall()}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Project with six batches, whose archive is a folder beside it."""
    settings = replace(archived.project(tmp_path / "project"), cold=tmp_path / "cold")
    append(settings, random.Random(1), 6)
    return settings


@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 3), *(pytest.param(seed, 12, marks=pytest.mark.long) for seed in range(1, 5))]
)
def test_log_reads_the_same_after_any_archiving(tmp_path: Path, seed: int, steps: int) -> None:
    """Append, compact, archive to several folders, vacuum and copy in any order. Compare with a log without archive."""
    chance = random.Random(seed)
    ours, theirs = (archived.project(tmp_path / name) for name in ("ours", "theirs"))
    for step in range(steps):
        for settings in (ours, theirs):
            append(settings, random.Random(f"{seed}-{step}"), 1 + step % 2)
        if chance.random() < 0.5:
            compact(ours)
        if chance.random() < 0.6:
            before = delta.version(Log(ours, "readings").path), rows(ours)
            ours = replace(ours, cold=tmp_path / chance.choice(["cold", "colder"]))
            through = chance.randint(1, Log(ours, "readings").head().batch)
            done = run(ours, through)
            assert done.parts == archive_tier.parts_of(Log(ours, "readings").path)
            assert hot_batches(ours) & set(range(1, done.parts[-1].through + 1)) == set()
            assert rows(ours, before[0]) == before[1], "who reads an earlier version has every row once"
            assert run(ours, through).moved == []
        if chance.random() < 0.3:
            path = Log(ours, "readings").path
            for file in vacuum.unneeded(path, keep=(), since=delta.version(path)):
                file.delete()
        assert rows(ours) == rows(theirs)
        assert asked(ours) == asked(theirs)
        few = {"_batch": (chance.randint(1, 6), chance.randint(3, 12)), "_bucket": (0, chance.randint(0, 1))}
        assert rows(ours, None, few) == rows(theirs, None, few)
        assert check_log(ours, "readings").faults == []
        assert Log(ours, "readings").heads()[0].content == Log(theirs, "readings").heads()[0].content
    last = Log(ours, "readings").head().batch
    assert [head.batch for head in Log(ours, "readings").heads()] == [*range(last, 0, -1)]
    backup(load(ours), tmp_path / "copy", keys=None, on_progress=quiet)
    for name in ("cold", "colder"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    copied = replace(ours, warehouse=tmp_path / "copy/warehouse", cold=tmp_path / "third")
    assert rows(copied) == rows(theirs)
    assert check_log(copied, "readings").faults == []
    run(copied, last)
    shutil.rmtree(tmp_path / "copy/warehouse/cold", ignore_errors=True)
    assert rows(copied) == rows(theirs)
    append(copied, chance, 1)
    assert check_log(copied, "readings").faults == []


class Death(BaseException):
    """Death of a process."""


@contextmanager
def die_at(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[list[str]]:
    """Die before or after write number `at`. Yield the writes made until then."""
    done: list[str] = []

    def wrapped(write: Callable[..., Any], name: str) -> Callable[..., Any]:
        def write_or_die(*arguments: Any, **more: Any) -> Any:
            result = None
            for moment in ("before", "after"):
                if len(done) == at:
                    raise Death
                done.append(f"{name}, {moment}")
                result = write(*arguments, **more) if moment == "before" else result
            return result

        return write_or_die

    with monkeypatch.context() as patched:
        for owner, name in (
            (delta_writer, "create"),
            (delta_writer, "write"),
            (delta_writer, "add"),
            (LocalFolder, "put_if_absent"),
            (LocalFolder, "delete"),
            (LocalFolder, "delete_folder"),
        ):
            patched.setattr(owner, name, wrapped(getattr(owner, name), name))
        yield done


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.long)])
def test_archive_loses_no_row_and_continues_when_its_process_dies(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    compact(settings)
    shutil.copytree(settings.project, tmp_path / "kept")
    before, switched, left = rows(settings), set(), set()
    for at in range(0, 100, every):
        shutil.rmtree(settings.project)
        shutil.rmtree(tmp_path / "cold", ignore_errors=True)
        shutil.copytree(tmp_path / "kept", settings.project)
        forget_all()
        with die_at(monkeypatch, at) as done:
            try:
                run(settings, 4)
            except Death:
                died = True
            else:
                died = False
        assert rows(settings) == before, done
        assert check_log(settings, "readings").faults == []
        switched.add(bool(archive_tier.parts_of(Log(settings, "readings").path)))
        append(settings, random.Random(at), 1)
        told = run(settings, 5).unnamed
        named = archive_tier.parts_of(Log(settings, "readings").path)
        assert [part.through for part in named] in ([5], [4, 5])
        assert told == [
            str(folder)
            for folder in (tmp_path / "cold/readings").iterdir()
            if str(folder) not in {p.place for p in named}
        ]
        left.add(len(told))
        assert set(before) < set(rows(settings))
        assert len(rows(settings)) == Log(settings, "readings").head().events
        assert check_log(settings, "readings").faults == []
        if not died:
            break
    else:
        pytest.fail("it never came to its end")
    assert (switched, left, at > 10) == ({True, False}, {0, 1} if every == 1 else {0}, True), at


@pytest.mark.long
def test_archive_is_completed_by_the_same_command_after_a_kill(settings: Settings, tmp_path: Path) -> None:
    """Kill by SIGKILL at every point of the command and in the middle of each write."""
    compact(settings)
    shutil.copytree(settings.project, tmp_path / "kept")
    before, house, line = rows(settings), Lakehouse(settings.project, tmp_path), ("archive", "readings", "--through")
    house.settings = settings
    with Commands() as commands:
        passed = commands.lake(*line, "4", at=house, kill=TRACE).passed
        points = [(point, nth + 1) for point, times in sorted(passed.items()) for nth in range(times)]
        assert {point for point, _ in points} >= {"cold.after", "log.before", "removal.after"}
        for point, nth in (*points, ("cold.middle", 1), ("log.middle", 1)):
            for _ in range(10 if point.endswith("middle") else 1):  # a write may be over before its middle is seen
                shutil.rmtree(settings.project)
                shutil.rmtree(tmp_path / "cold")
                shutil.copytree(tmp_path / "kept", settings.project)
                forget_all()
                killed = commands.lake(*line, "4", at=house, kill=Kill(point, nth))
                if killed.landed:
                    break
            assert killed.landed, (point, nth, killed.err)
            assert rows(settings) == before, point
            assert check_log(settings, "readings").faults == [], point
            for through in ("4", "6"):
                done = commands.lake(*line, through, at=house)
                assert done.code == 0, (point, done.err)
                assert rows(settings) == before, point
                assert check_log(settings, "readings").faults == [], point
            assert commands.lake("log", "readings", "--check", at=house).code == 0
        print(f"{len(points) + 2} kills")


@pytest.mark.turns(2)
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("left", [0, 1, 200])
def test_archive_recommits_a_part_when_its_commit_is_truncated(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, left: int
) -> None:
    """The machine stopped before the log named the part."""

    def stops(*_: Any) -> None:
        raise Death

    before = rows(settings)
    with monkeypatch.context() as patched:
        patched.setattr(archive_parts, "commit", stops)
        with pytest.raises(Death):
            run(settings, 4)
    [first, last] = sorted((tmp_path / "cold").rglob("*.json"))
    os.truncate((first, last)[version], left)
    if version == 0:
        last.unlink()
    forget_all()
    run(settings, 4)
    assert rows(settings) == before
    assert check_log(settings, "readings").faults == []


@pytest.mark.long
def test_archive_exits_75_without_disk_space_and_is_completed_later(settings: Settings, tmp_path: Path) -> None:
    """Limit the size of files, those of the archive and of the log."""
    compact(settings)
    before, house = rows(settings), Lakehouse(settings.project, tmp_path)
    house.settings, codes = settings, []
    with Commands() as commands:
        for most in range(500, 20_000, 500):
            done = commands.lake("archive", "readings", "--through", "4", at=house, file_bytes=most)
            codes.append(done.code)
            assert rows(settings) == before, most
            assert check_log(settings, "readings").faults == [], most
            if not done.code:
                break
            assert "disk full: File too large" in done.err, done.err
    assert {*codes[:-1]} == {75}
    assert codes[-1] == 0


def test_archive_fails_and_moves_nothing_when_a_batch_is_committed_meanwhile(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact(settings)
    before, count_and_hash = rows(settings), compaction.count_and_hash

    def with_a_batch(*arguments: Any) -> tuple[int, str]:
        monkeypatch.undo()
        append(settings, random.Random(2), 1)
        return count_and_hash(*arguments)

    monkeypatch.setattr(archive_parts, "count_and_hash", with_a_batch)
    with pytest.raises(Unavailable, match="took no commit"):
        run(settings, 4)
    assert set(before) < set(rows(settings))
    assert check_log(settings, "readings").faults == []
    assert archive_tier.parts_of(Log(settings, "readings").path) == []
    run(settings, 4)
    assert check_log(settings, "readings").faults == []


def test_archive_rejects_rows_that_differ_from_the_log(settings: Settings) -> None:
    path = Log(settings, "readings").path
    with delta.opened(path) as table:
        file = max(delta.files(table))
    with duckdb_tables.connection() as con:
        changed = con.sql(f"SELECT * REPLACE ('other' AS tags) FROM read_parquet('{file}')").to_arrow_table()
        con.register("changed", changed)
        con.execute(f"COPY changed TO '{file}' (FORMAT parquet)")
    with pytest.raises(StorageError, match="is not what its log recorded, and does not count: batch"):
        run(settings, 6)
    assert archive_tier.parts_of(path) == []


def deleted_files(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of files that maintenance deletes and the newest version lacks."""

    def stored() -> int:
        return len([*Log(settings, "readings").path.local.rglob("*.parquet")])

    before, unneeded = stored(), vacuum.unneeded
    with monkeypatch.context() as patched:
        patched.setattr(vacuum, "unneeded", lambda path, **_: unneeded(path, keep=(), since=delta.version(path)))
        maintain(load(settings), spark_forbidden, Policy(editions=1, days=0, size=1 << 30), quiet)
    return before - stored()


def commit_of(file: Path, which: Callable[[Iterable[Path]], Path]) -> Path:
    """Return the first or last commit of the table that has the file."""
    return which((file.parents[1] / "_delta_log").glob("*.json"))


UNREAD: Final = "were archived, and cannot be read there"
HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another value": (
        lambda file: (
            duckdb.execute(
                f"COPY (SELECT * REPLACE ('x' AS tags) FROM read_parquet('{file}')) TO '{file}.new' (FORMAT parquet);"
            )
            and Path(f"{file}.new").replace(file)
        ),
        "its rows are not what was written",
    ),
    "no file": (Path.unlink, "a file of readings is gone"),
    "half a file": (lambda file: file.write_bytes(file.read_bytes()[:100]), "a file of readings is damaged"),
    "no folder": (lambda file: shutil.rmtree(file.parents[1]), "were archived, and are gone from there"),
    "no folder of all": (lambda file: shutil.rmtree(file.parents[3]), "were archived, and are gone from there"),
    "no log": (lambda file: shutil.rmtree(file.parents[1] / "_delta_log"), "were archived, and are gone from there"),
    "no first commit": (lambda file: commit_of(file, min).unlink(), UNREAD),
    "no last commit": (lambda file: commit_of(file, max).unlink(), UNREAD),
    "an empty commit": (lambda file: commit_of(file, max).write_bytes(b""), UNREAD),
    "half a commit": (lambda file: os.truncate(commit_of(file, max), 200), UNREAD),
    "a first commit of another": (lambda file: commit_of(file, min).write_text('{"a": 1}\n'), UNREAD),
    "a commit that is a folder": (lambda file: as_folder(commit_of(file, max)), UNREAD),
}


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.turns(4)
@pytest.mark.parametrize("harm", HARMS)
def test_check_reports_damage_to_an_archive(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    run(settings, 4)
    change, said = HARMS[harm]
    change(max((tmp_path / "cold").rglob("_bucket=*/*.parquet")))
    forget_all()
    faults = check_log(settings, "readings").faults
    assert any(said in found for found in faults), faults
    assert str(tmp_path / "cold") in "".join(faults)
    with_fault: LakeError | None
    try:
        with_fault = integrity.content_fault(settings, "readings")
    except LakeError as error:
        with_fault = error
    assert with_fault is not None
    if harm != "another value":
        [damage] = damages(settings)
        assert str(tmp_path / "cold") in damage.file
        assert [finding.ok for finding in doctor._logs(settings)] == ["half" in harm and "commit" not in harm]
    done = command(settings, "log", "readings", "--check")
    assert (done.exit_code, fault(done).what.startswith("readings:")) == (1, True)
    if harm == "no file":
        with pytest.raises(StorageError, match="a file is missing") as gone:
            rows(settings)
        assert gone.value.fix.startswith("restore that file from a backup")
    if harm not in {"another value", "half a file"}:
        assert deleted_files(settings, monkeypatch) == 0, "what is left of the log may be all that there is"
    if said.startswith("were"):
        with pytest.raises(StorageError, match=said):
            search_files(settings, {"margaret hamilton"})
        for through in ("2", "6"):
            assert said in fault(command(settings, "archive", "readings", "--through", through)).what
        assert archive_tier.parts_of(Log(settings, "readings").path)[-1].through == 4


@pytest.mark.long
def test_archive_repoints_parts_when_their_folder_was_moved(settings: Settings, tmp_path: Path) -> None:
    run(settings, 2)
    run(settings, 4)
    before = rows(settings)
    (tmp_path / "cold").rename(tmp_path / "moved")
    with pytest.raises(StorageError, match="batches 1 to 2 of readings were archived, and are gone") as told:
        rows(settings)
    assert "lake archive readings --through 2" in told.value.fix
    moved = replace(settings, cold=tmp_path / "moved")
    assert len(run(moved, 4).moved) == 2
    assert rows(moved) == before
    assert check_log(moved, "readings").faults == []


@pytest.mark.long
def test_archive_folder_is_shared_by_two_warehouses(settings: Settings, tmp_path: Path) -> None:
    other = replace(archived.project(tmp_path / "other"), cold=settings.cold)
    append(other, random.Random(5), 6)
    shutil.copytree(settings.project, tmp_path / "copy")
    copy = replace(settings, project=tmp_path / "copy", warehouse=tmp_path / "copy/.lake/warehouse")
    before = {each.project: rows(each) for each in (settings, other, copy)}
    for number, each in enumerate((settings, other, copy)):
        run(each, 3 + number)
        run(each, 6)
    for each in (settings, other, copy):
        assert rows(each) == before[each.project]
        assert check_log(each, "readings").faults == []


def command(settings: Settings, *words: str, **environment: str) -> Result:
    told = {"LAKE_COLD": str(settings.cold)} | environment
    return CliRunner().invoke(lake, [*words, "--project", str(settings.project)], env=told, standalone_mode=False)


def test_archive_command_reports_its_work_and_a_dry_run_its_plan(settings: Settings, tmp_path: Path) -> None:
    before = delta.version(Log(settings, "readings").path)
    would = json.loads(command(settings, "archive", "readings", "--through", "4", "--dry-run", "--json").stdout)
    assert (delta.version(Log(settings, "readings").path), (tmp_path / "cold").exists()) == (before, False)
    done = command(settings, "archive", "readings", "--through", "4", "--json")
    told = json.loads(done.stdout)
    assert [part | {"version": 0} for part in would["parts"]] == [part | {"version": 0} for part in told["parts"]]
    assert (told["moved"], would["files"]) == (told["parts"], told["files"])
    assert "nothing to do" in command(settings, "archive", "readings", "--through", "3").stdout
    assert "batches 1 to 4" in command(settings, "log", "readings").stdout
    assert json.loads(command(settings, "log", "readings", "--json").stdout)["archived"] == told["parts"]
    assert (tmp_path / "cold/readings").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (("nothing", "--through", "1"), {}, "no stream 'nothing'"),
        (("readings", "--through", "7"), {}, "there is no batch 7 of readings: its log has batches 1 to 6"),
        (("readings", "--through", "1"), {"LAKE_COLD": ".lake/warehouse/old"}, "is within the warehouse"),
        (("readings", "--through", "1"), {"LAKE_COLD": "s3://bucket/old"}, "no place that is reached as the warehouse"),
        (("readings", "--through", "1"), {"LAKE_COLD": "pyproject.toml"}, "expected a folder, found the file"),
    ],
)
def test_archive_command_reports_wrong_arguments_and_settings(
    settings: Settings, words: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    done = command(settings, "archive", *words, **environment)
    assert isinstance(done.exception, DeclarationError)
    assert said in str(done.exception)
    assert archive_tier.parts_of(Log(settings, "readings").path) == []


def test_archive_without_a_folder_names_the_setting(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKE_COLD", raising=False)
    with pytest.raises(DeclarationError, match="no setting says where batches are archived"):
        run(load_settings(settings.project), 1)


def test_archive_reports_an_unwritable_folder(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    (tmp_path / "cold/readings").touch()
    with pytest.raises(DeclarationError, match="setting 'cold': nothing can be written there"):
        run(settings, 1)
    assert archive_tier.parts_of(Log(settings, "readings").path) == []


def test_doctor_examines_the_archive_folder_and_archived_batches(settings: Settings, tmp_path: Path) -> None:
    def found(of: Settings) -> list[tuple[str, bool]]:
        return [(finding.subject, finding.ok) for finding in (*doctor._cold(of), *doctor._logs(of))]

    assert found(replace(settings, cold=None)) == []
    assert found(settings) == [("cold", True), ("cold disk", True)]
    run(settings, 2)
    assert found(settings) == [("cold", True), ("cold disk", True), ("archived batches", True)]
    assert found(replace(settings, cold=None)) == [("archived batches", True)]
    unmounted = replace(settings, cold=Path("/proc/none"))
    assert dict(found(unmounted)) == {"cold": False, "archived batches": True}
    (tmp_path / "cold").rename(tmp_path / "moved")
    [gone] = doctor._logs(settings)
    assert "batches 1 to 2 of readings were archived, and are gone from there" in gone.found
    assert "have the setting `cold` name the new place" in gone.fix


def test_maintenance_deletes_archived_files_from_the_log(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    run(settings, 4)
    assert deleted_files(settings, monkeypatch) > 0
    assert check_log(settings, "readings").faults == []
