"""Python over rows by key and in order: Arrow batches in, Arrow batches out.

A batch holds all rows of many keys, so a key costs no call of its own.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

from lake.errors import DeclarationError
from lake.kinds.sql_errors import raised_objects
from lake.lazy import Column, DataFrame, T, pa

Work: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch]"
Place = str | Mapping[str, str]
"""BATCH:BUCKET:OFFSET or BATCH::ARRIVAL of an event; {column: text} of a table's row; "" if unknown."""

SIDE: Final = "_input"  # field of the order of rows of several inputs: the input's number

_FAULT: Final = "lake fault "
_PICKLING: Final = threading.Lock()


class WorkerFault(Exception):
    """Fault of a job's Python function, as one line that survives the way back from a Spark worker."""

    def __init__(self, what: str, *, where: str, fix: str, order: Mapping[str, Any]) -> None:
        at = {"side": order.get(SIDE, 0), "place": place_of({name: order[name] for name in order if name != SIDE})}
        super().__init__(f"{_FAULT}{json.dumps({'what': what, 'where': where, 'fix': fix, **at})}")


def fault_of(error: BaseException) -> tuple[DeclarationError, int, Place] | None:
    """Return the fault of a job's Python function behind `error`, the input's number and the row's place."""
    if (raised := next(raised_objects(_FAULT, error), None)) is None:
        return None
    [fault, *_] = raised
    return DeclarationError(fault["what"], where=fault["where"], fix=fault["fix"]), fault["side"], fault["place"]


def place_of(order: Mapping[str, Any]) -> Place:
    if "_batch" not in order:
        return {name: "null" if value is None else str(value) for name, value in order.items()}
    if "_bucket" not in order:  # the form of state
        return f"{order['_batch']}::{order['_arrival']}"
    return ":".join(str(order[name]) for name in ("_batch", "_bucket", "_offset"))


def with_keys_together(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    return rows.repartition(*key) if key else rows.repartition(1)


def by_key(
    rows: DataFrame, key: Sequence[str], order: Sequence[Column | str], work: Work, out: T.StructType
) -> DataFrame:
    """Apply `work` to batches that hold all rows of their keys, sorted by `key`, then `order`; nulls come first.

    All rows of a key must be in one partition. Objects of `lake` and of the job's package in `work` are sent to the
    workers.
    """
    if mapped := getattr(rows.sparkSession, "mapped", None):  # in this process, which needs no workers
        made: DataFrame = mapped(rows.sort(*key, *order), work, out)
        return made
    payload, columns = pickled(work), tuple(key)
    whole = pickled(whole_keys)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        task = pickle.loads(payload)
        for batch in pickle.loads(whole)(batches, columns):
            yield task(batch)

    return rows.sortWithinPartitions(*key, *order).mapInArrow(run, out)


def whole_keys(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Regroup `batches` so that none ends within a key."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        last = key_starts(batch, key)[-1]
        if last:
            yield pa.concat_batches([*pending, batch.slice(0, last)])
            pending = []
        pending.append(batch.slice(last))
    if pending:
        yield pa.concat_batches(pending)


def key_starts(batch: pa.RecordBatch, key: Sequence[str]) -> list[int]:
    if not key:
        return [0]
    keys = list(zip(*(_comparable(batch.column(name)) for name in key), strict=True))
    return [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1])]


def _comparable(column: pa.Array) -> list[Any]:
    """Return values with one NaN object, which Python's tuples, lists and dictionaries find equal."""
    values = column.to_pylist()
    may_hold_nan = pa.types.is_floating(column.type) or pa.types.is_nested(column.type)
    return [_with_one_nan(value) for value in values] if may_hold_nan else values


def _with_one_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_one_nan(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_one_nan(item) for name, item in value.items()}
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def records(batch: pa.RecordBatch, columns: Sequence[str]) -> list[dict[str, Any]]:
    if not columns:
        return [{} for _ in range(batch.num_rows)]
    values = (batch.column(name).to_pylist() for name in columns)
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def arrow_schema(schema: T.StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def source_of(function: Callable[..., Any]) -> str:
    """Return file and line of a function, such as `jobs/silver/account.py:7`."""
    code = getattr(_without_arguments(function), "__code__", None)
    if not code:
        return repr(function)
    folder, _, file = code.co_filename.rpartition("/jobs/")
    return f"{f'jobs/{file}' if folder else file.rpartition('/')[2]}:{code.co_firstlineno}"


def _without_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.func if isinstance(function, partial) else function


def pickled(work: Any) -> bytes:
    """Pickle `work` for a Spark worker, with all that it refers to in `lake` and in the job's package."""
    from pyspark import cloudpickle

    try:
        with _pickling_by_value(work):
            pickled: bytes = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]
    except TypeError as error:
        raise DeclarationError(
            f"its Python function cannot be sent to Spark's workers: {error}",
            fix="import the names that it uses: `from lake import Refusal`, not `import lake`",
        ) from error
    return pickled


@contextmanager
def _pickling_by_value(work: Any) -> Iterator[None]:
    from pyspark import cloudpickle

    functions = map(_without_arguments, getattr(work, "functions", ()))
    modules_of_job = {f.__module__ for f in functions if f.__module__ not in ("__main__", "builtins")}
    packages = {"lake", *modules_of_job, *(name.partition(".")[0] for name in modules_of_job)}
    with _PICKLING:
        registered = cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
        modules = [sys.modules[name] for name in sorted(packages - registered) if name in sys.modules]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
