"""Options of every command: none is ignored, and no number is too great, too small or invalid without a message.

The cases are generated from all commands: a new option must be listed here with its combinations, or the test fails.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, islice
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from lake import cli
from lake.errors import Unavailable
from lake.privacy.forget import Preview
from lake.publish.retention import tables
from tests.warehouse import published

SHARED = {"--project", "--json", "--quiet", "--debug", "--help"}
# Arguments of a command, required with any options.
NEEDS = {
    "init": "other",
    "append": "orders x.jsonl",
    "log": "orders",
    "void": "orders 1:1:0",
    "rebuild": "",
    "backfill": "current_order",
    "plan": "current_order",
    "wait": "orders@2",
    "sql": "'select 1'",
    "explain": "current_order order_id=1",
    "diff": "current_order",
    "forget": "orders",
    "ingest": "orders",
}
GIVEN = {
    "--reason": "--reason test",
    "--label": "--label night",
    "--from": "--from 2024-03-30",
    "--to": "--to 2024-04-01",
    "--from-edition": "--from-edition 1",
    "--to-edition": "--to-edition 1",
    "--file": "--file q.sql",
    "--after": "--after orders@2",
    "--cut": "--cut 1",
    "--output": "--output answer.csv",
    "--every": "--every 1s",
    "--fail-if": "--fail-if behind",
    "--value": "--value joan",
    "--format": "--format csv",
    "--expect": "--expect web:1:0",
    "--id": "--id a",
}
REQUIRED = {
    "void": ["--reason"],
    "backfill": ["--from", "--to"],
    "diff": ["--from-edition", "--to-edition"],
}
# Options that require another one, or exclude all but some options of a command.
WANTS = {
    ("run", "--every"): "--follow",
    ("sql", "--timeout"): "--after",
    ("sql", "--recompute"): "--cut",
    ("forget", "--value"): "--proof",
    ("maintain", "--yes"): "--drop-retired",
    ("log", "--since"): "--check",
    ("append", "--expect"): "--decide",
    ("append", "--id"): "--decide",
    ("append", "--new"): "--decide",
}
# Options that exclude each other.
WAYS = {
    "deliver": ("--dry-run", "--follow", "--forget", "--give-up", "--repair", "--resync", "--retry"),
    "alert": ("--dry-run", "--follow", "--from-now", "--give-up", "--retry"),
}
APART = {
    ("publish", "--cut", "--edition"),
    ("publish", "--cut", "--resume"),
    ("publish", "--edition", "--resume"),
    ("append", "--expect", "--new"),
    ("log", "--check", "--head"),
    ("log", "--check", "--missing"),
    ("log", "--head", "--missing"),
    ("verify", "--all", "--source"),
    ("verify", "--edition", "--source"),
    ("verify", "--shallow", "--source"),
    ("verify", "--edition", "--shallow"),
    ("rebuild", "--all", "--downstream"),
    ("rebuild", "--dry-run", "--yes"),
    ("rebuild", "--dry-run", "--to"),
    ("rebuild", "--to", "--yes"),
    ("maintain", "--dry-run", "--yes"),
    ("maintain", "--drop-retired", "--keep-editions"),
    ("maintain", "--drop-retired", "--keep-days"),
    ("maintain", "--drop-retired", "--limit"),
    ("forget", "--lost", "--proof"),
    ("forget", "--lost", "--value"),
    ("sql", "--cut", "--edition"),
    ("sql", "--after", "--edition"),
    ("sql", "--after", "--cut"),
    ("sql", "--recompute", "--timeout"),
    ("sql", "--recompute", "--verified"),
    ("run", "--follow", "--json"),
    ("run", "--every", "--json"),
    ("graph", "--format", "--json"),
    ("sql", "--format", "--json"),
    ("sql", "--json", "--output"),
    ("ingest", "--again", "--give-up"),
    ("init", "--project"),
    *(("verify", *sorted(("--sink", other))) for other in ("--all", "--edition", "--shallow", "--source")),
    *(("deliver", *pair) for pair in combinations(WAYS["deliver"], 2) if pair != ("--dry-run", "--resync")),
    *(("alert", *pair) for pair in combinations(WAYS["alert"], 2)),
}


class Ran(NamedTuple):
    """Exit code of a command line, and its output."""

    code: int
    err: str
    out: str


Run = Callable[[str], Ran]
HARMFUL = {"serve"}
NUMBERS = ["-1", "0", "1e300", "nan", "inf", "-inf", "9" * 30, "-" + "9" * 30, str(2**63), str(2**63 - 1), "9" * 5000]


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli.lake)
    for name in cli.command_names():
        command = cli.lake.get_command(context, name)
        assert command is not None
        yield name, command


def options(command: click.Command) -> dict[str, click.Option]:
    named = {max(option.opts, key=len): option for option in command.params if isinstance(option, click.Option)}
    return {name: option for name, option in named.items() if name not in SHARED}


def written(name: str, option: click.Option | None, value: str | None = None) -> str:
    if value is not None:
        return f"{name}={value}"
    if name == "--json" or option is None or option.is_flag:
        return name
    if isinstance(option.type, click.Choice) and "csv" not in option.type.choices:
        return f"{name} {option.type.choices[-1]}"
    return GIVEN.get(name) or f"{name} 1"


def line(name: str, *words: str) -> str:
    said = {word.partition(" ")[0].partition("=")[0] for word in words}
    needed = [GIVEN[option] for option in REQUIRED.get(name, ()) if option not in said]
    wanted = [WANTS[name, option] for option in said if (name, option) in WANTS and WANTS[name, option] not in said]
    rest = "subject=ada" if name == "forget" and "--lost" not in said else ""
    argument = NEEDS.get(name, "")
    argument = "" if "--file" in said else argument
    argument = "" if "--all" in said else "current_order" if name == "rebuild" else argument
    given = [GIVEN.get(option) or written(option, None) for option in wanted]
    return " ".join(filter(None, [name, argument, rest, *needed, *given, *words]))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options") / "shop"
    published(folder)
    (folder / "x.jsonl").write_text("{}\n")
    (folder / "q.sql").write_text("select 1")
    return folder


@pytest.fixture
def run(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs one command line on a shop. `lake maintain` maintains its log only."""

    def no_session(_: object) -> None:
        raise Unavailable("no session", where="test", fix="none")

    def once(words: str) -> Ran:
        folder = tmp_path / words.partition(" ")[0] / "shop"
        if not folder.exists():
            shutil.copytree(sound, folder)
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.argv", ["lake", *shlex.split(words)])
        code = cli._run()
        out, err = capfd.readouterr()
        if "--json" in words.split() and "--output" not in words:
            answer = json.loads(out)  # One document for any outcome
            assert code == 0 or "error" not in answer or answer["error"]["exit_code"] == code, words
        return Ran(code, err, out)

    monkeypatch.setattr("lake.session.spark_session.embedded", no_session)
    monkeypatch.setenv("LAKE_IN_PROCESS_ROWS", "0")  # the shop's tables have no state
    monkeypatch.setattr("lake.quality.gate.warm_up", lambda _: None)
    monkeypatch.setattr("lake.ops.follow.follow", lambda *_, **__: None)
    monkeypatch.setattr("lake.ops.maintenance.tables", lambda settings: islice(tables(settings), 1))
    return once


def goes_alone(name: str, pair: tuple[str, str]) -> bool:
    """Return whether one of the pair requires the other, or requires something that excludes it."""
    wanted = {WANTS[name, option] for option in pair if (name, option) in WANTS}
    return bool(wanted & {*pair}) or any((name, *sorted([o, w])) in APART for o in pair for w in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", sorted({*cli.command_names()} - HARMFUL))
def test_conflicting_options_are_rejected_and_others_accepted(run: Run, name: str, every: int) -> None:
    """Every pair that conflicts, and every `every`-th of the others."""
    choices: dict[str, click.Option | None] = {**options(dict(commands())[name]), "--json": None}
    alone = cache(lambda option: run(line(name, written(option, choices[option])))[1].partition(" (")[0])
    wrong = []
    for number, pair in enumerate(combinations(sorted(choices), 2)):
        if goes_alone(name, pair) or (number % every and (name, *pair) not in APART):
            continue
        words = line(name, *(written(option, choices[option]) for option in pair))
        code, err, _ = run(words)
        refused = code == 2 and err.partition(" (")[0] not in map(alone, pair)
        if refused != ((name, *pair) in APART):
            wrong.append(f"{words}: {code}: {err}")
    for option in (option for option in choices if (name, option) in WANTS):
        whom = "subject=ada" if name == "forget" else ""
        words = f"{name} {NEEDS.get(name, '')} {whom} {written(option, choices[option])}"
        code, err, _ = run(words)
        if code != 2 or option not in err:
            wrong.append(f"{words}: {code}: {err}")
    assert not wrong, "\n".join(wrong)


def test_init_rejects_a_project_option(run: Run) -> None:
    code, err, _ = run("init other --project .")
    assert code == 2
    assert "--project" in err


def parameters() -> Iterator[tuple[str, click.Command, click.Parameter]]:
    """Yield the parameters of every command and subcommand."""
    every = [*commands()]
    for name, command in every:
        if isinstance(command, click.Group):
            every += [(f"{name} {below}", found) for below, found in command.commands.items()]
        yield from ((name, command, each) for each in command.params)


def test_empty_option_or_path_is_rejected(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lake.serve.server.serve", lambda *_, **__: None)
    tried = set[str]()
    for name, command, parameter in parameters():
        is_option = isinstance(parameter, click.Option)
        is_flag = isinstance(parameter, click.Option) and parameter.is_flag
        is_text = is_option and isinstance(parameter.type, click.types.StringParamType)
        if is_flag or not (is_text or isinstance(parameter.type, cli.LocalPath)):
            continue
        words = [name]
        for each in command.params:
            option = f"{each.opts[0]}=" if isinstance(each, click.Option) else ""
            if each is parameter:
                words.append(f"{option}''")
            elif each.required or not (option or is_option):
                words.append(f"{option}1")
        code, err, _ = run(" ".join(words))
        assert (code, "invalid value for" in err) == (2, True), (words, err)
        tried.add(parameter.opts[0])
    assert tried >= {"--expect", "--id", "--since", "--host", "--label", "--output", "--keys", "--value", "folder"}


def test_path_argument_rejects_a_url(run: Run, tmp_path: Path) -> None:
    url, tried = "s3://bucket/at", 0
    for name, command, path in parameters():
        if not isinstance(path.type, cli.LocalPath) or name in HARMFUL or path.name == "project":
            continue
        before = [each for each in command.params if isinstance(each, click.Argument)]
        if path in before:
            before = before[: before.index(path) + 1]
        given = [url if each is path else "orders" if each.name == "stream" else "x" for each in before]
        option = [f"{path.opts[0]}={url}"] if isinstance(path, click.Option) else []
        code, err, _ = run(" ".join([name, *option, *given]))
        assert code == 2, (name, err)
        assert f"{url} is a URL, where a path of this machine is wanted" in err, name
        tried += 1
    assert tried > 8
    assert not [*tmp_path.rglob("s3:")]


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_number_of_any_size_is_accepted_or_rejected_clearly(run: Run, every: int) -> None:
    lines = [
        line(name, written(option, each, value))
        for name, command in commands()
        if name not in HARMFUL
        for option, each in options(command).items()
        if not each.is_flag and (isinstance(each.type, click.types.IntParamType | click.types.FloatParamType))
        for value in NUMBERS
    ]
    assert len(lines) > 15 * len(NUMBERS)
    for value in NUMBERS:
        lines += [f"run --follow --every={value}s", f"wait orders@{value} --timeout 0", f"serve connect --port={value}"]
        lines += [f"void orders 1:1:{value} --reason x", f"sql --after orders@{value} --timeout 0 'select 1'"]
        lines += [f"explain current_order order_id={value}", f"reader add x --table current_order --days={value}"]
    wrong = []
    for words in lines[::every]:
        code, err, _ = run(words)
        if code not in {0, 1, 2, 75} or re.search(r"unexpected error|Traceback|Error\b|too large to convert", err):
            wrong.append(f"{words[:80]}: {code}: {err[:300]}")
    assert not wrong, f"{len(wrong)} of {len(lines)}:\n" + "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["KEEP_DAYS", "LEASE_SECONDS", "KEEP_EDITIONS"])
def test_setting_of_any_size_is_accepted_or_rejected_clearly(
    run: Run, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    for value in NUMBERS:
        monkeypatch.setenv(f"LAKE_{setting}", value)
        code, err, _ = run("maintain --dry-run")
        assert code in {0, 2}, f"{value[:50]}: {err[:300]}"
        assert not re.search(r"unexpected error|Traceback|Error\b", err), err[:300]


@pytest.mark.parametrize("words", ["forget orders subject=ada", "maintain --drop-retired", "maintain --dry-run"])
def test_dry_run_that_finds_work_exits_with_0(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    run("tables")
    shop_of_it = tmp_path / words.partition(" ")[0] / "shop"
    shutil.copytree(tmp_path / "tables/shop", shop_of_it)
    for gone in ("jobs/gold/customer_daily.py", "quality/customer_daily.json"):
        (shop_of_it / gone).unlink()
    would = Preview("orders", "", (), 0, 0, (), ())
    monkeypatch.setattr("lake.privacy.forget.preview", lambda *_: would)
    assert run(words)[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        *(("quarantine list", 0, ""), ("quarantine counts nothing", 2, "error"), ("quarantine replay", 0, "streams")),
        *(("quarantine accept orders --reason x", 2, "error"), ("serve connect --port 1", 2, "error")),
        *((f"log orders --check --since {'0' * 64}", 1, "faults"), ("verify --edition 1", 1, "tables")),
        *(("verify --edition 9", 2, "error"), ("wait orders@2 --timeout 0", 0, "edition"), ("wait orders", 2, "error")),
        *(("status --fail-if behind", 1, "cut"), ("graph", 0, "tables"), ("diff current_order", 2, "error")),
        *(("forget orders --lost", 2, "error"), ("forget orders subject=nobody", 2, "error")),
        *(("tables --nope", 2, "error"), ("tabels", 2, "error"), ("tables --project nowhere", 2, "error")),
        *(("sql 'select 1 as one'", 0, ""), ("sql 'selec'", 2, "error"), ("sql 'select 1' --format csv", 2, "error")),
        ("sql 'select 1 as one where error($$later$$)'", 2, "error"),
    ],
)
def test_json_output_is_one_document_for_success_and_failure(run: Run, words: str, code: int, part: str) -> None:
    ran = run(f"{words} --json")
    answer = json.loads(ran.out)
    assert ran.code == code, ran.err
    assert not part or part in answer
    if "error" in answer:
        assert f"\nlake: {answer['error']['what']}" in f"\n{ran.err}"
        assert answer["error"]["exit_code"] == code
