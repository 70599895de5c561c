from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest("post_id", sequence="changed_at", deletes="_op = 'delete'"), log("posts"))
def current_post(posts: DataFrame) -> DataFrame:
    """A post as it stands: its newest change.

    posted_at: UTC
    changed_at: of the newest change, UTC
    """
    return posts.selectExpr("post_id", "author", "text", "posted_at", "changed_at", "op as _op")
