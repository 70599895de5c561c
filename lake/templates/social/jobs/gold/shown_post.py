from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.current_post import current_post
from jobs.silver.current_profile import current_profile
from lake import Join, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Join("author", left="post_id", how="left"), current_post, current_profile)
def shown_post(posts: DataFrame, profiles: DataFrame) -> tuple[DataFrame, DataFrame]:
    """A post as it is shown: with the name that its author has now.

    author: handle of who wrote it
    name: the author's; null where there is no profile
    """
    return posts.select("author", "post_id", "text", "posted_at"), profiles.selectExpr("handle as author", "name")
