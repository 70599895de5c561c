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
    """`ranges` were read last. `era` counts restarts of offsets; `generation` is that of records before `barriers`."""

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
                "id": topic.id,
                "ranges": {str(p): list(topic.ranges[p]) for p in sorted(topic.ranges)},
                **({"era": topic.era} if topic.era else {}),
                **({"generation": topic.generation} if topic.generation else {}),
                **({"barriers": [{str(p): b[p] for p in sorted(b)} for b in topic.barriers]} if topic.barriers else {}),
            }
            for name, topic in sorted(self.topics.items())
        }
        return {"cluster": self.cluster, "topics": topics}

    def of_topic(self, topic: str) -> TopicOffsets:
        return self.topics.get(topic) or TopicOffsets("", {})

    def with_barriers(self, new: Iterable[str], states: Mapping[str, TopicState]) -> KafkaOffsets:
        """Add a barrier to topics with `new` partitions, at the ends in `states`, looked up after they were noticed.

        So every record of a new partition is later than records of its key before the barrier.
        """
        topics = dict(self.topics)
        for name in new:
            known, barriers = topics[name].ranges, topics[name].barriers
            barrier = {p: bounds.high for p, bounds in states[name].partitions.items() if p in known}
            topics[name] = replace(topics[name], barriers=(*barriers, barrier))
        return replace(self, topics=topics)

    def ends(self) -> Iterator[tuple[str, int, int]]:
        for name, offsets in self.topics.items():
            yield from ((name, partition, end) for partition, (_, end) in offsets.ranges.items())

    def first(self, topic: str, partition: int, bounds: PartitionBounds) -> int:
        """A new topic begins at `low`, a partition added to a known topic at 0."""
        if topic not in self.topics:
            return bounds.low
        return self.topics[topic].ranges.get(partition, (0, 0))[1]

    def after_reading(self, states: Mapping[str, TopicState], complete: Sequence[Range]) -> KafkaOffsets:
        topics = dict(self.topics)
        for name, topic in states.items():
            firsts = {p: self.first(name, p, bounds) for p, bounds in topic.partitions.items()}
            news = {wanted.partition: (wanted.first, wanted.end) for wanted in complete if wanted.topic == name}
            ranges = {p: news.get(p, (first, first)) for p, first in firsts.items()}
            topics[name] = replace(self.of_topic(name), id=topic.id, ranges=ranges)
        return KafkaOffsets(self.cluster, topics)


def added_partitions(position: KafkaOffsets, states: Mapping[str, TopicState]) -> dict[str, list[int]]:
    new = {
        name: sorted(set(topic.partitions) - set(position.topics[name].ranges))
        for name, topic in states.items()
        if name in position.topics
    }
    return {name: partitions for name, partitions in new.items() if partitions}


def gaps(
    position: KafkaOffsets, cluster: str, states: Mapping[str, TopicState], *, source: str, where: str
) -> list[Gap]:
    give_up = f"lake ingest {source} --give-up"
    if position.cluster != cluster:
        what = f"connected to cluster {cluster}, but the offsets belong to {position.cluster}"
        fix = f"correct bootstrap; or {give_up}, which reads all records of this cluster as new"
        return [Gap(what, where=where, fix=fix)]
    faults = []
    for name, topic in states.items():
        offsets = position.topics.get(name)
        if offsets is not None and offsets.id != topic.id:
            what = f"the topic {name!r} was recreated: its id is {topic.id}, but the offsets belong to {offsets.id}"
            faults.append(Gap(what, where=where, fix=f"{give_up} reads all its records as new"))
            continue
        for partition, bounds in sorted(topic.partitions.items()):
            first = position.first(name, partition, bounds)
            if what := _gap(first, bounds):
                fix = f"{give_up} continues at {_resume_at(first, bounds)}, without the lost records"
                faults.append(Gap(f"partition {partition} of the topic {name!r}: {what}", where=where, fix=fix))
    return faults


def _gap(first: int, bounds: PartitionBounds) -> str:
    if first < bounds.low:
        return f"the offsets {first} to {bounds.low - 1} were deleted there before they were read"
    if first > bounds.high:
        return f"it ends at {bounds.high}, and was read up to {first}: records were lost there, or it was restored"
    return ""


def _resume_at(first: int, bounds: PartitionBounds) -> int:
    return min(max(first, bounds.low), bounds.high)


def without_gaps(position: KafkaOffsets, cluster: str, states: Mapping[str, TopicState]) -> KafkaOffsets:
    """Give a new era to topics whose offsets may now denote other records."""
    topics = dict(position.topics)
    same = {name for name, offsets in topics.items() if name in states and offsets.id == states[name].id}
    kept = KafkaOffsets(cluster, {name: topics[name] for name in same if position.cluster == cluster})
    for name, topic in states.items():
        firsts = {p: (kept.first(name, p, bounds), bounds) for p, bounds in topic.partitions.items()}
        ranges = {p: (_resume_at(first, bounds),) * 2 for p, (first, bounds) in firsts.items()}
        restarts = name not in kept.topics or any(first > bounds.high for first, bounds in firsts.values())
        offsets = position.of_topic(name)
        is_new = restarts and name in topics
        topics[name] = offsets.restarted(topic.id, ranges) if is_new else replace(offsets, id=topic.id, ranges=ranges)
    return KafkaOffsets(cluster, topics)


def waiting_ranges(position: KafkaOffsets, states: Mapping[str, TopicState]) -> list[Range]:
    ranges = (
        Range(name, partition, position.first(name, partition, bounds), bounds.end)
        for name, topic in states.items()
        for partition, bounds in sorted(topic.partitions.items())
    )
    return [wanted for wanted in ranges if wanted.first < wanted.end]


def before_barriers(position: KafkaOffsets, waiting: Sequence[Range]) -> list[Range]:
    limits = ((wanted, position.of_topic(wanted.topic).limit(wanted.partition)) for wanted in waiting)
    clipped = (wanted if limit is None else wanted._replace(end=min(wanted.end, limit)) for wanted, limit in limits)
    return [wanted for wanted in clipped if wanted.first < wanted.end]


def plan_ranges(waiting: Sequence[Range], limit: int) -> list[Range]:
    lengths = shares([wanted.end - wanted.first for wanted in waiting], limit)
    return [wanted._replace(end=wanted.first + length) for wanted, length in zip(waiting, lengths, strict=True)]


def shares(wanted: Sequence[int], limit: int) -> list[int]:
    """Divide `limit` into equal shares of at least 1, up to the `wanted` amounts. The others get what remains."""
    amounts = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for count, i in enumerate(order):
        amounts[i] = max(1, min(wanted[i], limit // (len(order) - count)))
        limit = max(0, limit - amounts[i])
    return amounts
