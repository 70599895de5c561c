"""The next ranges of offsets to read of some topics, fixed before the first record; and whether they are still there.

A cluster and a topic have ids. If an id is another one, the earlier offsets mean nothing any more.

Offsets order records of one partition only. A *generation* makes that an order of all records of a key: it is a number
that grows when offsets begin anew, and when partitions are added, as producers then spread keys anew. Everything before
a barrier, the ends that partitions had when others were added, is read before anything after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from lake.sources.source import Gap, Progress


class Range(NamedTuple):
    """Offsets of one partition, from `first` on, before `end`."""

    topic: str
    partition: int
    first: int
    end: int


class Bounds(NamedTuple):
    """What a partition has: from `low` on; before `end` all is decided; `high` is where the next record goes."""

    low: int
    end: int
    high: int


@dataclass(frozen=True)
class Here:
    """A topic as the cluster has it."""

    id: str
    partitions: Mapping[int, Bounds]


Barrier: TypeAlias = Mapping[int, int]
"""By partition, the offset of the first record of a later generation; 0 for a partition that was added."""


@dataclass(frozen=True)
class Taken:
    """The newest range that was taken of each partition of the topic with this `id`.

    `era` counts how often its offsets began anew; `generation` is that of its records before the first of `barriers`.
    """

    id: str
    ranges: Mapping[int, tuple[int, int]]
    era: int = 0
    generation: int = 0
    barriers: tuple[Barrier, ...] = ()

    def generation_of(self, partition: int, offset: int) -> int:
        return self.generation + sum(offset >= barrier.get(partition, 0) for barrier in self.barriers)

    def limit(self, partition: int) -> int | None:
        """The offset before which a partition is to be read for now, None for its end."""
        for barrier in self.barriers:
            if any(self.ranges.get(other, (0, 0))[1] < offset for other, offset in barrier.items()):
                return barrier.get(partition, 0)
        return None

    def anew(self, id: str, ranges: Mapping[int, tuple[int, int]]) -> Taken:
        """The topic after its offsets began anew."""
        return Taken(id, ranges, self.era + 1, self.generation + len(self.barriers) + 1)


@dataclass(frozen=True)
class Position:
    """What was taken of the topics of one cluster."""

    cluster: str
    topics: Mapping[str, Taken] = field(default_factory=dict)

    @classmethod
    def of(cls, progress: Progress) -> Position:
        """The position that a log's commit tells."""
        topics = {
            name: Taken(
                topic["id"],
                {int(p): (a, b) for p, (a, b) in topic["ranges"].items()},
                topic.get("era", 0),
                topic.get("generation", 0),
                tuple({int(p): offset for p, offset in barrier.items()} for barrier in topic.get("barriers", ())),
            )
            for name, topic in progress["topics"].items()
        }
        return cls(progress["cluster"], topics)

    @property
    def progress(self) -> dict[str, Any]:
        topics = {
            name: {
                "id": taken.id,
                "ranges": {str(p): list(taken.ranges[p]) for p in sorted(taken.ranges)},
                **({"era": taken.era} if taken.era else {}),
                **({"generation": taken.generation} if taken.generation else {}),
                **({"barriers": [_by_text(barrier) for barrier in taken.barriers]} if taken.barriers else {}),
            }
            for name, taken in sorted(self.topics.items())
        }
        return {"cluster": self.cluster, "topics": topics}

    def taken(self, topic: str) -> Taken:
        return self.topics.get(topic) or Taken("", {})

    def behind_barriers(self, new: Iterable[str], here: Mapping[str, Here]) -> Position:
        """The position after topics got `new` partitions, with the ends that the others have `here`, looked at since.

        So every record that a new partition had before is later than those of its key before the barrier.
        """
        topics = dict(self.topics)
        for name in new:
            known, barriers = topics[name].ranges, topics[name].barriers
            barrier = {p: bounds.high for p, bounds in here[name].partitions.items() if p in known}
            topics[name] = replace(topics[name], barriers=(*barriers, barrier))
        return replace(self, topics=topics)

    def ends(self) -> Iterator[tuple[str, int, int]]:
        """Topic, partition and offset of what comes next."""
        for name, taken in self.topics.items():
            yield from ((name, partition, end) for partition, (_, end) in taken.ranges.items())

    def first(self, topic: str, partition: int, bounds: Bounds) -> int:
        """Where to go on: a topic begins with what it has, a partition that was added to a known one at 0."""
        if topic not in self.topics:
            return bounds.low
        return self.topics[topic].ranges.get(partition, (0, 0))[1]

    def behind(self, here: Mapping[str, Here], taken: Sequence[Range]) -> Position:
        """The position behind `taken`. What is said of topics that are not `here` stays."""
        topics = dict(self.topics)
        for name, topic in here.items():
            firsts = {p: self.first(name, p, bounds) for p, bounds in topic.partitions.items()}
            news = {each.partition: (each.first, each.end) for each in taken if each.topic == name}
            ranges = {p: news.get(p, (first, first)) for p, first in firsts.items()}
            topics[name] = replace(self.taken(name), id=topic.id, ranges=ranges)
        return Position(self.cluster, topics)


def added(position: Position, here: Mapping[str, Here]) -> dict[str, list[int]]:
    """The partitions that known topics have got since."""
    new = {
        name: sorted(set(topic.partitions) - set(position.topics[name].ranges))
        for name, topic in here.items()
        if name in position.topics
    }
    return {name: partitions for name, partitions in new.items() if partitions}


def gaps(position: Position, cluster: str, here: Mapping[str, Here], *, source: str, where: str) -> list[Gap]:
    """Every reason for which what comes next cannot be read."""
    give_up = f"lake ingest {source} --give-up"
    if position.cluster != cluster:
        what = f"connected to cluster {cluster}, but the offsets belong to {position.cluster}"
        fix = f"correct bootstrap; or {give_up}, which takes all that this cluster has as new"
        return [Gap(what, where=where, fix=fix)]
    faults = []
    for name, topic in here.items():
        taken = position.topics.get(name)
        if taken is not None and taken.id != topic.id:
            what = f"the topic {name!r} was recreated: its id is {topic.id}, but the offsets belong to {taken.id}"
            faults.append(Gap(what, where=where, fix=f"{give_up} takes all that the new one has as new"))
            continue
        for partition, bounds in sorted(topic.partitions.items()):
            if what := _gap(position.first(name, partition, bounds), bounds):
                on = _at(position.first(name, partition, bounds), bounds)
                fix = f"{give_up} goes on at {on}, without what is gone"
                faults.append(Gap(f"partition {partition} of the topic {name!r}: {what}", where=where, fix=fix))
    return faults


def _gap(first: int, bounds: Bounds) -> str:
    if first < bounds.low:
        return f"the offsets {first} to {bounds.low - 1} were deleted there before they were read"
    if first > bounds.high:
        return f"it ends at {bounds.high}, and was read up to {first}: records were lost there, or it was restored"
    return ""


def _at(first: int, bounds: Bounds) -> int:
    """Where to go on when what is gone is given up."""
    return min(max(first, bounds.low), bounds.high)


def given_up(position: Position, cluster: str, here: Mapping[str, Here]) -> Position:
    """The position of which nothing is gone. Offsets that may be those of other records now are of another era."""
    topics = dict(position.topics)
    same = {name for name, taken in topics.items() if name in here and taken.id == here[name].id}
    kept = Position(cluster, {name: topics[name] for name in same if position.cluster == cluster})
    for name, topic in here.items():
        firsts = {p: (kept.first(name, p, bounds), bounds) for p, bounds in topic.partitions.items()}
        ranges = {p: (_at(first, bounds),) * 2 for p, (first, bounds) in firsts.items()}
        again = name not in kept.topics or any(first > bounds.high for first, bounds in firsts.values())
        taken = position.taken(name)
        is_new = again and name in topics
        topics[name] = taken.anew(topic.id, ranges) if is_new else replace(taken, id=topic.id, ranges=ranges)
    return Position(cluster, topics)


def _by_text(barrier: Barrier) -> dict[str, int]:
    return {str(partition): barrier[partition] for partition in sorted(barrier)}


def waiting(position: Position, here: Mapping[str, Here]) -> list[Range]:
    """All that is decided and was not taken, by topic and partition."""
    ranges = (
        Range(name, partition, position.first(name, partition, bounds), bounds.end)
        for name, topic in here.items()
        for partition, bounds in sorted(topic.partitions.items())
    )
    return [each for each in ranges if each.first < each.end]


def allowed(position: Position, waiting: Sequence[Range]) -> list[Range]:
    """What of `waiting` may be read before the first barrier that was not reached."""
    limits = ((each, position.taken(each.topic).limit(each.partition)) for each in waiting)
    clipped = (each if limit is None else each._replace(end=min(each.end, limit)) for each, limit in limits)
    return [each for each in clipped if each.first < each.end]


def planned(waiting: Sequence[Range], most: int) -> list[Range]:
    """Of what is `waiting`, about `most` offsets: each partition has the same share, and what it does not need of that
    is the others'.
    """
    lengths = shares([each.end - each.first for each in waiting], most)
    return [each._replace(end=each.first + length) for each, length in zip(waiting, lengths, strict=True)]


def shares(wanted: Sequence[int], most: int) -> list[int]:
    """How much of `most` each gets: as much as it wants, or the same as all others that want more; at least 1."""
    given = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for place, i in enumerate(order):
        given[i] = max(1, min(wanted[i], most // (len(order) - place)))
        most = max(0, most - given[i])
    return given
