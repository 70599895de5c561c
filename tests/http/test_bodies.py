"""Bodies of requests: JSON is kept digit for digit, and wrong bodies are rejected. No server."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the extra `serve` is not installed")

from lake.serve.backpressure import Backpressure, IntakeLimits
from lake.serve.bodies import PostedRecord, Reception, decompress, records, records_by_stream
from lake.serve.intake_folder import Backlog, IntakeFolder
from lake.serve.problems import Problem

VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.decimals(allow_nan=False, allow_infinity=False).map(lambda d: Exact(f"{d:f}")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS: Any = st.dictionaries(st.text(), VALUES, max_size=4)
SPACES = st.sampled_from(["", " ", "\n", "\t ", "\r\n"])


class Exact(float):
    """A number written with all its digits."""

    def __new__(cls, text: str) -> Exact:
        new = super().__new__(cls, float(text))
        new.text = text
        return new

    text: str

    def __repr__(self) -> str:
        return self.text


def load_exact(text: str) -> Any:
    """Return the value with numbers as their texts."""
    return json.loads(text, parse_int=str, parse_float=str)


def read_body(body: str | bytes, kind: str, *, record_bytes: int = 1 << 20, **headers: str) -> list[PostedRecord]:
    told = {"content-type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
    whole = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return records(whole, told, Reception("now", record_bytes, max_records=100))


@pytest.mark.long
@given(st.lists(OBJECTS, max_size=5), st.booleans(), SPACES)
def test_objects_of_an_array_are_read_unchanged(objects: list[Any], ascii_only: bool, space: str) -> None:
    texts = [json.dumps(each, ensure_ascii=ascii_only) for each in objects]
    body = f"{space}[{space}{f'{space},{space}'.join(texts)}{space}]{space}"
    if not ascii_only and not _encodable(body):
        return
    found = read_body(body, "application/json")
    assert [record.text for record in found] == texts


@pytest.mark.slow
@given(st.lists(OBJECTS, max_size=5), st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"]))
def test_objects_on_lines_are_read_unchanged(objects: list[Any], end: str) -> None:
    texts = [json.dumps(each) for each in objects]
    assert [record.text for record in read_body(end.join(texts), "application/x-ndjson")] == texts


@given(OBJECTS, st.sampled_from([None, 0, 2]))
def test_object_over_several_lines_is_one_record(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert [record.text for record in read_body(f" {text}\n", "application/json; charset=UTF-8")] == [text]


@pytest.mark.slow
@given(st.lists(st.tuples(OBJECTS, st.text(min_size=1, max_size=20)), min_size=1, max_size=4))
def test_data_of_cloud_events_are_read_with_their_ids(events: list[tuple[Any, str]]) -> None:
    envelopes = [
        {"specversion": "1.0", "id": name, "source": "/s", "type": "t", "data": data, "n": 1} for data, name in events
    ]
    found = read_body(json.dumps(envelopes), "application/cloudevents-batch+json")
    assert [record.text for record in found] == [json.dumps(data) for data, _ in events]
    assert [record.facts["http.id"] for record in found] == [name for _, name in events]
    assert {record.facts["cloudevents.source"] for record in found} == {"/s"}


@given(
    st.binary(max_size=60),
    st.sampled_from(["application/json", "application/x-ndjson", "application/cloudevents+json"]),
)
def test_body_of_any_bytes_returns_records_or_a_problem(body: bytes, kind: str) -> None:
    found: list[PostedRecord] = []
    with suppress(Problem):
        found = read_body(body, kind)
    assert all(isinstance(json.loads(record.text), dict) for record in found)


@given(OBJECTS, st.data())
def test_damaged_body_returns_the_records_of_json_or_a_problem(value: Any, data: Any) -> None:
    text = json.dumps([value, value])
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.sampled_from(["", "{", "}", '"', ",", "0", "\\", "]"])) + text[at + 1 :]
    try:
        expected = load_exact(damaged)
    except ValueError:
        expected = None
    whole = expected if isinstance(expected, list) else [expected]
    try:
        found = read_body(damaged, "application/json")
    except Problem:
        assert expected is None or not all(isinstance(each, dict) for each in whole)
    else:
        assert [load_exact(record.text) for record in found] == whole


@pytest.mark.parametrize(
    ("body", "kind", "problem", "detail"),
    [
        ('{"a": 1}\nnot json\n5', "application/x-ndjson", "unparseable", "record 2: Expecting value"),
        ('{"a": NaN}', "application/json", "unparseable", "NaN is not JSON"),
        ("[1]", "application/json", "unparseable", "it is not a JSON object"),
        ('[{"a": 1} {"b": 2}]', "application/json", "unparseable", "expected ',' or ']'"),
        ('[{"a": 1},]', "application/json", "unparseable", "record 2"),
        ("[" * 100_000, "application/json", "unparseable", "nested too deeply"),
        ('{"a": "%s"}' % ("x" * 100), "application/json", "oversized", "longer than 50 bytes"),
        ('{"a": "%s"}' % ("ż" * 25), "application/json", "oversized", "longer than 50 bytes"),
        (b'{"a": "\xff"}', "application/json", "unparseable", "not UTF-8 at byte 7"),
        ("a=1", "application/x-www-form-urlencoded", "wrong-type", "--json"),
        ("{}", "application/json; charset=latin-1", "wrong-type", "latin-1"),
        ("{}", "", "wrong-type", "found none"),
        ("{}\n" * 101, "application/x-ndjson", "too-long", "more than 100 records"),
        ('{"id": "1"}', "application/cloudevents+json", "unparseable", "without specversion, source, type"),
    ],
)
def test_wrong_body_is_reported_with_the_kind_of_problem(
    body: str | bytes, kind: str, problem: str, detail: str
) -> None:
    with pytest.raises(Problem) as told:
        read_body(body, kind, record_bytes=50 if problem == "oversized" else 1 << 20)
    assert told.value.kind == problem
    assert detail in told.value.detail


def test_request_with_a_bad_record_is_rejected_and_counts_all_bad_ones() -> None:
    with pytest.raises(Problem) as told:
        read_body("{}\n" + "bad\n" * 30, "application/x-ndjson")
    assert told.value.more["reason"] == "unparseable"
    assert [error["record"] for error in told.value.more["errors"]] == list(range(2, 12))
    assert told.value.detail.endswith("and 29 more are bad")


def test_request_id_is_the_id_of_its_record_and_numbers_several() -> None:
    [one] = read_body("{}", "application/json", idempotency_key='"k-1"')
    assert one.facts == {"http.received": "now", "http.id": "k-1"}
    [escaped] = read_body("{}", "application/json", idempotency_key='"a\\"b"')
    assert escaped.facts["http.id"] == 'a"b'
    assert "http.id" not in read_body("{}", "application/json", idempotency_key='""')[0].facts
    several = read_body("{}\n{}", "application/jsonl", webhook_id="m", idempotency_key="k")
    assert [record.facts["http.id"] for record in several] == ["m:1", "m:2"]
    [binary] = read_body("{}", "application/json", ce_id="7", ce_source="/s", ce_type="t", webhook_id="m")
    assert (binary.facts["http.id"], binary.facts["cloudevents.source"]) == ("7", "/s")
    assert "http.id" not in read_body("{}", "application/json")[0].facts


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("caf%C3%A9", "café"),
        ("Euro%20%E2%82%AC%20%f0%9f%98%80", "Euro € 😀"),
        ('"a \\"quoted\\" \\\\ text"', 'a "quoted" \\ text'),
        ('"caf%C3%A9"', "café"),
        ("%2541", "%41"),
        ("100%", "100%"),
    ],
)
def test_attribute_of_an_event_in_binary_mode_is_decoded(header: str, value: str) -> None:
    [record] = read_body("{}", "application/json", ce_id=header, ce_source="/s", ce_type="t", ce_subject=header)
    assert {record.facts[name] for name in ("http.id", "cloudevents.id", "cloudevents.subject")} == {value}


def test_attribute_that_is_not_utf8_is_rejected() -> None:
    with pytest.raises(Problem, match="ce-subject is not UTF-8"):
        read_body("{}", "application/json", ce_id="1", ce_source="/s", ce_type="t", ce_subject="%C0%A0")


@given(st.binary(max_size=5000), st.integers(0, 6000), st.integers(1, 50))
def test_gzip_is_unpacked_in_pieces_up_to_a_bound(content: bytes, most: int, pieces: int) -> None:
    packed, stream, found = gzip.compress(content), zlib.decompressobj(31), b""
    for at in range(0, len(packed), pieces):
        found += decompress(packed[at : at + pieces], stream, most - len(found))
        if len(found) > most:
            break
    assert found == content[: most + 1]


@pytest.mark.parametrize("rest", [gzip.compress(b"{}", mtime=0), b"\0"])
@pytest.mark.parametrize("pieces", [1, 1000])
def test_gzip_with_more_after_its_end_is_rejected(rest: bytes, pieces: int) -> None:
    packed, stream = gzip.compress(b"{}", mtime=0) + rest, zlib.decompressobj(31)
    parts = (decompress(packed[at : at + pieces], stream, 1000) for at in range(0, len(packed), pieces))
    with pytest.raises(Problem, match="more follows the end of the gzip stream"):
        b"".join(parts)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("name", ["id", "source", "type", "time", "subject"])
def test_cloud_event_with_half_a_surrogate_pair_is_rejected(name: str) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {"a": 1}} | {name: "\ud800"}
    with pytest.raises(Problem, match="half a surrogate pair"):
        read_body(json.dumps(event), "application/cloudevents+json")


@pytest.mark.parametrize(
    ("member", "fault"),
    [
        ('"id": "2"', "an attribute twice"),
        ('"data": {}', "an attribute twice"),
        (f'"id": "{"x" * 1025}"', "an id of more"),
    ],
)
def test_cloud_event_with_two_ids_or_a_long_one_is_rejected(member: str, fault: str) -> None:
    others = ', "id": "1"' if fault.endswith("twice") else ""
    event = f'{{"specversion": "1.0", "source": "s", "type": "t", "data": {{"a": 1}}, {member}{others}}}'
    with pytest.raises(Problem, match=fault):
        read_body(event, "application/cloudevents+json")


def test_records_of_several_streams_are_counted_together() -> None:
    body = json.dumps({"a": [{}, {}, {}], "b": [{}]}).encode()
    with pytest.raises(Problem, match="more than 3 records") as told:
        records_by_stream(
            body,
            {"content-type": "application/json"},
            Reception("now", record_bytes=100, max_records=3),
            named={"a": (), "b": ()},
        )
    assert told.value.more == {"max_records": 3}


@pytest.mark.parametrize(("free", "kept", "told"), [(100, 1 << 30, "100 bytes are free"), (0, 0, "0 bytes are free")])
def test_full_disk_is_reported_with_its_free_bytes(tmp_path: Path, free: int, kept: int, told: str) -> None:
    pressure = Backpressure(IntakeFolder(tmp_path), IntakeLimits(free_bytes=kept))
    pressure.update(Backlog(), free)
    pressure.count_written(0 if free else 10)
    with pytest.raises(Problem, match=f"^{told}, and {kept:,} have to stay free$"), pressure.request():
        pass


def test_requests_without_a_token_leave_most_requests_and_memory_to_others(tmp_path: Path) -> None:
    pressure = Backpressure(IntakeFolder(tmp_path), IntakeLimits(max_requests=8, max_memory=400, signed_body=80))
    with pressure.request(has_token=False) as first, pressure.request(has_token=False) as second:
        with pytest.raises(Problem, match="2 requests in flight"), pressure.request(has_token=False):
            pass
        with pytest.raises(Problem, match="more than 80 bytes"):
            first.reserve(81)
        first.reserve(80)
        with pytest.raises(Problem, match="too many request bytes in flight"):
            second.reserve(21)
        with pressure.request() as other:
            other.reserve(320)
            with pytest.raises(Problem, match="too many request bytes in flight"):
                other.reserve(1)
    with pressure.request(has_token=False) as first:
        first.reserve(80)
