"""The way of a posted record from its request to an edition, and waiting by its token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession

from lake.contracts.contract import load_contracts
from lake.errors import DeclarationError, Unavailable
from lake.ingest.ingest import ingest
from lake.ops.pipeline import run
from lake.read.wait import parse_tokens, wait
from lake.serve.receipt import visible_groups
from lake.store import duckdb_tables
from lake.store.log import Log
from tests import intake
from tests.processes import PATIENCE, until
from tests.servers.http import FIELDS, Http, installed
from tests.shop import contract, declare, empty, job, optional

pytestmark = pytest.mark.http


def fact(kind: str, of: str, **more: object) -> object:
    """Return a field that may be null, filled from a fact of the request."""
    optional_kind, default = optional(kind)
    return optional_kind, {**default, "from": of, **more}


SENT = {"key": fact("string", "http.id"), "at": fact("timestamp", "http.received")}
KIND = {"kind": fact("string", "http.headers.x-kind"), "made_by": fact("string", "cloudevents.source")}


@pytest.mark.spark
def test_posted_record_is_ingested_once_and_its_token_waits_for_the_edition(
    tmp_path: Path, spark: SparkSession
) -> None:
    installed()
    settings = empty(tmp_path / "shop")
    declare(
        settings,
        contract("readings", FIELDS | SENT | KIND, id=["key"]),
        jobs={"reading": job("reading", "Latest('station', sequence='number')", "log('readings')")},
    )
    settings.path("sources").mkdir()
    settings.path("sources/web.toml").write_text('kind = "http"\ncheck = false\n')
    with intake.serving(settings.project) as serving:
        http = Http(settings, serving)
        sent = [http.post({"station": "a", "number": n}, idempotency_key=f"k{n}", x_kind="meter") for n in (1, 2, 2)]
        sent.append(
            http.post({"station": "b", "number": 9}, ce_id="7", ce_source="/s", ce_type="t", ce_specversion="1.0")
        )
        sent.append(http.post({"station": "c", "number": "no"}, idempotency_key="bad"))
        assert [answer.status_code for answer in sent] == [202] * 5
        token = sent[3].json()["token"]
        with pytest.raises(Unavailable, match="not published"):
            wait(settings, [token], timeout=0)
        counts = ingest(settings, lambda: spark, load_contracts(settings), ["web"])["readings"]
        assert (counts.read, counts.accepted, counts.duplicates, counts.quarantined) == (5, 3, 1, 1)
        rows = duckdb_tables.rows(
            Log(settings, "readings").path, "SELECT * FROM t WHERE _refusal IS NULL ORDER BY number"
        )
        assert [(row["key"], row["kind"], row["made_by"]) for row in rows] == [
            ("k1", "meter", None),
            ("k2", "meter", None),
            ("7", None, "/s"),
        ]
        assert [row["_source"] for row in rows] == ["web:1:0", "web:2:0", "web:4:0"]
        assert all(row["at"] is not None for row in rows)
        assert str(*parse_tokens(settings, [token])) == "readings@1"
        assert list(settings.path("landing/.http/web").glob("*.jsonl")) == []
        assert visible_groups(settings, "web", "readings").upto == 0

        async def waited() -> httpx.Response:
            async with httpx.AsyncClient(timeout=PATIENCE, headers=serving.allowed) as client:
                url = f"{serving.url}/streams/readings?wait=edition&timeout={PATIENCE:.0f}"
                key = {"idempotency-key": "last"}
                posting = asyncio.create_task(client.post(url, json={"station": "d", "number": 1}, headers=key))
                await asyncio.to_thread(_cycle)
                return await posting

        def _cycle() -> None:
            until(lambda: bool(list(settings.path("landing/.http/web").glob("*.jsonl"))))
            run(settings, lambda: spark, lambda _: None)

        answer = asyncio.run(waited())
        assert answer.status_code == 200, answer.text
        assert answer.json()["edition"] == wait(settings, [token, answer.json()["token"]], timeout=0).number
        with pytest.raises(DeclarationError, match="no stream 'nothing'"):
            parse_tokens(settings, ["nothing@web:1:0"])
