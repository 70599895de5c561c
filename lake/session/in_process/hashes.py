"""xxHash64 as Spark computes it, as functions of DuckDB. Source: XXH64.java of Spark 4.2, seed 42."""

from __future__ import annotations

import atexit
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

HASH: Final = "spark_hash_"
Encode = Callable[[Any], bytes]
FUNCTIONS: Final[dict[str, tuple[str, Encode]]] = {
    f"{HASH}int": ("INTEGER", struct.Struct("<i").pack),
    f"{HASH}long": ("BIGINT", struct.Struct("<q").pack),
    f"{HASH}text": ("VARCHAR", str.encode),
}
"""{name in DuckDB: (type of its first argument, bytes that are hashed)}. The second argument is the seed."""
_REGISTERED: Final = list["duckdb.DuckDBPyConnection"]()


def register_hashes(database: duckdb.DuckDBPyConnection) -> None:
    """Give a database the functions, once; they live as long as this connection to it, or the process."""
    if database in _REGISTERED:
        return
    _REGISTERED.append(database)
    for name, (type_, encode) in FUNCTIONS.items():
        database.create_function(name, _by(encode), [type_, "BIGINT"], "BIGINT", type="arrow")  # type: ignore[call-overload]
        atexit.register(database.remove_function, name)  # it would report them as leaked


def _by(encode: Encode) -> Callable[..., Any]:
    return lambda values, seeds: _hashed(encode, values, seeds)  # DuckDB evaluates annotations, so it has none


def _hashed(encode: Encode, values: pa.Array, seeds: pa.Array) -> pa.Array:
    import pyarrow as pa
    from xxhash import xxh64_intdigest

    both = zip(values.to_pylist(), seeds.to_pylist(), strict=True)
    hashes = [None if value is None else xxh64_intdigest(encode(value), seed % (1 << 64)) for value, seed in both]
    return pa.array([hash_ and (hash_ + (1 << 63)) % (1 << 64) - (1 << 63) for hash_ in hashes], pa.int64())
