"""Work on tables in dependency order, independent ones side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from lake.declaration import Declaration
from lake.errors import DeclarationError
from lake.store.ledger.runs import booked_aside
from lake.store.view import view

T = TypeVar("T")


def after_inputs(tables: Iterable[Declaration], work: Callable[[Declaration], T], *, workers: int) -> list[T]:
    """What `work` gives for each of `tables`, which come in dependency order; `workers` of them at a time.

    A table that fails stops those derived from it, not the others; faults of declarations are raised together at the
    end, else the first failure. One view of the tables lasts for all of it.
    """
    futures: dict[str, Future[T]] = {}

    def wait_and_work(declaration: Declaration) -> T:
        for source in declaration.inputs:
            if source.name in futures and not source.is_log:
                futures[source.name].result()
        return work(declaration)

    # Tables are handed out in dependency order, so whoever waits for a parent waits for one already at work.
    with view(), booked_aside(), ThreadPoolExecutor(max_workers=workers, thread_name_prefix="tables") as pool:
        for declaration in tables:
            futures[declaration.name] = pool.submit(copy_context().run, wait_and_work, declaration)
    failures = [error for future in futures.values() if (error := future.exception()) is not None]
    faults = [error for error in dict.fromkeys(failures) if isinstance(error, DeclarationError)]
    if failures:
        raise DeclarationError.all(faults) if len(faults) == len(set(failures)) else failures[0]
    return [future.result() for future in futures.values()]
