"""Records on which an expression of their contract raises: rejected one by one."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from lake import cost
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.ingest.replay import quarantined_records
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.testing import Commands, Lakehouse
from tests.shop import contract, declare, empty

RAISING: Final[dict[str, tuple[str, Any, Any]]] = {
    "make_date": ("make_date(2024, n, 1)", 12, 13),
    "make_timestamp": ("make_timestamp(2024, 1, 1, n, 0, 0)", 23, 24),
    "to_date": ("to_date(text, 'dd.MM.yyyy')", "31.12.2023", "31.12.23?"),
    "to_timestamp": ("to_timestamp(text, 'yyyy-MM-dd HH')", "2024-01-01 10", "2024-01-01"),
    "cast": ("cast(text AS timestamp)", "2024-01-01", "yesterday"),
    "cast_number": ("timestamp_seconds(int(text))", "12", "12x"),
    "cast_overflow": ("timestamp_seconds(cast(wide AS int))", 5, 2**31),
    "seconds": ("timestamp_seconds(wide)", 1_700_000_000, 2**62),
    "years": ("timestamp_seconds(wide)", -62_000_000_000, -63_000_000_000),
    "divide": ("timestamp_seconds(100 / n)", 3, 0),
    "remainder": ("timestamp_seconds(100 % n)", 3, 0),
    "add": ("timestamp_seconds(n + 1)", 3, 2**31 - 1),
    "multiply": ("timestamp_seconds(wide * 2)", 3, 2**62),
    "negate": ("timestamp_seconds(-n)", 3, -(2**31)),
    "index": ("timestamp_seconds(array(1, 2)[n])", 1, 2),
    "element": ("timestamp_seconds(element_at(array(1, 2), n))", 1, 3),
    "sequence": ("timestamp_seconds(sequence(1, n, -1)[0])", 1, 2),
    "zone": ("to_utc_timestamp(timestamp '2024-01-01', text)", "Europe/Berlin", "Berlin"),
    "interval": ("timestamp '2024-01-01' + make_interval(0, 0, 0, n)", 10, 2**31 - 1),
    "pattern": ("timestamp_seconds(length(regexp_extract('ab', text, 0)))", "(a)", "(a"),
    "number": ("timestamp_seconds(to_number(text, '99'))", "12", "1,2"),
    "bytes": ("timestamp_seconds(length(to_binary(text, 'hex')))", "1f", "zz"),
    "url": ("timestamp_seconds(length(url_decode(text)))", "a%20b", "%%"),
    "variant": ("timestamp_seconds(int(parse_json(text)))", "12", "{"),
    "json": ("timestamp_seconds(int(from_json(text, 'a string').a))", '{"a": "1"}', '{"a": "x"}'),
    "weekday": ("next_day(date '2024-01-01', text)", "MO", "someday"),
    "constant": ("if(n > 0, date '2024-01-01', make_date(2024, 13, 1))", 1, 0),
    "repeated": ("if(make_date(2024, n, 1) > date '2024-05-01', make_date(2024, n, 1), date '2024-01-01')", 12, 13),
    "raised": ("if(n > 0, timestamp_seconds(n), raise_error('n'))", 1, 0),
}
"""By name: an expression over `n`, `wide` or `text`; a valid value; a value on which it raises."""
FEW: Final = ("make_date", "to_date", "seconds", "divide", "repeated")
FIELDS: Final = {
    "id": "int",
    "way": "string",
    "n": "int?",
    "wide": "long?",
    "text": "string?",
    "everyone": "int?",
    "alive": "int?",
}
ABOUT: Final = {
    "id": ["id"],
    "broadcast": "100 / everyone > 5",
    "horizon": {"producer": "way", "punctuation": "100 / alive > 5"},
}


def record(number: int, way: str, value: Any, **more: int) -> dict[str, Any]:
    sql = RAISING[way][0]
    name = next(name for name in ("wide", "text", "n") if name in sql)
    return {"id": number, "way": way, name: value, **more}


def records(ways: Collection[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield records of these ways with the reported expression: "" for an event or a punctuation."""
    number = 0
    for way in ways:
        _, good, bad = RAISING[way]
        for value, name in ((good, ""), (bad, "time"), (good, "")):
            number += 1
            yield record(number, way, value), name
    for more, name in (
        ({"everyone": 0}, "broadcast"),
        ({"everyone": 1}, ""),
        ({"everyone": 50}, ""),
        ({"alive": 0}, "horizon.punctuation"),
        ({"alive": 1}, ""),
    ):
        number += 1
        yield record(number, "make_date", 12, **more), name


def project(folder: Path, ways: Collection[str]) -> Lakehouse:
    cases = " ".join(f"WHEN '{way}' THEN timestamp({RAISING[way][0]})" for way in ways)
    return declare(empty(folder), contract("happened", FIELDS, time=f"CASE way {cases} END", **ABOUT))


def ids(lakehouse: Lakehouse) -> list[int]:
    path = Log(lakehouse.settings, "happened").path
    return [row["id"] for row in duckdb_tables.rows(path, "SELECT id FROM t WHERE id IS NOT NULL ORDER BY id")]


def test_ingest_rejects_records_on_which_an_expression_raises(tmp_path: Path, commands: Commands) -> None:
    lakehouse, told = project(tmp_path, FEW), [*records(FEW)]
    lakehouse.land("happened", *(record for record, _ in told))
    done = commands.lake("ingest", at=lakehouse)
    assert done.code == 0, done.err
    rejected = json.loads(commands.lake("quarantine", "list", "--json", at=lakehouse).out)
    wrong = {line: (record, name) for line, (record, name) in enumerate(told, 1) if name}
    assert {row["source"] for row in rejected} == {f"happened/000001.jsonl:{line}" for line in wrong}
    for row, (record, name) in zip(rejected, wrong.values(), strict=True):
        assert (row["reason"], row["detail"].partition(":")[0]) == ("expression", name), row
        assert json.loads(row["raw"]) == record
    assert "n 13" in next(row["detail"] for row in rejected if json.loads(row["raw"])["way"] == "make_date")
    punctuations = 1
    assert len(ids(lakehouse)) == len(told) - len(wrong) - punctuations
    counted = json.loads(commands.lake("quarantine", "counts", "--json", at=lakehouse).out)
    assert [(row["reason"], row["records"]) for row in counted] == [("expression", len(wrong))]
    assert counted[0]["fix"].startswith("correct the value; time and broadcast stay as they are")


@pytest.mark.usefixtures("spark")
@pytest.mark.long
@pytest.mark.parametrize("read_bytes", [0, cost.READ_BYTES])
def test_rejection_is_the_same_in_all_slicings(
    read_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "READ_BYTES", read_bytes)
    lakehouse, told, chance = project(tmp_path, RAISING), [*records(RAISING)], random.Random(7)
    chance.shuffle(told)
    for part in (told[:20], told[20:21], told[21:]):
        lakehouse.land("happened", *(record for record, _ in part))
        ingest(lakehouse.settings, lambda: lakehouse.spark, load_contracts(lakehouse.settings))
    wrong = {record["id"] for record, name in told if name}
    assert {json.loads(row.raw)["id"] for row in quarantined_records(lakehouse.settings)} == wrong
    assert ids(lakehouse) == sorted(record["id"] for record, name in told if not name and "alive" not in record)


@pytest.mark.long
def test_replay_ingests_records_after_their_values_are_corrected(tmp_path: Path, commands: Commands) -> None:
    lakehouse = declare(empty(tmp_path), contract("happened", {"id": "int", "day": "string"}, time="to_date(day)"))
    records = [{"id": 1, "day": "2024-01-01"}, {"id": 2, "day": "01.01.2024"}]
    stdin = tmp_path / "records.jsonl"
    stdin.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert commands.lake("append", "happened", str(stdin), at=lakehouse).code == 0
    assert ids(lakehouse) == [1]
    repair = tmp_path / "repair.json"
    rows = json.loads(commands.lake("quarantine", "list", "--json", at=lakehouse).out)
    assert rows[0]["source"] == "records.jsonl:2"
    repair.write_text(json.dumps([row | {"raw": json.dumps(records[1] | {"day": "2024-01-02"})} for row in rows]))
    done = commands.lake("quarantine", "replay", "happened", str(repair), at=lakehouse)
    assert (done.code, ids(lakehouse)) == (0, [1, 2]), done.err


@pytest.mark.long
def test_replay_ingests_records_after_the_contract_is_corrected(tmp_path: Path, commands: Commands) -> None:
    source = empty(tmp_path)

    def declared(punctuation: str) -> Lakehouse:
        horizon = {"producer": "id", "punctuation": punctuation}
        fields = {"id": "int", "n": "int", "at": "timestamp"}
        return declare(source, contract("happened", fields, time="at", id=["id"], horizon=horizon))

    lakehouse = declared("100 / n > 50")
    lakehouse.land("happened", *({"id": n, "n": n, "at": "2024-01-01T00:00:00Z"} for n in (0, 1, 3, -1)))
    assert commands.lake("ingest", at=lakehouse).code == 0
    assert commands.lake("quarantine", "replay", "happened", at=lakehouse).code == 0
    assert ([row.reason for row in quarantined_records(lakehouse.settings)], ids(lakehouse)) == (
        ["expression"],
        [-1, 3],
    )
    lakehouse = declared("try_divide(100, n) > 50")
    done = commands.lake("quarantine", "replay", "happened", at=lakehouse)
    assert (done.code, ids(lakehouse), [*quarantined_records(lakehouse.settings)]) == (0, [-1, 0, 3], []), done.err


@pytest.mark.long
def test_ingest_names_the_file_of_a_failure_that_repeats(tmp_path: Path, commands: Commands) -> None:
    """The failure is simulated for the record with the id 10, outside of guarded evaluation."""
    lakehouse = declare(empty(tmp_path), contract("happened", {"id": "int", "day": "date"}, broadcast="id > 9"))
    for number in (1, 10, 2):
        lakehouse.land("happened", {"id": number, "day": "2024-01-01"})
    raising = {"lake.contracts.expressions.TRUE": "cast(string(1 / (id - 10)) AS binary)"}
    done = commands.lake("ingest", at=lakehouse, tuned=raising)
    assert (done.code, "(happened/000002.jsonl)" in done.err) == (1, True), done.err


@pytest.mark.long
def test_ingest_names_the_contract_if_no_record_can_be_read(tmp_path: Path, commands: Commands) -> None:
    """Spark checks the pattern when it generates code, whatever the records."""
    fields = {"id": "int", "text": "string"}
    lakehouse = declare(empty(tmp_path), contract("happened", fields, time="date_format(cast(text AS date), 'bb')"))
    lakehouse.land("happened", {"id": 1, "text": "2024-01-01"})
    done = commands.lake("ingest", at=lakehouse, SPARK_REMOTE="")
    assert (done.code, "(schemas/happened.avsc:1)" in done.err) == (2, True), done.err
