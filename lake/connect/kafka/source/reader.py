"""Kafka source: fixes offset ranges, reads them whole, and writes the group's offsets after the commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from lake.connect.kafka.source import ranges
from lake.connect.kafka.source.cluster import Cluster
from lake.connect.kafka.source.columns import TopicReader
from lake.connect.kafka.source.options import KafkaOptions
from lake.connect.kafka.source.ranges import KafkaOffsets, Range, TopicState
from lake.connect.kafka.source.values import decoders
from lake.sources.source import Lag, Progress, Spool


class KafkaSource:
    """Source for topics of one cluster. Connects on first use."""

    together = (("kafka", "partition"), ("kafka", "key"))
    offset = ("kafka", "offset")

    def __init__(self, options: KafkaOptions, connect: Callable[[KafkaOptions], Cluster] = Cluster) -> None:
        self.options = options
        self._connect = connect
        self._cluster: Cluster | None = None
        self.more = False

    @property
    def streams(self) -> tuple[str, ...]:
        return self.options.streams

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._connect(self.options)
        return self._cluster

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        position, cluster = self._position(after), self.cluster.id
        here = self._topics() if position.cluster == cluster else {}
        if faults := ranges.gaps(position, cluster, here, source=self.options.name, where=self.options.where):
            raise faults[0] if len(faults) == 1 else type(faults[0]).all(faults)
        position = self._with_added(position, here)
        waiting = ranges.waiting_ranges(position, here)
        planned = ranges.plan_ranges(ranges.before_barriers(position, waiting), self.options.records)
        taken = self._read_ranges(planned, position, spool)
        self.more = bool(taken) and [each.end for each in taken] != [each.end for each in waiting]
        if not taken:
            return None
        self.cluster.check_unchanged(here)
        return position.after_reading(here, taken).progress

    def _with_added(self, position: KafkaOffsets, here: Mapping[str, TopicState]) -> KafkaOffsets:
        added = ranges.added_partitions(position, here)
        for topic, partitions in added.items():
            logging.getLogger("lake").warning(
                "%s: the topic %r has new partitions (%s), which are read after what the others have by now",
                self.options.name,
                topic,
                ", ".join(map(str, partitions)),
            )
        return position.with_barriers(added, self._topics()) if added else position

    def _read_ranges(self, planned: list[Range], position: KafkaOffsets, spool: Spool) -> list[Range]:
        left, taken = self.options.bytes, []
        with decoders(self.options) as decode:
            readers = {
                topic.name: TopicReader(
                    topic, position.of_topic(topic.name), decode(topic.value, False), decode(topic.key, True)
                )
                for topic in self.options.topics
            }
            for place, wanted in enumerate(planned):
                share = left // (len(planned) - place)
                size, end = self._read_range(wanted, readers[wanted.topic], spool, share)
                left = max(0, left - size)
                taken.append(wanted._replace(end=end))
        return taken

    def _read_range(self, wanted: Range, reader: TopicReader, spool: Spool, most: int) -> tuple[int, int]:
        size, end = 0, wanted.first
        for messages, upto in self.cluster.read(wanted):
            end = upto
            if messages:
                columns = reader.columns(messages, wanted.partition)
                spool.put_many(reader.topic.stream, columns.texts, columns.places, columns.facts)
                size += columns.texts.nbytes
            if size >= most:
                break
        return size, end

    def acknowledge(self, upto: Progress) -> None:
        names = {topic.name for topic in self.options.topics}
        ends = [each for each in KafkaOffsets.of(upto).ends() if each[0] in names]
        if ends:
            self.cluster.commit(ends)

    def lag(self, after: Progress | None) -> Lag:
        """Return the number of waiting offsets, including holes and markers, and the age of the oldest record."""
        here = self._topics()
        position = self._position(after)
        if ranges.gaps(position, self.cluster.id, here, source="", where=""):
            position = ranges.without_gaps(position, self.cluster.id, here)
        waiting = ranges.waiting_ranges(position, here)
        oldest = self.cluster.oldest(waiting)
        events = sum(each.end - each.first for each in waiting)
        return Lag(events=events, seconds=None if oldest is None else max(0.0, time.time() - oldest))

    def partitions(self, after: Progress) -> Mapping[str, int]:
        taken = KafkaOffsets.of(after).topics
        return {topic.stream: len(taken[topic.name].ranges) for topic in self.options.topics if topic.name in taken}

    def skip_gap(self, after: Progress | None) -> Progress:
        here = self._topics()
        return ranges.without_gaps(self._with_added(self._position(after), here), self.cluster.id, here).progress

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _topics(self) -> dict[str, TopicState]:
        return self.cluster.topics(topic.name for topic in self.options.topics)

    def _position(self, after: Progress | None) -> KafkaOffsets:
        return KafkaOffsets(self.cluster.id) if after is None else KafkaOffsets.of(after)
