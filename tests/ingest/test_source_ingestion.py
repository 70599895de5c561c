"""Deliveries of a source: complete in all their logs or in no cut, after any crash and in any size."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lake.cli import Shell, lake
from lake.contracts.contract import load_contracts
from lake.engine.verify import verify_all
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.ingest import source_ingestion
from lake.ingest.ingest import Ingestion, ingest
from lake.ingest.replay import quarantined_records
from lake.ingest.source_ingestion import delete_spooled_records, give_up_lost
from lake.ops import pipeline
from lake.ops.follow import _Following
from lake.project.project import load
from lake.publish.cut import cut
from lake.sources import spool
from lake.sources.declared import sound_sources
from lake.sources.describe import describe, position
from lake.store import duckdb_tables
from lake.store.ledger import runs
from lake.store.ledger.cuts import record_cut
from lake.store.ledger.editions import current_edition
from lake.store.log import Log, source_position
from lake.store.log_head import LogHead
from lake.store.table_logs import forget_all
from lake.testing import Lakehouse
from tests.checks import present
from tests.packages import install
from tests.shop import contract, declare, empty, job
from tests.sources.fake import Fake

WHO = {"name": "who", "type": ["null", "string"], "default": None, "from": "kafka.key"}
STREAMS = ("credits", "debits")


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lakehouse:
    """Bank whose transfers are a debit and a credit each, by a source of both."""
    install(monkeypatch, tmp_path / "packages", {"lake.sources": {"fake": "tests.sources.fake:KIND"}})
    settings = empty(tmp_path / "bank")
    contracts = [contract(name, {"transfer": "long", "account": "string", "pence": "long"}) for name in STREAMS]
    for one in contracts:
        one["fields"].append(WHO)
    kind = 'Aggregate(key="account", measures={"pence": Sum("pence"), "transfers": Count()})'
    jobs = {f"{name}_total": job(f"{name}_total", kind, f'log("{name}")') for name in STREAMS}
    house = declare(settings, *contracts, jobs=jobs)
    (settings.project / "sources").mkdir()
    outside(house, [])
    return house


def outside(house: Lakehouse, transactions: list[Any], at_once: int = 1, *, source: str = "bank", **more: Any) -> None:
    file = house.source.project / ("outside.json" if source == "bank" else f"{source}.json")
    file.write_text(json.dumps({"transactions": transactions, "acknowledged": 0} | more))
    lines = ['kind = "fake"', f'file = "{file}"', f"at_once = {at_once}", f"streams = {[*STREAMS]}"]
    (house.source.project / f"sources/{source}.toml").write_text("\n".join(lines) + "\n")


def transfers(count: int, seed: int = 1) -> list[Any]:
    """Return transfers, each a debit and a credit of the same pence."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        pence, one, two = chance.randint(1, 9), *chance.sample("abc", 2)
        debit = ["debits", {"transfer": number, "account": one, "pence": -pence}]
        credit = ["credits", {"transfer": number, "account": two, "pence": pence}]
        made.append([debit, credit])
    return made


def log_rows(house: Lakehouse) -> dict[str, list[tuple[Any, ...]]]:
    """Return the events of the logs in their order, without batches."""
    query = "SELECT transfer, account, pence, who, _source FROM t WHERE _bucket >= 0 ORDER BY _batch, _arrival"
    return {
        stream: [tuple(row.values()) for row in duckdb_tables.rows(Log(house.settings, stream).path, query)]
        for stream in STREAMS
    }


@pytest.mark.long
def test_logs_have_each_record_of_a_source_once_and_it_is_acknowledged(bank: Lakehouse, spark: SparkSession) -> None:
    outside(bank, transfers(5), at_once=2)
    counts = ingest(bank.settings, lambda: spark, load_contracts(bank.settings))
    assert {stream: (one.batch, one.accepted) for stream, one in counts.items()} == dict.fromkeys(STREAMS, (3, 5))
    assert [row[0] for row in log_rows(bank)["debits"]] == [0, 1, 2, 3, 4]
    assert log_rows(bank)["credits"][3][3:] == ("k3", "bank:3:1")
    assert json.loads((bank.source.project / "outside.json").read_text())["acknowledged"] == 5
    at = source_position(bank.settings, "bank", STREAMS)
    assert (at.number, at.progress, at.streams, at.lacking) == (3, {"to": 5}, STREAMS, ())
    assert [one.number for one in spool.spooled_deliveries(bank.settings, "bank")] == [3]
    [newest, *_] = json.loads(run(bank, spark, "log", "debits", "--json"))["batches"]
    said = {"source": "bank", "delivery": 3, "streams": [*STREAMS], "progress": {"to": 5}, "batch": 3}
    assert newest["delivery"] == said
    assert "bank, delivery 3\n" in run(bank, spark, "log", "debits")
    again = ingest(bank.settings, lambda: spark, load_contracts(bank.settings))
    assert not any(one.read for one in again.values())


def test_source_that_fails_reports_what_it_delivered_before(bank: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    outside(bank, transfers(3))

    def acknowledge(_: Fake, upto: dict[str, int]) -> None:
        if upto["to"] == 2:
            raise Unavailable("bank does not answer")

    monkeypatch.setattr(Fake, "acknowledge", acknowledge)
    command = ["ingest", "--json", "--project", str(bank.settings.project)]
    done = CliRunner().invoke(lake, command, standalone_mode=False)
    assert (done.return_value, "bank does not answer" in done.stderr) == (75, True)
    counts = json.loads(done.stdout)["streams"]
    assert {stream: (one["batch"], one["accepted"]) for stream, one in counts.items()} == dict.fromkeys(STREAMS, (2, 2))
    runs.wait_until_recorded()
    outcomes = {(run.subject, run.outcome, run.counts.get("accepted")) for run in runs.newest_runs(bank.source)}
    assert outcomes == {("bank", "failed", None), *((stream, "done", 2) for stream in STREAMS)}


def spooled_files(house: Lakehouse) -> list[str]:
    return sorted(path.name for path in house.settings.path(f".lake/{spool.FOLDER}/bank").rglob("*.parquet"))


def ingest_here(house: Lakehouse) -> None:
    def no_session() -> SparkSession:
        raise AssertionError("few records need no session")

    ingest(house.settings, no_session, load_contracts(house.settings))


def test_spooled_records_are_deleted_only_once_all_logs_have_them(
    bank: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside(bank, transfers(1))
    with monkeypatch.context() as patch:
        Dies(patch, source_ingestion, "append", 2, after=False)
        with pytest.raises(KeyboardInterrupt):
            ingest_here(bank)
    delete_spooled_records(bank.settings)
    assert len(spooled_files(bank)) == len(STREAMS)
    ingest_here(bank)
    delete_spooled_records(bank.settings)
    assert spooled_files(bank) == []
    outside(bank, transfers(2))
    ingest_here(bank)
    assert [row[0] for row in log_rows(bank)["credits"]] == [0, 1]


def test_deleted_spool_that_does_not_follow_the_logs_is_reported(bank: Lakehouse, tmp_path: Path) -> None:
    outside(bank, transfers(1))
    ingest_here(bank)
    copy, warehouse = tmp_path / "copy", bank.settings.warehouse_path
    shutil.copytree(warehouse, copy)
    outside(bank, transfers(2))
    ingest_here(bank)
    delete_spooled_records(bank.settings)
    shutil.rmtree(warehouse)
    copy.rename(warehouse)
    forget_all()
    with pytest.raises(DeclarationError, match="delivery 2 of bank is on the disk, and the logs have none after 1"):
        ingest_here(bank)
    shutil.rmtree(bank.settings.path(f".lake/{spool.FOLDER}/bank"))
    ingest_here(bank)
    assert [row[0] for row in log_rows(bank)["credits"]] == [0, 1]


@pytest.mark.long
def test_source_with_more_records_is_reported(bank: Lakehouse, spark: SparkSession) -> None:
    outside(bank, transfers(3), at_once=2)
    told: list[list[str]] = [[], [], []]
    for more in told:
        contracts = load_contracts(bank.settings)
        Ingestion(bank.settings, lambda: spark, contracts, batches=1, on_more=more.append).run()
    assert told == [["bank"], [], []]
    assert [row[0] for row in log_rows(bank)["debits"]] == [0, 1, 2]


@pytest.mark.long
def test_spool_that_does_not_follow_the_logs_is_reported(bank: Lakehouse, spark: SparkSession, tmp_path: Path) -> None:
    outside(bank, transfers(2))
    run(bank, spark, "ingest")
    copy, warehouse = tmp_path / "copy", bank.settings.warehouse_path
    shutil.copytree(warehouse, copy)
    outside(bank, transfers(5))
    run(bank, spark, "ingest")
    before = log_rows(bank)
    shutil.rmtree(warehouse)
    copy.rename(warehouse)
    forget_all()
    told = run(bank, spark, "ingest", code=2)
    assert "delivery 5 of bank is on the disk, and the logs have none after 2" in told
    shutil.rmtree(bank.settings.path(f".lake/{spool.FOLDER}/bank"))
    run(bank, spark, "ingest")
    assert log_rows(bank) == before


class Dies:
    """Patch of a function that raises KeyboardInterrupt before or after its nth call."""

    def __init__(self, patch: pytest.MonkeyPatch, module: Any, name: str, nth: int, *, after: bool) -> None:
        self.calls, self.nth, self.after, self.real = 0, nth, after, getattr(module, name)
        patch.setattr(module, name, lambda *arguments, **options: self(*arguments, **options))  # noqa: PLW0108  a method

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.nth and not self.after:
            raise KeyboardInterrupt
        done = self.real(*arguments, **options)
        if self.calls == self.nth:
            raise KeyboardInterrupt
        return done


KILLS = [
    pytest.param(source_ingestion, "append", True, 3, id="the third time a log has it"),
    *(pytest.param(spool, "keep", False, nth, id=f"before {nth} is on disk") for nth in (1, 2, 3)),
    *(pytest.param(spool, "keep", True, nth, id=f"once {nth} is on disk") for nth in (1, 2, 3)),
    *(pytest.param(source_ingestion, "append", True, nth, id=f"once {nth} logs have it") for nth in (1, 2, 4, 5, 6)),
    *(pytest.param(spool, "drop", False, nth, id=f"before {nth} is dropped") for nth in (1, 2)),
    *(pytest.param(Fake, "acknowledge", False, nth, id=f"before {nth} is acknowledged") for nth in (1, 2, 3)),
    *(pytest.param(Fake, "acknowledge", True, nth, id=f"once {nth} is acknowledged") for nth in (1, 2, 3)),
]


@pytest.mark.long
@pytest.mark.parametrize(("module", "name", "after", "nth"), KILLS)
def test_next_run_after_a_crash_has_every_delivery_once_and_divides_none(  # noqa: PLR0917  a case
    bank: Lakehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, after: bool, nth: int
) -> None:
    outside(bank, transfers(6), at_once=2)
    contracts = load_contracts(bank.settings)
    with monkeypatch.context() as patch:
        Dies(patch, module, name, nth, after=after)
        with pytest.raises(KeyboardInterrupt):
            ingest(bank.settings, lambda: spark, contracts)
    whole_or_not(bank)
    ingest(bank.settings, lambda: spark, contracts)
    assert [[row[0] for row in rows] for rows in log_rows(bank).values()] == [[*range(6)]] * 2
    assert cut(load(bank.settings)).batches == dict.fromkeys(STREAMS, 3)


def whole_or_not(house: Lakehouse) -> None:
    """Check that a cut has both sides of each transfer, or none."""
    batches = cut(load(house.settings)).batches
    sides = {}
    for stream in STREAMS:
        query = "SELECT transfer FROM t WHERE _bucket >= 0 AND _batch <= $1"
        rows = duckdb_tables.rows(Log(house.settings, stream).path, query, batches[stream])
        sides[stream] = sorted(row["transfer"] for row in rows)
    assert sides["credits"] == sides["debits"]


@pytest.mark.long
@pytest.mark.parametrize("at_once", [3, 1, 100])
def test_edition_balances_for_any_delivery_size(bank: Lakehouse, spark: SparkSession, at_once: int) -> None:
    made = transfers(7)
    outside(bank, made, at_once=at_once)
    while source_position(bank.settings, "bank", STREAMS).progress != {"to": 7}:
        pipeline.run(bank.settings, lambda: spark, print, batches=1)
        sums = [sum(row["pence"] for row in bank.table(f"{stream}_total")) for stream in STREAMS]
        assert sum(sums) == 0
    assert current_edition(bank.settings) is not None
    assert {one.verdict for one in verify_all(lambda: spark, bank.project, on_progress=lambda _: None)} == {"identical"}


@pytest.mark.long
def test_sources_are_asked_in_each_cycle_and_only_news_is_reported(bank: Lakehouse, spark: SparkSession) -> None:
    lines = list[str]()
    following = _Following(bank.settings, lambda: spark, lines.append)
    for count in (1, 2):
        outside(bank, transfers(count))
        following.cycle()
        assert any("credits: batch" in line for line in lines)
        following.cycle()  # the logs were at another batch when the one before began
        lines.clear()
        assert present(following.cycle()).must_ask
        assert lines == []


@pytest.mark.long
def test_file_waits_behind_half_a_delivery_of_a_source(
    bank: Lakehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside(bank, transfers(1))
    contracts = load_contracts(bank.settings)
    with monkeypatch.context() as patch:
        Dies(patch, source_ingestion, "append", 1, after=True)
        with pytest.raises(KeyboardInterrupt):
            ingest(bank.settings, lambda: spark, contracts)
    bank.land("credits", {"transfer": 77, "account": "z", "pence": 1})
    Ingestion(bank.settings, lambda: spark, contracts, batches=1, on_failure=lambda *_: None).run(["credits"])
    at = source_position(bank.settings, "bank", STREAMS)
    assert at.lacking in {(), ("debits",)}
    whole = cut(load(bank.settings)).batches
    assert whole["debits"] == Log(bank.settings, "debits").head().batch
    ingest(bank.settings, lambda: spark, contracts)
    assert {row[0] for row in log_rows(bank)["credits"]} == {0, 77}


@pytest.mark.long
def test_delivery_of_another_source_waits_behind_half_a_delivery(
    bank: Lakehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside(bank, transfers(1))
    outside(bank, transfers(2, seed=2), source="till")
    with monkeypatch.context() as patch:
        fails_for(patch, "debits", 1)
        pipeline.run(bank.settings, lambda: spark, print)
    assert source_position(bank.settings, "bank", STREAMS).lacking == ("debits",)
    assert [len(rows) for rows in log_rows(bank).values()] == [3, 2]
    whole_or_not(bank)
    pipeline.run(bank.settings, lambda: spark, print)
    assert sum(row["pence"] for stream in STREAMS for row in bank.table(f"{stream}_total")) == 0
    assert cut(load(bank.settings)).batches == dict.fromkeys(STREAMS, 3)


def fails_for(patch: pytest.MonkeyPatch, stream: str, number: int) -> None:
    """Make a delivery of the bank fail for the log of one of its streams."""
    real = source_ingestion.SourceIngestion._append

    def append(work: source_ingestion.SourceIngestion, spooled: spool.SpooledDelivery, its: str) -> None:
        if (spooled.source, spooled.number, its) == ("bank", number, stream):
            raise LakeError("the disk is full")
        real(work, spooled, its)

    patch.setattr(source_ingestion.SourceIngestion, "_append", append)


@pytest.mark.long
def test_cut_never_goes_behind_a_recorded_one(
    bank: Lakehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside(bank, transfers(1))
    fails_for(monkeypatch, "debits", 1)
    ingest(bank.settings, lambda: spark, load_contracts(bank.settings), on_failure=lambda *_: None)
    recorded = record_cut(bank.settings, {"credits": 1, "debits": 0}, 0)
    assert cut(load(bank.settings)) == recorded


@pytest.mark.long
def test_cut_divides_no_delivery_that_comes_meanwhile(
    bank: Lakehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    contracts = load_contracts(bank.settings)
    outside(bank, transfers(1))
    ingest(bank.settings, lambda: spark, contracts)
    alone = {"transfer": 9, "account": "a", "pence": 0}
    real, looked = Log.must_reach, list[str]()

    def must_reach(log: Log, batch: int) -> LogHead:
        looked.append(log.stream)
        if len(looked) == len(STREAMS):  # one transfer, and a record that the first stream has no part of
            [other] = {*STREAMS} - {*looked[:1]}
            outside(bank, [*transfers(2), [[other, alone]]])
            ingest(bank.settings, lambda: spark, contracts)
        return real(log, batch)

    monkeypatch.setattr(Log, "must_reach", must_reach)
    batches = cut(load(bank.settings)).batches
    assert {stream: Log(bank.settings, stream).head().batch for stream in STREAMS} == batches
    assert len(looked) > len(STREAMS)


@pytest.mark.long
def test_delivery_is_voided_in_all_of_its_logs(bank: Lakehouse, spark: SparkSession) -> None:
    outside(bank, transfers(3), at_once=1)
    bank.run()
    assert run(bank, spark, "void", "debits", "--batch", "2", "--reason", "a test").splitlines() == [
        "void 1: debits batch 2",
        "void 2: credits batch 2",
    ]
    bank.run()
    totals = [sum(row["pence"] for row in bank.table(f"{stream}_total")) for stream in STREAMS]
    assert sum(totals) == 0
    assert [sum(row["transfers"] for row in bank.table(f"{stream}_total")) for stream in STREAMS] == [2, 2]


@pytest.mark.long
def test_replayed_record_keeps_the_facts_of_its_source(bank: Lakehouse, spark: SparkSession) -> None:
    outside(bank, [[["debits", {"transfer": 1, "account": "a", "pence": "many"}]]])
    run(bank, spark, "ingest")
    [row] = quarantined_records(bank.settings)
    assert (row.source, json.loads(row.facts or "")) == ("bank:0:0", {"kafka.key": "k0"})
    repair = bank.source.project / "repair.json"
    listed = invoke(bank, spark, "quarantine", "list", "debits", "--json").stdout
    repair.write_text(listed.replace("many", "5"))
    run(bank, spark, "quarantine", "replay", "debits", str(repair))
    assert log_rows(bank)["debits"] == [(1, "a", 5, "k0", "bank:0:0")]


@pytest.mark.long
def test_conflict_keeps_the_facts_of_its_source(bank: Lakehouse, spark: SparkSession) -> None:
    known = contract("debits", {"transfer": "long", "account": "string", "pence": "long"}, id=["transfer"])
    known["fields"].append(WHO)
    declare(bank.settings, known)
    outside(bank, [[["debits", {"transfer": 1, "account": "a", "pence": pence}]] for pence in (5, 6)])
    run(bank, spark, "ingest")
    [row] = quarantined_records(bank.settings)
    assert (row.reason, row.source, json.loads(row.facts or "")) == ("conflict", "bank:1:0", {"kafka.key": "k1"})
    assert json.loads(row.raw)["pence"] == 6
    assert log_rows(bank)["debits"] == [(1, "a", 5, "k0", "bank:0:0")]


@pytest.mark.long
def test_gap_is_reported_stops_no_other_source_and_is_given_up_on_request(bank: Lakehouse, spark: SparkSession) -> None:
    made = transfers(4)
    outside(bank, made[:1])
    run(bank, spark, "ingest")
    outside(bank, made, lost=3)
    bank.land("credits", {"transfer": 77, "account": "z", "pence": 1})
    told = run(bank, spark, "ingest", code=2)
    assert "transactions from 1 on are gone" in told
    assert "lake ingest bank --give-up" in told
    assert {row[0] for row in log_rows(bank)["credits"]} == {0, 77}
    run(bank, spark, "ingest", "bank", "--give-up")
    assert [row[0] for row in log_rows(bank)["debits"]] == [0, 3]
    assert source_position(bank.settings, "bank", STREAMS).progress == {"to": 4}


def ingest_half(house: Lakehouse, spark: SparkSession) -> Path:
    """Ingest two deliveries, the second not into the debits. Return the folder with its spooled records."""
    outside(house, transfers(1))
    run(house, spark, "ingest")
    outside(house, transfers(2))
    with pytest.MonkeyPatch.context() as patch:
        fails_for(patch, "debits", 2)
        run(house, spark, "ingest", code=1)
    return house.settings.path(f".lake/{spool.FOLDER}/bank/2")


@pytest.mark.parametrize("lost", ["", "debits.spool.parquet"])
@pytest.mark.long
def test_lost_half_of_a_delivery_is_given_up_on_request(bank: Lakehouse, spark: SparkSession, lost: str) -> None:
    folder = ingest_half(bank, spark)
    (folder / lost).unlink() if lost else shutil.rmtree(folder)
    outside(bank, transfers(3))
    told = run(bank, spark, "ingest", code=2)
    assert "delivery 2 of bank is in the logs of some streams, not of debits, and its records are gone" in told
    assert "lake ingest bank --give-up" in told
    assert [len(rows) for rows in log_rows(bank).values()] == [2, 1]
    told = run(bank, spark, "ingest", "bank", "--give-up")
    assert "delivery 2 of bank is given up: its records for debits are lost" in told
    assert [[row[0] for row in rows] for rows in log_rows(bank).values()] == [[0, 1, 2], [0, 2]]
    assert cut(load(bank.settings)).batches == dict.fromkeys(STREAMS, 3)


@pytest.mark.long
def test_lost_half_of_a_delivery_is_copied_again_from_a_database(
    bank: Lakehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, declaration = ingest_half(bank, spark), bank.source.project / "sources/bank.toml"
    shutil.rmtree(folder)
    declaration.write_text(declaration.read_text() + "copies = true\n")
    with monkeypatch.context() as patch:
        Dies(patch, spool, "keep", 1, after=True)
        with pytest.raises(KeyboardInterrupt):
            give_up_lost(bank.settings, "bank", load_contracts(bank.settings))
    assert "its records are gone" in run(bank, spark, "ingest", code=2)
    told = run(bank, spark, "ingest", "bank", "--give-up")
    assert "its records for debits are lost, and the tables behind them are copied anew" in told
    assert [(row[0], row[3]) for row in log_rows(bank)["debits"]] == [(0, "k0"), (0, "copy"), (1, "copy")]
    assert [row[0] for row in log_rows(bank)["credits"]] == [0, 1]
    assert source_position(bank.settings, "bank", STREAMS).progress == {"to": 2}


@pytest.mark.long
def test_lost_half_is_not_copied_when_copies_are_declared_off(bank: Lakehouse, spark: SparkSession) -> None:
    shutil.rmtree(ingest_half(bank, spark))
    declaration = bank.source.project / "sources/bank.toml"
    declaration.write_text(declaration.read_text() + "copies = false\n")
    told = run(bank, spark, "ingest", "bank", "--give-up")
    assert "its records for debits are lost; to copy their tables, write snapshot = true in sources/bank.toml" in told
    assert "and then lake ingest bank --again debits" in told
    assert [[row[0] for row in rows] for rows in log_rows(bank).values()] == [[0, 1], [0]]
    refused = run(bank, spark, "ingest", "bank", "--again", "debits", code=2)
    assert "bank copies no tables: it is declared with snapshot = false" in refused


@pytest.mark.long
def test_stream_no_longer_declared_for_a_source_lacks_nothing(bank: Lakehouse, spark: SparkSession) -> None:
    outside(bank, transfers(2), at_once=2)
    run(bank, spark, "ingest")
    shutil.rmtree(bank.settings.path(f".lake/{spool.FOLDER}"))
    [credit] = [record for record in transfers(3)[2] if record[0] == "credits"]
    outside(bank, [*transfers(2), [credit]])
    declaration = bank.source.project / "sources/bank.toml"
    declaration.write_text(declaration.read_text().replace(", 'debits'", ""))
    assert source_position(bank.settings, "bank", ("credits",)).lacking == ()
    run(bank, spark, "ingest")
    assert [len(rows) for rows in log_rows(bank).values()] == [3, 2]
    assert cut(load(bank.settings)).batches == {"credits": 2, "debits": 1}


@pytest.mark.long
def test_quarantine_list_names_transactions_that_lack_rejected_records(bank: Lakehouse, spark: SparkSession) -> None:
    whole, half = transfers(2)
    half[0][1]["pence"] = "much"
    outside(bank, [whole, half], at_once=2)
    run(bank, spark, "ingest")
    assert "in the logs without these records: 1 transaction: bank:1" in run(bank, spark, "quarantine", "list")


@pytest.mark.long
def test_spooled_deliveries_are_committed_before_a_source_skips_a_gap(
    bank: Lakehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside(bank, transfers(4))
    run(bank, spark, "ingest")
    commit = source_ingestion.SourceIngestion.commit

    def dies(work: source_ingestion.SourceIngestion, spooled: spool.SpooledDelivery) -> None:
        if spooled.number > 4:
            raise LakeError("it dies")
        commit(work, spooled)

    outside(bank, transfers(6))
    with monkeypatch.context() as patched:
        patched.setattr(source_ingestion.SourceIngestion, "commit", dies)
        run(bank, spark, "ingest", code=1)
    outside(bank, transfers(6), lost=5)
    assert "what was read of bank is not in the logs yet" in run(bank, spark, "ingest", "bank", "--give-up", code=2)
    assert "transactions from 5 on" not in run(bank, spark, "ingest", "bank")
    assert sorted(row[0] for row in log_rows(bank)["debits"]) == [*range(6)]


def test_copy_is_repeated_only_for_a_source_that_copies(bank: Lakehouse, spark: SparkSession) -> None:
    outside(bank, transfers(1))
    assert "unknown source 'debits'" in run(bank, spark, "ingest", "debits", "--again", "debits", code=2)
    assert "did you mean 'debits'?" in run(bank, spark, "ingest", "bank", "--again", "debit", code=2)
    assert "bank has no copy to take again" in run(bank, spark, "ingest", "bank", "--again", "debits", code=2)


@pytest.mark.long
def test_source_acknowledges_nothing_more_when_a_log_has_lost_a_batch(bank: Lakehouse, spark: SparkSession) -> None:
    outside(bank, transfers(3), at_once=3)
    run(bank, spark, "ingest")
    before, log = log_rows(bank), Log(bank.settings, "debits")
    sorted((log.path / "_delta_log").local.glob("*.json"))[-1].unlink()
    outside(bank, transfers(4), acknowledged=3)
    output = run(bank, spark, "ingest", code=1)
    assert "bank: the log of debits is damaged: it is missing" in output
    assert "fix: restore a backup of the warehouse" in output
    assert json.loads((bank.source.project / "outside.json").read_text())["acknowledged"] == 3
    assert duckdb_tables.rows(Log(bank.settings, "credits").path, "SELECT count(*) AS n FROM t") == [
        {"n": len(before["credits"])}
    ]


def test_delivery_is_described_by_offsets_or_places_of_a_log() -> None:
    topics = {"b": {"id": "x", "ranges": {"0": [120, 450], "1": [7, 7], "2": [0, 1]}}}
    assert describe({"cluster": "c", "topics": topics}) == "b/0 120-449, b/2 0-0"
    many = {"b": {"id": "x", "ranges": {str(n): [0, 2] for n in range(6)}}}
    assert describe({"cluster": "c", "topics": many}) == "b/0 0-1, b/1 0-1, b/2 0-1, b/3 0-1 and 2 more"
    assert describe({"system": "1", "from": "0/1A", "to": "0/2B"}) == "0/1A to 0/2B"


def test_source_position_is_described_for_each_kind() -> None:
    topics = {"b": {"id": "x", "ranges": {"0": [120, 450], "1": [7, 7]}}, "c": {"era": 1, "ranges": {"0": [0, 2]}}}
    assert position({"cluster": "c", "topics": topics}) == "b/0 450, b/1 7, c+1/0 2"
    many = {"b": {"id": "x", "ranges": {str(n): [0, 2] for n in range(6)}}}
    assert position({"cluster": "c", "topics": many}) == "b/0 2, b/1 2, b/2 2, b/3 2 and 2 more"
    assert position({"system": "1", "from": "0/1A", "to": "0/2B"}) == "0/2B"
    assert position({"spool": "x", "upto": 7}) == "group 7"
    assert position({"state": {"row": "\u00e9"}, "run": "x"}) == '{"row":"\u00e9"}'
    assert position({"state": "x" * 99, "run": "x"}) == '"' + "x" * 58 + "\u2026"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind = 'kafkaa'", "did you mean 'kafka'?"),
        ("", "names no kind"),
        ("kind = ", "invalid TOML"),
        ("kind = 'fake'\nfile = 'env:NOT_SET'\nstreams = []", "NOT_SET, which is not set"),
        ("kind = 'fake'\nfile = 'x'\nstreams = ['debit']", "did you mean 'debits'?"),
    ],
)
def test_wrong_file_of_a_source_is_reported_and_other_sources_stay_usable(
    bank: Lakehouse, text: str, told: str
) -> None:
    (bank.source.project / "sources/wrong.toml").write_text(text)
    sound, faults = sound_sources(bank.settings, load_contracts(bank.settings))
    assert sorted(sound) == ["bank"]
    assert told in str(faults["wrong"])
    assert "sources/wrong.toml" in str(faults["wrong"])


@pytest.mark.long
def test_faulty_declaration_stops_tables_and_no_source(
    bank: Lakehouse, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    outside(bank, transfers(2))
    project = bank.source.project
    (project / "sources/wrong.toml").write_text("kind = 'kafkaa'")
    (project / "jobs/silver/debits_total.py").write_text("not Python")
    with pytest.raises(DeclarationError, match="debits_total"):
        pipeline.run(bank.settings, lambda: spark, print)
    assert [len(rows) for rows in log_rows(bank).values()] == [2, 2]
    assert "ingest  wrong failed: " in capsys.readouterr().out


@pytest.mark.parametrize("at_least", [False, True])
def test_status_shows_whether_all_waiting_events_were_counted(bank: Lakehouse, *, at_least: bool) -> None:
    outside(bank, transfers(3), at_least=at_least)
    arguments = ["status", "--fail-if", "behind", "--project", str(bank.source.project)]
    done = CliRunner().invoke(lake, arguments)
    waiting = "at least 3 events" if at_least else "3 events"
    assert f"  {waiting}" in done.output
    assert f"behind: {waiting} of bank wait to be ingested" in str(done.exception)


def invoke(house: Lakehouse, spark: SparkSession, *words: str) -> Result:
    """Run a command in this process, with its session."""
    shell = Shell(project=house.source.project)
    shell.__dict__["spark"], shell.__dict__["settings"] = spark, house.settings
    return CliRunner().invoke(lake, list(words), obj=shell, standalone_mode=False)


def run(house: Lakehouse, spark: SparkSession, *words: str, code: int = 0) -> str:
    """Return what a command prints and reports, which must end with `code`."""
    done = invoke(house, spark, *words)
    result = done.return_value if isinstance(done.return_value, int) else 0
    if isinstance(done.exception, LakeError):
        result = done.exception.exit_code
    assert result == code, (done.output, done.exception)
    return done.output + str(done.exception or "")
