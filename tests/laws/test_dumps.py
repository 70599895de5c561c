"""Full dumps with rejected records, beside a model in plain Python."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import History, Latest
from lake.kinds.kind import Kind
from tests.laws.models import dumps as model

SCHEMA = """key int, a int, at int, part int,
    _order struct<_batch: bigint, _arrival: bigint, _bucket: int, _offset: bigint>, _sign int,
    _delivered struct<file: string, dump: string, refusal: string, id: string>"""


def frame(spark: SparkSession, told: list[model.Told]) -> DataFrame:
    return spark.createDataFrame(
        [
            (
                each.key,
                each.value,
                each.dump,
                each.part if each.part < 2 else None,
                (*each.place, 0 if each.what is None else -1, each.place[1]),
                1,
                (each.file, each.own, each.what, each.id),
            )
            for each in told
        ],
        SCHEMA,
    )


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(8), range(8, 60)], ids=["some", "many"])
def test_dump_with_a_rejected_record_closes_no_key(spark: SparkSession, seeds: range) -> None:
    """A history for each seed, half of them of logs that name their dumps."""
    _check(spark, {}, seeds, parts=1)


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(4), range(4, 60)], ids=["some", "many"])
def test_dump_of_a_partition_closes_keys_absent_from_all_partitions(spark: SparkSession, seeds: range) -> None:
    """Dumps of three partitions, one of them null; keys move between them."""
    _check(spark, {"partition": "part"}, seeds, parts=3)


def _check(spark: SparkSession, options: Mapping[str, Any], seeds: range, *, parts: int) -> None:
    """Assert that the histories of logs, and the newest rows, equal those of the model."""
    history = History("key", sequence="at", track="a", snapshots=True, **options)
    latest = Latest("key", sequence="at", snapshots=True, **options)
    logs = {seed: model.random_log(seed, named=seed % 2 == 0, parts=parts) for seed in seeds}
    for start in range(0, len(logs), 8):
        some = list(logs)[start : start + 8]
        rows = {seed: frame(spark, logs[seed]) for seed in some}
        versions = _of_all(history, rows).select("seed", "key", "a", "valid_from", "valid_to").collect()
        newest = _of_all(latest, rows).select("seed", "key", "a").collect()
        for seed in some:
            expected = model.history(logs[seed])
            assert {tuple(row)[1:] for row in versions if row.seed == seed} == expected, seed
            current = {(key, value) for key, value, _, until in expected if until is None}
            assert {tuple(row)[1:] for row in newest if row.seed == seed} == current, seed
    assert any(model.partial(told) for told in logs.values())


def _of_all(kind: Kind, rows: Mapping[int, DataFrame]) -> DataFrame:
    tables = [kind.evaluate(of).withColumn("seed", F.lit(seed)) for seed, of in rows.items()]
    return reduce(DataFrame.unionByName, tables)
