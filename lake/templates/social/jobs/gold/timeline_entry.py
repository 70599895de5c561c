from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.gold.shown_post import shown_post
from jobs.silver.current_follow import current_follow
from lake import Join, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Join("author", left="follower", right="post_id"), current_follow, shown_post)
def timeline_entry(follows: DataFrame, posts: DataFrame) -> tuple[DataFrame, DataFrame]:
    """A post for each follower of its author.

    author: handle of who wrote it
    """
    return follows.selectExpr("followee as author", "follower"), posts
