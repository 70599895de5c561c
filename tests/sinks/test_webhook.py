"""A receiver that applies each accepted message once, by its id, has the edition, also after failures."""

from __future__ import annotations

import json
import logging
import random
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lake.cli import lake
from lake.connect.webhook import receiver as receivers
from lake.connect.webhook.target import WebhookTarget
from lake.errors import DeclarationError, LakeError, LawError, StartOver, Unavailable
from lake.ops.external_systems import sink_statuses
from lake.read.sql import reader
from lake.sinks import deliver as delivery
from lake.sinks.deliver import forget_sink, give_up, send_again
from lake.sinks.kind import DeclaredSink, RetryResult, declared_sinks
from lake.store.ledger import runs, sent
from lake.testing import Commands
from tests.kills import killed
from tests.processes import other_process
from tests.read.things import NAME, query
from tests.servers.webhook import SECRET, Answer, Got, Webhook, slowly
from tests.shop import empty
from tests.sinks.shop import SINK, WebhookShop
from tests.sinks.walks import edition

ALL = 'begin = "snapshot"\n'


@pytest.fixture
def shop(webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WebhookShop:
    """Table of two rows, delivered to the receiver; attempts follow each other after a short pause."""
    monkeypatch.setattr(receivers, "FIRST_PAUSE", 0.01)
    shop = WebhookShop.made(webhook, tmp_path, f"{ALL}seconds = 60\n")
    shop.things.change({1: 1, 2: 2})
    shop.deliver()
    return shop


@pytest.mark.smoke
def test_messages_are_signed_and_replayed_they_are_the_edition(shop: WebhookShop) -> None:
    assert shop.in_step()
    shop.things.change({1: 1, 2: 5, None: 4})
    assert shop.deliver().tables[0].updated == 1
    assert shop.in_step()
    [insert, update] = sorted((got.body for got in shop.server.taken[2:]), key=lambda body: str(body["type"]))
    assert (insert["type"], update["type"]) == ("thing.insert", "thing.update")
    assert update["data"]["before"] | {"k": 2} == update["data"]["before"]
    assert {update["data"]["edition"], update["data"]["cut"]} == {2}
    shop.things.publish()
    shop.deliver()
    assert len(shop.server.tried) == 4, "a rebuild sends nothing"


def test_sink_sends_only_changes_after_its_first_delivery_by_default(webhook: Webhook, tmp_path: Path) -> None:
    shop = WebhookShop.made(webhook, tmp_path)
    shop.things.change({1: 1, 2: 2})
    shop.deliver()
    assert not webhook.tried
    shop.things.change({1: 3, 2: 2})
    shop.deliver()
    [change] = webhook.changes()
    assert (change["change"], change["key"]) == ("update", {"k": 1})


def failing_randomly(chance: random.Random, most: float) -> Any:
    """Return a behaviour that fails in random ways, with probability `most`."""
    lock = threading.Lock()

    def behave(_: Got) -> Answer:
        with lock:
            way = chance.random() / most if chance.random() < most else 1.0
        if way < 0.25:
            return 500
        if way < 0.5:
            return 429, {"retry-after": "0"}
        if way < 0.75:
            return None
        return 408 if way < 0.9 else 200

    return behave


@pytest.mark.parametrize("seed", range(6))
def test_receiver_has_the_edition_after_random_changes_and_failures(
    webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(receivers, "FIRST_PAUSE", 0.001)
    chance = random.Random(seed)
    batch = chance.choice([1, 1, 3])
    shop = WebhookShop.made(webhook, tmp_path, f"{ALL}batch = {batch}\nseconds = 60\n")
    shop.things.change({1: 1, 2: 2})
    for _ in range(25):
        shop.things.step(chance)
        webhook.behave = failing_randomly(random.Random(seed), 0.4)
        if chance.random() < 0.4:
            continue
        try:
            shop.deliver()
        except Unavailable:
            continue
        except (DeclarationError, StartOver):
            pass  # as below
        webhook.behave = lambda _: 204
        try:
            shop.deliver()
        except StartOver:
            webhook.reset()
            forget_sink(shop.things.settings, SINK)
            shop.deliver()
        except DeclarationError:
            assert NAME not in reader(shop.things.settings).edition.tables
            continue
        send_again(shop.things.settings, shop.sink)
        assert not shop.undelivered
        assert without_deployed_column(shop.read) == without_deployed_column(shop.published)


def without_deployed_column(rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows without the column that deploys add and remove: it is sent only when its row changes."""
    return sorted(({**row, "more": None} for row in rows.values()), key=repr)


WRONG_FILES = ['kind = "webhook"\nurl = "env:NOT_SET"\n', 'kind = "webhook"\n', "kind = "]


@pytest.mark.parametrize("wrong", WRONG_FILES)
@pytest.mark.parametrize(
    ("words", "shown"), [([], "sinks"), (["--dry-run"], "sinks"), (["--retry"], "again"), (["--give-up"], "again")]
)
def test_faulty_declaration_stops_no_other_sink(shop: WebhookShop, words: list[str], shown: str, wrong: str) -> None:
    shop.things.settings.path("sinks/a_wrong.toml").write_text(wrong)
    names = ["a_wrong", SINK] if shown == "again" else []
    done = CliRunner().invoke(
        lake, ["deliver", *names, *words, "--json", "--project", str(shop.things.settings.project)]
    )
    printed = json.loads(done.stdout)
    assert [found["sink"] for found in printed[shown]] == [SINK]
    assert list(printed["failed"]) == ["a_wrong"]
    assert isinstance(done.exception, DeclarationError)


def test_repair_of_a_sink_that_fails_stops_no_other(shop: WebhookShop) -> None:
    shop.things.settings.path("sinks/a_wrong.toml").write_text(WRONG_FILES[0])
    words = ["deliver", "a_wrong", SINK, "--repair", "--json", "--project", str(shop.things.settings.project)]
    assert list(json.loads(CliRunner().invoke(lake, words).stdout)["failed"]) == ["a_wrong", SINK]


@pytest.mark.parametrize("wrong", WRONG_FILES)
def test_status_shows_the_remembered_edition_of_a_sink_with_a_faulty_file(shop: WebhookShop, wrong: str) -> None:
    settings = shop.things.settings
    shop.things.change({1: 5, 2: 6})
    settings.path(f"sinks/{SINK}.toml").write_text(wrong)
    [found] = sink_statuses(settings, datetime.now(UTC))
    assert (found.edition, found.editions) == (1, 1)
    assert f"sinks/{SINK}.toml" in found.error


def test_status_shows_the_remembered_edition_of_a_target_that_does_not_answer(
    shop: WebhookShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise Unavailable("it does not answer")

    monkeypatch.setattr(WebhookTarget, "position", fail)
    [found] = sink_statuses(shop.things.settings, datetime.now(UTC))
    assert (found.edition, found.editions, found.error) == (1, 0, "it does not answer")


def test_follow_delivers_to_other_sinks_if_a_declaration_is_faulty(
    shop: WebhookShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow(_: object, sinks: list[DeclaredSink], **__: object) -> None:
        assert [sink.name for sink in sinks] == [SINK]

    monkeypatch.setattr(delivery, "follow", follow)
    shop.things.settings.path("sinks/a_wrong.toml").write_text(WRONG_FILES[0])
    done = CliRunner().invoke(lake, ["deliver", "--follow", "--project", str(shop.things.settings.project)])
    assert done.exit_code == 0, done.exception
    assert "deliver a_wrong failed: " in done.stderr


def test_deploy_of_a_new_column_sends_no_unchanged_rows(shop: WebhookShop) -> None:
    sent_before = len(shop.server.tried)
    shop.things.deploy()
    shop.deliver()
    assert len(shop.server.tried) == sent_before
    shop.things.rows[1] = 9
    shop.things.publish()
    shop.deliver()
    [change] = [got.body["data"] for got in shop.server.tried[sent_before:]]
    assert "more" in change["after"]
    assert change["key"] == {"k": 1}


@pytest.mark.parametrize("point", ["begin.after", "window.after", "target.after"])
def test_delivery_resumes_with_the_same_ids_after_a_kill(shop: WebhookShop, kills: Commands, point: str) -> None:
    shop.declare(f"{ALL}parallel = 1\n")
    for number in range(3, 8):
        rows: dict[int | None, int] = {key: key + number for key in range(100)}
        shop.things.change(rows)
        before = len(shop.server.taken)
        nth = 1 + number % 3 if point == "window.after" else 1
        assert killed(kills, shop.things.settings, f"deliver {SINK}", point, nth)
        died = len(shop.server.taken)
        assert died - before in {"begin.after": {0}, "window.after": {16, 32, 48}, "target.after": {98, 100}}[point]
        shop.things.change(rows | {1: 77 + number})
        shop.deliver()
        assert shop.in_step()
    again = len(shop.server.taken) - len({got.id for got in shop.server.taken})
    assert again <= (16 + 32 + 48 + 16 + 32 if point == "window.after" else 0)


def recorded_runs(shop: WebhookShop) -> list[tuple[Any, ...]]:
    rows = runs.RUNS.rows(shop.things.settings, "SELECT verb, subject, outcome FROM t ORDER BY number")
    return [tuple(row.values()) for row in rows]


def test_delivery_finished_after_a_crash_is_printed_and_recorded_as_a_run(shop: WebhookShop, kills: Commands) -> None:
    shop.declare(f"{ALL}parallel = 1\n")
    settings = shop.things.settings
    for another in (False, True):
        shop.things.change({key: key + 3 + another for key in range(100)})
        assert killed(kills, settings, f"deliver {SINK}", "window.after", 2)
        if another:
            shop.things.change({key: key + 9 for key in range(100)})
        before = len(recorded_runs(shop))
        done = CliRunner().invoke(lake, ["deliver", SINK, "--project", str(settings.project)], catch_exceptions=False)
        assert "nothing new" not in done.output
        assert NAME in done.output
        assert recorded_runs(shop)[before:] == [("deliver", SINK, "done")] * (1 + another)
        assert shop.in_step()


def test_verify_reports_a_webhook_as_not_proved_and_advises_no_repair(shop: WebhookShop) -> None:
    project = str(shop.things.settings.project)
    done = CliRunner().invoke(lake, ["verify", "--sink", SINK, "--project", project])
    assert isinstance(done.exception, LawError)
    assert done.exception.what == f"not proved: {NAME} of sink {SINK}"
    assert "--repair" not in done.exception.fix
    assert done.exception.fix == f"lake changes {NAME} lists what it should have"


def test_interrupted_delivery_is_finished_before_a_newer_edition_is_sent(shop: WebhookShop) -> None:
    """A row that changed, was sent, and changed back, is sent once more: the net change alone would hide it."""
    taken = set[str]()

    def accept_twenty(got: Got) -> Answer:
        if len(taken) >= 20 and got.id not in taken:
            return 503
        taken.add(got.id)
        return 200

    shop.declare(f"{ALL}parallel = 1\nattempts = 1\n")
    shop.server.behave = accept_twenty
    shop.things.change({key: key + 10 for key in range(100)})
    with pytest.raises(Unavailable, match=r"the receiver is unavailable: status 503, 1 time\b"):
        shop.deliver()
    state = sent.state(shop.things.settings, SINK)
    assert state.underway is not None
    assert (state.underway.edition, state.underway.done) == (2, 20)
    assert len(shop.server.taken) == 22
    shop.things.change({1: 1, 2: 2})
    shop.server.behave = lambda _: 200
    shop.deliver()
    assert shop.in_step()


def test_messages_before_a_failure_are_not_sent_again(shop: WebhookShop) -> None:
    shop.declare(f"{ALL}parallel = 1\nattempts = 1\n")
    shop.server.behave = lambda got: (
        422 if got.body["data"]["key"]["k"] == 5 else 503 if len(shop.server.tried) > 9 else 200
    )
    shop.things.change({key: key + 10 for key in range(40)})
    with pytest.raises(Unavailable):
        shop.deliver()
    [row] = shop.undelivered
    assert row.reason == "status 422"
    shop.server.behave = lambda got: 422 if got.body["data"]["key"]["k"] == 5 else 200
    shop.deliver()
    assert len(shop.server.taken) == len({got.id for got in shop.server.taken}) == 2 + 39
    assert [got.body["data"]["key"]["k"] for got in shop.server.tried].count(5) == 1


def test_retry_that_is_interrupted_keeps_what_was_accepted(shop: WebhookShop) -> None:
    shop.declare(f"{ALL}parallel = 1\nattempts = 1\n")
    shop.server.behave = lambda _: 400
    shop.things.change({1: 5, 2: 6, 3: 7})
    shop.deliver()
    shop.server.behave = lambda _: 503 if len(shop.server.taken) > 3 else 200
    with pytest.raises(Unavailable):
        send_again(shop.things.settings, shop.sink)
    assert len(shop.undelivered) == 1


@pytest.mark.parametrize("later", [False, True])
def test_interrupted_resync_is_finished_by_the_next_delivery(shop: WebhookShop, later: bool) -> None:
    shop.declare(f"{ALL}parallel = 1\nattempts = 1\n")
    shop.things.change({key: key for key in range(100)})
    shop.deliver()
    shop.server.reset()
    shop.server.behave = lambda _: 503 if len(shop.server.taken) >= 20 else 200
    with pytest.raises(Unavailable):
        shop.deliver(resync=True)
    if later:
        shop.things.change({key: key + (key == 99) for key in range(100)})
    shop.server.behave = lambda _: 200
    shop.deliver()
    assert shop.in_step()


def test_rejected_message_is_kept_and_later_changes_of_its_row_wait(shop: WebhookShop) -> None:
    shop.server.behave = lambda got: 422 if got.body["data"]["key"] == {"k": 1} else 200
    shop.things.change({1: 5, 2: 6})
    shop.deliver()
    [row] = shop.undelivered
    assert (row.key, row.since, row.upto, row.change, row.reason) == ('{"k": 1}', 1, 2, "update", "status 422")
    shop.things.change({1: 7, 2: 8})
    shop.server.behave = lambda _: 200
    shop.deliver()
    assert shop.server.changes()[-1]["key"] == {"k": 2}
    [row] = shop.undelivered
    assert (row.since, row.upto, row.action) == (1, 3, "waiting")
    before = shop.published
    assert send_again(shop.things.settings, shop.sink) == RetryResult(SINK, 1, 0)
    change = shop.server.changes()[-1]
    assert (change["before"]["amount"], change["after"]) == ("0.25", before['{"k": 1}'])
    assert shop.in_step()


def test_command_shows_and_reports_undelivered_rows(shop: WebhookShop) -> None:
    def command(*words: str) -> Result:
        return CliRunner().invoke(lake, ["deliver", SINK, *words, "--project", str(shop.things.settings.project)])

    shop.server.behave = lambda _: 400
    shop.things.change({1: 5, 2: 6})
    for words in ((), (), ("--retry",)):
        done = command(*words)
        assert "deliver crm: 2 rows undelivered: lake sql 'from lake.undelivered' shows the reasons" in done.stderr
        heading, _, row = done.stdout.splitlines()
        assert heading.split()[-1] == ("left" if words else "undelivered")
        assert row.split()[-1] == "2"
    assert json.loads(command("--json").stdout)["sinks"][0]["undelivered"] == 2
    assert "undelivered" not in command("--give-up").output
    assert "undelivered" not in command().output


def test_retried_message_keeps_its_id(shop: WebhookShop) -> None:
    shop.server.behave = lambda _: 400
    shop.things.change({1: 5, 2: 2})
    shop.deliver()
    [tried] = shop.server.tried[2:]
    assert send_again(shop.things.settings, shop.sink).left == 1
    assert shop.undelivered[0].attempts == 2
    shop.server.behave = lambda _: 200
    send_again(shop.things.settings, shop.sink)
    assert [got.id for got in shop.server.tried[2:]] == [tried.id] * 3
    assert shop.server.taken[-1].body == tried.body
    assert shop.in_step()


def test_later_change_of_a_rejected_row_is_sent_if_the_sink_is_unordered(shop: WebhookShop) -> None:
    shop.declare(f"{ALL}ordered = false\n")
    shop.server.behave = lambda _: 400
    shop.things.change({1: 5, 2: 2})
    shop.deliver()
    shop.server.behave = lambda _: 200
    shop.things.change({1: 6, 2: 2})
    shop.deliver()
    assert shop.server.changes()[-1]["after"]["amount"] == "1.50"
    send_again(shop.things.settings, shop.sink)
    assert shop.server.changes()[-1]["after"]["amount"] == "1.25"
    assert not shop.undelivered


def test_row_with_expired_editions_is_retried_with_its_current_content(shop: WebhookShop) -> None:
    shop.server.behave = lambda _: 400
    shop.things.change({1: 5})
    shop.deliver()
    assert len(shop.undelivered) == 2
    shop.things.change({1: 6})
    shop.deliver()
    shop.things.expire()
    shop.server.behave = lambda _: 200
    send_again(shop.things.settings, shop.sink)
    update, delete = sorted(shop.server.changes()[2:], key=lambda change: str(change["key"]))
    assert (update["change"], update["before"], update["after"]["amount"]) == ("insert", None, "1.50")
    assert (delete["change"], delete["before"], delete["after"]) == ("delete", {"k": 2}, None)
    assert not shop.undelivered


def test_row_is_retried_from_an_edition_without_a_table_declared_later(shop: WebhookShop) -> None:
    shop.server.behave = lambda _: 400
    shop.things.change({1: 5, 2: 2})
    shop.deliver()
    settings = shop.things.settings
    edition(settings, 3, "id", other="SELECT 1 AS id", **{NAME: query(shop.things.rows)})
    shop.server.behave = lambda _: 200
    shop.declare(f"{ALL}", "[tables.other]")
    assert send_again(settings, shop.sink) == RetryResult(SINK, 1, 0)


def test_retried_row_is_not_sent_again_if_the_clock_is_set_back(shop: WebhookShop) -> None:
    shop.server.behave = lambda _: 400
    shop.things.change({1: 5, 2: 2})
    shop.deliver()
    [row] = shop.undelivered
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    settings = shop.things.settings
    sent.record(settings, SINK, sent.state(settings, SINK), [replace(row, at=tomorrow)])
    shop.server.behave = lambda _: 200
    assert send_again(settings, shop.sink) == RetryResult(SINK, 1, 0)
    assert not shop.undelivered


def test_undelivered_rows_can_be_given_up(shop: WebhookShop) -> None:
    shop.server.behave = lambda _: 400
    shop.things.change({1: 5})
    shop.deliver()
    assert give_up(shop.things.settings, shop.sink).taken == 2
    assert not shop.undelivered
    shop.server.behave = lambda _: 200
    shop.things.change({1: 6})
    shop.deliver()
    assert shop.server.changes()[-1]["after"]["amount"] == "1.50"


def test_delivery_stops_if_too_many_rows_are_undelivered(shop: WebhookShop) -> None:
    shop.declare(f"{ALL}undelivered = 5\nparallel = 1\n")
    shop.server.behave = lambda _: 400
    shop.things.change({key: key for key in range(3, 100)})
    with pytest.raises(LakeError, match="16 rows are undelivered, so sink crm stops"):
        shop.deliver()
    tried = len(shop.server.tried)
    with pytest.raises(LakeError, match="16 rows are undelivered"):
        shop.deliver()
    assert len(shop.server.tried) == tried
    shop.server.behave = lambda _: 200
    send_again(shop.things.settings, shop.sink)
    shop.deliver()
    assert shop.in_step()


def test_message_that_fails_alone_is_undelivered_and_all_others_are_accepted(shop: WebhookShop) -> None:
    shop.server.behave = lambda got: None if got.body["data"]["key"] == {"k": 7} else slowly(0.02)(got)
    shop.things.change({key: key for key in range(100)})
    shop.deliver()
    [row] = shop.undelivered
    assert (row.key, row.reason, row.attempts) == ('{"k": 7}', "no answer: ReadError", 5)
    assert len(shop.read) == 99


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (None, "no answer"),
        *((status, f"status {status}, 5 times") for status in (408, 425, 429, 501, 502, 503, 504, 507, 520, 527, 599)),
        ((503, {"retry-after": "3600"}), "asks to be left alone for 3600 s"),
    ],
)
def test_delivery_stops_without_loss_if_every_message_fails(shop: WebhookShop, answer: Answer, found: str) -> None:
    shop.server.behave = lambda _: answer
    shop.things.change({1: 5, 2: 6})
    with pytest.raises(Unavailable, match=found):
        shop.deliver()
    assert not shop.undelivered
    shop.server.behave = lambda _: 200
    shop.deliver()
    assert shop.in_step()


def test_unreachable_receiver_stops_the_delivery(shop: WebhookShop) -> None:
    shop.server.stop()
    shop.things.change({1: 5, 2: 6})
    try:
        with pytest.raises(Unavailable, match="no answer: ConnectError"):
            shop.deliver()
    finally:
        shop.server.start()
    shop.deliver()
    assert shop.in_step()


def test_slow_receiver_stops_the_delivery(shop: WebhookShop) -> None:
    shop.declare(f"{ALL}seconds = 1\nattempts = 2\n")
    shop.server.behave = slowly(2)
    shop.things.change({1: 5, 2: 2})
    with pytest.raises(Unavailable, match="no answer in 1 s, 2 times"):
        shop.deliver()
    shop.server.behave = lambda _: 200
    shop.declare(ALL)
    shop.deliver()
    assert shop.in_step()


def test_answer_whose_head_never_ends_is_none(shop: WebhookShop) -> None:
    shop.declare(f"{ALL}seconds = 1\nattempts = 1\n")
    shop.server.behave = lambda _: b"HTTP/1.1 200 OK\r\nx-endless: "
    shop.things.change({1: 5, 2: 2})
    with pytest.raises(Unavailable, match="no answer in 1 s, 1 time"):
        shop.deliver()
    assert not shop.server.dripped_out


def test_message_is_accepted_by_a_status_whose_body_never_ends(shop: WebhookShop) -> None:
    shop.declare(f"{ALL}seconds = 1\nattempts = 1\n")
    shop.server.behave = lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n"
    shop.things.change({1: 5, 2: 2})
    shop.deliver()
    assert not shop.undelivered
    assert not shop.server.dripped_out


def test_sink_waits_as_long_as_the_receiver_asks(shop: WebhookShop) -> None:
    asked, came = list[datetime](), list[datetime]()

    def behave(_: Got) -> Answer:
        now = datetime.now(UTC)
        came.append(now)
        if len(came) > 2:
            return 200
        asked.append(now + timedelta(seconds=len(came)))
        return (429, {"retry-after": "1"}) if len(came) == 1 else (503, {"retry-after": in_words(asked[1])})

    def in_words(when: datetime) -> str:
        return format_datetime(when, usegmt=True)

    shop.server.behave = behave
    shop.declare(f"{ALL}parallel = 1\n")
    shop.things.change({1: 5, 2: 2})
    shop.deliver()
    assert came[1] >= asked[0]
    assert came[2] >= asked[1].replace(microsecond=0)
    assert shop.in_step()


@pytest.mark.parametrize(
    ("answer", "found"), [(410, "gone for good"), ((302, {"location": "http://127.0.0.1:1/elsewhere"}), "elsewhere")]
)
def test_receiver_that_is_gone_or_has_moved_stops_the_sink(shop: WebhookShop, answer: Answer, found: str) -> None:
    shop.server.behave = lambda _: answer
    shop.things.change({1: 5, 2: 6})
    with pytest.raises(DeclarationError, match=found) as stopped:
        shop.deliver()
    assert "127.0.0.1" not in str(stopped.value)
    assert not shop.undelivered


def test_message_above_the_size_limit_is_undelivered(shop: WebhookShop) -> None:
    shop.declare(f"{ALL}bytes = 10\n")
    shop.things.change({1: 5, 2: 2})
    shop.deliver()
    assert "more than 10" in shop.undelivered[0].reason


def test_neither_address_nor_secrets_are_logged(shop: WebhookShop, caplog: pytest.LogCaptureFixture) -> None:
    shop.server.behave = lambda _: 503
    shop.things.change({1: 5})
    with caplog.at_level(logging.INFO), pytest.raises(Unavailable) as stopped:
        shop.deliver()
    text = caplog.text + str(stopped.value) + repr(shop.sink.open()) + repr(stopped.value.__dict__)
    assert "a-secret-of-the-address" not in text
    assert SECRET not in text


def test_sink_sends_only_changes_that_meet_its_condition(shop: WebhookShop) -> None:
    shop.declare(ALL, 'on = ["update"]\nwhen = "after.amount > 1 and before.amount <= 1"\n')
    sent_before = len(shop.server.tried)
    shop.things.change({1: 5, 2: 3, 7: 19})
    assert shop.deliver().tables[0].updated == 1
    [change] = [got.body["data"] for got in shop.server.tried[sent_before:]]
    assert change["key"] == {"k": 1}
    shop.things.change({1: 6, 2: 3, 7: 19})
    shop.deliver()
    assert len(shop.server.tried) == sent_before + 1


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("after.nothing > 1", 'Could not find key "nothing"'),
        ("(select count(*) from read_csv('/etc/passwd')) > 1", "file system operations are disabled"),
        ("getenv('HOME') is not null", "getenv"),
        ("(select max(amount) from thing) > 1", "thing"),
    ],
)
def test_condition_can_read_only_the_changes(shop: WebhookShop, condition: str, found: str) -> None:
    shop.declare(ALL, f'when = "{condition}"')
    shop.things.change({1: 5})
    with pytest.raises(DeclarationError, match="when: ") as fault:
        shop.deliver()
    assert found in str(fault.value)
    assert "sinks/crm.toml, table thing" in str(fault.value)


def test_retry_is_refused_for_sinks_that_keep_no_messages(webhook: Webhook, tmp_path: Path) -> None:
    settings = empty(tmp_path / "shop")
    settings.path("sinks").mkdir()
    settings.path("sinks/crm.toml").write_text('kind = "kafka"\nbootstrap = "x:1"\n[tables.thing]\n')
    with pytest.raises(DeclarationError, match="of kind kafka"):
        send_again(settings, declared_sinks(settings)[0])


def test_target_has_a_position_and_no_edition_underway_after_a_delivery(shop: WebhookShop) -> None:
    target = shop.sink.open()
    assert isinstance(target, WebhookTarget)
    assert target.underway() is None
    assert json.loads(target.position().to_json())["edition"] == 1  # type: ignore[union-attr]  # it has one


def test_delivery_is_refused_while_another_process_holds_the_lease(shop: WebhookShop) -> None:
    """The position is in the warehouse, so its lease keeps them apart."""
    shop.things.change({1: 5, 2: 2})
    with other_process(shop.things.settings, f"sink.{SINK}"):
        for work in (shop.deliver, lambda: send_again(shop.things.settings, shop.sink)):
            with pytest.raises(Unavailable, match="lease"):
                work()
    assert len(shop.server.tried) == 2
    shop.deliver()
    assert shop.in_step()


def test_followed_sink_that_fails_is_retried_after_growing_pauses(
    shop: WebhookShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes only while `follow` sleeps."""
    shop.declare(f"{ALL}attempts = 1\n")
    shop.things.change({1: 5, 2: 2})
    clock: Any = SimpleNamespace(
        now=0.0, monotonic=lambda: clock.now, sleep=lambda s: setattr(clock, "now", clock.now + s)
    )
    monkeypatch.setattr(delivery, "time", clock)
    monkeypatch.setattr(delivery, "POLL_SECONDS", 1.0)
    failed: list[int] = []
    shop.server.behave = lambda _: 503 if clock.now < 200 else 200

    def on_done(_: object) -> None:
        raise EOFError

    def on_failure(*_: object) -> None:
        failed.append(int(clock.now))
        assert len(failed) < 20

    with pytest.raises(EOFError):
        delivery.follow(shop.things.settings, [shop.sink], on_done=on_done, on_failure=on_failure)
    assert failed == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert shop.in_step()


def test_message_is_sent_after_all_earlier_ones_of_its_keys(shop: WebhookShop) -> None:
    """The answer to the message of `b` waits for the later one of `a` and `b`."""
    later, ids = threading.Event(), list[str]()

    def behave(got: Got) -> Answer:
        if got.id == "both":
            later.set()
        if got.id == "b":
            later.wait(0.2)
        ids.append(got.id)
        return 200

    shop.server.behave = behave
    keys = {"a": ("a",), "b": ("b",), "both": ("a", "b"), "last": ("b",)}
    with closing(shop.sink.open()) as target:
        assert isinstance(target, WebhookTarget)
        answers: dict[str, receivers.Rejection | None] = {}
        target.receiver.send([receivers.WebhookMessage(id, of, b"{}") for id, of in keys.items()], answers)
    assert answers == dict.fromkeys(keys)
    assert sorted(ids[:2]) == ["a", "b"]
    assert ids[2:] == ["both", "last"]
