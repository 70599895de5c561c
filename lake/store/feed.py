"""The change feed of a table between the versions of two editions, where fingerprints prove that it tells all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from lake import cost
from lake.store import delta
from lake.store.ledger.editions import EditionTable
from lake.store.proof.fingerprints import MODULUS, Fingerprint, duck_hash, duck_values
from lake.store.storage import Address

if TYPE_CHECKING:
    import duckdb

FEED: Final = "feed"
SIGN: Final = "_feed_sign"
"""The column of FEED that says +1 of a row that came and -1 of one that went."""


def proven_feed(con: duckdb.DuckDBPyConnection, path: Address, old: EditionTable, new: EditionTable) -> bool:
    """Makes FEED, a table of `con`: the rows, state included, that came and went from version `old` to `new`.

    False, and rows have to be compared, where the feed does not reach back, or rows and fingerprint of the one version
    and what came and went do not make those of the other: a commit was lost and its number taken again, say. And where
    fingerprints are not known, as of personal tables, or the two are so far apart or the table so small that to compare
    costs no more.
    """
    near = 0 < new.version - old.version <= cost.FEED_COMMITS and (new.rows or 0) >= cost.FEED_ROWS
    if not near or old.content is None or new.content is None:
        return False
    try:
        hashed = _load(con, path, after=old.version, upto=new.version)
    except Exception:  # whatever deltalake says of a gap
        return False
    count, total = con.sql(f"SELECT sum({SIGN}), sum({SIGN} * ({hashed})::HUGEINT) FROM {FEED}").fetchall()[0]
    changed = Fingerprint(int(count or 0), int(total or 0) % MODULUS)
    return Fingerprint.parse(old.content) + changed == Fingerprint.parse(new.content)


def _load(con: duckdb.DuckDBPyConnection, path: Address, *, after: int, upto: int) -> str:
    """Makes FEED; SQL of the hash of one of its rows."""
    import pyarrow as pa

    with delta.writable(path, upto) as table:
        fields = [(field["name"], field["type"]) for field in json.loads(table.schema().to_json())["fields"]]
        stream = pa.RecordBatchReader.from_stream(table.load_cdf(starting_version=after + 1, ending_version=upto))
    con.register("stream", stream)
    sign = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"
    values = duck_values(fields, stream.schema.names)
    con.execute(f"CREATE TEMP TABLE {FEED} AS SELECT {values}, {sign} AS {SIGN} FROM stream")
    con.unregister("stream")
    return duck_hash(fields)
