from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.gold.timeline_entry import timeline_entry
from lake import View, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(View("follower"), timeline_entry)
def timeline(entries: DataFrame) -> DataFrame:
    """What a member sees: the newest 20 posts of whom they follow, the newest first."""
    return entries.sparkSession.sql(
        """
        with entry as (
            select follower, struct(posted_at, post_id, author, name, text) as post,
                   row_number() over (partition by follower order by posted_at desc, post_id desc) as place
            from {entries}
        )
        select follower, sort_array(collect_list(post), false) as posts from entry where place <= 20 group by follower
        """,
        entries=entries,
    )
