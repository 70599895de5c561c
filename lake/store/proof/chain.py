"""Proof of a log's content: each batch's commit has a fingerprint of its rows in each bucket, and a digest.

The digest (SHA-256) covers these and the digest of the batch before. A digest stored elsewhere proves later that the
log is unchanged up to that batch. Personal values, as stored, are summed separately: if a batch is written again after
a person was forgotten, only these sums differ.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from lake.contracts import encryption, origins
from lake.contracts.contract import Contract
from lake.lazy import DataFrame, F, pa
from lake.store import delta, duckdb_tables
from lake.store.duckdb_tables import TableFiles
from lake.store.log_head import LogHead
from lake.store.proof import fingerprints
from lake.store.proof.fingerprints import MODULUS, Field, Fingerprint
from lake.store.scan import Scan, Span, to_arrow
from lake.store.storage import Address

Fingerprints = dict[int, tuple[Fingerprint, ...]]
"""By bucket: the fingerprint of clear values and, in a log with persons, of sealed ones."""
PLACE: Final = ("_batch", "_bucket", "_offset")


def sealed_columns(contracts: Sequence[Contract]) -> list[str]:
    if not contracts[-1].sealed:
        return []
    physical = origins.columns(contracts)
    names = {
        physical[name, "string"] for contract in contracts for name in contract.sealed if (name, "string") in physical
    }
    return sorted({*names, encryption.EXTRA})


def fingerprinted(rows: DataFrame, sealed: Sequence[str], *, few: bool) -> tuple[pa.Table | DataFrame, Fingerprints]:
    table = _in_memory(rows) if few else None
    if table is not None:
        return table, of_batch(table, sealed)
    fields = fingerprints.fields_of_json(rows.schema.json())
    hashes = [f"sum({fingerprints.spark_hash(part)})" for part in _parts(fields, sealed)]
    counted = [F.expr(text).alias(f"_{number}") for number, text in enumerate(["count(1)", *hashes])]
    summed = rows.groupBy("_bucket").agg(*counted).collect()
    return rows, {bucket: _prints_of(sums) for bucket, *sums in map(tuple, summed)}


def of_batch(rows: pa.Table, sealed: Sequence[str] = ()) -> Fingerprints:
    fields = fingerprints.fields_of(rows.schema)
    with duckdb_tables.connection() as con:
        con.register("t", rows)
        values = f"SELECT {fingerprints.duck_values(fields, rows.column_names)} FROM t"
        sums = con.execute(f"SELECT _bucket, {_sums(fields, sealed)} FROM ({values}) GROUP BY ALL").fetchall()
    return {bucket: _prints_of(counted) for bucket, *counted in sums}


def _in_memory(rows: DataFrame) -> pa.Table | None:
    from pyspark.errors import PySparkException

    try:
        return to_arrow(rows)
    except PySparkException as error:
        if "spark.driver.maxResultSize" in str(error):
            return None
        raise


def _parts(fields: Sequence[Field], sealed: Sequence[str]) -> list[list[Field]]:
    """Return the columns that are fingerprinted together: the clear ones; the sealed ones with their row's place."""
    clear = [field for field in fields if field[0] not in sealed]
    return [clear, [field for field in fields if field[0] in {*sealed, *PLACE}]] if sealed else [clear]


def _sums(fields: Sequence[Field], sealed: Sequence[str], filled: Collection[str] = ()) -> str:
    hashes = [f"sum({fingerprints.duck_hash(part, filled=filled)}::HUGEINT)" for part in _parts(fields, sealed)]
    return ", ".join(["count(*)", *hashes])


def _prints_of(counted: Sequence[Any]) -> tuple[Fingerprint, ...]:
    rows, *totals = counted
    return tuple(Fingerprint(rows, int(total) % MODULUS) for total in totals)


def entry(before: Mapping[str, Any], batch: int, prints: Fingerprints, sealed: Sequence[str]) -> dict[str, Any]:
    content = {"buckets": {str(b): [str(p) for p in prints[b]] for b in sorted(prints)}, "sealed": list(sealed)}
    return content | {"digest": digest(before.get("digest", ""), batch, content)}


def digest(before: str, batch: int, content: Mapping[str, Any]) -> str:
    text = json.dumps([before, batch, content["buckets"], content["sealed"]], separators=(",", ":"), sort_keys=True)
    return sha256(text.encode()).hexdigest()


def same_in_clear(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    clear = [{bucket: prints[0] for bucket, prints in content["buckets"].items()} for content in (one, other)]
    return clear[0] == clear[1]


def breaks(heads: Sequence[LogHead]) -> Iterator[str]:
    before = ""
    for head in heads:
        content = head.content
        if content["digest"] != digest(before, head.batch, content):
            yield f"batch {head.batch}: its digest does not match its fingerprints and the batch before"
        before = content["digest"]


def heads_at(path: Address, heads: Sequence[LogHead], times: Span) -> list[LogHead]:
    """Return those `heads` whose batches may have events at `times`, by the file statistics in the log's commits.

    An event whose time was damaged is in a file whose statistics have the right time.
    """
    ranges = set(Scan(path, times=times).ranges("_batch"))
    return [head for head in heads if any(least <= head.batch <= most for least, most in ranges)]


def changes(path: Address, heads: Sequence[LogHead]) -> Iterator[str]:
    """Yield, by bucket, how files of the log at `path` differ from what the commits of `heads` recorded.

    Files without events of these batches are not read. Archived parts are read with the log; `path` may be such a part.
    """
    buckets = (
        (head.batch, int(bucket), prints) for head in heads for bucket, prints in head.content["buckets"].items()
    )
    wanted = {(batch, bucket): tuple(map(Fingerprint.parse, prints)) for batch, bucket, prints in buckets}
    sealed = {head.batch: tuple(head.content["sealed"]) for head in heads}
    stored: dict[tuple[int, int], tuple[Fingerprint, ...]] = {}
    files: dict[tuple[int, int], list[str]] = {}
    for columns in sorted(set(sealed.values())):  # batches with the same sealed columns
        batches = [batch for batch, names in sealed.items() if names == columns]
        for file, batch, bucket, *counted in _sums_by_file(path, columns, batches):
            prints = _prints_of(counted)
            before = stored.get((batch, bucket))
            stored[batch, bucket] = tuple(a + b for a, b in zip(before, prints, strict=True)) if before else prints
            files.setdefault((batch, bucket), []).append(file)
    for place in sorted({*wanted, *stored}):
        if wanted.get(place) != stored.get(place):
            yield _mismatch(place, wanted.get(place), stored.get(place), files.get(place, []))


def _sums_by_file(path: Address, sealed: Sequence[str], batches: Sequence[int]) -> list[tuple[Any, ...]]:
    bounds = {"_batch": (min(batches), max(batches))}
    with delta.opened(path) as table:
        paths = Scan(path, table.version(), bounds).files()
        if not paths:
            return []
        fields = fingerprints.fields_of_json(table.schema().to_json())
        with duckdb_tables.open_files(TableFiles(path, table, paths), by_file=True) as (con, columns):
            values = f"SELECT {duckdb_tables.FILE}, {fingerprints.duck_values(fields, columns)} FROM t"
            sums = _sums(fields, sealed, fingerprints.filled_columns(con, columns))
            return con.execute(
                f"SELECT {duckdb_tables.FILE}, _batch, _bucket, {sums} FROM ({values})"
                f" WHERE _batch BETWEEN {min(batches)} AND {max(batches)} AND _batch IN (SELECT unnest($1))"
                " GROUP BY ALL ORDER BY ALL",
                [list(batches)],
            ).fetchall()


def _mismatch(
    place: tuple[int, int],
    wanted: tuple[Fingerprint, ...] | None,
    stored: tuple[Fingerprint, ...] | None,
    files: Sequence[str],
) -> str:
    batch, bucket = place
    rows = [prints[0].rows if prints else 0 for prints in (wanted, stored)]
    if rows[0] != rows[1]:
        what = f"{rows[0]} rows were written, {rows[1]} were found"
    elif wanted and stored and wanted[0] == stored[0]:
        what = "the encrypted part of its rows is not what was written"
    else:
        what = "its rows are not what was written"
    return f"batch {batch}, bucket {bucket}: {what}{': ' if files else ''}{', '.join(files)}"
