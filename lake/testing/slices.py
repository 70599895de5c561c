"""Landing files made of records already ingested: other files and batches, redeliveries, another order."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.contracts.reasons import Reason
from lake.errors import DeclarationError
from lake.ingest import landing
from lake.ingest.delivery import Acceptance, Closing
from lake.ingest.files import File, fact_fields, mark_of
from lake.store import delta, duckdb_tables, quarantine
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.warehouse import Warehouse

Place = tuple[int, int, int]
Groups = Mapping[Place, frozenset[int]]
"""Groups of the events by place: events keep their order within each group."""

ALL: Final = 0
"""Group of an event that keeps its order relative to all events."""

LINE_SUFFIXES: Final = (".jsonl", ".ndjson")
REDELIVERED_SHARE: Final = 0.1
FILES_PER_SLICE: Final = 3
SKIP_SLICES: Final = "check_laws(slices=0) tries the other laws"


@dataclass(frozen=True)
class Slice:
    """Landing files of one micro-batch, by path; `times` are modification times (ns) to keep."""

    files: Mapping[str, bytes]
    times: Mapping[str, int] = field(default_factory=dict)

    def write(self, landing: Path) -> None:
        for name, content in self.files.items():
            path = landing / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if name in self.times:
                os.utime(path, ns=(self.times[name], self.times[name]))


@dataclass(frozen=True)
class RecordPiece:
    """Line of a landing file, or a `whole` file modified at `time` (ns); events have `source` as `_source`."""

    source: str
    suffix: str
    content: bytes
    whole: bool = False
    time: int = 0


@dataclass(frozen=True)
class LandedStream:
    """Records of one stream in log order; `at` is the time of the newest batch.

    `accepted`: places of events by source of a piece. `refused`: sources of rejected or duplicate records.
    """

    contract: Contract
    at: str
    pieces: Sequence[RecordPiece]
    accepted: Mapping[str, Sequence[Place]]
    refused: frozenset[str]

    def shuffled(self, groups: Groups, chance: random.Random) -> list[RecordPiece]:
        """Return the pieces in random order, except within groups and around refused and ALL pieces."""
        result: list[RecordPiece] = []
        segment: list[tuple[RecordPiece, frozenset[int]]] = []
        for piece in self.pieces:
            own_groups = frozenset[int]().union(
                *(groups.get(place, ()) for place in self.accepted.get(piece.source, ()))
            )
            if ALL in own_groups or piece.source in self.refused:
                result += [*_shuffled(segment, chance), piece]
                segment = []
            else:
                segment.append((piece, own_groups))
        return [*result, *_shuffled(segment, chance)]

    def with_redeliveries(self, pieces: Sequence[RecordPiece], chance: random.Random) -> list[RecordPiece]:
        sources = self.accepted.keys() - self.refused
        candidates = [n for n, piece in enumerate(pieces) if piece.source in sources and not piece.whole]
        if self.contract.identity == "position" or not candidates:
            return list(pieces)
        after: dict[int, list[RecordPiece]] = {}
        for number in chance.sample(candidates, math.ceil(len(candidates) * REDELIVERED_SHARE)):
            after.setdefault(chance.randrange(number, len(pieces)), []).append(pieces[number])
        return [copy for n, piece in enumerate(pieces) for copy in (piece, *after.get(n, ()))]


def landed_stream(settings: Settings, contract: Contract) -> LandedStream:
    """Return a log's records, without those rejected as too far ahead. Raises DeclarationError if a file is missing."""
    stream = contract.name
    heads = Log(settings, stream).heads()
    rejected = quarantine.rejected(settings, stream, upto=heads[0].batch if heads else 0)
    broken = {row.source for row in rejected if row.reason == Reason.FILE}
    ahead = {row.source for row in rejected if row.reason == Reason.AHEAD}
    pieces: list[RecordPiece] = []
    for head in reversed(heads):
        for each in head.files:
            mark = mark_of(each)
            if Acceptance.of(mark) or Closing.of(mark):  # without records
                continue
            file = None if quarantine.is_mark(mark[0]) else landing.find_file(settings, stream, mark)
            if file is None:
                what = f"batch {head.batch} of {stream} cannot be sliced: there is no landing file {mark[0]}"
                raise DeclarationError(what, fix=SKIP_SLICES)
            pieces += _pieces(file, by_line=file.name not in broken and not fact_fields(contract))
    redeliveries = duckdb_tables.rows(Warehouse(settings).redeliveries(stream).path, "SELECT source FROM t")
    refused = {row.source for row in rejected} | {row["source"] for row in redeliveries}
    kept = [piece for piece in pieces if piece.source not in ahead]
    return LandedStream(
        contract,
        heads[0].at if heads else "",
        kept,
        _places_by_source(settings, stream, kept),
        frozenset(refused - ahead),
    )


def _pieces(file: File, *, by_line: bool) -> Iterator[RecordPiece]:
    content, suffix = file.path.read_bytes(), "".join(file.path.suffixes[-2:])
    if not by_line or file.path.suffix.lower() not in LINE_SUFFIXES:
        yield RecordPiece(file.name, suffix, content, whole=True, time=file.mtime)
        return
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        yield RecordPiece(f"{file.name}:{number}", ".jsonl", line + b"\n")


def _places_by_source(settings: Settings, stream: str, pieces: Sequence[RecordPiece]) -> dict[str, list[Place]]:
    path, sources = Log(settings, stream).path, {piece.source for piece in pieces}
    places: dict[str, list[Place]] = {}
    if not delta.exists(path):
        return places
    for row in Scan(path).arrow(["_batch", "_bucket", "_offset", "_source"]).to_pylist():
        source = row["_source"] if row["_source"] in sources else row["_source"].rpartition(":")[0]
        places.setdefault(source, []).append((row["_batch"], row["_bucket"], row["_offset"]))
    return places


def _shuffled(pieces: Sequence[tuple[RecordPiece, frozenset[int]]], chance: random.Random) -> Iterator[RecordPiece]:
    order, last = TopologicalSorter[int](), dict[int, int]()
    for number, (_, groups) in enumerate(pieces):
        order.add(number, *{last[group] for group in groups if group in last})
        last |= dict.fromkeys(groups, number)
    order.prepare()
    ready: list[int] = []
    while order.is_active():
        ready += sorted(order.get_ready())
        number = ready.pop(chance.randrange(len(ready)))
        yield pieces[number][0]
        order.done(number)


def recut(streams: Sequence[LandedStream], groups: Mapping[str, Groups], slices: int) -> list[Slice]:
    """Divide the records into `slices` micro-batches of other files, with redeliveries and in another order.

    Events keep their order within the `groups` of their stream; all do if it has none. Files whose names are facts of
    their records are not changed. Raises DeclarationError if they arrived out of order.
    """
    parts: list[dict[str, bytes]] = [{} for _ in range(slices)]
    times: dict[str, int] = {}
    for stream in streams:
        name = stream.contract.name
        chance = random.Random(f"{name} {slices}")
        if fact_fields(stream.contract):
            for number, part in enumerate(_random_parts(stream.pieces, slices, chance)):
                parts[number] = parts[number] | _unchanged_files(name, part)
            times |= {f"{name}/{Path(piece.source).name}": piece.time for piece in stream.pieces}
            continue
        pieces = stream.shuffled(groups[name], chance) if name in groups else stream.pieces
        pieces = stream.with_redeliveries(pieces, chance)
        for number, part in enumerate(_random_parts(pieces, slices, chance)):
            parts[number] = parts[number] | _files_of(f"{name}/{number:03d}", part, chance)
    return [Slice(files, {name: times[name] for name in files if name in times}) for files in parts]


def _unchanged_files(stream: str, pieces: Sequence[RecordPiece]) -> dict[str, bytes]:
    names = [Path(piece.source).name for piece in pieces]
    if names != sorted(set(names)):
        what = f"files of {stream} came in another order than that of their names, which are facts: no slices possible"
        raise DeclarationError(what, fix=SKIP_SLICES)
    return {f"{stream}/{name}": piece.content for name, piece in zip(names, pieces, strict=True)}


def _random_parts(pieces: Sequence[RecordPiece], parts: int, chance: random.Random) -> list[Sequence[RecordPiece]]:
    size = len(pieces) / parts
    ends = [round(size * (number + chance.uniform(-0.4, 0.4))) for number in range(1, parts)]
    return [pieces[first:end] for first, end in pairwise([0, *ends, len(pieces)])]


def _files_of(name: str, pieces: Sequence[RecordPiece], chance: random.Random) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for part in _random_parts(pieces, FILES_PER_SLICE, chance):
        for whole_file, run in groupby(part, key=lambda piece: piece.source if piece.whole else ""):
            run_pieces = list(run)
            file = f"{name}-{len(files):06d}{run_pieces[0].suffix if whole_file else '.jsonl'}"
            files[file] = b"".join(piece.content for piece in run_pieces)
    return files
