"""Tables as indexes of OpenSearch: they belong to one edition, also after kills, swaps and restarts."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pytest

from lake.config import Settings
from lake.connect.opensearch import OpenSearchTarget as Target
from lake.connect.opensearch import finish
from lake.connect.opensearch import server as bulk
from lake.connect.opensearch.indexes import id_of
from lake.connect.opensearch.server import Document
from lake.errors import LakeError, StartOver, Unavailable
from lake.read.sql import reader
from lake.sinks.deliver import deliver
from lake.sinks.verify import repair, verify_sink
from tests.servers.opensearch import OpenSearch
from tests.sinks.walks import command, edition, every_type, identical, lake, sink

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


def test_late_write_does_not_restore_older_rows(project: Settings) -> None:
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


def test_server_killed_during_a_delivery_has_one_edition_after_its_restart(
    project: Settings, opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = sink(project, "search", f"{URL}[tables.one]\n")
    words = "SELECT range AS id, 'w' || range * {} AS word FROM range({})"
    edition(project, 1, "id", one=words.format(1, 200))
    deliver(project, search)
    for number in range(2, 5):
        edition(project, number, "id", one=words.format(number, 200 + number))
        sent = partial(send_and_kill_at, bulk.OpenSearchServer._send_bulk, count(1), number - 1, opensearch)
        with monkeypatch.context() as patch:
            patch.setattr(bulk.OpenSearchServer, "_send_bulk", lambda *given, sent=sent: sent(*given))
            if number < 4:  # a delivery sends two bulk requests: checks, and copies
                with pytest.raises(Unavailable, match="does not answer"):
                    deliver(project, search)
            else:
                deliver(project, search)
                opensearch.stop()
        opensearch.start()
        assert identical(project, search) == number - (number == 2)
        deliver(project, search)
        assert identical(project, search) == number


def send_and_kill_at(sent: Any, trips: Any, nth: int, server: OpenSearch, *given: Any) -> Any:
    """Send a bulk request, and kill the server if it is the `nth`."""
    done = sent(*given)
    if next(trips) == nth:
        server.stop()
    return done


def test_value_unfit_for_its_mapping_and_a_row_too_large_are_rejected(
    project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    edition(project, 1, "id", one="SELECT * FROM (VALUES (1, '2024-01-01'), (2, 'never'), (3, NULL)) t(id, word)")
    search = sink(project, "search", f'{URL}[tables.one]\nmapping = {{ word = {{ type = "date" }} }}\n')
    assert deliver(project, search).rejected == 1
    edition(project, 2, "id", one="SELECT 1 AS id, repeat('x ', 60000000) AS word UNION ALL SELECT 2, 'fine'")
    search = sink(project, "search", f"{URL}[tables.one]\n")
    assert deliver(project, search).rejected == 1
    [status] = command(project, "status")["sinks"]
    assert status["rejected"] == [{"table": "one", "key": '{"id": 1}', "reason": "it is larger than a request may be"}]


def test_columns_of_every_type_are_searched_by_their_type(project: Settings, client: opensearchpy.OpenSearch) -> None:
    edition(project, 1, "id", one=every_type(40), two="SELECT 1 AS id, 'a blue fox' AS word")
    deliver(project, sink(project, "search", f"{URL}[tables.one]\n[tables.two]\n"))
    assert hits(client, "search-two", {"match": {"word": "Blue FOX"}}) == [1]
    assert client.get(index="search-~position", id="search")["_source"]["edition"] == 1
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


def test_verify_names_a_document_that_is_not_the_row_of_its_id(
    project: Settings, client: opensearchpy.OpenSearch
) -> None:
    edition(project, 1, "id", one=every_type(5))
    search = sink(project, "search", f"{URL}[tables.one]\n")
    deliver(project, search)
    client.index(index="search-one", id="theirs", body={"id": 3}, params={"refresh": "true"})
    with pytest.raises(LakeError, match="document theirs of search-one is not the row of one with that _id"):
        verify_sink(project, search)


def test_index_altered_during_a_swap_is_reported_and_rebuilt_by_a_resync(
    project: Settings, client: opensearchpy.OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = sink(project, "search", f"{URL}[tables.one]\n")
    for harm in ("removed", "altered"):
        cut = reader(project).edition.number if harm == "altered" else 0
        edition(project, cut + 1, "id", one="SELECT range AS id, 'a' AS word FROM range(3)")
        deliver(project, search)
        edition(project, cut + 2, "id", one="SELECT range AS id, 'b' AS word FROM range(3)")
        with monkeypatch.context() as patch:
            patch.setattr("lake.connect.opensearch.finish", lambda positions: positions.read())
            deliver(project, search)
        client.indices.delete(index=",".join(client.indices.get_alias(index="search-one")))
        if harm == "altered":
            mappings = {"properties": {"word": {"type": "date"}}}
            client.indices.create(index="theirs", body={"mappings": mappings, "aliases": {"search-one": {}}})
        edition(project, cut + 3, "id", one="SELECT range AS id, 'c' AS word FROM range(3)")
        said = {"removed": "the index search-one was removed", "altered": "rejects a document"}[harm]
        with pytest.raises(LakeError, match=said):
            deliver(project, search)
        deliver(project, search, resync=True)
        assert identical(project, search) == cut + 3


def test_table_with_a_changed_mapping_is_filled_again(project: Settings, client: opensearchpy.OpenSearch) -> None:
    def kind_of_word() -> str:
        mapping = client.indices.get_mapping(index="search-one").popitem()[1]["mappings"]
        return str(mapping["properties"]["word"]["type"])

    edition(project, 1, "id", one="SELECT 1 AS id, 'a' AS word")
    upsert, mapped = f'{URL}[tables.one]\nmode = "upsert"\n', 'mapping = { word = { type = "keyword" } }\n'
    deliver(project, sink(project, "search", upsert))
    edition(project, 2, "id", one="SELECT 2 AS id, 'b' AS word")
    with pytest.raises(StartOver, match="must begin anew with one"):
        deliver(project, sink(project, "search", f"{upsert}{mapped}"))
    assert kind_of_word() == "text"
    deliver(project, sink(project, "search", f"{upsert.replace('upsert', 'mirror')}{mapped}"))
    assert (kind_of_word(), hits(client, "search-one", {"match_all": {}})) == ("keyword", [2])


def test_long_id_is_a_hash() -> None:
    assert id_of("y" * 512) == "y" * 512
    assert len(id_of("y" * 513)) == len("%sha256-") + 64


BAD = [
    ('mapping = { nothing = { type = "date" } }\n', "one: mapping: no column 'nothing'", 2),
    ('mapping = { id = { type = "dat" } }\n', "No handler for type", 2),
    ('settings = { number_of_shards = "many" }\n', "For input string", 2),
    ('name = "Ten"\n', "one cannot be called 'Ten' in OpenSearch", 2),
    ('mode = "append"\n', "mode: found 'append'", 2),
]


@pytest.mark.parametrize(("line", "said", "code"), BAD)
def test_fault_of_a_sink_file_is_reported_and_nothing_is_delivered(
    project: Settings, client: opensearchpy.OpenSearch, line: str, said: str, code: int
) -> None:
    edition(project, 1, "id", one=every_type(3))
    folder = project.path(project.sinks)
    folder.mkdir()
    (folder / "search.toml").write_text(f"{URL}[tables.one]\n{line}")
    done = lake(project, ["deliver", "search"])
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not client.indices.exists(index="search-one")


def test_blocked_index_is_reported_and_an_overloaded_server_is_tried_again(
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
    with pytest.raises(Unavailable, match="is overloaded"):
        deliver(project, search)


def test_unfinished_swap_is_finished_by_a_later_reader_of_the_position(
    project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = sink(project, "search", f"{URL}[tables.one]\n")
    edition(project, 1, "id", one=every_type(10))
    deliver(project, search)
    edition(project, 2, "id", one=every_type(12, shift=1))
    with monkeypatch.context() as patch:
        patch.setattr("lake.connect.opensearch.finish", lambda positions: positions.read())
        deliver(project, search)
    with closing(cast(Target, search.open())) as target:
        assert finish(target.positions).next is None
    assert identical(project, search) == 2


@pytest.mark.parametrize(
    "setting", ['refresh_interval = "30s"', '"index.refresh_interval" = "30s"', 'index.refresh_interval = "30s"']
)
def test_settings_of_an_index_are_kept_with_and_without_their_prefix(
    project: Settings, client: opensearchpy.OpenSearch, setting: str
) -> None:
    search = sink(project, "search", f"{URL}[tables.one]\n[tables.one.settings]\n{setting}\n")
    for number in (1, 2):
        edition(project, number, "id", one=every_type(3, shift=number))
        deliver(project, search)
    [about] = client.indices.get_settings(index="search-one").values()
    assert about["settings"]["index"]["refresh_interval"] == "30s"


def test_row_is_repaired_if_only_its_delete_is_refused_for_too_many_requests(
    project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    edition(project, 1, "id", one=every_type(3))
    search = sink(project, "search", f"{URL}[tables.one]\n")
    deliver(project, search)
    with closing(cast(Target, search.open())) as target:
        target.server.client.index(index="search-one", id="1", body={"id": 1}, params={"refresh": "true"})
    monkeypatch.setattr(bulk, "PAUSES", (0, 0))
    send, refused = bulk.OpenSearchServer._send_bulk, count()

    def send_but_first(server: Any, alias: str, documents: Any, version: int) -> Any:
        if len(documents) < 2 or next(refused):
            return send(server, alias, documents, version)
        return [{"status": bulk.TOO_MANY}, *(send(server, alias, documents[1:], version) or [])]

    monkeypatch.setattr(bulk.OpenSearchServer, "_send_bulk", send_but_first)
    repair(project, search)
    assert identical(project, search) == 1
