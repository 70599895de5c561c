"""Planning of the next offset ranges, fixed before the first record, and detection of gaps.

If the id of the cluster or a topic changes, earlier offsets are meaningless.

Offsets order the records of one partition. A *generation* extends that to all records of a key: it grows when offsets
restart, and when partitions are added, since producers then distribute keys differently. Everything before a barrier
(the ends of the partitions when others were added) is read before anything after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from lake.sources.source import Gap, Progress


class Range(NamedTuple):
    """Offsets from `first` on, before `end`."""

    topic: str
    partition: int
    first: int
    end: int


class PartitionBounds(NamedTuple):
    """`low` is the first offset, `end` the last stable one, `high` that of the next record."""

    low: int
    end: int
    high: int


@dataclass(frozen=True)
class TopicState:
    id: str
    partitions: Mapping[int, PartitionBounds]


Barrier: TypeAlias = Mapping[int, int]
"""Offset of the first record of a later generation, by partition; 0 for an added partition."""


@dataclass(frozen=True)
class TopicOffsets:
    """`ranges`: the newest read. `era` counts restarts of offsets. `generation`: of records before all `barriers`."""

    id: str
    ranges: Mapping[int, tuple[int, int]]
    era: int = 0
    generation: int = 0
    barriers: tuple[Barrier, ...] = ()

    def generation_of(self, partition: int, offset: int) -> int:
        return self.generation + sum(offset >= barrier.get(partition, 0) for barrier in self.barriers)

    def limit(self, partition: int) -> int | None:
        """Return the offset at which to stop for now; None for the end."""
        for barrier in self.barriers:
            if any(self.ranges.get(other, (0, 0))[1] < offset for other, offset in barrier.items()):
                return barrier.get(partition, 0)
        return None

    def restarted(self, id: str, ranges: Mapping[int, tuple[int, int]]) -> TopicOffsets:
        return TopicOffsets(id, ranges, self.era + 1, self.generation + len(self.barriers) + 1)


@dataclass(frozen=True)
class KafkaOffsets:
    cluster: str
    topics: Mapping[str, TopicOffsets] = field(default_factory=dict)

    @classmethod
    def of(cls, progress: Progress) -> KafkaOffsets:
        topics = {
            name: TopicOffsets(
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
                **({"barriers": [{str(p): b[p] for p in sorted(b)} for b in taken.barriers]} if taken.barriers else {}),
            }
            for name, taken in sorted(self.topics.items())
        }
        return {"cluster": self.cluster, "topics": topics}

    def of_topic(self, topic: str) -> TopicOffsets:
        return self.topics.get(topic) or TopicOffsets("", {})

    def with_barriers(self, new: Iterable[str], here: Mapping[str, TopicState]) -> KafkaOffsets:
        """Add a barrier to topics with `new` partitions, at the ends in `here`, which must be more recent.

        So every record of a new partition is later than records of its key before the barrier.
        """
        topics = dict(self.topics)
        for name in new:
            known, barriers = topics[name].ranges, topics[name].barriers
            barrier = {p: bounds.high for p, bounds in here[name].partitions.items() if p in known}
            topics[name] = replace(topics[name], barriers=(*barriers, barrier))
        return replace(self, topics=topics)

    def ends(self) -> Iterator[tuple[str, int, int]]:
        for name, taken in self.topics.items():
            yield from ((name, partition, end) for partition, (_, end) in taken.ranges.items())

    def first(self, topic: str, partition: int, bounds: PartitionBounds) -> int:
        """A new topic begins at `low`, a partition added to a known topic at 0."""
        if topic not in self.topics:
            return bounds.low
        return self.topics[topic].ranges.get(partition, (0, 0))[1]

    def after_reading(self, here: Mapping[str, TopicState], taken: Sequence[Range]) -> KafkaOffsets:
        topics = dict(self.topics)
        for name, topic in here.items():
            firsts = {p: self.first(name, p, bounds) for p, bounds in topic.partitions.items()}
            news = {each.partition: (each.first, each.end) for each in taken if each.topic == name}
            ranges = {p: news.get(p, (first, first)) for p, first in firsts.items()}
            topics[name] = replace(self.of_topic(name), id=topic.id, ranges=ranges)
        return KafkaOffsets(self.cluster, topics)


def added_partitions(position: KafkaOffsets, here: Mapping[str, TopicState]) -> dict[str, list[int]]:
    new = {
        name: sorted(set(topic.partitions) - set(position.topics[name].ranges))
        for name, topic in here.items()
        if name in position.topics
    }
    return {name: partitions for name, partitions in new.items() if partitions}


def gaps(position: KafkaOffsets, cluster: str, here: Mapping[str, TopicState], *, source: str, where: str) -> list[Gap]:
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
            first = position.first(name, partition, bounds)
            if what := _gap(first, bounds):
                fix = f"{give_up} goes on at {_at(first, bounds)}, without what is gone"
                faults.append(Gap(f"partition {partition} of the topic {name!r}: {what}", where=where, fix=fix))
    return faults


def _gap(first: int, bounds: PartitionBounds) -> str:
    if first < bounds.low:
        return f"the offsets {first} to {bounds.low - 1} were deleted there before they were read"
    if first > bounds.high:
        return f"it ends at {bounds.high}, and was read up to {first}: records were lost there, or it was restored"
    return ""


def _at(first: int, bounds: PartitionBounds) -> int:
    return min(max(first, bounds.low), bounds.high)


def without_gaps(position: KafkaOffsets, cluster: str, here: Mapping[str, TopicState]) -> KafkaOffsets:
    """A topic whose offsets may now denote other records gets a new era."""
    topics = dict(position.topics)
    same = {name for name, taken in topics.items() if name in here and taken.id == here[name].id}
    kept = KafkaOffsets(cluster, {name: topics[name] for name in same if position.cluster == cluster})
    for name, topic in here.items():
        firsts = {p: (kept.first(name, p, bounds), bounds) for p, bounds in topic.partitions.items()}
        ranges = {p: (_at(first, bounds),) * 2 for p, (first, bounds) in firsts.items()}
        again = name not in kept.topics or any(first > bounds.high for first, bounds in firsts.values())
        taken = position.of_topic(name)
        is_new = again and name in topics
        topics[name] = taken.restarted(topic.id, ranges) if is_new else replace(taken, id=topic.id, ranges=ranges)
    return KafkaOffsets(cluster, topics)


def waiting_ranges(position: KafkaOffsets, here: Mapping[str, TopicState]) -> list[Range]:
    ranges = (
        Range(name, partition, position.first(name, partition, bounds), bounds.end)
        for name, topic in here.items()
        for partition, bounds in sorted(topic.partitions.items())
    )
    return [each for each in ranges if each.first < each.end]


def before_barriers(position: KafkaOffsets, waiting: Sequence[Range]) -> list[Range]:
    limits = ((each, position.of_topic(each.topic).limit(each.partition)) for each in waiting)
    clipped = (each if limit is None else each._replace(end=min(each.end, limit)) for each, limit in limits)
    return [each for each in clipped if each.first < each.end]


def plan_ranges(waiting: Sequence[Range], most: int) -> list[Range]:
    lengths = shares([each.end - each.first for each in waiting], most)
    return [each._replace(end=each.first + length) for each, length in zip(waiting, lengths, strict=True)]


def shares(wanted: Sequence[int], most: int) -> list[int]:
    """Give each what it wants or an equal share, at least 1; unused parts of shares go to the others."""
    given = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for place, i in enumerate(order):
        given[i] = max(1, min(wanted[i], most // (len(order) - place)))
        most = max(0, most - given[i])
    return given
