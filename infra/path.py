"""The path of a command through the code: the modules of `lake` that one warm call passes through, and their lines.

    python infra/path.py [advance | ingest | sql]

A line counts if the call executes it at least once: the second of two equal calls, on the project of `lake init`,
after a first cycle.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

from lake.engine.advance import advance
from lake.engine.inputs import Inputs
from lake.ingest.ingest import ingest
from lake.ops.scaffold import init
from lake.publish.cut import cut
from lake.read.sql import reader
from lake.testing import Lakehouse

LAKE: Final = Path(__file__).parents[1] / "lake"
Lines = dict[str, set[int]]


def traced(call: Callable[[], Any]) -> Lines:
    """The lines of each module of `lake` that `call` executes, in whichever thread."""
    lines: Lines = defaultdict(set)

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename].add(frame.f_lineno)
        return local

    def begin(frame: FrameType, _: str, __: Any) -> Any:
        file = frame.f_code.co_filename
        return local if file.startswith(str(LAKE)) and "/templates/" not in file else None

    threading.settrace(begin)
    sys.settrace(begin)
    try:
        call()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    return lines


def calls(shop: Lakehouse) -> dict[str, Callable[[], Any]]:
    """Traced commands: each takes one more change of an order, but `sql`, which reads."""
    order: dict[str, Any] = {"order_id": 1, "customer": "ada", "status": "paid", "amount": "1.00"}
    number = iter(range(10, 60))

    def change() -> None:
        at = f"2024-05-01T00:00:{next(number)}Z"
        shop.land("orders", {**order, "placed_at": at, "changed_at": at})

    contracts = shop.project.contracts

    def take_in() -> None:
        ingest(shop.settings, shop.spark, contracts)

    def bring() -> Callable[[], Any]:
        change()
        take_in()
        project = shop.project
        inputs = Inputs(lambda: shop.spark, project, cut(project))
        return lambda: advance(inputs, project.tables["current_order"])

    def land() -> Callable[[], Any]:
        change()
        return take_in

    def ask() -> Callable[[], Any]:
        return lambda: reader(shop.settings).relation("select count(*) from current_order").fetchall()

    return {"advance": bring, "ingest": land, "sql": ask}


def path(name: str, prepared: Callable[[], Any]) -> Iterator[str]:
    """The modules that a warm call passes through and how many lines of each, the most first, below their sums."""
    for _ in range(2):
        prepared()()
    lines = traced(prepared())
    rows = sorted(((len(found), str(Path(file).relative_to(LAKE))) for file, found in lines.items()), reverse=True)
    yield f"{name}: {len(rows)} modules, {sum(count for count, _ in rows)} lines"
    for count, module in rows:
        yield f"{count:6} {module}"


def main(names: list[str]) -> None:
    """Prints the path of each of the named calls (default: all)."""
    with TemporaryDirectory() as folder:
        project = Path(folder) / "shop"
        init(project)
        shop = Lakehouse(project, Path(folder) / "home").land_samples().run()
        for name, prepared in calls(shop).items():
            if not names or name in names:
                print(*path(name, prepared), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
