"""Alerts report every change that meets their condition, and nothing else, also after crashes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lake.cli import lake
from lake.config import Settings, load_settings
from lake.connect.alerts.declared import chosen_alerts
from lake.connect.alerts.send import send_after_publish
from lake.connect.webhook import receiver as receivers
from lake.errors import DeclarationError, StartOver, Unavailable
from lake.ops.render import as_data, as_text
from lake.ops.status import status
from lake.project.project import load
from lake.read.sql import reader
from lake.store.ledger import cuts, sent
from lake.testing import Commands
from tests.docs.sessions import SHOP, play
from tests.kills import killed
from tests.read.things import NAME, Things
from tests.servers.webhook import SECRET, VARIABLE, Got, Webhook
from tests.shop import empty
from tests.warehouse import published

CROSSED = "after.amount > 2 and (before is null or before.amount <= 2)"


def alert(settings: Settings, *words: str) -> Result:
    return CliRunner().invoke(lake, ["alert", "--project", str(settings.project), *words])


def alert_results(settings: Settings, *words: str) -> list[dict[str, Any]]:
    """Return the alerts that `lake alert --json` prints."""
    done = alert(settings, "--json", *words)
    assert done.exit_code == 0, done.exception
    alerts: list[dict[str, Any]] = json.loads(done.stdout)["alerts"]
    return alerts


def declare(settings: Settings, receiver: Webhook, name: str, *lines: str) -> None:
    folder = settings.path(settings.alerts)
    folder.mkdir(exist_ok=True)
    about = f'url = "{receiver.url}"\nsecret = "env:{VARIABLE}"\nattempts = 2\n'
    (folder / f"{name}.toml").write_text(about + "\n".join(lines) + "\n")


@pytest.fixture
def things(webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Things:
    """Table of two rows with a fourth of the given numbers as amounts, and an alert for amounts above 2."""
    monkeypatch.setattr(receivers, "FIRST_PAUSE", 0.01)
    things = Things(empty(tmp_path / "shop"))
    declare(
        things.settings,
        webhook,
        "large",
        f'table = "{NAME}"',
        f'when = "{CROSSED}"',
        'message = "{key}: {after.amount}"',
    )
    things.change({1: 1, 2: 20})
    return things


def messages(webhook: Webhook) -> list[str]:
    return [got.body["data"]["message"] for got in webhook.taken]


@pytest.mark.smoke
def test_row_crossing_a_threshold_is_sent_once_and_earlier_rows_are_not(things: Things, webhook: Webhook) -> None:
    assert alert_results(things.settings)[0]["sent"] == 0, "rows that precede the first evaluation send nothing"
    things.change({1: 12, 2: 21, 3: 1, 4: 16})
    [shown] = alert_results(things.settings, "--dry-run")
    assert (shown["sent"], webhook.tried) == (2, [])
    assert alert_results(things.settings)[0]["sent"] == 2
    assert sorted(messages(webhook)) == ['{"k": 1}: 3.00', '{"k": 4}: 4.00']
    by_id = {got.id: got.body for got in webhook.taken}
    assert {body["data"]["id"]: body for body in map(json.loads, shown["messages"])} == by_id
    assert [got.id for got in webhook.taken] == [got.body["data"]["id"] for got in webhook.taken]
    assert {(got.body["type"], got.body["data"]["alert"]) for got in webhook.taken} == {("alert.large", "large")}
    things.publish()
    things.change({1: 13, 2: 1, 3: 1, 4: 16})
    assert alert_results(things.settings)[0]["sent"] == 0, (
        "neither a rebuild nor a row that stays above the threshold sends anything"
    )
    assert len(webhook.tried) == 2


def test_rollback_sends_alerts_like_any_other_edition(things: Things, webhook: Webhook) -> None:
    from lake.store.ledger import editions

    alert(things.settings)
    things.change({1: 12, 2: 1})
    alert(things.settings)
    editions.pin_edition(things.settings, 1)
    alert(things.settings)
    editions.resume_editions(things.settings)
    alert(things.settings)
    assert [message[:8] for message in messages(webhook)] == ['{"k": 1}', '{"k": 2}', '{"k": 1}']
    assert len({got.id for got in webhook.taken}) == 3


@pytest.mark.parametrize("seed", range(4))
def test_messages_equal_those_of_a_model_under_random_failures(things: Things, webhook: Webhook, seed: int) -> None:
    chance = random.Random(seed)
    alert(things.settings)
    expected: list[tuple[int | None, str]] = []
    seen = shown(things)
    for _ in range(12):
        things.advance(chance) if chance.random() < 0.8 else things.publish()
        if chance.random() < 0.3:
            continue
        now = shown(things)
        up = {k: row for k, row in now.items() if row["amount"] > 2 and (k not in seen or seen[k]["amount"] <= 2)}
        expected += [(k, f"{row['amount']:.2f}") for k, row in up.items()]
        seen = now
        way = chance.choice([200, 500, 503])
        webhook.behave = always(way)
        alert(things.settings)
        webhook.behave = lambda _: 200
        alert(things.settings)
        alert(things.settings, "--retry")
    got = [(change["key"]["k"], change["after"]["amount"]) for change in webhook.changes()]
    assert sorted(got, key=repr) == sorted(expected, key=repr)


def always(status: int) -> Callable[[Got], int]:
    return lambda _: status


def shown(things: Things) -> dict[Any, dict[str, Any]]:
    return things.as_of(reader(things.settings).edition.number)


def test_failed_alert_does_not_delay_the_others(things: Things, webhook: Webhook) -> None:
    declare(things.settings, webhook, "other", f'table = "{NAME}"')
    alert(things.settings)
    things.change({1: 12, 2: 20})
    webhook.behave = lambda got: 200 if got.body["type"] == "alert.other" else 503
    done = alert(things.settings)
    assert isinstance(done.exception, Unavailable)
    assert [got.body["type"] for got in webhook.taken] == ["alert.other"]
    webhook.behave = lambda _: 200
    alert(things.settings)
    assert [got.body["type"] for got in webhook.taken] == ["alert.other", "alert.large"]


@pytest.mark.parametrize("wrong", ['url = "env:NOT_SET"', "", "measure = "])
def test_faulty_declaration_stops_no_other_alert(things: Things, webhook: Webhook, wrong: str) -> None:
    things.settings.path("alerts/a_wrong.toml").write_text(wrong)
    alert(things.settings)
    things.change({1: 12, 2: 20})
    for words, before in ((("--dry-run",), 0), ((), 1)):
        done = alert(things.settings, "--json", *words)
        assert json.loads(done.stdout)["alerts"][0]["sent"] == 1
        assert isinstance(done.exception, DeclarationError)
        assert "alerts/a_wrong.toml" in str(done.exception)
        assert len(webhook.taken) == before


def test_preview_of_an_alert_that_fails_stops_no_other(things: Things, webhook: Webhook) -> None:
    declare(things.settings, webhook, "a_wrong", 'table = "no_such_table"')
    done = alert(things.settings, "--dry-run", "--json")
    assert [found["alert"] for found in json.loads(done.stdout)["alerts"]] == ["large"]
    assert isinstance(done.exception, DeclarationError)


def test_alert_with_after_publish_is_sent_after_publication(things: Things, webhook: Webhook) -> None:
    """Call what `lake run` calls after publishing; the run itself needs Spark."""
    declare(things.settings, webhook, "other", f'table = "{NAME}"', "after_publish = true")
    declare(things.settings, webhook, "wrong", f'table = "{NAME}"', "after_publish = 7")
    declare(things.settings, webhook, "only_by_command", 'table = "env:NOT_SET"')
    things.settings.path("alerts/unreadable.toml").write_text("table = ")
    lines: list[str] = []
    failed: dict[str, Any] = {}
    send_after_publish(things.settings, lines.append, failed.__setitem__)
    things.change({1: 12, 2: 20})
    send_after_publish(things.settings, lines.append, failed.__setitem__)
    assert [got.body["type"] for got in webhook.taken] == ["alert.other"]
    assert "alert   other: 1 sent" in lines
    assert list(failed) == ["alert unreadable", "alert wrong"]


def test_alert_behind_expired_editions_is_reported_and_can_start_from_now(things: Things, webhook: Webhook) -> None:
    alert(things.settings)
    with_limits = things.settings.path("pyproject.toml")
    with_limits.write_text(with_limits.read_text() + "keep_consumer_days = 0\n")
    things.settings = load_settings(things.settings.project)
    things.change({1: 12, 2: 20})
    things.expire()
    behind = alert(things.settings).exception
    assert isinstance(behind, StartOver)
    assert "lake alert large --from-now" in str(behind)
    assert "needs the name" in str(alert(things.settings, "--from-now").exception)
    assert alert_results(things.settings, "large", "--from-now")[0]["sent"] == 0
    things.change({1: 1, 2: 20})
    alert(things.settings)
    things.change({1: 12, 2: 20})
    alert(things.settings)
    assert len(webhook.taken) == 1


def test_new_alert_can_start_from_now(things: Things, webhook: Webhook) -> None:
    assert alert_results(things.settings, "large", "--from-now")[0]["sent"] == 0
    things.change({1: 12, 2: 20})
    assert alert_results(things.settings, "large")[0]["sent"] == 1


def test_text_format_sends_only_the_text_of_the_message(things: Things, webhook: Webhook) -> None:
    declare(
        things.settings, webhook, "large", f'table = "{NAME}"', 'format = "text"', 'message = "{change} {before.word}"'
    )
    alert(things.settings)
    things.change({1: 4, 2: 20, 5: 5})
    alert(things.settings)
    texts = sorted(got.body["text"] for got in webhook.taken)  # messages of different rows are sent at once
    assert texts == ["insert none", "update w1"]


KILL_POINTS = [("messages.after", 1), ("note.after", 1), ("note.after", 2), ("note.after", 3)]


@pytest.mark.parametrize(("point", "nth"), KILL_POINTS)
def test_message_has_the_same_id_after_a_crash(
    things: Things, webhook: Webhook, kills: Commands, point: str, nth: int
) -> None:
    alert(things.settings)
    landed = 0
    for number in range(5):
        things.change({1: 12 * (1 - number % 2), 2: 12 * (number % 2)})
        before = len(webhook.changes())
        landed += killed(kills, things.settings, "alert", point, nth)
        alert(things.settings)
        assert len(webhook.changes()) <= before + 1
    assert len(webhook.changes()) == landed == 5


@pytest.fixture
def shop(webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Published shop of `lake init` with two files still to ingest."""
    monkeypatch.setattr(receivers, "FIRST_PAUSE", 0.01)
    return published(tmp_path / "shop").settings


def remove_waiting_files(settings: Settings) -> None:
    for file in settings.path("landing/orders").glob("*.jsonl"):
        file.unlink()


def test_episode_is_reported_when_it_begins_and_when_it_ends(shop: Settings, webhook: Webhook) -> None:
    declare(shop, webhook, "waiting", 'measure = "pending"', "above = 1", 'message = "{of}: {what} is {state}"')
    [shown] = alert_results(shop, "--dry-run")
    assert (shown["sent"], webhook.tried, sent.newest_episodes(shop)) == (1, [], {})
    assert alert_results(shop)[0]["state"].startswith("firing since ")
    now = status(load(shop))
    assert as_data(now)["firing"][0]["alert"] == "waiting"
    assert any(line.startswith("alert    waiting, since ") for line in as_text(now))
    assert alert_results(shop)[0]["sent"] == 0
    files = {file: file.read_text() for file in shop.path("landing/orders").glob("*.jsonl")}
    remove_waiting_files(shop)
    assert alert_results(shop)[0]["sent"] == 1
    assert [got.body["data"]["state"] for got in webhook.taken] == ["firing", "resolved"]
    assert messages(webhook) == [
        "orders: orders has 2 files waiting is firing",
        "orders: orders has 2 files waiting is resolved",
    ]
    nothing = {"sent": 0, "undelivered": 0, "state": "", "messages": []}
    assert alert_results(shop)[0] == {"alert": "waiting", "about": "pending"} | nothing
    for file, text in files.items():
        file.write_text(text)
    alert_results(shop)
    assert len({got.id for got in webhook.taken}) == 3


def test_undelivered_episode_is_sent_later_with_its_outcome(shop: Settings, webhook: Webhook) -> None:
    declare(shop, webhook, "waiting", 'measure = "pending"')
    webhook.behave = lambda _: 503
    assert isinstance(alert(shop).exception, Unavailable)
    remove_waiting_files(shop)
    assert isinstance(alert(shop).exception, Unavailable)
    webhook.behave = lambda _: 200
    assert alert_results(shop)[0]["sent"] == 2
    assert [got.body["data"]["state"] for got in webhook.taken] == ["firing", "resolved"]
    assert len({got.id for got in webhook.tried}) == 2


@pytest.mark.parametrize(("point", "nth"), KILL_POINTS[:3])
def test_episode_has_the_same_id_after_a_crash(
    shop: Settings, webhook: Webhook, kills: Commands, point: str, nth: int
) -> None:
    declare(shop, webhook, "waiting", 'measure = "pending"')
    assert killed(kills, shop, "alert", point, nth)
    alert(shop)
    assert len({got.id for got in webhook.taken}) == 1


UNREADABLE = [
    ("lag", "current_order", "silver/current_order"),
    ("lag", "", "silver/current_order"),
    ("age", "", "meta/editions"),
    ("pending", "orders", "logs/orders"),
    ("quarantine", "", "logs/orders"),
    ("drift", "", "logs/orders"),
    ("sink", "crm", "meta/editions"),
]


@pytest.mark.parametrize(("measure", "of", "folder"), UNREADABLE)
def test_episode_neither_ends_nor_begins_while_its_measure_cannot_be_read(
    shop: Settings, webhook: Webhook, measure: str, of: str, folder: str
) -> None:
    if measure != "pending":  # which is 0 without files, whatever the log has
        remove_waiting_files(shop)
    above = 10**10 if measure == "age" else 0
    declare(shop, webhook, "fires", f'measure = "{measure}"', f'of = "{of}"', f"above = {above}")
    declare(shop, webhook, "rests", f'measure = "{measure}"', f'of = "{of}"', f"above = {above}")
    sent.record_episode(shop, sent.Episode("fires", 1, "2026-01-02T00:00:00Z", 9.0, "much", told=1))
    log = shop.warehouse_path / folder / "_delta_log"
    for file in log.glob("*.json"):
        file.write_bytes(b"\xff{}\n{}")
    (log / f"{9:020}.json").write_text("{}\n")
    fires, rests = alert_results(shop)
    assert (fires["state"], rests["state"], webhook.tried) == ("firing since 2026-01-02T00:00:00Z: much", "", [])


MEASURES = [
    ("age", "", 0, True),
    ("age", "", 10**10, False),
    ("pending", "orders", 1, True),
    ("pending", "orders", 2, False),
    ("pending", "nobody", 0, False),
    ("quarantine", "", 0, False),
    ("behind", "", 0, True),
    ("stale", "", 0, False),
    ("stopped", "", 0, False),
    ("missing", "", 0, False),
    ("sink", "", 0, False),
    ("undelivered", "", 0, False),
    ("lag", "", 10**9, False),
]


@pytest.mark.turns
@pytest.mark.parametrize(("measure", "of", "above", "fires"), MEASURES)
def test_measure_fires_only_above_its_limit(
    shop: Settings, webhook: Webhook, measure: str, of: str, above: int, *, fires: bool
) -> None:
    declare(shop, webhook, "watch", f'measure = "{measure}"', f'of = "{of}"', f"above = {above}")
    assert (alert_results(shop)[0]["sent"] == 1) is fires


@pytest.mark.turns
@pytest.mark.parametrize(("measure", "of"), sorted({(measure, of) for measure, of, _, fires in MEASURES if fires}))
def test_message_fills_every_placeholder(shop: Settings, webhook: Webhook, measure: str, of: str) -> None:
    places = ("alert", "measure", "of", "above", "value", "what", "state")
    message = "|".join(f"{{{place}}}" for place in places)
    declare(shop, webhook, "watch", f'measure = "{measure}"', f'of = "{of}"', "above = 0", f'message = "{message}"')
    alert_results(shop)
    [text] = messages(webhook)
    assert all(text.split("|")), text
    assert "None" not in text
    expected = {"age": "the project", "pending": "orders", "behind": "the project"}
    assert text.split("|")[places.index("of")] == expected[measure]


def test_undelivered_rows_are_shown_and_measured(things: Things, webhook: Webhook) -> None:
    for _ in range(2):
        cuts.record_cut(things.settings, {}, 0)
    declare(things.settings, webhook, "watch", 'measure = "undelivered"', 'of = "alert-large"')
    alert(things.settings)
    things.change({1: 12, 2: 20})
    webhook.behave = lambda got: 200 if got.body["type"] == "alert.watch" else 400
    assert {one["alert"]: one["undelivered"] for one in alert_results(things.settings)} == {"large": 1, "watch": 0}
    [sink] = as_data(status(load(things.settings)))["sinks"]
    assert (sink["name"], sink["undelivered"]) == ("alert-large", 1)
    alert(things.settings)
    assert webhook.taken[-1].body["data"]["what"] == "alert-large lacks 1 rows"
    [row] = reader(things.settings).relation("select sink, key, reason from lake.undelivered").fetchall()
    assert row == ("alert-large", '{"k": 1}', "status 400")
    done = alert(things.settings, "large", "--give-up")
    assert done.stdout.splitlines()[-1].split() == ["alert-large", "1", "0"]
    alert(things.settings)
    assert webhook.taken[-1].body["data"]["state"] == "resolved"


RECEIVER = f'url = "http://127.0.0.1:1/"\nsecret = "env:{VARIABLE}"\n'
BAD = [
    ("", "it has to name a table or a measure"),
    ('table = "t"\nmeasure = "lag"', "it has to name a table or a measure"),
    ('table = "t"', "url is missing"),
    (f'table = "t"\n{RECEIVER}of = "x"', "unknown key 'of'"),
    (f'table = "t"\n{RECEIVER}on = []', "on names no change"),
    (f'table = "t"\n{RECEIVER}on = ["inserted"]', "no change is called 'inserted'"),
    *(
        (f'table = "t"\n{RECEIVER}on = [{value}]\nwhen = "true"', "on: no change is called ")
        for value in ("1", "1.5", "true", '""', '["insert"]', "{insert = true}", "2024-01-31")
    ),
    *((f'table = "t"\n{RECEIVER}on = {value}', "on: expected a list") for value in ("1", '"insert"', "2024-01-31")),
    *((f'table = "t"\n{RECEIVER}when = {value}', "when: expected a text") for value in ("1", "[]", "2024-01-31")),
    (f'table = "t"\n{RECEIVER}when = "after.x >"', "when: syntax error"),
    (f'table = "t"\n{RECEIVER}message = "{{row.x}}"', "{row.x} stands for nothing"),
    (f'table = "t"\n{RECEIVER}format = "xml"', "format: found 'xml'"),
    (f'table = "t"\n{RECEIVER}batch = 3', "unknown key 'batch'"),
    (f'measure = "lagg"\n{RECEIVER}', "measure: found 'lagg'"),
    (f'measure = "stale"\nof = "t"\n{RECEIVER}', "of: stale is of the whole project"),
    (f'measure = "age"\nof = "t"\n{RECEIVER}', "of: age is of the whole project"),
    (f'measure = "lag"\n{RECEIVER}above = "much"', "above: expected a whole number"),
    (f'measure = "lag"\n{RECEIVER}message = "{{after.x}}"', "{after.x} stands for nothing"),
    (f'measure = "lag"\nurl = "http://x/"\nsecret = "{SECRET}"', "secret must come from the environment"),
    ("measure = ", "invalid TOML"),
]


@pytest.mark.parametrize(("text", "found"), BAD)
def test_invalid_declaration_is_reported_with_its_file(
    project: Settings, monkeypatch: pytest.MonkeyPatch, text: str, found: str
) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    project.path("alerts").mkdir()
    project.path("alerts/large.toml").write_text(text)
    alerts, faults = chosen_alerts(load_settings(project.project))
    assert not alerts
    assert found in str(faults["large"])
    assert "alerts/large.toml" in str(faults["large"])


@pytest.mark.parametrize(
    ("about", "found"),
    [
        ('when = "after.nothing > 1"', 'Could not find key "nothing"'),
        ("when = \"exists (from read_text('/etc/passwd'))\"", "file system operations are disabled"),
        ('message = "{after.nothing}"', "no column 'nothing' in after"),
    ],
)
def test_declaration_unfit_for_its_table_is_reported_and_nothing_is_sent(
    things: Things, webhook: Webhook, about: str, found: str
) -> None:
    declare(things.settings, webhook, "large", f'table = "{NAME}"')
    alert(things.settings)
    declare(things.settings, webhook, "large", f'table = "{NAME}"', about)
    things.change({1: 30})
    for words in (("--dry-run",), ()):
        done = alert(things.settings, *words)
        assert isinstance(done.exception, DeclarationError)
        assert found in str(done.exception)
        assert "alerts/large.toml" in str(done.exception)
    assert not webhook.tried


def test_conflicting_options_and_unknown_alerts_are_reported(project: Settings) -> None:
    assert "cannot be combined" in str(alert(project, "--dry-run", "--retry").exception)
    assert "no alert is declared" in str(alert(project).exception)
    project.path("alerts").mkdir()
    project.path("alerts/large.toml").write_text("")
    assert "did you mean 'large'?" in str(alert(project, "larg").exception)


def test_message_sent_again_after_a_lost_answer_has_the_same_id(things: Things, webhook: Webhook) -> None:
    alert(things.settings)
    things.change({1: 12, 2: 20})
    answers: list[Got] = []

    def lost(got: Got) -> int | None:
        answers.append(got)
        return None if len(answers) == 1 else 200

    webhook.behave = lost
    alert(things.settings)
    assert [got.id for got in webhook.tried] == [webhook.taken[0].id] * 2


def test_alerts_page_prints_its_documented_output(tmp_path: Path, commands: Commands, webhook: Webhook) -> None:
    environment = {"ALERTS_URL": webhook.url, "ALERTS_SECRET": SECRET}
    play([SHOP, "docs/how-to/alerts.md"], tmp_path, {**commands.environment, **environment})
    assert [got.body for got in webhook.taken] == [{"text": "ada has ordered for 30.00 on 2024-03-30"}]
