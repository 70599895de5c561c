"""Verbs about one table, each of which books why it failed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from lake.progress import step
from lake.store.ledger.runs import failing

if TYPE_CHECKING:
    from lake.declaration import Declaration
    from lake.engine.write import Advanced
    from lake.evaluation.inputs import Inputs

P = ParamSpec("P")
T = TypeVar("T", bound="Advanced")


def books(
    verb: str,
) -> Callable[[Callable[Concatenate[Inputs, Declaration, P], T]], Callable[Concatenate[Inputs, Declaration, P], T]]:
    """Tells of a verb's work on one table, and books its failures; those of a dry run are no runs."""

    def with_book(
        work: Callable[Concatenate[Inputs, Declaration, P], T],
    ) -> Callable[Concatenate[Inputs, Declaration, P], T]:
        @wraps(work)
        def booked(inputs: Inputs, declaration: Declaration, /, *args: P.args, **kwargs: P.kwargs) -> T:
            book = failing(inputs.project.settings, verb, declaration.name, inputs.cut.number)
            with step(verb, declaration.name) as at_work, nullcontext() if kwargs.get("dry_run") else book:
                done = work(inputs, declaration, *args, **kwargs)
                at_work.rows = done.rows
                return done

        return booked

    return with_book
