"""Landed records cut anew: into other files and batches, some of them delivered again, and in another order where that
decides nothing.
"""

from __future__ import annotations

import heapq
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.contracts.reasons import Reason
from lake.errors import DeclarationError
from lake.ingest import file_facts, landing
from lake.ingest.delivery import Acceptance, Closing
from lake.ingest.files import File, mark_of
from lake.store import delta, quarantine, small
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.warehouse import Warehouse

Place = tuple[int, int, int]
Groups = Mapping[Place, frozenset[int]]
"""Of the events of a stream, by place: the groups within which their order decides something."""

ALL: Final = 0
"""The group of what meets every other event."""

LINES: Final = (".jsonl", ".ndjson")
AGAIN: Final = 0.1
"""How many of the records are delivered again."""
FILES: Final = 3
"""In how many files a slice comes at most, beside those that are not cut."""
SINGLE: Final = "check_laws(slices=0) tries the other laws"


@dataclass(frozen=True)
class Slice:
    """Records of landing files that come together: {file below the landing folder: its bytes}.

    `times`: when those files were changed of which that is to be the same, in nanoseconds.
    """

    files: Mapping[str, bytes]
    times: Mapping[str, int] = field(default_factory=dict)

    def write(self, landing: Path) -> None:
        """Lands the files."""
        for name, content in self.files.items():
            path = landing / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if name in self.times:
                os.utime(path, ns=(self.times[name], self.times[name]))


@dataclass(frozen=True)
class Piece:
    """What is not cut: a line, or a `whole` file, changed at a `time` in nanoseconds.

    `source` is how the log calls it.
    """

    source: str
    suffix: str
    content: bytes
    whole: bool = False
    time: int = 0


@dataclass(frozen=True)
class Landed:
    """The records of one stream in the order in which its log took them in.

    `taken` has the places of the events of each piece, by its source; `refused` the sources of records that made none,
    because they break the contract or have the id of another; `at` is when the newest batch arrived, "" if none did.
    """

    contract: Contract
    at: str
    pieces: Sequence[Piece]
    taken: Mapping[str, Sequence[Place]]
    refused: frozenset[str]

    def mixed(self, groups: Groups, chance: random.Random) -> list[Piece]:
        """The pieces in another order, but for those that share a group.

        Records that were refused or came again, and what meets ALL, stay between what came before and after.
        """
        result: list[Piece] = []
        segment: list[tuple[Piece, frozenset[int]]] = []
        for piece in self.pieces:
            of = frozenset[int]().union(*(groups.get(place, ()) for place in self.taken.get(piece.source, ())))
            if ALL in of or piece.source in self.refused:
                result += [*_shuffled(segment, chance), piece]
                segment = []
            else:
                segment.append((piece, of))
        return [*result, *_shuffled(segment, chance)]

    def delivered_again(self, pieces: Sequence[Piece], chance: random.Random) -> list[Piece]:
        """`pieces`, and later some of them once more, where events are known by what they say, not by their place."""
        sources = self.taken.keys() - self.refused
        some = [n for n, piece in enumerate(pieces) if piece.source in sources and not piece.whole]
        if self.contract.identity == "position" or not some:
            return list(pieces)
        after: dict[int, list[Piece]] = {}
        for number in chance.sample(some, math.ceil(len(some) * AGAIN)):
            after.setdefault(chance.randrange(number, len(pieces)), []).append(pieces[number])
        return [part for n, piece in enumerate(pieces) for part in (piece, *after.get(n, ()))]


def landed(settings: Settings, contract: Contract) -> Landed:
    """What the log of a stream was made of, without records that were too far ahead of their time of arrival.

    Raises DeclarationError where it is not there any more, or never landed.
    """
    stream = contract.name
    heads = Log(settings, stream).heads()
    rejected = quarantine.rejected(settings, stream, upto=heads[0].batch if heads else 0)
    broken = {row.source for row in rejected if row.reason == Reason.FILE}
    ahead = {row.source for row in rejected if row.reason == Reason.AHEAD}
    pieces: list[Piece] = []
    for head in reversed(heads):
        for each in head.files:
            mark = mark_of(each)
            if Acceptance.of(mark) or Closing.of(mark):  # which have no records
                continue
            file = None if quarantine.is_mark(mark[0]) else landing.found_again(settings, stream, mark)
            if file is None:
                what = f"{mark[0]}, of which batch {head.batch} of {stream} was made, is missing: it cannot be sliced"
                raise DeclarationError(what, fix=SINGLE)
            pieces += _pieces(file, cut=file.name not in broken and not file_facts.fields_of(contract))
    again = small.rows(Warehouse(settings).redeliveries(stream).path, "SELECT source FROM t")
    refused = {row.source for row in rejected} | {row["source"] for row in again}
    kept = [piece for piece in pieces if piece.source not in ahead]
    return Landed(
        contract, heads[0].at if heads else "", kept, _taken(settings, stream, kept), frozenset(refused - ahead)
    )


def _pieces(file: File, *, cut: bool) -> Iterator[Piece]:
    content, suffix = file.path.read_bytes(), "".join(file.path.suffixes[-2:])
    if not cut or file.path.suffix.lower() not in LINES:
        yield Piece(file.name, suffix, content, whole=True, time=file.mtime)
        return
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        yield Piece(f"{file.name}:{number}", ".jsonl", line + b"\n")


def _taken(settings: Settings, stream: str, pieces: Sequence[Piece]) -> dict[str, list[Place]]:
    path, sources = Log(settings, stream).path, {piece.source for piece in pieces}
    places: dict[str, list[Place]] = {}
    if not delta.exists(path):
        return places
    for row in Scan(path).arrow(["_batch", "_bucket", "_offset", "_source"]).to_pylist():
        source = row["_source"] if row["_source"] in sources else row["_source"].rpartition(":")[0]
        places.setdefault(source, []).append((row["_batch"], row["_bucket"], row["_offset"]))
    return places


def _shuffled(pieces: Sequence[tuple[Piece, frozenset[int]]], chance: random.Random) -> Iterator[Piece]:
    """A random order in which every two pieces that share a group keep theirs."""
    waits = [0] * len(pieces)
    then: list[set[int]] = [set() for _ in pieces]
    last: dict[int, int] = {}
    for number, (_, groups) in enumerate(pieces):
        for earlier in {last[group] for group in groups if group in last}:
            then[earlier].add(number)
            waits[number] += 1
        last |= dict.fromkeys(groups, number)
    ready = [(chance.random(), number) for number, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    while ready:
        _, number = heapq.heappop(ready)
        yield pieces[number][0]
        for following in sorted(then[number]):
            waits[following] -= 1
            if not waits[following]:
                heapq.heappush(ready, (chance.random(), following))


def cut_anew(streams: Sequence[Landed], groups: Mapping[str, Groups], slices: int) -> list[Slice]:
    """The records of `streams` in so many `slices`: in other files, some delivered again, in another order.

    `groups` are those of each stream; one that has none keeps its order. Files that are facts of their records stay as
    they are, and come once. Raises DeclarationError where such have come in another order than that of their names.
    """
    parts: list[dict[str, bytes]] = [{} for _ in range(slices)]
    times: dict[str, int] = {}
    for stream in streams:
        name = stream.contract.name
        chance = random.Random(f"{name} {slices}")
        if file_facts.fields_of(stream.contract):
            for number, part in enumerate(_parts(stream.pieces, slices, chance)):
                parts[number] = parts[number] | _as_they_were(name, part)
            times |= {f"{name}/{Path(piece.source).name}": piece.time for piece in stream.pieces}
            continue
        pieces = stream.mixed(groups[name], chance) if name in groups else stream.pieces
        pieces = stream.delivered_again(pieces, chance)
        for number, part in enumerate(_parts(pieces, slices, chance)):
            parts[number] = parts[number] | _files(f"{name}/{number:03d}", part, chance)
    return [Slice(files, {name: times[name] for name in files if name in times}) for files in parts]


def _as_they_were(stream: str, pieces: Sequence[Piece]) -> dict[str, bytes]:
    """Files under their own names."""
    names = [Path(piece.source).name for piece in pieces]
    if names != sorted(set(names)):
        what = f"files of {stream}, whose names are facts of its events, came in another order: they cannot be sliced"
        raise DeclarationError(what, fix=SINGLE)
    return {f"{stream}/{name}": piece.content for name, piece in zip(names, pieces, strict=True)}


def _parts(pieces: Sequence[Piece], parts: int, chance: random.Random) -> list[Sequence[Piece]]:
    """`pieces` cut at random places, not far from where even parts would end."""
    even = len(pieces) / parts
    places = [round(even * (number + chance.uniform(-0.4, 0.4))) for number in range(1, parts)]
    return [pieces[first:end] for first, end in pairwise([0, *places, len(pieces)])]


def _files(name: str, pieces: Sequence[Piece], chance: random.Random) -> dict[str, bytes]:
    """The pieces in files whose names, which begin with `name`, are in their order."""
    files: dict[str, bytes] = {}
    for part in _parts(pieces, FILES, chance):
        for whole, run in groupby(part, key=lambda piece: piece.source if piece.whole else ""):
            some = list(run)
            file = f"{name}-{len(files):06d}{some[0].suffix if whole else '.jsonl'}"
            files[file] = b"".join(piece.content for piece in some)
    return files
