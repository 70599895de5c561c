"""Decisions up to the Fold's table, by Spark: accepted entries are in it, and none was refused there."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from lake.contracts.contract import load_contract, load_contracts
from lake.errors import DeclarationError, Refused
from lake.ingest.append import append_files
from lake.ingest.ingest import ingest
from lake.ops.pipeline import run
from lake.project.project import load
from lake.serve.append_decided import append_decided
from lake.sources.source import DecisionRequest
from lake.store.scan import Scan
from tests import intake
from tests.decide.accounts import DECIDE, accounts
from tests.servers.http import Http, installed


def entry(account: int, cents: int) -> dict[str, Any]:
    return {"account": account, "amount": str(Decimal(cents).scaleb(-2))}


@pytest.mark.long
@pytest.mark.spark
def test_undecided_records_that_differ_from_logged_ones_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    installed()
    settings = accounts(tmp_path / "bank", DECIDE + "check = false\n")
    first, wrong = {"number": 1, "text": "żółć", "more": [1]}, {"number": "none"}
    with intake.serving(settings.project) as serving:

        def ask(*notes: Any, id: str = "once") -> Any:
            headers = serving.allowed | {"idempotency-key": id}
            body = {"entries": entry(1, 100), "notes": notes}
            answer = httpx.post(f"{serving.url}/streams?decide", json=body, headers=headers).json()
            return answer.get("again", answer.get("type"))

        assert ask(first, wrong) is False
        assert ask({"number": 7}, id="twice") is False
        ingest(settings, lambda: spark, load_contracts(settings))
        assert list(settings.path("landing/.http/web").glob("*.jsonl")) == []
        assert ask(first, wrong) is True
        for others in (
            [first | {"text": None}, wrong],
            [first | {"more": [2]}, wrong],
            [first, first],
            [first, wrong, first],
        ):
            assert ask(*others) == "/problems#sent-before"
        assert ask({"number": 8}, id="twice") == "/problems#sent-before"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.turns
@pytest.mark.parametrize("steps", ["ingest run", "run ingest run nothing run"])
def test_accepted_entries_are_in_the_table_after_any_ingests_and_restarts(
    tmp_path: Path, spark: SparkSession, steps: str
) -> None:
    installed()
    settings, chance = accounts(tmp_path / "bank"), random.Random(7)
    balances, versions = dict.fromkeys(range(6), 0), dict.fromkeys(range(6), "")
    decided, number = {"accepted": 0, "refused": 0, "again": 0}, 0
    for step in steps.split():
        with intake.serving(settings.project) as serving:
            http = Http(settings, serving)
            for _ in range(25):
                number += 1
                account, cents = chance.randrange(6), chance.randrange(-900, 800)
                body, key = entry(account, cents), f"k{number}"
                expect = {"if_match": f'"{versions[account]}"'} if versions[account] and number % 2 else {}
                answer = http.post(body, "entries", "?decide", idempotency_key=key, **expect)
                if balances[account] + cents < 0:
                    assert answer.status_code == 409, answer.text
                    decided["refused"] += 1
                    continue
                assert answer.status_code == 202, answer.text
                balances[account] += cents
                versions[account] = answer.json()["version"]
                decided["accepted"] += 1
                if number % 7 == 0:
                    again = http.post(body, "entries", "?decide", idempotency_key=key)
                    assert again.json() == answer.json() | {"again": True}
                    decided["again"] += 1
            if step == "run":
                run(settings, lambda: spark, lambda _: None)
            elif step == "ingest":
                ingest(settings, lambda: spark, load_contracts(settings))
    assert min(decided.values()) > 0
    project = load(settings)
    table = project.table(project.tables["account"])
    rows = Scan(table.path).arrow(["account", "balance", "refused"]).to_pylist()
    assert {row["account"]: row["balance"] for row in rows} == {
        account: Decimal(cents).scaleb(-2) for account, cents in balances.items() if versions[account]
    }
    assert {row["refused"] for row in rows} == {0}
    account = max(balances, key=lambda each: balances[each])
    short = json.dumps(entry(account, -balances[account] - 1)).encode()
    with pytest.raises(Refused, match=r"0\.01 short"):
        append_decided(settings, DecisionRequest(("entries",), short))
    landed = settings.path("landing/late.jsonl")
    landed.write_bytes(short)
    with pytest.raises(DeclarationError, match=r"decided before they are taken.*"):
        append_files(settings, lambda: spark, load_contract(settings, "entries"), [landed])
