"""Ranges of offsets against a simulated cluster: every committed record once, in order, in any slicing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from lake.connect.kafka.source import ranges
from lake.connect.kafka.source.cluster import Cluster
from lake.connect.kafka.source.options import KafkaOptions
from lake.connect.kafka.source.reader import KafkaSource
from lake.sources.source import Gap, Progress
from tests.sources.kafka import Entry, MadeUp, Partition, options, places_of, stream
from tests.spool import Kept

SEEDS = range(60)


class SimulatedCluster(Cluster):
    def __init__(self, options: KafkaOptions, simulated: MadeUp) -> None:
        self.simulated = simulated
        super().__init__(options)

    def client(self, kind: object, defaults: object, ours: object) -> Any:
        return self.simulated


def source_of(cluster: MadeUp, *facts: str, **said: object) -> KafkaSource:
    chosen = options("nowhere:1", stream("events", *facts), topics={"events": "events"}, **said)
    source = KafkaSource(chosen)
    source.cluster = SimulatedCluster(chosen, cluster)
    cluster.on_commit = source.cluster._committed
    return source


def made_up(random: Random, *, steps: int = 20) -> MadeUp:
    partitions = [Partition() for _ in range(random.randint(1, 4))]
    for _ in range(steps):
        random.choice(partitions).append(random)
    return MadeUp(partitions, random)


def read_all(source: KafkaSource, after: Progress | None, kept: Kept) -> None:
    while (progress := source.read(after, kept)) is not None:
        after = progress


def end_transactions(cluster: MadeUp) -> None:
    for partition in cluster.partitions:
        partition.ended |= dict.fromkeys({e.transaction for e in partition.entries} - {*partition.ended, 0}, True)


def offsets(kept: Kept) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place in kept.places:
        partition, _, offset = place.partition("/")[2].partition(":")
        found.setdefault(int(partition), []).append(int(offset))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_slices_deliver_every_committed_record_once_in_order(seed: int) -> None:
    random = Random(seed)
    cluster, kept, after = made_up(random), Kept(), None
    for _ in range(random.randint(1, 12)):
        before: dict[int, int] = (
            {} if after is None else {int(p): r[1] for p, r in after["topics"]["events"]["ranges"].items()}
        )
        source = source_of(cluster, records=random.randint(1, 30), bytes=random.randint(1, 600))
        came = Kept()
        progress = source.read(after, came)
        assert list(offsets(came)) == sorted(offsets(came))
        kept.records += came.records
        ranges_ = progress["topics"]["events"]["ranges"] if progress else {}
        ends = before | {int(p): end for p, (_, end) in ranges_.items()}
        left = any(ends.get(p, 0) < each.end for p, each in enumerate(cluster.partitions))
        assert source.more == (left and progress is not None)
        if progress is not None:
            after = progress
            for p, (first, end) in progress["topics"]["events"]["ranges"].items():
                assert first == before.get(int(p), 0)
                assert first <= end <= cluster.partitions[int(p)].end
            source.acknowledge(progress)
            assert cluster.committed == {int(p): r[1] for p, r in progress["topics"]["events"]["ranges"].items()}
        if random.random() < 0.2:
            cluster.partitions.append(Partition())
        for _ in range(random.randint(0, 8)):
            random.choice(cluster.partitions).append(random)
        if after is not None and random.random() < 0.3:
            for p, (_, end) in after["topics"]["events"]["ranges"].items():
                cluster.partitions[int(p)].low = end
    end_transactions(cluster)
    read_all(source_of(cluster), after, kept)
    expected = {p: found for p, found in places_of(cluster.partitions).items() if found}
    assert offsets(kept) == expected
    assert all(
        text == f'{{"at": "{place.partition("/")[2]}"}}' for text, place in zip(kept.texts, kept.places, strict=True)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_kafka_range_repeats_the_same_records(seed: int) -> None:
    random = Random(seed)
    cluster = made_up(random)
    first, again = Kept(), Kept()
    progress = source_of(cluster, records=25).read(None, first)
    assert source_of(cluster, records=25).read(None, again) == progress
    assert (again.records, again.places) == (first.records, first.places)


def test_aborted_transaction_advances_the_position_without_records() -> None:
    random = Random(1)
    partition = Partition()
    partition.entries = [entry(1)] * 5 + [entry(1, data=False)]
    partition.ended[1] = False
    kept = Kept()
    progress = source_of(MadeUp([partition], random)).read(None, kept)
    assert progress is not None
    assert (kept.records, progress["topics"]["events"]["ranges"]) == ([], {"0": [0, 6]})
    partition.low = 6
    assert source_of(MadeUp([partition], random)).read(progress, kept) is None


def entry(transaction: int, *, data: bool = True) -> Entry:
    return Entry(transaction, data)


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_divide_the_limit_and_never_exceed_demand(seed: int) -> None:
    random = Random(seed)
    wanted = [random.choice([1, random.randint(1, 50), random.randint(1, 5000)]) for _ in range(random.randint(1, 9))]
    most = random.randint(1, 6000)
    given = ranges.shares(wanted, most)
    assert all(1 <= share <= want for share, want in zip(given, wanted, strict=True))
    assert sum(given) <= max(most, len(wanted))
    assert given == wanted or sum(given) >= most - len(wanted)
    short = [share for share, want in zip(given, wanted, strict=True) if share < want]
    assert not short or max(short) - min(short) <= 1
    assert not short or max(given) <= max(short)


@pytest.mark.parametrize("seed", range(60))
def test_kafka_gap_is_reported_with_its_fix_and_passed_by_give_up(seed: int) -> None:
    random = Random(seed)
    cluster = made_up(random, steps=40)
    source = source_of(cluster, records=20)
    after = source.read(None, Kept())
    assert after is not None
    kind = random.choice(["cluster", "topic", "retention", "lost", "added"])
    place = random.randrange(len(cluster.partitions))
    partition = cluster.partitions[place]
    match kind:
        case "cluster":
            cluster.id = "another"
        case "topic":
            cluster.topic_id = "another"
        case "retention":
            partition.entries += [entry(0)] * 40
            partition.low = len(partition.entries) - 5
        case "lost":
            cluster.partitions[place] = partition = Partition()
        case "added":
            cluster.partitions.append(partition := Partition(low=3))
            partition.entries += [entry(0)] * 9
    was = after["topics"]["events"]["ranges"].get(str(place), [0, 0])[1]
    if kind == "lost" and not was:
        assert isinstance(source.read(after, Kept()), dict | None)
        return
    with pytest.raises(Gap) as told:
        source.read(after, Kept())
    assert told.value.where == "sources/shop.toml"
    assert "lake ingest shop --give-up" in told.value.fix
    assert {
        "cluster": "the offsets belong to",
        "topic": "recreated",
        "retention": "deleted",
        "lost": "ends at 0",
        "added": "0 to 2 were deleted",
    }[kind] in told.value.what
    mended = source.skip_gap(after)
    kept = Kept()
    if kind == "added":
        end_transactions(cluster)  # Open transactions stand before new partitions too
    read_all(source_of(cluster), mended, kept)
    assert source.lag(after).events == source.lag(mended).events
    started = {int(p): r[1] for p, r in mended["topics"]["events"]["ranges"].items()}
    restarted = kind in {"cluster", "topic"}
    for p, partition in enumerate(cluster.partitions):
        before = after["topics"]["events"]["ranges"].get(str(p), [0, 0])[1]
        least = partition.low if restarted else min(max(before, partition.low), len(partition.entries))
        assert started[p] == least
    expected = {
        p: [at for at in partition.committed(partition.end) if at >= started[p]]
        for p, partition in enumerate(cluster.partitions)
    }
    assert offsets(kept) == {p: found for p, found in expected.items() if found}


def test_new_partitions_begin_at_offset_0_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    random = Random(3)
    cluster = MadeUp([Partition([entry(0)] * 3)], random)
    source, kept = source_of(cluster), Kept()
    after = source.read(None, kept)
    cluster.partitions.append(Partition([entry(0)] * 2))
    with caplog.at_level(logging.WARNING, "lake"):
        after = source.read(after, kept)
    assert offsets(kept) == {0: [0, 1, 2], 1: [0, 1]}
    assert "'events' has new partitions (1), which are read after the present records of the others" in caplog.text
    caplog.clear()
    assert source.read(after, kept) is None
    assert not caplog.text


def test_excluded_topic_keeps_its_position_until_it_is_named_again() -> None:
    position = ranges.KafkaOffsets("c", {"old": ranges.TopicOffsets("o", {0: (1, 9)})})
    here = {"new": ranges.TopicState("n", {0: ranges.PartitionBounds(2, 7, 7)})}
    behind = position.after_reading(here, [ranges.Range("new", 0, 2, 5)])
    assert behind.topics["old"] == position.topics["old"]
    assert behind.topics["new"] == ranges.TopicOffsets("n", {0: (2, 5)})
    assert ranges.KafkaOffsets.of(behind.progress) == behind


@pytest.mark.parametrize("seed", range(40))
def test_kafka_lag_has_the_waiting_records_and_the_age_of_the_oldest(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    cluster = made_up(random)
    source = source_of(cluster, records=random.randint(1, 40))
    after = source.read(None, Kept())
    monkeypatch.setattr("time.time", lambda: 1000.0)
    begun = {} if after is None else {int(p): r[1] for p, r in after["topics"]["events"]["ranges"].items()}
    waiting = {p: [at for at in found if at >= begun.get(p, 0)] for p, found in places_of(cluster.partitions).items()}
    first = [min(found) for found in waiting.values() if found]
    lag = source.lag(after)
    assert lag.events == sum(partition.end - begun.get(p, 0) for p, partition in enumerate(cluster.partitions))
    assert lag.seconds == (1000.0 - (min(first) + 1) if first else None)
    assert lag.retained is None


KEYS = 7


@dataclass
class Keyed(MadeUp):
    """Topic with records of some keys by one producer, and transactions without a key by another."""

    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By era, partition and offset, the key of a record and its number in the order in which they were sent."""
    restarted: int = 0

    def send(self) -> None:
        """Send a record of a key to the key's current partition; then perhaps another record."""
        key = self.random.randrange(KEYS)
        part = key * 2654435761 // 7 % len(self.partitions)
        entries = self.partitions[part].entries
        self.sent[f"{self.restarted}/{part}:{len(entries)}"] = key, len(self.sent)
        entries.append(Entry(0, True))
        if self.random.random() < 0.3:
            self.random.choice(self.partitions).append(self.random)

    def recreate(self) -> None:
        self.restarted += 1
        self.topic_id = f"topic{self.restarted}"
        self.partitions = [Partition() for _ in range(self.random.randint(1, 3))]

    def lose(self, ends: Mapping[str, Sequence[int]]) -> None:
        """Restore a partition to an earlier state: offsets already read are assigned again."""
        part = self.random.randrange(len(self.partitions))
        if end := ends.get(str(part), (0, 0))[1]:
            self.partitions[part].entries = self.partitions[part].entries[: self.random.randrange(end)]
            self.restarted += 1


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.long) for n in range(20, 400))])
def test_log_order_follows_records_of_a_key_across_partitions(seed: int) -> None:
    """Partitions are added, and topics are recreated or restored, between reads of any size."""
    random = Random(seed)
    cluster = Keyed([Partition() for _ in range(random.randint(1, 3))], random)
    read: list[tuple[int, int, int]] = []
    after: Progress | None = None

    def take(times: int, **said: int) -> None:
        nonlocal after
        for _ in range(times):
            kept, source = Kept(), source_of(cluster, "kafka.offset", **said)
            try:
                progress = source.read(after, kept)
            except Gap:
                progress = source.skip_gap(after)
            for record in kept.records:
                found = cluster.sent.get(f"{cluster.restarted}/{record[1].place.partition('/')[2]}")
                if found is not None:
                    read.append((*found, int(record[1].facts["kafka.offset"])))
            if progress is None:
                return
            after = progress

    cluster.send()
    take(1)  # Partitions are added to a topic after its first read
    for _ in range(random.randint(5, 40)):
        match random.choice(["send"] * 6 + ["read"] * 3 + ["add", "recreate", "lose"]):
            case "send":
                for _ in range(random.randint(1, 12)):
                    cluster.send()
            case "read":
                take(random.randint(1, 4), records=random.randint(1, 9))
            case "add":
                if after and len(cluster.partitions) == len(after["topics"]["events"]["ranges"]):  # All were seen
                    cluster.partitions += [Partition() for _ in cluster.partitions]  # A key stays or moves
            case "recreate":
                cluster.recreate()
                take(2)
            case "lose":
                cluster.lose(after["topics"]["events"]["ranges"] if after else {})
                take(2)
    end_transactions(cluster)
    take(100)
    for key in range(KEYS):
        numbers = [number for of, number, _ in read if of == key]
        raised = [offset for of, _, offset in read if of == key]
        assert numbers == sorted(numbers)
        assert raised == sorted(set(raised))
