"""The same events by files, one partition and eight partitions, in any deliveries: the same table of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.connect.kafka.source.ranges import KafkaOffsets
from lake.ops import pipeline
from lake.store.log import source_position
from lake.testing import Lakehouse
from tests.processes import PATIENCE
from tests.servers.kafka import Kafka
from tests.shop import contract, declare, empty, job

FIELDS: Final[dict[str, dict[str, Any]]] = {
    "sales": {"account": "string", "id": "long", "at": "timestamp", "pence": "int"},
    "rates": {"account": "string", "id": "long", "since": "timestamp", "rate": "int"},
}
BY: Final = 'sequence=("at", "id")'
KINDS: Final = {
    "newest": f'Latest("account", {BY})',
    "oldest": f'First("account", {BY})',
    "past": f'History("account", {BY})',
    "sums": """Aggregate("account",
        measures={"n": Count(), "sum": Sum("pence"), "was": FirstValue("id", by=("at", "id"))})""",
    "ranked": 'View(key=(), identity="id")',
    "folded": f"""Fold("account", {BY}, state="sum long, steps int", start={{"sum": 0, "steps": 0}},
        step={{"sum": "state.sum * 3 % 100003 + event.pence", "steps": "state.steps + 1"}})""",
    "dips": f"""Pattern("account", {BY}, steps=[Step("any"), Step("down", "pence < prev.pence", times="+")],
        measures={{"since": FirstOf("id"), "n": Count()}})""",
    "rated": 'Enrich("id", AsOf("account", time="since"), time="at")',
    "pairs": """Join("account", left="id", right="since", how="left", within=timedelta(hours=1),
        times=("at", "since"))""",
}
"""Of each kind a table that goes by a total sequence, or by no order at all."""
RETURNS: Final = {
    "ranked": 'rows.selectExpr("id", "account", "pence", "rank() OVER (ORDER BY pence, id) AS place")',
    "rated": '(rows, rows1.selectExpr("account", "since", "rate"))',
    "pairs": '(rows, rows1.selectExpr("account", "since", "rate"))',
}
BY_THE_LOG: Final = {
    "last_said": 'Latest("account")',
    "first_said": 'First("account", sequence="at")',
    "said": 'Fold("account", state="id long", step={"id": "event.id"})',
}
"""Tables that go by the order of the log."""


def house(folder: Path, jobs: dict[str, str]) -> Lakehouse:
    texts = {
        name: job(
            name, kind, 'log("sales")', *['log("rates")'] * (name in {"rated", "pairs"}), returns=RETURNS.get(name, "")
        )
        for name, kind in jobs.items()
    }
    about = {"sales": {"time": "at", "id": ["id"]}, "rates": {"time": "since", "id": ["account", "since"]}}
    contracts = [contract(stream, fields, **about[stream]) for stream, fields in FIELDS.items()]
    settings = empty(folder)
    declare(settings, *contracts, jobs=texts)
    return Lakehouse(settings.project, folder / "home")


def from_topics(house: Lakehouse, kafka: Kafka, topics: dict[str, str], records: int) -> None:
    folder = house.source.project / "sources"
    folder.mkdir()
    lines = "".join(f'{stream} = {{ topic = "{topic}" }}\n' for stream, topic in topics.items())
    said = f'kind = "kafka"\nbootstrap = "{kafka.bootstrap}"\nrecords = {records}\n[streams]\n{lines}'
    (folder / "shop.toml").write_text(said)


def random_records(dice: Random) -> dict[str, list[dict[str, Any]]]:
    """Return random records, several of one time, in no order."""
    records: dict[str, list[dict[str, Any]]] = {"sales": [], "rates": []}
    for number in range(240):
        at = f"2024-05-0{dice.randint(1, 3)}T{dice.randint(0, 23):02}:{dice.choice('03')}0:00Z"
        records["sales"].append({"account": dice.choice("abcde"), "id": number, "at": at, "pence": dice.randint(0, 99)})
    for number in range(60):
        at = f"2024-05-01T{number % 24:02}:{number // 24}5:00Z"  # A distinct time
        records["rates"].append(
            {"account": dice.choice("abcdef"), "id": number, "since": at, "rate": dice.randint(1, 9)}
        )
    for each in records.values():
        dice.shuffle(each)
    return records


def send_records(
    kafka: Kafka, records: dict[str, list[dict[str, Any]]], partitions: int, dice: Random
) -> dict[str, str]:
    """Return topics with the records in random partitions, so that keys span all of them."""
    topics = {stream: kafka.topic(partitions=partitions) for stream in records}
    producer = kafka.producer()
    for stream, each in records.items():
        for record in each:
            producer.produce(topics[stream], json.dumps(record), partition=dice.randrange(partitions))
    assert producer.flush(PATIENCE) == 0
    return topics


def cycles(house: Lakehouse, spark: SparkSession, kafka: Kafka) -> tuple[int, str]:
    """Run with one delivery at a time until nothing is left; return the number of runs and their output."""
    done, said = 0, list[str]()
    while True:
        pipeline.run(house.settings, lambda: spark, said.append, batches=1)
        done += 1
        progress = source_position(house.settings, "shop", ("rates", "sales")).progress
        assert progress is not None
        ends = KafkaOffsets.of(progress).ends()
        if sum(end for _, _, end in ends) == sum(kafka.high(topic) for topic in progress["topics"]):
            return done, "\n".join(said)


@pytest.mark.parametrize("seed", range(2))
def test_kinds_are_equal_for_any_partitions_and_deliveries(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = Random(seed)
    records = random_records(dice)
    landed = house(tmp_path / "landed", KINDS)
    for stream, each in records.items():
        landed.land(stream, *each)
    landed.run()
    whole = {table: landed.table(table) for table in KINDS}
    assert all(whole.values())
    for partitions in (1, 8):
        streamed = house(tmp_path / f"shop{partitions}", KINDS)
        topics = send_records(kafka, records, partitions, dice)
        from_topics(streamed, kafka, topics, dice.randint(90, 140))
        done, said = cycles(streamed, spark, kafka)
        assert done > 2
        assert "came first" not in said + capsys.readouterr().out
        assert {table: streamed.table(table) for table in KINDS} == whole


def test_tables_ordered_by_the_log_are_named_if_keys_span_partitions(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = Random(3)
    records = random_records(dice)
    for partitions in (1, 8):
        streamed = house(tmp_path / f"shop{partitions}", KINDS | BY_THE_LOG)
        from_topics(streamed, kafka, send_records(kafka, records, partitions, dice), 10_000)
        _, said = cycles(streamed, spark, kafka)
        lines = [line for line in (said + capsys.readouterr().out).splitlines() if "came first" in line]
        named = {table for table in KINDS | BY_THE_LOG for line in lines if f"{table} goes by" in line}
        assert named == (set() if partitions == 1 else {*BY_THE_LOG})
