"""Spools: records and columns of records are on disk in their order, each with its facts."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.config import Settings
from lake.sources import spool
from lake.sources.source import SourceRecord


@pytest.mark.parametrize("seed", range(30))
def test_spool_keeps_records_and_columns_in_one_file_in_order(
    project: Settings, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(spool, "GROUP_ROWS", random.choice([1, 3, 20_000]))
    monkeypatch.setattr(spool, "GROUP_BYTES", random.choice([10, 100, 16 << 20]))
    expected: list[tuple[str, str, dict[str, str]]] = []
    with spool.new_spool(project, "shop") as writer:
        for _ in range(random.randint(1, 10)):
            names = random.sample(["kafka.key", "kafka.offset", "kafka.headers.a"], random.randint(0, 3))
            rows = [a_row(random, names) for _ in range(random.choice([0, 1, 2, 7]))]
            expected += rows
            if random.random() < 0.4:
                for text, place, facts in rows:
                    writer.put("events", SourceRecord(text, place, facts))
            else:
                texts = pa.array([text for text, _, _ in rows], pa.large_string())
                places = pa.array([place for _, place, _ in rows], pa.string())
                facts = {name: pa.array([said.get(name) for _, _, said in rows], pa.string()) for name in names}
                writer.put_many("events", texts, places, facts)
        kept = spool.keep(project, "shop", 1, writer, {"to": 1})
    assert kept.streams == (("events",) if expected else ())
    if expected:
        table = pq.read_table(kept.file("events"))
        assert table.schema.equals(spool.SCHEMA)
        found = [(row["_raw"], row["_at"], dict(row["_facts"])) for row in table.to_pylist()]
        assert found == expected
        assert table["_seq"].to_pylist() == list(range(len(expected)))


def a_row(random: Random, names: list[str]) -> tuple[str, str, dict[str, str]]:
    facts = {name: random.choice(["", "é", "x" * 50]) for name in names if random.random() < 0.7}
    return random.choice(["{}", "ü", "\x00", '{"a": 1}']), f"e/0:{random.randrange(1000)}", facts
