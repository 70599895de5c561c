"""Many commits in little time: cycles whose events and changes are made without Spark, in everything else real ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lake.engine.inputs import Evaluation, Inputs
from lake.engine.rebuild import rebuild
from lake.engine.verbs import record_done
from lake.engine.write import write
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.publish.cut import cut
from lake.publish.publish import publish
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.store.rows import Rows
from lake.store.scan import Scan
from lake.store.table_head import CHANGE
from lake.store.upkeep.compaction import pack_table
from lake.store.warehouse import Warehouse

TOUCHED: Final = 200
"""So many rows of a table does a cycle change, by writing them again as they are."""

NEXT_BATCH: Final = """
    SELECT * REPLACE (
        _batch + 1 AS _batch,
        _offset + count(*) OVER (PARTITION BY _bucket) AS _offset,
        sha256(_id) AS _id,
        number + (SELECT count(*) FROM batch) AS number,
        _time + (SELECT max(_time) - min(_time) FROM batch) AS _time,
        "at" + (SELECT max(_time) - min(_time) FROM batch) AS "at",
        (SELECT max(_time) FROM batch) AS _watermark
    ) FROM batch"""


def forward(project: Project, stream: str, spark: Callable[[], SparkSession], *, batches: int) -> None:
    """As many cycles. Each batch is the one before, moved on in time; in the end the tables are what the log says."""
    last = Log(project.settings, stream).head().batch
    batch = Scan(Warehouse(project.settings).log(stream).path, bounds={"_batch": (last, last)}).arrow()
    diffs = {each.name: _same_again(project, each) for each in project.tables.values()}
    for _ in range(batches):
        batch = _append(project, stream, batch)
        pack_table(Warehouse(project.settings).log(stream).path, Log(project.settings, stream).head().position)
        inputs = Inputs(spark, project, cut(project))
        for declaration in project.tables.values():
            evaluation, began = Evaluation.of(inputs, declaration), datetime.now(UTC)
            record_done(evaluation, write(evaluation, Rows(diffs[declaration.name]), verb="advance"), began)
        publish(project, inputs.cut, spark, lambda _: None)
    for declaration in project.tables.values():
        rebuild(inputs, declaration)


def _same_again(project: Project, declaration: Declaration) -> pa.Table:
    """A diff that changes nothing, and rewrites what a cycle would."""
    rows = Scan(project.table(declaration).path).arrow(limit=TOUCHED)
    return rows.append_column(CHANGE, pa.array(["update"] * rows.num_rows, pa.string()))


def _append(project: Project, stream: str, batch: pa.Table) -> pa.Table:
    """Commits the batch that follows `batch`, and returns it."""
    with duckdb_tables.connection() as con:
        con.register("batch", batch)
        rows = con.sql(NEXT_BATCH).to_arrow_table().cast(batch.schema)
    log = Log(project.settings, stream)
    head = log.head()
    added = {each["values"]: each["counts"] for each in rows.column("_bucket").value_counts().to_pylist()}
    position = head.next(
        offsets={str(bucket): offset + added.get(bucket, 0) for bucket, offset in head.offsets.items()},
        watermark=pc.max(rows.column("_time")).as_py().isoformat(),
        counts=dict(head.counts),
        files=[{"path": f"{stream}/{head.batch + 1:06}.jsonl", "size": rows.nbytes, "mtime": head.batch}],
        contract=head.contract,
        at=head.at,
    )
    log.commit(project.contracts[stream], Rows(rows), position)
    return rows
