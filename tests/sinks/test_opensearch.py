"""Tables as indexes of OpenSearch: whatever happens to editions, deliverers and the server, they are those of one."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, cast

import pytest

from lake.config import Settings
from lake.connect.opensearch import server as bulk
from lake.connect.opensearch.names import id_of
from lake.connect.opensearch.server import Document
from lake.connect.opensearch.staged_swap import finish
from lake.connect.opensearch.target import OpenSearchTarget as Target
from lake.errors import DeclarationError, LakeError, StartOver, Unavailable
from lake.read.sql import reader
from lake.sinks.deliver import deliver
from lake.sinks.plan import DeliveryPlan
from lake.sinks.verify import repair, verify_sink
from lake.store.ledger import editions
from lake.testing import Commands
from tests.docs.sessions import SHOP, play
from tests.read.things import NAME
from tests.servers import needed
from tests.servers.opensearch import OpenSearch
from tests.sinks.followed import (
    each_point_kills,
    each_trip_dies,
    identical,
    of_two_one_is_refused,
    overtaken,
    whatever_happens,
)
from tests.sinks.killed import POINTS
from tests.sinks.trips import Moment
from tests.sinks.walks import command, edition, every_type, lake, sink

if TYPE_CHECKING:
    import opensearchpy

URL = 'kind = "opensearch"\nurl = "env:SEARCH_URL"\nseconds = 30\n'


@pytest.fixture(autouse=True)
def client(opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch) -> opensearchpy.OpenSearch:
    monkeypatch.setenv("SEARCH_URL", opensearch.url)
    return opensearch.client()


def hits(client: opensearchpy.OpenSearch, index: str, query: dict[str, Any]) -> list[Any]:
    found = client.search(index=index, body={"query": query, "size": 100})
    return sorted(hit["_source"]["id"] for hit in found["hits"]["hits"])


@pytest.mark.smoke
def test_an_edition_is_delivered_changed_found_and_proven(project: Settings, client: opensearchpy.OpenSearch) -> None:
    edition(project, 1, "id", one=every_type(20), two="SELECT 1 AS id, 'a red fox' AS word")
    search = sink(project, "search", f'{URL}[tables.one]\n[tables.two]\nname = "second"\n')
    first = deliver(project, search)
    assert [(one.table, one.whole, one.inserted) for one in first.tables] == [("one", True, 20), ("two", True, 1)]
    assert identical(project, search) == 1
    edition(project, 2, "id", one=every_type(22, shift=3), two="SELECT 1 AS id, 'a blue fox' AS word")
    second = deliver(project, search)
    assert [(one.inserted, one.updated, one.deleted) for one in second.tables] == [(2, 16, 0), (0, 1, 0)]
    assert identical(project, search) == 2
    assert hits(client, "search-second", {"match": {"word": "Blue FOX"}}) == [1]
    assert client.get(index="search-~position", id="search")["_source"]["edition"] == 2


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_to_editions_the_index_is_one_of_them(project: Settings, seed: int) -> None:
    whatever_happens(project, sink(project, "search", f"{URL}[tables.{NAME}]\n"), seed, steps=12)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("first", range(1, 7))
def test_a_deliverer_that_dies_at_any_trip_leaves_what_the_next_puts_right(
    project: Settings, client: opensearchpy.OpenSearch, moment: Moment, first: int
) -> None:
    search = sink(project, "search", f"{URL}[tables.one]\n[tables.two]\n")
    assert each_trip_dies(project, search, moment, first=first, step=6) >= 4
    found = client.indices.get_alias(index="*")
    assert len(found) == 3, "nothing is left of deliverers that died"


@pytest.mark.parametrize("point", POINTS)
def test_a_deliverer_that_is_killed_leaves_an_edition_and_the_next_goes_on(project: Settings, point: str) -> None:
    each_point_kills(project, sink(project, "search", f"{URL}[tables.one]\n[tables.two]\n"), point)


def test_of_two_who_deliver_at_once_one_is_refused(project: Settings) -> None:
    of_two_one_is_refused(project, sink(project, "search", f"{URL}[tables.one]\n"))


def test_of_two_with_leases_of_their_own_the_slower_is_refused_wherever_it_is(
    project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = sink(project, "search", f"{URL}[tables.one]\n")
    edition(project, 1, "id", one=every_type(10))
    deliver(project, search)
    refused = 0
    for number in range(1, 22, 2):
        edition(project, 2 * number, "id", one=every_type(12, shift=number))
        with closing(cast(Target, search.open())) as slow, monkeypatch.context() as patch:
            late = DeliveryPlan(project, search, slow.position(), reader(project).edition).delivery()
            edition(project, 2 * number + 1, "id", one=every_type(14, shift=2 * number))
            transport = slow.server.client.transport
            other = partial(deliver, project, search)
            send = partial(overtaken, transport.perform_request, count(1), number, other)
            patch.setattr(transport, "perform_request", send)
            try:
                slow.deliver(late)
            except LakeError as refusal:
                refused += isinstance(refusal, Unavailable)
        deliver(project, search)
        assert identical(project, search) == reader(project).edition.number
    assert refused >= 5


def test_a_deliverer_that_wakes_up_late_brings_back_no_older_row(project: Settings) -> None:
    edition(project, 1, "id", one="SELECT range AS id, 'old' AS word FROM range(3)")
    search = sink(project, "search", f"{URL}[tables.one]\n")
    deliver(project, search)
    edition(project, 2, "id", one="SELECT range AS id, 'new' AS word FROM range(2)")
    deliver(project, search)
    with closing(cast(Target, search.open())) as target:
        late = [Document(str(n), json.dumps({"id": n, "word": "old"})) for n in range(3)]
        assert target.server.bulk("search-one", late, version=1) == []
        target.server.client.indices.refresh(index="search-one")
    assert identical(project, search) == 2


def test_a_server_that_is_killed_and_comes_back_has_one_edition(
    project: Settings, opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = sink(project, "search", f"{URL}[tables.one]\n")
    words = "SELECT range AS id, 'w' || range * {} AS word FROM range({})"
    edition(project, 1, "id", one=words.format(1, 200))
    deliver(project, search)
    for number in range(2, 5):
        edition(project, number, "id", one=words.format(number, 200 + number))
        sent = partial(sent_to_one_that_dies, bulk.OpenSearchServer._send_bulk, count(1), number - 1, opensearch)
        with monkeypatch.context() as patch:
            patch.setattr(bulk.OpenSearchServer, "_send_bulk", lambda *given, sent=sent: sent(*given))
            if number < 4:  # a delivery asks for two things in bulk: what is tried, and what is copied
                with pytest.raises(Unavailable, match="does not answer"):
                    deliver(project, search)
            else:
                deliver(project, search)
                opensearch.stop()
        opensearch.start()
        assert identical(project, search) == number - (number == 2)
        deliver(project, search)
        assert identical(project, search) == number


def sent_to_one_that_dies(sent: Any, trips: Any, nth: int, server: OpenSearch, *given: Any) -> Any:
    """Sends what is asked for in bulk, and kills the server where it is the nth time."""
    done = sent(*given)
    if next(trips) == nth:
        server.stop()
    return done


def test_documents_that_the_server_does_not_take_are_told_and_come_once_it_can(
    project: Settings, client: opensearchpy.OpenSearch
) -> None:
    bad = "SELECT range AS id, CASE WHEN range % 3 = {} THEN repeat('é', 20000) ELSE 'fine' END AS word FROM range(6)"
    edition(project, 1, "id", one=bad.format(0))
    search = sink(project, "search", f'{URL}[tables.one]\nmapping = {{ word = {{ type = "keyword" }} }}\n')
    assert deliver(project, search).rejected == 2
    [told] = command(project, "status")["sinks"]
    assert [row["key"] for row in told["rejected"]] == ['{"id": 0}', '{"id": 3}']
    assert all("word" in row["reason"] and "é" not in row["reason"] for row in told["rejected"]), told["rejected"]
    [verdict] = verify_sink(project, search)[1]
    assert verdict.why == "the target cannot take 2 of them: lake status"
    edition(project, 2, "id", one=bad.format(1))
    assert deliver(project, search).rejected == 2
    assert hits(client, "search-one", {"match_all": {}}) == [0, 2, 3, 5]
    edition(project, 3, "id", one="SELECT range AS id, 'fine' AS word FROM range(6)")
    assert deliver(project, search).rejected == 0
    assert identical(project, search) == 3
    edition(project, 4, "id", one="SELECT range AS id, repeat('x', 40000) AS word FROM range(1001)")
    with pytest.raises(LakeError, match=r"cannot take more than 1,000 rows of one"):
        deliver(project, search)
    assert identical(project, search) == 3
    edition(project, 5, "id", one="SELECT range AS id, 'fine' AS word FROM range(9)")
    deliver(project, search)
    assert identical(project, search) == 5


def test_a_column_mapped_as_what_its_values_are_not_and_a_row_too_large_are_told(
    project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    edition(project, 1, "id", one="SELECT * FROM (VALUES (1, '2024-01-01'), (2, 'never'), (3, NULL)) t(id, word)")
    search = sink(project, "search", f'{URL}[tables.one]\nmapping = {{ word = {{ type = "date" }} }}\n')
    assert deliver(project, search).rejected == 1
    edition(project, 2, "id", one="SELECT 1 AS id, repeat('x ', 60000000) AS word UNION ALL SELECT 2, 'fine'")
    search = sink(project, "search", f"{URL}[tables.one]\n")
    assert deliver(project, search).rejected == 1
    [told] = command(project, "status")["sinks"]
    assert told["rejected"] == [{"table": "one", "key": '{"id": 1}', "reason": "it is larger than a request may be"}]


def test_ids_tell_any_identities_apart_the_long_ones_by_a_hash(project: Settings) -> None:
    words = ["a", "b", "a:b", "", "%null", "%", "a%3Ab", "ä🙂", "x y\\n", "y" * 600, "y" * 601]
    listed = ", ".join([*(f"('{word}')" for word in words), "(NULL)"])
    edition(
        project,
        1,
        "a",
        "b",
        one=f"SELECT a.w AS a, b.w AS b, 1 AS n FROM (VALUES {listed}) a(w), (VALUES {listed}) b(w)",
    )
    search = sink(project, "search", f"{URL}[tables.one]\n")
    assert deliver(project, search).rejected == 0
    assert identical(project, search) == 1
    edition(project, 2, "a", one=f"SELECT a.w AS a, 1 AS n FROM (VALUES {listed}) a(w)")
    deliver(project, search)
    assert identical(project, search) == 2
    assert id_of("y" * 512) == "y" * 512
    assert len(id_of("y" * 513)) == len("%sha256-") + 64


def test_every_type_is_searched_as_what_it_is(project: Settings, client: opensearchpy.OpenSearch) -> None:
    edition(project, 1, "id", one=every_type(40))
    deliver(project, sink(project, "search", f"{URL}[tables.one]\n"))
    for query in (
        {"term": {"flag": True}},
        {"range": {"long": {"gte": 9223372036854775807}}},
        {"range": {"exact": {"lt": 0}}},
        {"range": {"day": {"gte": "9999-01-01"}}},
        {"range": {"at": {"lt": "0001-01-02T00:00:00Z"}}},
        {"range": {"part.size": {"gte": 3}}},
        {"range": {"numbers": {"gte": 1.5}}},
        {"term": {"word.keyword": "ä🙂"}},
        {"match": {"words": "A"}},
    ):
        assert hits(client, "search-one", query), query
    assert hits(client, "search-one", {"exists": {"field": "double"}}) != hits(client, "search-one", {"match_all": {}})


@pytest.mark.parametrize(
    ("id_", "source", "expected"),
    [
        ("7", {"id": 7, "word": "forged"}, [(7, "differs")]),
        ("0", None, [(0, "missing")]),
        ("99", {"id": 99}, [(99, "extra")]),
    ],
)
def test_a_row_that_was_tampered_with_is_named_and_put_right(
    project: Settings, client: opensearchpy.OpenSearch, id_: str, source: Any, expected: Any
) -> None:
    edition(project, 1, "id", one=every_type(30), two=every_type(3))
    search = sink(project, "search", f"{URL}[tables.one]\n[tables.two]\n")
    deliver(project, search)
    if source is None:
        client.delete(index="search-one", id=id_, params={"refresh": "true"})
    else:
        client.index(index="search-one", id=id_, body=source, params={"refresh": "true"})
    one, two = verify_sink(project, search)[1]
    assert [(row["id"], row["change"]) for row in one.differences] == expected
    assert (one.verdict, two.verdict) == ("differs", "identical")
    repair(project, search)
    assert identical(project, search) == 1


def test_a_document_that_is_not_the_row_that_its_id_says_is_named(
    project: Settings, client: opensearchpy.OpenSearch
) -> None:
    edition(project, 1, "id", one=every_type(5))
    search = sink(project, "search", f"{URL}[tables.one]\n")
    deliver(project, search)
    client.index(index="search-one", id="theirs", body={"id": 3}, params={"refresh": "true"})
    with pytest.raises(LakeError, match="document theirs of search-one is not the row of one that its _id says"):
        verify_sink(project, search)


def test_what_is_there_by_another_hand_is_replaced_only_when_asked(
    project: Settings, client: opensearchpy.OpenSearch
) -> None:
    client.index(index="search-one", id="1", body={"theirs": 1})
    client.index(index="another", id="1", body={"theirs": 1})
    edition(project, 1, "id", one=every_type(3))
    search = sink(project, "search", f"{URL}[tables.one]\n")
    with pytest.raises(DeclarationError, match="there is an index search-one already, and not of this sink"):
        deliver(project, search)
    deliver(project, search, resync=True)
    assert identical(project, search) == 1
    [made] = client.indices.get_alias(index="search-one")
    client.indices.delete(index=made)
    edition(project, 2, "id", one=every_type(4))
    with pytest.raises(DeclarationError, match="the index search-one was removed"):
        deliver(project, search)
    deliver(project, search, resync=True)
    assert identical(project, search) == 2
    assert client.exists(index="another", id="1")


def test_an_index_that_somebody_alters_midway_is_told_and_made_anew(
    project: Settings, client: opensearchpy.OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = sink(project, "search", f"{URL}[tables.one]\n")
    for harm in ("removed", "altered"):
        cut = reader(project).edition.number if harm == "altered" else 0
        edition(project, cut + 1, "id", one="SELECT range AS id, 'a' AS word FROM range(3)")
        deliver(project, search)
        edition(project, cut + 2, "id", one="SELECT range AS id, 'b' AS word FROM range(3)")
        with monkeypatch.context() as patch:
            patch.setattr("lake.connect.opensearch.target.finish", lambda positions: positions.read())
            deliver(project, search)
        client.indices.delete(index=",".join(client.indices.get_alias(index="search-one")))
        if harm == "altered":
            mappings = {"properties": {"word": {"type": "date"}}}
            client.indices.create(index="theirs", body={"mappings": mappings, "aliases": {"search-one": {}}})
        edition(project, cut + 3, "id", one="SELECT range AS id, 'c' AS word FROM range(3)")
        said = {"removed": "the index search-one was removed", "altered": "does not take a document"}[harm]
        with pytest.raises(LakeError, match=said):
            deliver(project, search)
        deliver(project, search, resync=True)
        assert identical(project, search) == cut + 3


def test_modes_mappings_columns_and_tables_that_come_and_go(project: Settings, client: opensearchpy.OpenSearch) -> None:
    first = f'{URL}[tables.one]\nmode = "upsert"\ncolumns = ["id", "word"]\n'

    def publish(cut: int, text: str, **words: str) -> None:
        listed = ", ".join(f"({n[1:]}, '{word}', {cut})" for n, word in words.items())
        rows = f"SELECT * FROM (VALUES {listed}) t(id, word, other)"
        edition(project, cut, "id", one=rows, two=rows)
        deliver(project, sink(project, "search", text))

    publish(1, first, _1="a", _2="b")
    publish(2, first, _1="z", _3="c")
    assert hits(client, "search-one", {"match_all": {}}) == [1, 2, 3]
    publish(3, f"{first}[tables.two]\n", _1="z")
    assert client.get(index="search-two", id="1")["_source"] == {"id": 1, "word": "z", "other": 3}
    mapped = 'mapping = { word = { type = "keyword" } }\n'
    with pytest.raises(StartOver, match="must begin anew with one"):
        publish(4, f"{first}{mapped}[tables.two]\n", _1="z")
    publish(5, f"{first.replace('upsert', 'mirror')}{mapped}[tables.two]\n{mapped}", _2="q")
    assert hits(client, "search-one", {"match_all": {}}) == [2]
    assert (
        client.indices.get_mapping(index="search-two").popitem()[1]["mappings"]["properties"]["word"]["type"]
        == "keyword"
    )
    editions.expire_editions(project, [5])
    publish(6, first.replace("upsert", "mirror"), _2="q", _4="r")
    assert hits(client, "search-one", {"match_all": {}}) == [2, 4]


BAD = [
    ('mapping = { nothing = { type = "date" } }\n', "one: mapping: no column 'nothing'", 2),
    ('mapping = { id = { type = "dat" } }\n', "No handler for type", 2),
    ('settings = { number_of_shards = "many" }\n', "For input string", 2),
    ('name = "Ten"\n', "one cannot be called 'Ten' in OpenSearch", 2),
    ('mode = "append"\n', "mode: found 'append'", 2),
]


@pytest.mark.parametrize(("line", "said", "code"), BAD)
def test_what_a_file_says_wrongly_is_told_and_nothing_is_delivered(
    project: Settings, client: opensearchpy.OpenSearch, line: str, said: str, code: int
) -> None:
    edition(project, 1, "id", one=every_type(3))
    folder = project.path(project.sinks)
    folder.mkdir()
    (folder / "search.toml").write_text(f"{URL}[tables.one]\n{line}")
    done = lake(project, ["deliver", "search"])
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not client.indices.exists(index="search-one")


def test_a_server_that_takes_nothing_is_quoted_and_the_delivery_tried_again(
    project: Settings, client: opensearchpy.OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    edition(project, 1, "id", one=every_type(3))
    search = sink(project, "search", f"{URL}[tables.one]\n")
    deliver(project, search)
    edition(project, 2, "id", one=every_type(4))
    [made] = client.indices.get_alias(index="search-one")
    client.indices.put_settings(index=made, body={"index.blocks.write": True})
    with pytest.raises(Unavailable, match="block"):
        deliver(project, search)
    client.indices.put_settings(index=made, body={"index.blocks.write": False})
    deliver(project, search)
    assert identical(project, search) == 2
    monkeypatch.setattr(bulk, "PAUSES", (0.01, 0.01))
    answers = iter([[{"status": 429, "error": {"type": "rejected"}}] * 5] * 2)
    sent = bulk.OpenSearchServer._send_bulk
    monkeypatch.setattr(bulk.OpenSearchServer, "_send_bulk", lambda *given: next(answers, None) or sent(*given))
    edition(project, 3, "id", one="SELECT range AS id FROM range(5)")
    deliver(project, search)
    assert identical(project, search) == 3
    answers = iter([[{"status": 429, "error": {"type": "rejected"}}] * 5] * 9)
    edition(project, 4, "id", one="SELECT range AS id, 1 AS n FROM range(5)")
    with pytest.raises(Unavailable, match="has too much to do"):
        deliver(project, search)


def test_a_password_is_never_told(project: Settings) -> None:
    edition(project, 1, "id", one=every_type(3))
    sink(project, "search", f"{URL}[tables.one]\n")
    done = lake(project, ["deliver", "search"], SEARCH_URL="http://lake:secret123@127.0.0.1:1")
    assert done.returncode == 75
    assert "OpenSearch at 127.0.0.1:1 does not answer" in done.stderr
    assert "secret123" not in done.stdout + done.stderr


def test_a_switch_is_finished_by_who_asks_for_the_position(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    search = sink(project, "search", f"{URL}[tables.one]\n")
    edition(project, 1, "id", one=every_type(10))
    deliver(project, search)
    edition(project, 2, "id", one=every_type(12, shift=1))
    with monkeypatch.context() as patch:
        patch.setattr("lake.connect.opensearch.target.finish", lambda positions: positions.read())
        deliver(project, search)
    with closing(cast(Target, search.open())) as target:
        assert finish(target.positions).next is None
    assert identical(project, search) == 2


def test_the_page_prints_what_it_shows(tmp_path: Path, commands: Commands, opensearch: OpenSearch) -> None:
    needed(which("curl"), "curl is missing: apt install curl")
    play([SHOP, "docs/how-to/sink-opensearch.md"], tmp_path, {**commands.environment, "SEARCH_URL": opensearch.url})
