"""The table of values through files, taps and replays: stated values, reasons and `_extra`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Final

import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.config import Settings
from tests import shop
from tests.ingest.every_way import FILES, Way, differences, jsonl, land
from tests.ingest.test_renames import lake
from tests.records.table import Case, cases, table_contract

TAP: Final = """
import json
print(json.dumps({"type": "SCHEMA", "stream": "tap", "schema": {}, "key_properties": ["id"]}))
for line in open("tap.jsonl"):
    print('{"type":"RECORD","stream":"tap","record":' + line.strip("\\n") + "}")
print(json.dumps({"type": "STATE", "value": {}}))
"""


def declare_tap(settings: Settings, table: Sequence[Case]) -> None:
    settings.path("tap.py").write_text(TAP)
    settings.path("tap.jsonl").write_bytes(jsonl(table))
    settings.path("sources").mkdir(exist_ok=True)
    command = json.dumps([sys.executable, "tap.py"])
    settings.path("sources/tap.toml").write_text(f'kind = "tap"\ncommand = {command}\n[streams]\ntap = "tap"\n')


@pytest.mark.parametrize(
    ("read_bytes", "again"),
    [(cost.READ_BYTES, False), *(pytest.param(size, True, marks=pytest.mark.long) for size in (cost.READ_BYTES, 0))],
    ids=["here", "here, again and by a tap", "by tasks, again and by a tap"],
)
def test_files_taps_and_replays_give_the_stated_values(
    read_bytes: int, again: bool, project: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "READ_BYTES", read_bytes)
    table = cases(3, 60 if again else 4)
    shop.declare(project, table_contract("files"))
    land(project, "files", table, FILES)
    if again:
        shop.declare(project, table_contract("tap"), table_contract("again", fields={"must": "long"}))
        land(project, "again", table, FILES)
        declare_tap(project, table)
    lake(project, "ingest")
    ways = [Way("files", format, carries) for format, (carries, _) in FILES.items()]
    if again:
        shop.declare(project, table_contract("again", fields={"must": "long?"}))
        lake(project, "quarantine", "replay", "again")
        ways += [Way("tap"), *(Way("again", way.format, way.carries) for way in ways)]
    assert not differences(project, table, ways)
