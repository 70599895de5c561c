"""Full dumps of which records were refused, beside a model in plain Python."""

from __future__ import annotations

from functools import reduce

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import History
from tests.laws.models import dumps as model

SCHEMA = """key int, a int, at int,
    _order struct<_batch: bigint, _arrival: bigint, _bucket: int, _offset: bigint>, _sign int,
    _delivered struct<file: string, dump: string, refusal: string, id: string>"""


def frame(spark: SparkSession, told: list[model.Told]) -> DataFrame:
    return spark.createDataFrame(
        [
            (
                each.key,
                each.value,
                each.dump,
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
def test_a_dump_with_a_refused_record_closes_nobody(spark: SparkSession, seeds: range) -> None:
    """A history for each seed, half of them of logs that name their dumps."""
    kind = History("key", sequence="at", track="a", snapshots=True)
    logs = {seed: model.random_log(seed, named=seed % 2 == 0) for seed in seeds}
    for start in range(0, len(logs), 8):
        some = list(logs)[start : start + 8]
        tables = [kind.evaluate(frame(spark, logs[seed])).withColumn("seed", F.lit(seed)) for seed in some]
        found = reduce(DataFrame.unionByName, tables).select("seed", "key", "a", "valid_from", "valid_to").collect()
        for seed in some:
            assert {tuple(row)[1:] for row in found if row.seed == seed} == model.history(logs[seed]), seed
    assert any(model.partial(told) for told in logs.values())
