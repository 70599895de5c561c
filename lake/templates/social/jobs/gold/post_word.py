from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.current_post import current_post
from lake import View, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(View("post_id", identity=["post_id", "word"]), current_post)
def post_word(posts: DataFrame) -> DataFrame:
    """A word of a post, each once, in lower case: an inverted index.

    words: all of the post
    """
    words = posts.selectExpr("*", r"array_distinct(regexp_extract_all(lower(text), r'[\p{L}\p{N}]+', 0)) as words")
    return words.selectExpr("post_id", "explode(words) as word", "words", "author", "text", "posted_at")
