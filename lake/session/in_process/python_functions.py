"""Python functions in DuckDB: those that a plan calls on Arrow arrays, and Spark's that DuckDB lacks.

The latter are xxHash64, clocks of time zones, logarithm and power, AES in Galois/Counter mode. Source:
XXH64.java and ExpressionImplUtils.java of Spark 4.2.
"""

from __future__ import annotations

import atexit
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from pyspark.sql.connect.expressions import UnresolvedFunction

from lake.session.in_process import fdlibm, zones
from lake.session.in_process.types import Value, duckdb_type, parsed_type

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql.connect.column import Column

PREFIX: Final = "spark_"
NONCE: Final = 12
"""Bytes of a nonce, before the encrypted ones."""
_REGISTERING: Final = Lock()
_REGISTERED: Final = list["duckdb.DuckDBPyConnection"]()
_NUMBERS: Final = count()


class ArrowFunction(UnresolvedFunction):
    """Call of a Python function over columns as Arrow arrays, found by its name as long as a plan has it."""

    def __init__(self, type_: str, work: Callable[..., pa.Array], columns: Sequence[Column]) -> None:
        super().__init__(f"{PREFIX}arrow_{next(_NUMBERS)}", [column._expr for column in columns])
        self.work, self.type = work, parsed_type(type_)
        ARROW_FUNCTIONS[self._name] = self

    def value(self, arguments: Sequence[Value]) -> Value:
        return Value(f"{self._name}({', '.join(argument.sql for argument in arguments)})", self.type)

    def in_duckdb(self) -> Callable[..., pa.Array]:
        return lambda *columns: self.work(*(column.combine_chunks() for column in columns))  # without annotations


ARROW_NAME: Final = re.compile(rf"{PREFIX}arrow_\d+")
ARROW_FUNCTIONS: Final = WeakValueDictionary[str, ArrowFunction]()
"""By name in DuckDB."""


@contextmanager
def arrow_functions(con: duckdb.DuckDBPyConnection, query: str) -> Iterator[str]:
    """Yield `query`, which calls functions over Arrow by names of its own that `con` has while the block runs.

    Queries that run at the same time may call one function, and share its database.
    """
    of_query = f"_{next(_NUMBERS)}"
    called = {name + of_query: ARROW_FUNCTIONS[name] for name in ARROW_NAME.findall(query)}
    for name, function in called.items():
        made = duckdb_type(function.type)
        con.create_function(name, function.in_duckdb(), None, made, type="arrow", null_handling="special")  # type: ignore[call-overload]
    try:
        yield ARROW_NAME.sub(rf"\g<0>{of_query}", query)
    finally:
        for name in called:
            con.remove_function(name)


def register(database: duckdb.DuckDBPyConnection) -> None:
    """Give a database the functions, once; they live as long as this connection to it, or the process."""
    with _REGISTERING:
        if database in _REGISTERED:
            return
        for name, (made, function) in BY_ROW.items():
            _create(database, PREFIX + name, made, _by_row(function, ARROW[made]))
        for name in (zones.FROM_UTC, zones.TO_UTC):
            _create(database, name, "BIGINT", partial(_converted, name))
        _REGISTERED.append(database)


def _create(database: duckdb.DuckDBPyConnection, name: str, made: str, work: Callable[..., pa.Array]) -> None:
    """Callers give arguments of the right types: no types are declared, as DuckDB would read annotations for them."""
    unannotated = lambda *columns: work(*columns)  # noqa: E731, PLW0108  DuckDB would read them
    database.create_function(name, unannotated, None, made, type="arrow")  # type: ignore[call-overload]
    atexit.register(database.remove_function, name)  # it would report them as leaked


def _converted(direction: str, instants: pa.Array, zone_names: pa.Array) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = pc.fill_null(instants, 0).to_numpy(zero_copy_only=False)
    moved = np.zeros(len(micros), np.int64)
    if (micros >= zones.END).any():
        raise ValueError("a late time")
    for zone in pc.unique(zone_names).to_pylist():
        at = pc.equal(zone_names, zone).to_numpy(zero_copy_only=False)
        limits, shifts = _shifts(zone, direction)
        moved[at] = micros[at] + shifts[np.searchsorted(limits, micros[at], side="right")]
    return pa.array(moved, pa.int64(), mask=pc.is_null(instants).to_numpy(zero_copy_only=False))


@cache
def _shifts(zone: str, direction: str) -> Any:
    """Return the instants of `zones.clock_offsets`, and the microseconds to add from each on, as arrays."""
    import numpy as np

    limits, offsets = zones.clock_offsets(zone, direction)
    return np.array(limits, np.int64), np.array(offsets, np.int64) * (1 if direction == zones.FROM_UTC else -1)


def _by_row(function: Callable[..., Any], made: str) -> Callable[..., pa.Array]:
    """Return a function of columns, whose value is null if an argument is."""

    def compute(*columns: pa.Array) -> pa.Array:
        import pyarrow as pa

        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([None if None in row else function(*row) for row in rows], pa.type_for_alias(made))

    return compute


def _hash(data: bytes, seed: int) -> int:
    from xxhash import xxh64_intdigest

    return (xxh64_intdigest(data, seed % (1 << 64)) + (1 << 63)) % (1 << 64) - (1 << 63)


def _encrypted(data: bytes, key: bytes, nonce: bytes, authenticated: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(nonce) != NONCE:
        raise ValueError(f"a nonce of {len(nonce)} bytes")
    return nonce + AESGCM(key).encrypt(nonce, data, authenticated)


def _decrypted(data: bytes, key: bytes, authenticated: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).decrypt(data[:NONCE], data[NONCE:], authenticated)


ARROW: Final = {"BIGINT": "int64", "DOUBLE": "double", "BLOB": "binary"}
"""{type in DuckDB: type in Arrow}."""
BY_ROW: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "hash_int": ("BIGINT", lambda value, seed: _hash(struct.pack("<i", value), seed)),
    "hash_long": ("BIGINT", lambda value, seed: _hash(struct.pack("<q", value), seed)),
    "hash_text": ("BIGINT", lambda value, seed: _hash(value.encode(), seed)),
    "ln": ("DOUBLE", fdlibm.ln),
    "power": ("DOUBLE", fdlibm.power),
    "aes_encrypt": ("BLOB", _encrypted),
    "aes_decrypt": ("BLOB", _decrypted),
}
"""{name behind PREFIX: (type of the result in DuckDB, function of one row)}."""
