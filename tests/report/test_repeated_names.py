"""Messages that are printed after the name of their stream or table do not begin with that name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast
from unittest.mock import patch

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from lake.config import Settings
from lake.contracts.contract import Contract, MaxRefused, read_contract
from lake.contracts.evolution import incompatibilities
from lake.errors import LakeError
from lake.ingest.delivery_reader import DeliveryReader
from lake.ops.render import as_text, failed_conditions
from lake.ops.status import status
from lake.ops.status_records import StreamStatus
from lake.project.project import load
from lake.project.rejection_limits import RejectionExcess
from lake.store.ledger import runs
from tests.shop import contract

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def orders(**about: Any) -> Contract:
    return read_contract(json.dumps(contract("orders", {"id": "int", "at": "timestamp"}, **about)), file="orders.avsc")


def another_key(_: Settings) -> list[str]:
    faults = incompatibilities(orders(key=["at"]), orders())
    return [f"lake: orders: {fault}" for fault in faults]


def an_expression_that_spark_cannot_parse(project: Settings) -> list[str]:
    reader = DeliveryReader(cast("Any", None), project, orders(time="at at"), cast("Any", None), NOW)
    failed_conditions = patch(
        "lake.ingest.delivery_reader.with_event_columns", side_effect=AnalysisException("syntax error")
    )
    with failed_conditions, pytest.raises(LakeError) as fault:
        reader._finished(cast("DataFrame", None))
    return [f"lake: orders: {fault.value}"]


def too_many_rejected_records(project: Settings) -> list[str]:
    held = str(RejectionExcess("orders", "orders.avsc:1", 1, 1, 40, {"type": 30}, MaxRefused()))
    state = replace(status(load(project)), streams=(StreamStatus("orders", held=held),))
    return [*failed_conditions(state, ["stopped"]), *(line for line in as_text(state) if line.startswith("held"))]


def a_failed_run(project: Settings) -> list[str]:
    with pytest.raises(LakeError), runs.failing(project, "advance", "orders"):
        raise LakeError("orders: its rows cannot be evaluated")
    return [f"advance of orders: {run.counts['error']}" for run in runs.last_runs(project).values()]


@pytest.mark.parametrize(
    "printed", [another_key, an_expression_that_spark_cannot_parse, too_many_rejected_records, a_failed_run]
)
def test_message_names_its_stream_once_when_it_is_printed_after_the_name(
    project: Settings, printed: Callable[[Settings], list[str]]
) -> None:
    lines = printed(project)
    assert lines
    assert [line for line in lines if "orders: orders" in line or "orders: " not in line] == []
