"""`lake tap`: what a Singer tap on the command line gives, into one log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.errors import DeclarationError
from lake.ingest.append import BatchCounts
from lake.ingest.from_source import drain
from lake.sources import declared
from lake.sources.declared import Declared
from lake.sources.tap import name_on_the_line, on_the_line
from lake.store.ledger import runs
from lake.store.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def append_tapped(
    settings: Settings, spark: Callable[[], SparkSession], stream: str, command: Sequence[str]
) -> BatchCounts:
    """Runs a tap from where its last run ended, and appends all that it gives; the sums of its batches.

    It is the source `tap_<stream>`. Raises DeclarationError where that is declared, or the stream is unknown, and as
    the tap does.
    """
    contract, name = load_contract(settings, stream), name_on_the_line(stream)
    if name in declared.names(settings):
        where = f"{settings.sources}/{name}.toml"
        raise DeclarationError(f"{name} is declared", where=where, fix=f"lake ingest {name}")
    source = on_the_line(settings, name, stream, command)
    source.must_be_there()
    tap = Declared(name, "tap", (stream,), "lake tap", lambda: source)
    with runs.recording(settings, "tap", stream) as counts:
        done = drain(settings, spark, {stream: contract}, tap).get(
            stream, BatchCounts(Log(settings, stream).head().batch)
        )
        counts.update(asdict(done))
    return done
