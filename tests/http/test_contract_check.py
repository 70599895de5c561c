"""Contract checks of posted records: the same rejections as by the log."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.records.single_reader import SingleReader
from lake.serve.intake_folder import GroupWriter, IntakeFolder
from lake.store import duckdb_tables, quarantine
from lake.store.log import Log
from tests.records.test_single import BYTES, CONTRACTS, FACTS, MAKERS
from tests.shop import declare, empty

RECORDS: Final = 1500
STREAMS: Final = ("things", "nested", "strict")


def objects(make: Any, chance: random.Random) -> Iterator[str]:
    """Yield records that are JSON objects, which the server checks before contracts."""
    while True:
        text = make(chance)
        try:
            if isinstance(json.loads(text), dict) and "NaN" not in text and "Infinity" not in text:
                yield text.strip()
        except ValueError:
            pass


@pytest.mark.long
@pytest.mark.parametrize("count", [RECORDS // 4, RECORDS])
def test_intake_rejects_the_same_records_as_the_log_for_the_same_reasons(
    tmp_path: Path, spark: SparkSession, count: int
) -> None:
    settings, chance = empty(tmp_path / "shop", f"record_bytes = {BYTES}\n"), random.Random(18)
    declare(settings, *(CONTRACTS[stream] for stream in STREAMS))
    settings.path("sources").mkdir()
    settings.path("sources/web.toml").write_text('kind = "http"\n')
    contracts = load_contracts(settings)
    makers = {stream: objects(MAKERS[stream], chance) for stream in STREAMS}
    posted = [(stream, next(make)) for _ in range(count) for stream, make in makers.items()]
    facts = [FACTS | {"http.id": f"é {number}"} for number in range(len(posted))]
    lines = [json.dumps([*each, of]).encode() + b"\n" for each, of in zip(posted, facts, strict=True)]
    writer = GroupWriter(IntakeFolder.of(settings, "web"))
    writer.put(lines, len(lines))
    writer.close()
    ingest(settings, lambda: spark, contracts, ["web"], now=datetime(2026, 1, 1, tzinfo=UTC))
    by_log: dict[int, Any] = {}
    for stream in contracts:
        for each in quarantine.rejected(settings, stream, upto=1):
            by_log[int(each.source.rpartition(":")[2])] = (each.reason, each.detail)
    by_intake = {}
    for stream in STREAMS:
        numbers = [number for number, (of, _) in enumerate(posted) if of == stream]
        records = [(posted[number][1].encode("utf-8", "surrogatepass"), facts[number]) for number in numbers]
        for index, refusal in SingleReader(contracts[stream], BYTES).rejections(records):
            by_intake[numbers[index]] = (refusal.reason, refusal.detail)
    wrong = [
        f"{posted[number]}: {by_intake.get(number)}; by the log {by_log.get(number)}"
        for number in sorted(by_log.keys() | by_intake.keys())
        if by_log.get(number) != by_intake.get(number) and by_log.get(number, ("",))[0] != "too far ahead"
    ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:30])
    accepted = "SELECT count(*) AS n FROM t WHERE _refusal IS NULL"
    assert sum(duckdb_tables.rows(Log(settings, name).path, accepted)[0]["n"] for name in contracts) > count / 3
    told = {reason for reason, _ in by_intake.values()}
    assert {"oversized", "unparseable", "missing field", "wrong type", "not in enum", "out of bounds"} <= told
    assert {"null event time", "unknown field"} | ({"null key"} if count == RECORDS else set()) <= told
