"""The example `social`: its tables, the search index, the cache and the alerts are those of a model in plain Python."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

from lake.ops.scaffold import EXAMPLES, TEMPLATES, init
from lake.testing import Commands, Kill, Lakehouse
from tests.docs.sessions import BLOCK, ROOT, play, session, shown_as
from tests.examples.social import Arrived, Match, Model, by_stream, events

if TYPE_CHECKING:
    from tests.servers.opensearch import OpenSearch
    from tests.servers.redis import Redis
    from tests.servers.webhook import Webhook

PAGE = "docs/examples/social.md"
SOCIAL = TEMPLATES / "social"
RUN_POINTS = (
    *("log.before", "log.after", "edition.before", "edition.after"),
    *("table.before", "table.middle", "table.after"),
)


def new(home: Path) -> Lakehouse:
    """Return the example, with its warehouse beside it and no events."""
    init(home / "social", "social")
    return Lakehouse(home / "social", home)


def land(lakehouse: Lakehouse, some: Sequence[Arrived]) -> None:
    for stream, found in by_stream(some).items():
        lakehouse.land(stream, *found)


def slices(chance: random.Random, arrived: Sequence[Arrived], parts: int) -> Iterator[Sequence[Arrived]]:
    """Yield the events in `parts` slices of random size, in order."""
    ends = [0, *sorted(chance.sample(range(20, len(arrived)), parts - 1)), len(arrived)]
    return (arrived[start:end] for start, end in pairwise(ends))


def plain(value: Any) -> Any:
    """Return the value with times written as in the events."""
    return json.loads(json.dumps(value, default=lambda at: f"{at:%Y-%m-%dT%H:%M:%SZ}"))


@dataclass(frozen=True)
class Others:
    """The systems that follow the tables."""

    opensearch: OpenSearch
    redis: Redis
    webhook: Webhook

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that the project's files use."""
        from tests.servers.webhook import SECRET

        alerts = {"ALERTS_URL": self.webhook.url, "ALERTS_SECRET": SECRET}
        return {"SEARCH_URL": self.opensearch.url, "CACHE_URL": self.redis.url, **alerts}

    def cached(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return profiles and timelines in the cache."""
        client = self.redis.client()
        rows = {key: json.loads(client.get(key)) for key in client.scan_iter("cache:*:*")}
        profiles = [row for key, row in rows.items() if key.startswith("cache:profile:")]
        timelines = [row for key, row in rows.items() if key.startswith("cache:timeline:")]
        return by("handle", plain(profiles)), {row["follower"]: row["posts"] for row in timelines}

    def indexed(self) -> dict[int, Any]:
        """Return the posts in the search index."""
        with urlopen(f"{self.opensearch.url}/search-posts/_search?size=10000") as answer:
            return by("post_id", [hit["_source"] for hit in json.load(answer)["hits"]["hits"]])

    def alerted(self) -> list[Match]:
        """Return the matches that alerts reported, each message once."""
        keys = (change["key"] for change in self.webhook.changes())
        return sorted((key["owner"], key["search"], key["post_id"]) for key in keys)


@pytest.fixture
def others(opensearch: OpenSearch, redis: Redis, webhook: Webhook) -> Others:
    """All of them, empty."""
    return Others(opensearch, redis, webhook)


def by(column: str, rows: Sequence[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    return {row[column]: row for row in rows}


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 3])
def test_tables_equal_the_model(spark: SparkSession, tmp_path: Path, parts: int) -> None:
    chance, lakehouse = random.Random(1), new(tmp_path)
    arrived = events(chance, 300)
    for part in slices(chance, arrived, parts):
        land(lakehouse, part)
        lakehouse.run()
    model, found = Model(arrived), {name: plain(lakehouse.table(name)) for name in lakehouse.project.tables}
    assert by("handle", found["current_profile"]) == model.profiles()
    assert by("post_id", found["shown_post"]) == model.posts()
    assert {row["follower"]: row["posts"] for row in found["timeline"]} == model.timelines()
    matches = {(row["owner"], row["search"], row["post_id"]) for row in found["search_match"]}
    assert matches == model.matches()
    assert len(matches) > 5
    assert max(len(seen) for seen in model.timelines().values()) == 20


@dataclass
class Network:
    """Running example: its commands, some of them killed, and the events that arrived."""

    lakehouse: Lakehouse
    commands: Commands
    chance: random.Random
    environment: dict[str, Any]
    kills: int = 0
    arrived: list[Arrived] = field(default_factory=list)

    def lake(self, *words: str, kill: Kill | None = None) -> str:
        """Return the output of a command that succeeds or is killed."""
        done = self.commands.lake(*words, at=self.lakehouse, kill=kill, **self.environment)
        self.kills += done.landed
        assert done.landed or done.code == 0, done.out + done.err
        return done.out

    def run(self, part: Sequence[Arrived]) -> None:
        """Land events and publish them, after one or two runs that are killed."""
        land(self.lakehouse, part)
        self.arrived.extend(part)
        for _ in range(self.chance.randrange(1, 3)):
            self.lake("run", kill=Kill(self.chance.choice(RUN_POINTS), self.chance.randint(1, 3)))
        self.lake("run")

    def send(self, verb: str) -> None:
        """Run `lake deliver` or `lake alert`, after up to three runs that are killed while sending."""
        for _ in range(self.chance.randrange(4)):
            nth = self.chance.randint(1, 15)
            self.lake(verb, kill=Kill(f"socket.{self.chance.choice(('before', 'after'))}", nth))
        self.lake(verb)


@pytest.mark.parametrize("seed", range(2))
def test_index_cache_and_alerts_equal_the_model_for_random_slices_and_kills(
    commands: Commands, tmp_path: Path, others: Others, seed: int
) -> None:
    chance = random.Random(seed)
    network = Network(new(tmp_path), commands, chance, others.environment)
    expected: list[Match] = []
    known: set[Match] | None = None
    for part in slices(chance, events(chance, 300), 3):
        network.run(part)
        if chance.random() < 0.5:
            network.lake("rebuild", chance.choice(["search_match", "timeline", "shown_post"]), "--yes")
            network.lake("run")
        network.send("deliver")
        network.send("alert")
        matches = Model(network.arrived).matches()
        expected += matches - known if known is not None else ()  # the first evaluation sends no alerts
        known = matches
    model = Model(network.arrived)
    assert others.cached() == (model.profiles(), model.timelines())
    assert others.indexed() == model.posts()
    assert others.alerted() == sorted(expected)
    assert len(expected) > 3
    assert network.kills > 3
    network.lake("verify")
    network.lake("verify", "--sink", "search")
    network.lake("verify", "--sink", "cache")


def test_social_page_prints_its_documented_output(tmp_path: Path, commands: Commands, others: Others) -> None:
    play([PAGE], tmp_path, {**commands.environment, **others.environment})
    [message] = others.webhook.taken
    shown = next(text for language, _, text in BLOCK.findall((ROOT / PAGE).read_text("utf-8")) if language == "json")
    assert shown_as(shown, json.dumps(message.body, indent=2, ensure_ascii=False) + "\n")


def test_social_page_shows_files_as_they_are_in_the_project() -> None:
    files = [step for step in session(PAGE) if step.file]
    assert len(files) >= 5
    for step in files:
        assert (SOCIAL / step.file).read_text("utf-8") == step.expected, step.file


def test_examples_of_the_package_are_those_that_init_offers() -> None:
    from lake.cli.project import init as command

    [option] = [option for option in command.params if option.name == "example"]
    folders = {folder.name for folder in TEMPLATES.iterdir() if folder.is_dir()} - {"project"}
    assert set(option.type.choices) == EXAMPLES.keys() == folders  # type: ignore[attr-defined]  # it is a Choice
