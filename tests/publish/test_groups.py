"""Publish groups: blocked groups stay, others advance, and readers are warned."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from click.testing import CliRunner, Result

from lake.cli import Shell, lake
from lake.config import Settings, load_settings
from lake.engine.explain.edition_diff import diff_editions
from lake.engine.explain.render import diff_data
from lake.errors import DeclarationError, QualityError, Unavailable
from lake.ops.maintenance import Policy, maintain
from lake.ops.render import as_data, as_text, failed_conditions
from lake.ops.status import status
from lake.project.project import Project, load
from lake.publish.blocked_groups import BlockedGroups
from lake.publish.cut import pick_cut
from lake.publish.publish import publish
from lake.read.edition_check import verify_edition
from lake.read.export import write_database
from lake.read.sql import reader
from lake.read.wait import wait
from lake.store import delta, duckdb_tables, quarantine
from lake.store.ledger import cuts, editions
from lake.store.ledger.editions import pin_edition
from lake.store.log import Log
from lake.store.warehouse import Warehouse
from tests.checks import present, spark_forbidden
from tests.shop import contract, declare, empty
from tests.warehouse import commit

pytestmark = pytest.mark.slow

CONTRACTS: Final = (
    contract("sales", {"sale": "int", "customer": "string?", "amount": "int?"}, max_refused={"share": 0, "records": 0}),
    contract("visits", {"visit": "int", "page": "string?"}),
)
JOBS: Final = {
    "silver/sale": '''
from lake import Latest, log, table

@table(Latest("sale"), log("sales"))
def sale(sales):
    """A sale as it is."""
    return sales.select("sale", "customer", "amount")
''',
    "gold/customer_total": '''
from jobs.silver.sale import sale
from lake import Aggregate, Count, Sum, table

@table(Aggregate("customer", measures={"sales": Count(), "amount": Sum("amount")}), sale)
def customer_total(sales):
    """What a customer bought."""
    return sales.selectExpr("customer", "cast(amount as decimal(12, 0)) as amount")
''',
    "silver/visit": '''
from lake import Latest, log, table

@table(Latest("visit"), log("visits"))
def visit(visits):
    """A visit."""
    return visits.select("visit", "page")
''',
    "gold/overview": '''
from jobs.gold.customer_total import customer_total
from jobs.silver.visit import visit
from lake import View, table

@table(View(key=(), identity="what"), customer_total, visit)
def overview(totals, visits):
    """How many there are of something."""
    return totals.selectExpr("'customers' as what", "count(*) as n").unionAll(
        visits.selectExpr("'visits' as what", "count(*) as n")
    )
''',
}
GROUPS: Final = {"sales": ["sale", "customer_total"], "traffic": ["visit"]}
"""And `overview`, which is derived from both, in `default`."""
TABLES: Final = {"sale": "sales", "customer_total": "sales", "visit": "traffic", "overview": "default"}
STREAMS: Final = {"sale": {"sales": 1}, "customer_total": {}, "visit": {"visits": 1}, "overview": {}}
PARENTS: Final = {"customer_total": ["sale"], "overview": ["customer_total", "visit"]}
ROWS: Final = {
    "sale": "SELECT 1::INTEGER AS sale, 'ada' AS customer, 5::INTEGER AS amount",
    "customer_total": "SELECT 'ada' AS customer, 1::BIGINT AS sales, 5::DECIMAL(22, 0) AS amount",
    "visit": "SELECT 1::INTEGER AS visit, '/' AS page",
    "overview": "SELECT 'visits' AS what, 1::BIGINT AS n",
}


def setting(groups: Mapping[str, Iterable[str]]) -> str:
    named = ", ".join(f"{group} = {json.dumps(list(names))}" for group, names in groups.items())
    return f"publish.groups = {{{named}}}\n"


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    """Return a project in groups with tables at cut 1, without a JVM."""
    return new_project(tmp_path)


@pytest.fixture(scope="module")
def blocked_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Return a project with editions of cuts 1 and 2, read only: `sales` and `default` are blocked at cut 1."""
    shop = new_project(tmp_path_factory.mktemp("held"))
    publish_edition(shop)
    move(shop)
    stop(shop.settings, "customer_total")
    publish_edition(shop)
    return shop.settings


def new_project(folder: Path) -> Project:
    settings = empty(folder / "project", setting(GROUPS))
    declare(settings, *CONTRACTS, jobs=JOBS)
    project = load(settings)
    move(project)
    return project


def move(project: Project, *names: str) -> None:
    """Add a batch to each log, record a cut, and advance the named tables (default: all) to it."""
    settings = project.settings
    for stream in ("sales", "visits"):
        log = Log(settings, stream)
        said: dict[str, Any] = {"offsets": {}, "watermark": None, "files": [], "contract": 1, "at": "", "content": {}}
        counts = {"read": 1, "accepted": 1, "duplicates": 0, "quarantined": 0, "control": 0}
        duckdb_tables.append(
            Warehouse(settings).log(stream).path, "n BIGINT", [(1,)], log.head().next(**said, counts=counts)
        )
    batch = Log(settings, "sales").head().batch
    cut = cuts.record_cut(settings, {"sales": batch, "visits": batch}, 0).number
    for name in names or TABLES:
        table = project.table(project.tables[name])
        read = dict.fromkeys(STREAMS[name], batch) | dict.fromkeys(PARENTS.get(name, ()), 0)
        head = {"verb": "advance", "cut": cut, "inputs": read, "homes": {p: p for p in PARENTS.get(name, ())}}
        head |= {"fingerprint": project.fingerprint(project.tables[name], {}), "counts": {"inserted": 1}}
        standing = delta.head(table.path, table.app) or delta.start(table.app)
        commit(table.path, ROWS[name], standing.next(**head), mode="overwrite")


def stop(settings: Settings, table: str = "sale", *, most: int = 0) -> None:
    """Let the gate stop a table of more than `most` rows."""
    expectation = {"type": "expect_table_row_count_to_be_between", "kwargs": {"max_value": most}, "severity": "stop"}
    settings.path(f"quality/{table}.json").write_text(json.dumps({"expectations": [expectation]}))


def allow(settings: Settings, table: str = "sale") -> None:
    settings.path(f"quality/{table}.json").unlink(missing_ok=True)


def publish_edition(
    project: Project, cut: int | None = None
) -> tuple[editions.Edition, BlockedGroups | None, list[str]]:
    """Return an edition, its blocked groups, and the printed lines."""
    lines = list[str]()
    project = load(project.settings)
    return *publish(project, pick_cut(project, cut), spark_forbidden, lines.append), lines


def at(edition: editions.Edition | None) -> dict[str, int]:
    """Return the cut of each table of an edition."""
    return {name: present(edition).cut_of(name) for name in present(edition).tables}


def lake_(settings: Settings, *words: str) -> Result:
    return CliRunner().invoke(lake, list(words), obj=Shell(project=settings.project))


def test_blocked_group_stays_with_its_derived_groups_and_others_advance(shop: Project) -> None:
    first, held, _ = publish_edition(shop)
    assert held is None
    assert at(first) == dict.fromkeys(TABLES, 1)
    move(shop)
    stop(shop.settings)
    second, held, lines = publish_edition(shop)
    assert (second.number, second.cut) == (2, 2)
    assert at(second) == {"sale": 1, "customer_total": 1, "visit": 2, "overview": 1}
    kept = {name: entry.version for name, entry in second.tables.items()}
    assert kept == {"sale": 0, "customer_total": 0, "visit": 1, "overview": 0}
    held = present(held)
    assert isinstance(held.error, QualityError)
    assert held.others == ("traffic",)
    assert "found 1" in held.groups["sales"]
    assert held.groups["default"] == "overview is derived from customer_total, of group 'sales'"
    assert [line.partition(": ")[0] for line in lines] == [
        "publish sales is held at cut 1",
        "publish default is held at cut 1",
    ]
    move(shop)
    assert at(publish_edition(shop)[0]) == {"sale": 1, "customer_total": 1, "visit": 3, "overview": 1}
    allow(shop.settings)
    last, held, lines = publish_edition(shop)
    assert (last.number, at(last), held, lines) == (4, dict.fromkeys(TABLES, 3), None, [])


def reject_a_sale(settings: Settings) -> None:
    """Have the newest batch of sales count one rejected record, which is one too many."""
    log, at = Log(settings, "sales"), datetime(2026, 1, 1, tzinfo=UTC)
    head = log.head()
    said: dict[str, Any] = {"offsets": {}, "watermark": None, "files": [], "contract": 1, "at": "", "content": {}}
    counts = {"read": 2, "accepted": 1, "duplicates": 0, "quarantined": 1, "control": 0}
    duckdb_tables.append(log.path, "n BIGINT", [(1,)], head.next(**said, counts=counts))
    rejected = [(head.batch + 1, 1, "type", "", "x", "f:1", at)]
    duckdb_tables.append(Warehouse(settings).quarantine("sales").path, quarantine.SCHEMA, rejected)


@pytest.mark.parametrize("is_published", [True, False])
def test_cause_of_several_blocked_groups_is_reported_once(shop: Project, *, is_published: bool) -> None:
    publish_edition(shop)
    reject_a_sale(shop.settings)
    move(shop)
    if not is_published:
        stop(shop.settings, "visit")
    done = lake_(shop.settings, "publish")
    assert isinstance(done.exception, QualityError)
    cause = "sales: 1 of 3 records of batches 2 to 3 were refused"
    lines = [line for line in done.stderr.splitlines() if cause in line]
    assert [line.partition(": ")[0] for line in lines] == ["publish sales, default are held at cut 1"]
    assert str(done.exception).count(cause) == 1
    assert str(done.exception).count("lake quarantine accept sales") == 1
    assert "lake quarantine accept" not in done.stderr


def test_publish_makes_no_edition_if_no_group_advances(shop: Project) -> None:
    publish_edition(shop)
    move(shop)
    stop(shop.settings)
    stop(shop.settings, "visit")
    with pytest.raises(QualityError, match=r"(?s)sale: .*visit: "):
        publish_edition(shop)
    assert present(editions.latest_edition(shop.settings)).number == 1
    allow(shop.settings, "visit")
    assert [publish_edition(shop)[0].number for _ in range(2)] == [2, 2]


def test_table_behind_the_cut_blocks_its_group_and_is_named_alone(shop: Project) -> None:
    publish_edition(shop)
    move(shop, "visit")
    edition, held, _ = publish_edition(shop)
    assert at(edition) == {"sale": 1, "customer_total": 1, "visit": 2, "overview": 1}
    assert isinstance(present(held).error, DeclarationError)
    assert "sale: not at cut 2" in present(held).groups["sales"]
    assert "derived from customer_total" in present(held).groups["default"]


def test_unpublished_group_is_absent_from_editions(shop: Project) -> None:
    stop(shop.settings)
    edition, _, lines = publish_edition(shop)
    assert at(edition) == {"visit": 1}
    assert lines[0].startswith("publish sales is held: sale: ")
    state = as_data(status(load(shop.settings)))
    assert [(each["group"], each["cut"]) for each in state["groups"]] == [("sales", 0), ("traffic", 1), ("default", 0)]
    allow(shop.settings)
    assert at(publish_edition(shop)[0]) == dict.fromkeys(TABLES, 1)


def test_table_blocks_all_tables_without_groups(shop: Project) -> None:
    shop.settings.path("pyproject.toml").write_text("[tool.lake]\n")
    whole = load(load_settings(shop.settings.project))
    publish_edition(whole)
    move(whole)
    stop(whole.settings)
    with pytest.raises(QualityError):
        publish_edition(whole)
    allow(whole.settings)
    publish_edition(whole)
    book = duckdb_tables.rows(Warehouse(whole.settings).book("editions").path, "SELECT tables FROM t")
    assert {field for row in book for entry in json.loads(row["tables"]).values() for field in entry} == {
        *("layer", "path", "version", "fingerprint", "rows", "content", "identity")
    }
    state = as_data(status(whole))
    assert "groups" not in state
    assert state["edition"]["cut"] == 2


def test_publish_never_moves_a_group_back_beside_another_publisher(shop: Project) -> None:
    publish_edition(shop)
    move(shop)
    publish_edition(shop)
    latest = present(editions.latest_edition(shop.settings))
    older = {name: editions.EditionTable(**{**vars(entry), "cut": 1}) for name, entry in latest.tables.items()}
    with pytest.raises(Unavailable, match="edition 2 of cut 2 was published meanwhile"):
        editions.record_edition(shop.settings, 2, older)


@pytest.mark.parametrize(
    ("groups", "found", "fix"),
    [
        ({"sales": ["sael"]}, "unknown table 'sael'", "did you mean 'sale'?"),
        ({"sales": ["sale"], "all": ["visit", "sale"]}, "table 'sale' is named twice, first in group 'sales'", "one"),
        ({"sales": ["sale"], "empty": []}, "group 'empty' has no table", "name one"),
    ],
)
def test_group_faults_are_reported_with_their_place(
    tmp_path: Path, groups: dict[str, list[str]], found: str, fix: str
) -> None:
    settings = empty(tmp_path / "project", setting(groups))
    declare(settings, *CONTRACTS, jobs=JOBS)
    with pytest.raises(DeclarationError) as fault:
        load(settings)
    assert fault.value.what == found
    assert fix in fault.value.fix
    assert fault.value.where == f"[tool.lake.publish] groups, group {[*groups][-1]!r}"


@pytest.mark.parametrize("value", ['["sale"]', '{sales = "sale"}', "{sales = [1]}"])
def test_group_setting_rejects_other_values_than_lists_of_names(tmp_path: Path, value: str) -> None:
    with pytest.raises(DeclarationError, match=r"'publish\.groups': expected a table of lists of names"):
        empty(tmp_path / "project", f"publish.groups = {value}\n")


def test_group_setting_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_PUBLISH__GROUPS", json.dumps(GROUPS))
    assert empty(tmp_path / "project").publish.groups == GROUPS


def test_wait_checks_the_batch_in_tables_derived_from_its_stream(blocked_settings: Settings) -> None:
    with pytest.raises(Unavailable, match=r"sales up to batch 1; the gate stopped customer_total at cut 2"):
        wait(blocked_settings, ["sales@2"], timeout=0)
    with pytest.raises(Unavailable, match=r"edition 2 \(cut 2\) has visits up to batch 1"):
        wait(blocked_settings, ["visits@2"], timeout=0)  # Overview, which is derived from both, does not have it
    assert wait(blocked_settings, ["sales@1", "visits@1"], timeout=0).number == 2
    after = ("--after", "visits@2", "--timeout", "0")
    assert lake_(blocked_settings, "sql", "select page from visit", *after).exception is None
    assert isinstance(lake_(blocked_settings, "sql", "select n from overview", *after).exception, Unavailable)


def test_query_over_different_cuts_warns(blocked_settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    shown = reader(blocked_settings)
    with caplog.at_level(logging.WARNING, "lake"):
        assert shown.relation("select count(*) from sale, customer_total").fetchall() == [(1,)]
        assert shown.relation("show tables").fetchall()
        assert caplog.messages == []
        assert shown.relation("select count(*) from sale, visit").fetchall() == [(1,)]
        assert caplog.messages == ["tables of different cuts are read: sale at cut 1; visit at cut 2"]
        caplog.clear()
        before = reader(blocked_settings, cut=1)
        before.relation("select count(*) from sale, visit")
    assert (before.edition.number, caplog.messages) == (1, [])


def test_database_file_records_the_cut_of_each_table(blocked_settings: Settings, tmp_path: Path) -> None:
    lines: list[str] = []
    write_database(reader(blocked_settings), tmp_path / "shop.duckdb", on_progress=lines.append)
    told = "warning tables of different cuts are read: customer_total, overview, sale at cut 1; visit at cut 2"
    assert lines[0] == told
    with duckdb.connect(str(tmp_path / "shop.duckdb"), read_only=True) as con:
        at_cuts = con.sql("SELECT * FROM lake.cuts ORDER BY ALL").fetchall()
    assert at_cuts == [("customer_total", 1), ("overview", 1), ("sale", 1), ("visit", 2)]


def test_edition_diff_names_the_cuts_of_the_table(blocked_settings: Settings) -> None:
    for table, now in (("sale", 1), ("visit", 2)):
        diff = diff_editions(load(blocked_settings), None, table, old=1, new=2)
        assert (diff.cuts, diff_data(diff)["to"]) == ((1, now), {"edition": 2, "cut": now})
        same = "both editions have the same version of the table"
        assert (same in diff.notes) == (now == 1)


def test_status_reports_the_cut_of_each_group_and_the_start_of_a_block(shop: Project) -> None:
    settings = shop.settings
    publish_edition(shop)
    move(shop)
    stop(settings)
    second, _, _ = publish_edition(shop)
    move(shop)
    publish_edition(shop)
    state = status(load(settings))
    groups = {each.group: (each.cut, each.held_since) for each in state.groups}
    assert groups == {
        "sales": (1, second.published_at),
        "traffic": (3, None),
        "default": (1, second.published_at),
    }
    lines = [line for line in as_text(state) if line.startswith(("group", "stopped"))]
    assert [line.partition(", held since")[0] for line in lines[:3]] == [
        "group    sales: at cut 1",
        "group    traffic: at cut 3",
        "group    default: at cut 1",
    ]
    assert lines[3].endswith("blocks customer_total, overview, the next edition of sales, default")
    assert failed_conditions(state, {"stale"}) == ["stale: group sales is held", "stale: group default is held"]
    told = as_data(state)
    assert told["stoppers"][0]["groups"] == ["sales", "default"]
    assert told["groups"][0]["held_since"]


def test_maintain_and_pin_keep_the_cut_of_a_blocked_group(shop: Project) -> None:
    settings = shop.settings
    publish_edition(shop)
    stop(settings)
    for _ in range(2):
        move(shop)
        publish_edition(shop)
    policy = Policy(editions=1, days=0.0, size=0)
    assert maintain(load(settings), spark_forbidden, policy, lambda _: None).expired == [1, 2]
    assert reader(settings).relation("select count(*) from sale, overview").fetchall() == [(1,)]
    assert {each.verdict for each in verify_edition(settings, 3)} == {"identical"}
    for _ in range(2):
        pin_edition(settings, 3)
    assert at(editions.current_edition(settings)) == {"sale": 1, "customer_total": 1, "visit": 3, "overview": 1}
    assert duckdb_tables.rows(Warehouse(settings).book("editions").path, "SELECT 1 FROM t WHERE action = 'pin'") == [
        {"1": 1}
    ]


def test_publish_command_publishes_free_groups_and_exits_like_the_gate(shop: Project) -> None:
    publish_edition(shop)
    move(shop)
    stop(shop.settings)
    done = lake_(shop.settings, "publish", "--json")
    assert isinstance(done.exception, QualityError)
    answer = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert (answer["edition"], answer["cut"], answer["tables"]["visit"]) == (2, 2, 1)
    assert set(answer["held"]) == {"sales", "default"}
    assert "publish sales is held at cut 1" in done.stderr
    assert "published: traffic; held: sales, default" in lake_(shop.settings, "publish").stdout
    assert "groups" in json.loads(lake_(shop.settings, "graph", "--json").stdout)
