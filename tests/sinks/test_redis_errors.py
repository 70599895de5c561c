"""Advice on errors of Redis. No server."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from lake.connect.redis import COMMAND_END, ERRORS_BY_WORD, RedisServer
from lake.errors import LakeError

SERVER = RedisServer("redis://127.0.0.1:1", "", "", "", 1, "sinks/cache.toml")


@pytest.mark.parametrize("word", ["TASK", "UNMOVED", "BUSYGROUP", "XOOM", "OOMS", "ERR BUSY"])
def test_error_that_only_contains_a_known_word_has_no_advice_on_it(word: str) -> None:
    error = SERVER.as_error(ResponseError(f"{word} it is so"))
    assert (type(error), error.fix) == (LakeError, "see the server's log")


@pytest.mark.parametrize("word", ERRORS_BY_WORD)
def test_error_with_a_known_word_has_advice_on_it(word: str) -> None:
    for known in (
        ResponseError(f"Command # 1 (SET a b) {COMMAND_END}{word} it is so"),
        ResponseError("x", status_code=word),
    ):
        error = SERVER.as_error(known)
        assert (type(error), error.fix) == ERRORS_BY_WORD[word]
        assert "SET a b" not in str(error)
