"""Full dumps with rejected records, and the history of them, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

Place = tuple[int, int]
Dump = tuple[int, int]


@dataclass(frozen=True)
class Told:
    """Row of a log of dumps: the value of `key` in `dump`, or with `what` the rejection, repair or acceptance of record
    `id`. `own`: the dump named by the log, if any; `file` separates files of a batch. `part`: the partition of the
    dump.
    """

    place: Place
    file: str
    own: str | None = None
    key: int | None = None
    value: int | None = None
    dump: int | None = None
    what: str | None = None
    id: str | None = None
    part: int = 0

    @property
    def of(self) -> Dump:
        """Return the partition and the number of its dump."""
        return self.part, self.dump or 0


def random_log(seed: int, *, named: bool, parts: int = 1) -> list[Told]:
    """Return three batches of files, each with the rows of some dumps, numbered 0 to 4.

    `named`: the log names the dump of a row, and of most rejected records. Each row is of one of `parts` partitions,
    and may move.
    """
    chance, told, refused = Random(seed), list[Told](), list[str]()
    for batch in (1, 2, 3):
        for name in ("a", "b"):
            file, dumps = f"{name}.jsonl", chance.sample(range(batch, batch + 3), chance.randrange(0, 3))
            lines: list[tuple[int | None, int | None]]
            lines = [(key, dump) for dump in sorted(dumps) for key in range(4) if chance.random() < 0.7]
            bad = chance.random() < 0.7
            lines += [(None, chance.choice(dumps) if dumps else None)] * (chance.randrange(1, 3) if bad else 0)
            chance.shuffle(lines)
            for line, (key, dump) in enumerate(lines):
                place = (batch, (name == "b") * 100 + line)
                own = str(dump) if named and dump is not None and (key is not None or chance.random() < 0.7) else None
                if key is None:
                    refused.append(f"{batch}/{len(refused)}")
                    told.append(Told(place, file, own, what="refused", id=refused[-1]))
                else:
                    part = chance.randrange(parts) if parts > 1 else 0
                    told.append(Told(place, file, own, key, chance.randrange(2), dump, part=part))
        for nth, id in enumerate(refused):
            if chance.random() < 0.2:
                told.append(Told((batch, 300 + nth), "", what="repaired", id=id))
        if chance.random() < 0.2:
            told.append(Told((batch, 400), "", what="accepted", id="all"))
    return told


def partial(told: Iterable[Told]) -> set[Dump]:
    """Return the dumps that still have a rejected record."""
    told = list(told)
    rows = [each for each in told if each.dump is not None]
    spans: dict[Dump, list[Place]] = defaultdict(list)
    for row in rows:
        spans[row.of].append(row.place)
    repaired = {each.id for each in told if each.what == "repaired"}
    accepted = max((each.place for each in told if each.what == "accepted"), default=(0, 0))
    found: set[Dump] = set()
    for each in told:
        if each.what == "refused" and each.id not in repaired and each.place > accepted:
            found |= set(_of(each, rows, spans))
    return found


def _of(refused: Told, rows: list[Told], spans: dict[Dump, list[Place]]) -> Iterator[Dump]:
    named = {row.of for row in rows if row.own is not None and row.own == refused.own}
    shared = {row.of for row in rows if (row.place[0], row.file) == (refused.place[0], refused.file)}
    if named or shared:
        yield from named or shared
        return
    yield from (dump for dump, places in spans.items() if min(places) <= refused.place <= max(places))
    later = {min(places): dump for dump, places in spans.items() if min(places) > refused.place}
    if later:
        yield later[min(later)]


def history(told: Iterable[Told]) -> set[tuple[int, int | None, int, int | None]]:
    """Return (key, value, valid_from, valid_to) of each version; a dump older than one that began before is ignored.

    A key is deleted if it is missing in its partition's dump and in all others of that number.
    """
    rows = sorted((each for each in told if each.dump is not None), key=lambda each: each.place)
    held_back = partial(told)
    dumps: set[Dump] = set()
    contents: dict[int, dict[int, int | None]] = defaultdict(dict)
    parts: dict[int, dict[int, int]] = defaultdict(dict)
    for row in rows:
        if row.of in dumps or all(row.of > dump for dump in dumps if dump[0] == row.part):
            dumps.add(row.of)
            contents[row.of[1]][row.key or 0] = row.value
            parts[row.of[1]][row.key or 0] = row.part
    versions: set[tuple[int, int | None, int, int | None]] = set()
    going: dict[int, tuple[int | None, int]] = {}
    part_of: dict[int, int] = {}
    for number in sorted(contents):
        there = contents[number]
        for key, (value, since) in list(going.items()):
            dump = (part_of[key], number)
            gone = key not in there and dump in dumps and dump not in held_back
            if gone or (key in there and there[key] != value):
                versions.add((key, value, since, number))
                del going[key]
        going = {key: (value, number) for key, value in there.items()} | going
        part_of |= parts[number]
    return versions | {(key, value, since, None) for key, (value, since) in going.items()}
