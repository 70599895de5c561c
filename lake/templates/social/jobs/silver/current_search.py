from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest(["owner", "search"], sequence="saved_at", deletes="_op = 'remove'"), log("searches"))
def current_search(searches: DataFrame) -> DataFrame:
    """A saved search as it stands.

    words: each once, in lower case; a post has to hold all of them
    word: the longest of them, by which posts are looked up; null where there is none
    saved_at: when it was saved last, UTC
    """
    words = searches.selectExpr(
        "owner", "search", r"array_distinct(regexp_extract_all(lower(words), r'[\p{L}\p{N}]+', 0)) as words", "at", "op"
    )
    longest = "array_max(transform(words, word -> struct(length(word), word))).word"
    return words.selectExpr("owner", "search", "words", f"{longest} as word", "at as saved_at", "op as _op")
