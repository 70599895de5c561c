"""The tables, made from the events in landing/ in a warehouse of the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake.testing import Lakehouse

PROJECT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def social(tmp_path_factory):
    return Lakehouse(PROJECT, tmp_path_factory.mktemp("lake")).land_samples().run()


def test_timeline_has_the_posts_of_followed_accounts_newest_first(social):
    timelines = {row["follower"]: [post["post_id"] for post in row["posts"]] for row in social.table("timeline")}
    assert timelines == {"ada": [2], "alan": [2, 1]}


def test_shown_post_has_its_edited_text_and_the_name_of_its_author(social):
    shown = {row["post_id"]: (row["name"], row["text"]) for row in social.table("shown_post")}
    assert shown == {
        1: ("Ada Lovelace", "The engine weaves algebraic patterns."),
        2: ("Grace Hopper", "Found a moth in relay 70."),
        3: ("Alan Turing", "Can machines think?"),
    }


def test_saved_search_finds_posts_that_contain_all_its_words(social):
    found = [(row["owner"], row["search"], row["post_id"]) for row in social.table("search_match")]
    assert found == [("alan", "machines", 1)]


def test_tables_equal_their_recomputation(social):
    social.check_laws()
