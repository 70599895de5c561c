from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest(["follower", "followee"], sequence="since", deletes="_op = 'unfollow'"), log("follows"))
def current_follow(follows: DataFrame) -> DataFrame:
    """Who follows whom.

    since: UTC
    """
    return follows.selectExpr("follower", "followee", "at as since", "op as _op")
