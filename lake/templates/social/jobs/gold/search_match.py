from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.gold.post_word import post_word
from jobs.silver.current_search import current_search
from lake import View, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(View("word", identity=["owner", "search", "post_id"]), current_search, post_word)
def search_match(searches: DataFrame, words: DataFrame) -> DataFrame:
    """A post that a saved search finds: posted since it was saved, and with all of its words.

    word: by which the post was looked up
    """
    return searches.sparkSession.sql(
        """
        select owner, search, post_id, word, author, text, posted_at
        from {searches} as searches join {words} as posts using (word)
        where posted_at >= saved_at and size(array_except(searches.words, posts.words)) = 0
        """,
        searches=searches,
        words=words,
    )
