"""Crashes: a command that dies at a point, what is done to what it left, and the one command that must mend it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from lake.store.ledger.editions import latest_edition
from lake.testing import CommandResult, Commands, Kill
from tests.crash.model import Shop
from tests.crash.room import fill

PACKING: Final = {"lake.store.upkeep.compaction.CROWDED": 2}
DUE: Final = {"lake.store.upkeep.compaction.EXCESS_FILES": 0}
CHECKPOINTS: Final = {"lake.store.upkeep.vacuum.CHECKPOINT_EVERY": 1}
WHOM: Final = "subject=…"
BATCH: Final = "any batch"
ARCHIVE: Final = ("archive", "orders", "--through", BATCH)
DROP: Final = ("maintain", "--drop-retired", "--yes")
SHORT: Final[Mapping[str, Any]] = {"LAKE_KEEP_EDITIONS": "1", "LAKE_KEEP_DAYS": "0"}

Harm = Callable[[Shop, Path], None]


@dataclass(frozen=True)
class Crash:
    """`lake <command>` killed at `point`, at any of its passes; `harm` is then done to what it was writing.

    `before` are commands that lead up to it. `jvm` says whose JVM dies instead of the Python process: the server's, or
    the `own` one that the command has started. `shop` is the kind of shop it happens to: "first" was never run, those
    of "people" forget theirs.
    """

    name: str
    command: tuple[str, ...]
    point: str
    harm: Harm | None = None
    jvm: Literal["", "server", "own"] = ""
    shop: Literal["", "first", "people"] = ""
    before: tuple[tuple[str, ...], ...] = ()
    tuned: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    changes: bool = False


def truncated(shop: Shop, path: Path) -> None:
    """Cuts the newest commit of the table at `path` short, as a machine that lost its power does."""
    newest = max((path / "_delta_log").glob("*.json"))
    with newest.open("r+b") as file:
        file.truncate(shop.chance.choice([0, shop.chance.randrange(newest.stat().st_size)]))


def to_folder(folder: str, harm: Harm) -> Harm:
    """Does `harm` to a folder of the warehouse, whatever was being written."""
    return lambda shop, _: harm(shop, shop.lakehouse.settings.warehouse_path / folder)


def to_parent(harm: Harm) -> Harm:
    """Does `harm` to the live table that others are derived from."""
    return lambda shop, _: harm(shop, shop.lakehouse.settings.warehouse_path / shop.live("current_order"))


def lost(shop: Shop, path: Path) -> None:
    """Loses a folder; of a table, what editions have had of it until now."""
    shutil.rmtree(path)
    if path.parent.name == "silver":
        shop.lost_until = shop.edition()


def stale_leases(shop: Shop, _: Path) -> None:
    """Leaves notes of holders that are gone, one of them unreadable, and locks that nobody holds."""
    locks = shop.lakehouse.settings.warehouse_path / "locks"
    for number, name in enumerate(("log.orders", "table.current_order", "meta.cuts")):
        (locks / f"{name}.lock").touch()
        told = '{"pid": 1, "command": "lake run", "since": "2024-01-01"}'
        (locks / f"{name}.holder").write_text(told[: len(told) - 20 * number])


def _at(command: str, *points: str, **more: Any) -> list[Crash]:
    return [Crash(f"{command}: {point}", (command,), point, **more) for point in points]


def _moments(*whats: str) -> list[str]:
    return [f"{what}.{moment}" for what in whats for moment in ("before", "middle", "after")]


def _sides(*whats: str) -> list[str]:
    return [f"{what}.{moment}" for what in whats for moment in ("before", "after")]


DEPLOY: Final = ("deploy", "--yes")
"""A change that is taken back takes a column from readers."""
RUN: Final = _at("run", *_moments("log", "table"), *_sides("quarantine", "redeliveries", "meta", "edition", "archive"))
MERGE: Final = [Crash("run: Spark's MERGE", ("run",), "table.middle", environment={"LAKE_IN_PROCESS_ROWS": "0"})]
REWRITING: Final[Mapping[str, Any]] = {"lake.cost.MERGED_ROWS": -1}
REWRITTEN: Final = [
    Crash(f"run: files of changed rows, {point}", ("run",), point, tuned=REWRITING) for point in _moments("table")
]
UPKEEP: Final = [
    *_at("run", *_moments("compaction"), tuned=PACKING),
    *_at("maintain", *_moments("compaction"), *_sides("vacuum"), tuned=DUE, environment=SHORT),
    *_at("maintain", *_sides("checkpoint"), tuned=CHECKPOINTS, environment=SHORT),
    *(
        Crash(f"maintain: {point}", DROP, point, before=(DEPLOY, ("run",)), environment=SHORT, changes=True)
        for point in _moments("removal")
    ),
]
TAKEN: Final = (("ingest",), ("cut",))
RECOMPUTATION: Final = [
    Crash(f"rebuild: {point}", ("rebuild", "--all"), point, before=TAKEN)
    for point in (*_moments("table"), "meta.after")
]
DEPLOYMENT: Final = [
    Crash(f"deploy: {point}", DEPLOY, point, before=TAKEN, changes=True)
    for point in (*_moments("table"), *_sides("edition"), "meta.after")
]
HARMS: Final = [
    *(
        Crash(f"truncated: last commit of {what}", ("run",), f"{what}.after", truncated)
        for what in ("log", "quarantine", "redeliveries", "table", "meta", "edition")
    ),
    Crash("truncated: last commit of a compaction", ("run",), "compaction.after", truncated, tuned=PACKING),
    Crash("truncated: a table that others have read", ("run",), "edition.before", to_parent(truncated)),
    Crash("truncated: the cut of a published edition", ("run",), "edition.after", to_folder("meta/cuts", truncated)),
    Crash(
        "truncated: meta/runs while it is maintained",
        ("maintain",),
        "vacuum.after",
        to_folder("meta/runs", truncated),
        tuned=DUE,
        environment=SHORT,
    ),
    Crash(
        "truncated: the book of the erased",
        ("forget", "orders", WHOM, "--yes"),
        "edition.before",
        to_folder("meta/erasures", truncated),
        shop="people",
    ),
    Crash("lost: meta/cuts", ("run",), "table.after", to_folder("meta/cuts", lost)),
    Crash("lost: a table", ("run",), "edition.before", to_parent(lost)),
    Crash("lost: meta/landed", ("run",), "log.after", to_folder("meta/landed", lost)),
    Crash("lost: meta/runs", ("run",), "table.after", to_folder("meta/runs", lost)),
    Crash("lost: meta/checks", ("run",), "meta.after", to_folder("meta/checks", lost)),
    Crash("lost: leases", ("run",), "table.before", to_folder("locks", lost)),
    Crash("stale: leases", ("run",), "table.before", stale_leases),
]
FIRST: Final = [
    Crash(f"first run: {point}", ("run",), point, shop="first")
    for point in (*_moments("log", "table"), "quarantine.after", "meta.after", "edition.before")
]
FORGETTING: Final = [
    Crash(f"forget: {point}", ("forget", "orders", WHOM, "--yes"), point, shop="people")
    for point in (*_sides("meta", "quarantine", "edition", "vacuum", "checkpoint"), *_moments("table"))
]
ARCHIVING: Final = [
    *(
        Crash(f"archive: {point}", ARCHIVE, point, before=(("run",),), tuned=PACKING)
        for point in (*_moments("cold", "log"), *_sides("vacuum"))
    ),
    *(
        Crash(
            f"archive: {point}, by Spark",
            ARCHIVE,
            point,
            before=(("run",),),
            tuned={**PACKING, "lake.cost.LOADED_BYTES": -1},
        )
        for point in _moments("cold", "log")
    ),
    *(
        Crash(
            f"truncated: {what} of an archive", ARCHIVE, f"{point}.after", truncated, before=(("run",),), tuned=PACKING
        )
        for point, what in (("cold", "a commit"), ("log", "the end"))
    ),
]
OF_PYTHON: Final = [
    *RUN,
    *FIRST,
    *MERGE,
    *REWRITTEN,
    *UPKEEP,
    *RECOMPUTATION,
    *DEPLOYMENT,
    *FORGETTING,
    *ARCHIVING,
    *HARMS,
]


def _with_jvm(whose: Literal["server", "own"], *crashes: str) -> list[Crash]:
    told = {"server": "of the server", "own": "of its own JVM"}[whose]
    return [replace(each, name=f"{each.name}, {told}", jvm=whose) for each in OF_PYTHON if each.name in crashes]


OF_SERVER: Final = _with_jvm(
    "server",
    *(f"run: {point}" for point in (*_moments("log", "table"), *_sides("meta", "edition"), "quarantine.after")),
    "run: Spark's MERGE",
    "run: compaction.middle",
    "maintain: vacuum.after",
    "rebuild: table.middle",
    "deploy: table.middle",
    "forget: table.middle",
    "archive: cold.middle, by Spark",
    "archive: log.middle, by Spark",
)
OF_OWN_JVM: Final = _with_jvm("own", "run: log.middle", "run: Spark's MERGE", "run: compaction.middle")


@dataclass(frozen=True)
class Outcome:
    """Whether the kill landed; if so, what was not right after the one command that had to mend it."""

    landed: bool
    faults: tuple[str, ...] = ()


def happen(shop: Shop, commands: Commands, crash: Crash, *, jvm: int = 0, mend: Callable[[], object] = list) -> Outcome:
    """Lands new records, lets the crash happen, and then one ordinary command; `mend` brings back the JVM `jvm`.

    After a deploy that was stopped that is another, or, with the jobs as they were, a run; after an archive so too.
    """
    shop.land_some()
    if crash.changes:
        shop.change()
    for line in crash.before:
        done = commands.lake(*line, at=shop.lakehouse, tuned=crash.tuned)
        if done.code:
            return Outcome(False, (f"lake {' '.join(line)}: {shop.status(done)}",))
    published = latest_edition(shop.lakehouse.settings)
    said = {WHOM: lambda: f"subject={shop.somebody()}", BATCH: lambda: str(shop.batch())}
    command = [said[word]() if word in said else word for word in crash.command]
    kill = Kill(crash.point, _pass(shop, crash), "jvm" if crash.jvm else "python", jvm)
    done = commands.lake(*command, at=shop.lakehouse, kill=kill, tuned=crash.tuned, **crash.environment)
    faults = _ended(done, crash)
    if done.killed_at and crash.harm:
        crash.harm(shop, done.killed_at)
    if crash.jvm == "own" or (crash.jvm and done.landed):
        mend()
    mending: tuple[str, ...] = ("run",)
    if crash.command == ARCHIVE:
        mending = shop.chance.choice([tuple(command), ("run",)])
    if crash.command == DEPLOY and done.landed and latest_edition(shop.lakehouse.settings) == published:
        mending = shop.chance.choice([DEPLOY, ("run",)])
        if mending == ("run",):
            shop.change()
    faults += _mended(shop, commands, *mending)
    return Outcome(done.landed, tuple(faults))


def disk_full(shop: Shop, commands: Commands) -> Outcome:
    """A cycle on a disk with little room, then one with room; `shop` lives on a disk of its own."""
    shop.land_some()
    ballast = fill(shop.home, leave=shop.chance.randrange(60_000))
    done = commands.lake("run", at=shop.lakehouse)
    ballast.unlink()
    return _refused(shop, commands, done)


def file_too_large(shop: Shop, commands: Commands) -> Outcome:
    """A cycle that may write small files only, then one that may write any."""
    shop.land_some()
    done = commands.lake("run", at=shop.lakehouse, file_bytes=shop.chance.randrange(1500, 5000))
    return _refused(shop, commands, done)


def _refused(shop: Shop, commands: Commands, done: CommandResult) -> Outcome:
    faults = [] if done.code in {0, 75} else [f"ended with {shop.status(done)}"]
    if done.code == 75 and not ("disk full" in done.err and "fix:" in done.err):
        faults.append(f"said {done.err}")
    return Outcome(done.code == 75, (*faults, *_mended(shop, commands)))


def _pass(shop: Shop, crash: Crash) -> int:
    """Which pass: of points that are passed often, any of the first ones."""
    often = {
        "meta": 2 if crash.command[0] == "rebuild" else 4,
        "vacuum": 6,
        "table": 6 if crash.command == DEPLOY else 3,  # a deploy writes most tables twice
        "compaction": 1 if crash.command == ("maintain",) else 2,
        "checkpoint": 4,
        "cold": 2,
    }
    if crash.command == ARCHIVE:  # the rows of later batches that stay are written to a table of their own, which goes
        often |= {"log": 3, "vacuum": 2}
    if WHOM in crash.command:
        often |= {"vacuum": 12, "quarantine": 2, "table": 6, "checkpoint": 3}
    if crash.point.endswith("middle"):
        return 1
    return shop.chance.randrange(1, 1 + often.get(crash.point.partition(".")[0], 1))


def _ended(done: CommandResult, crash: Crash) -> list[str]:
    """A process that is not killed ends well; one whose JVM is killed says so, or needed it no more."""
    allowed = {0, 75} if crash.jvm and done.landed else {0}
    return [f"{crash.name} ended with {done.code}: {done.err}"] if not done.landed and done.code not in allowed else []


def _mended(shop: Shop, commands: Commands, *command: str) -> list[str]:
    """What one ordinary command leaves wrong."""
    again = commands.lake(*(command or ("run",)), at=shop.lakehouse)
    if again.code:
        return [f"lake {' '.join(command or ('run',))}: {shop.status(again)}"]
    return list(shop.faults(commands))
