"""Events of the example `social`, made at random, and its tables in plain Python."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

Event = Mapping[str, Any]
Arrived = tuple[str, Event]
"""An event with its stream."""
Row = dict[str, Any]
Match = tuple[str, str, int]
"""Whose search, what it is called, and the post that it finds."""

HANDLES: Final = ("ada", "grace", "alan", "barbara", "åsa", "x:y", "a b", "50%")
WORDS: Final = ("Engine", "relay", "moth", "Compiler", "proof", "tape", "Überlauf", "café", "70", "bug", "found", "of")
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "profiles": ("handle", "changed_at", "op"),
    "posts": ("post_id", "changed_at", "op"),
    "follows": ("follower", "followee", "at", "op"),
    "searches": ("owner", "search", "at", "op"),
}
"""What tells an event of each stream from a redelivery."""
SHOWN: Final = 20
START: Final = datetime(2024, 3, 30, 8, tzinfo=UTC)


def events(chance: random.Random, number: int) -> list[Arrived]:
    """So many events with their streams, in the order in which they arrive: late, twice, and many at one time."""
    made: list[Arrived] = []
    while len(made) < number:
        stream = chance.choices([*KEYS], weights=[2, 6, 3, 2])[0]
        made.append((stream, MAKE[stream](chance)))
        if chance.random() < 0.1:
            made.append(chance.choice(made))
    return made[:number]


def _at(chance: random.Random) -> str:
    return f"{START + timedelta(minutes=chance.randrange(600)):%Y-%m-%dT%H:%M:%SZ}"


def _text(chance: random.Random, most: int) -> str:
    some = chance.choices(WORDS, k=chance.randint(0, most))
    words = (chance.choice([word, word.lower(), word.upper()]) for word in some)
    return chance.choice([" ", ", ", "-", "! "]).join(words)


def _profile(chance: random.Random) -> Event:
    handle, op = chance.choice(HANDLES), chance.choices(["create", "update", "delete"], weights=[3, 5, 1])[0]
    about = None if op == "delete" else chance.choice([None, "", _text(chance, 4)])
    name = None if op == "delete" else f"{handle.title()} {chance.randrange(100)}"
    return {"handle": handle, "op": op, "name": name, "about": about, "changed_at": _at(chance)}


def _post(chance: random.Random) -> Event:
    number, op = chance.randint(1, 80), chance.choices(["post", "edit", "delete"], weights=[6, 3, 1])[0]
    posted = START + timedelta(minutes=number * 5)
    return {
        "post_id": number,
        "author": HANDLES[number % len(HANDLES)],
        "op": op,
        "text": None if op == "delete" else _text(chance, 8),
        "posted_at": f"{posted:%Y-%m-%dT%H:%M:%SZ}",
        "changed_at": _at(chance),
    }


def _follow(chance: random.Random) -> Event:
    op = chance.choices(["follow", "unfollow"], weights=[4, 1])[0]
    return {"follower": chance.choice(HANDLES), "followee": chance.choice(HANDLES), "op": op, "at": _at(chance)}


def _search(chance: random.Random) -> Event:
    op = chance.choices(["save", "remove"], weights=[6, 1])[0]
    said = {"words": _text(chance, 2)} if op == "save" else {}
    return {"owner": chance.choice(HANDLES), "search": f"s{chance.randrange(3)}", "op": op, "at": _at(chance), **said}


MAKE: Final[Mapping[str, Callable[[random.Random], Event]]] = {
    "profiles": _profile,
    "posts": _post,
    "follows": _follow,
    "searches": _search,
}


@dataclass(frozen=True)
class Model:
    """What the tables are, by their identities, after events in the order in which they came."""

    arrived: Sequence[Arrived]

    def _newest(self, stream: str, key: Sequence[str], time: str, gone: str) -> Iterator[Event]:
        """The newest event of each key, of those of one time the last to come, where that does not end it."""
        seen, newest = set(), dict[tuple[Any, ...], Event]()
        for event in (event for name, event in self.arrived if name == stream):
            if (one := tuple(event[column] for column in KEYS[stream])) in seen:
                continue
            seen.add(one)
            of = tuple(event[column] for column in key)
            if of not in newest or event[time] >= newest[of][time]:
                newest[of] = event
        return (event for event in newest.values() if event["op"] != gone)

    def profiles(self) -> dict[str, Row]:
        """By handle."""
        found = self._newest("profiles", ["handle"], "changed_at", "delete")
        return {event["handle"]: _some(event, "handle", "name", "about", "changed_at") for event in found}

    def posts(self) -> dict[int, Row]:
        """As they are shown, by number."""
        profiles = self.profiles()
        return {
            event["post_id"]: _some(event, "author", "post_id", "text", "posted_at")
            | {"name": profiles.get(event["author"], {}).get("name")}
            for event in self._newest("posts", ["post_id"], "changed_at", "delete")
        }

    def timelines(self) -> dict[str, list[Row]]:
        """By follower, the newest post first."""
        posts, timelines = self.posts(), dict[str, list[Row]]()
        for follow in self._newest("follows", ["follower", "followee"], "at", "unfollow"):
            seen = [post for post in posts.values() if post["author"] == follow["followee"]]
            timelines.setdefault(follow["follower"], []).extend(seen)
        newest_first = {
            follower: sorted(seen, key=lambda post: (post["posted_at"], post["post_id"]), reverse=True)[:SHOWN]
            for follower, seen in timelines.items()
        }
        return {follower: seen for follower, seen in newest_first.items() if seen}

    def matches(self) -> set[Match]:
        """All that saved searches find."""
        return {
            (search["owner"], search["search"], post["post_id"])
            for search in self._newest("searches", ["owner", "search"], "at", "remove")
            for post in self.posts().values()
            if post["posted_at"] >= search["at"]
            and words(search["words"])
            and words(search["words"]) <= words(post["text"])
        }


def words(text: str) -> set[str]:
    """In lower case, without what is between them."""
    return set(re.findall(r"[^\W_]+", text.lower()))


def _some(event: Event, *columns: str) -> Row:
    return {column: event[column] for column in columns}


def by_stream(some: Iterable[Arrived]) -> dict[str, list[Event]]:
    """Events in their order, by stream."""
    streams: dict[str, list[Event]] = {}
    for stream, event in some:
        streams.setdefault(stream, []).append(event)
    return streams
