"""Refusable commands: claims of user names, decided by First in log order, and the outcome of the others."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.testing import Lakehouse
from tests.shop import contract, declare

CONTRACT = contract(
    "claims", {"claim_id": "long", "username": "string", "who": "string"}, key=["username"], id=["claim_id"]
)
WINNERS = '''
from lake import First, log, table


@table(First("username"), log("claims"))
def account(claims):
    """A user name and who has it: the first valid claim in the log."""
    return claims.where("length(username) >= 3").select("username", "claim_id", "who")
'''
REFUSALS = '''
from jobs.silver.account import account
from lake import View, log, table


@table(View("username", identity=("username", "claim_id")), log("claims"), account)
def refusal(claims, accounts):
    """A claim that was refused, and why."""
    reason = """case when length(username) < 3 then 'too short'
                     when claims.who = winner.who then 'already theirs' else 'taken' end as reason"""
    return (
        claims.alias("claims")
        .join(accounts.alias("winner"), "username", "left")
        .where("winner.claim_id is null or claims.claim_id <> winner.claim_id")
        .selectExpr("claims.claim_id", "username", "claims.who", reason, "winner.claim_id as winner_claim_id")
    )
'''
CYCLES = [
    [(1, "ada", "u1"), (2, "bob", "u2"), (3, "ada", "u3")],
    [(4, "bob", "u2"), (5, "eve", "u4"), (6, "al", "u5")],
    [(7, "ada", "u6"), (8, "eve", "u1"), (9, "joe", "u7"), (2, "bob", "u2")],
]


@pytest.fixture
def names(project: Settings) -> Lakehouse:
    return declare(project, CONTRACT, jobs={"silver/account": WINNERS, "gold/refusal": REFUSALS})


@pytest.mark.long
def test_published_claim_is_never_revoked_and_other_claims_are_refused(spark: SparkSession, names: Lakehouse) -> None:
    published: list[dict[str, Any]] = []
    for claims in CYCLES:
        names.land("claims", *[dict(zip(("claim_id", "username", "who"), claim, strict=True)) for claim in claims])
        winners = names.run().table("account")
        assert [row for row in winners if row["username"] in {each["username"] for each in published}] == published
        published = winners
    assert [tuple(row.values()) for row in published] == [
        ("ada", 1, "u1"),
        ("bob", 2, "u2"),
        ("eve", 5, "u4"),
        ("joe", 9, "u7"),
    ]
    assert sorted(tuple(row.values()) for row in names.table("refusal")) == [
        (3, "ada", "u3", "taken", 1),
        (4, "bob", "u2", "already theirs", 2),
        (6, "al", "u5", "too short", None),
        (7, "ada", "u6", "taken", 1),
        (8, "eve", "u1", "taken", 5),
    ]
    names.check_laws()
