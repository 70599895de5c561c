"""Singer tap as a source: rows up to a STATE are delivered with that state, however the tap ends."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

from lake.config import Settings
from lake.connect.singer.tap import TapSource, command_line_tap
from lake.contracts.contract import load_contracts
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.records.single_reader import RecordRejected, SingleReader
from lake.sources.declared import sound_sources
from lake.sources.describe import position
from lake.sources.source import Progress
from tests.shop import contract, declare, empty
from tests.spool import Kept

FAKE = str(Path(__file__).with_name("fake_tap.py"))
Step = tuple[str, Any]
Tap = Callable[..., TapSource]


def shop(folder: Path) -> Settings:
    settings = empty(folder)
    declare(settings, contract("rows", {"number": "long"}), contract("others", {"number": "long"}))
    settings.path("sources").mkdir()
    return settings


@pytest.fixture
def project(tmp_path: Path) -> Settings:
    return shop(tmp_path / "shop")


def tap(project: Settings, *steps: Step, lines: str = "", streams: str = "rows = 's'") -> TapSource:
    script = project.path("script.json")
    script.write_text(json.dumps(steps))
    command = json.dumps([sys.executable, FAKE, str(script)])
    project.path("sources/t.toml").write_text(f'kind = "tap"\ncommand = {command}\n{lines}\n[streams]\n{streams}\n')
    return declared(project)


def declared(project: Settings) -> TapSource:
    sources, faults = sound_sources(project, load_contracts(project))
    if faults:
        raise faults["t"]
    source = sources["t"].open()
    assert isinstance(source, TapSource)
    return source


def runs(project: Settings) -> list[Any]:
    """Return the states with which the tap was started."""
    return [json.loads(line) for line in project.path("script.runs").read_text().splitlines()]


def delivered(
    source: TapSource, at: Progress | None = None
) -> tuple[list[list[int]], Progress | None, list[LakeError]]:
    """Return all deliveries of one opening, the last position, and the failures."""
    deliveries, faults = list[list[int]](), list[LakeError]()
    while True:
        taken = Kept()
        try:
            progress = source.read(at, taken)
        except LakeError as fault:
            faults.append(fault)
            break
        if progress is None:
            break
        at = json.loads(json.dumps(progress))
        deliveries.append([json.loads(record.text)["number"] for _, record in taken.records])
    source.close()
    return deliveries, at, faults


def state(at: Progress | None) -> Any:
    return at["state"] if at else None


def test_tap_delivers_rows_with_the_next_state_and_continues_from_it(project: Settings) -> None:
    source = tap(project, ("row", 1), ("state", 1), ("row", 2), ("row", 3), ("state", 3))
    deliveries, at, faults = delivered(source)
    assert (deliveries, state(at), faults) == ([[1, 2, 3]], {"row": 3}, [])
    source = tap(project, ("row", 3), ("row", 4), ("state", 4))
    deliveries, at, faults = delivered(source, at)
    assert (deliveries, state(at), faults) == ([[4]], {"row": 4}, [])
    assert delivered(declared(project), at) == ([], at, [])
    assert runs(project) == [None, {"row": 3}, {"row": 4}]


def test_tap_delivery_ends_at_the_first_state_after_enough_rows(project: Settings) -> None:
    steps = [step for n in range(1, 8) for step in (("row", n), ("state", n))]
    source = tap(project, *steps, lines="records = 3")
    deliveries, at, _ = delivered(source)
    assert (deliveries, state(at)) == ([[1, 2, 3], [4, 5, 6], [7]], {"row": 7})
    assert runs(project) == [None]


def test_tap_that_dies_delivers_rows_up_to_its_last_state(project: Settings) -> None:
    for end in (("exit", 3), ("die", None)):
        source = tap(project, ("row", 1), ("state", 1), ("row", 2), end)
        deliveries, at, [fault] = delivered(source)
        assert (deliveries, state(at)) == ([[1]], {"row": 1})
        assert isinstance(fault, Unavailable)
        assert re.search("ended with exit code (3|-9)", str(fault))
        assert delivered(tap(project, ("row", 1), ("row", 2), ("state", 2)), at)[0] == [[2]]


def test_tap_that_dies_within_a_line_is_unavailable(project: Settings) -> None:
    source = tap(project, ("row", 1), ("state", 1), ("line", '{"type": "RECORD", "str'), ("die", None))
    deliveries, _, [fault] = delivered(source)
    assert deliveries == [[1]]
    assert isinstance(fault, Unavailable)


def test_tap_that_dies_before_any_state_delivers_nothing(project: Settings) -> None:
    deliveries, at, [fault] = delivered(tap(project, ("row", 1), ("exit", 1)))
    assert (deliveries, at) == ([], None)
    assert isinstance(fault, Unavailable)


def test_tap_without_states_delivers_all_its_rows_at_each_run(project: Settings) -> None:
    steps = (("row", 1), ("row", 2))
    deliveries, at, faults = delivered(tap(project, *steps))
    assert (deliveries, state(at), faults) == ([[1, 2]], None, [])
    assert delivered(tap(project, *steps), at)[0] == [[1, 2]]


def test_tap_delivers_rows_after_its_last_state_when_it_ends_well(project: Settings) -> None:
    deliveries, at, faults = delivered(tap(project, ("row", 1), ("state", 1), ("row", 2)))
    assert (deliveries, state(at), faults) == ([[1, 2]], {"row": 1}, [])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("7\n", "line 3 of the output of .* is not a known Singer message: 7"),
        ('{"type": "RECORD"}\n', "is not a known Singer message: .*RECORD"),
        ('{"type": "BATCH", "stream": "s", "manifest": []}\n', "is not a known Singer message: .*BATCH"),
        ('["RECORD"]\n', "line 3"),
        ('{"type": "RECORD", "stream": "t", "record": {}}\n', "rows of 't', which no stream takes"),
        ('{"type": "STATE", "value": NaN}\n', "line 3"),
        *(
            (json.dumps({"type": "RECORD", "stream": "s", "record": {}, member: value}) + "\n", "is not a known Singer")
            for member in ("type", "stream")
            for value in (None, True, 7, 1.5, [], ["RECORD"], {}, {"a": 1})
        ),
        (f'{{"type": {"9" * 5000}}}\n', "is not a known Singer message"),
    ],
)
def test_tap_stops_at_an_invalid_message_and_keeps_earlier_rows(project: Settings, line: str, told: str) -> None:
    source = tap(project, ("row", 1), ("state", 1), ("line", line), ("row", 2), ("state", 2))
    deliveries, at, [fault] = delivered(source)
    assert (deliveries, state(at)) == ([[1]], {"row": 1})
    assert isinstance(fault, DeclarationError)
    assert re.search(told, str(fault))


CUT = '{"type": "RECORD", "stream": "s", "record": {"number": 7}'
LINES = {
    '{"type": "RECORD", "stream": "s", "record": {"number": NaN}}': '{"number": NaN}',
    CUT: CUT,
    "INFO hello": "INFO hello",
    "{\\": "{\\",
}
"""Lines that are no JSON, and the text of the record that is refused for each."""


@pytest.mark.parametrize("line", LINES)
def test_tap_delivers_a_line_that_is_not_json_as_a_rejected_record(project: Settings, line: str) -> None:
    steps = ("row", 1), ("line", f"{line}\n"), ("row", 2), ("state", 2)
    for source in (
        tap(project, *steps),
        command_line_tap(project, "tap_rows", "rows", [sys.executable, FAKE, str(project.path("script.json"))]),
    ):
        taken = Kept()
        assert state(source.read(None, taken)) == {"row": 2}
        source.close()
        assert [record.text for _, record in taken.records] == ['{"number": 1}', LINES[line], '{"number": 2}']
        with pytest.raises(RecordRejected, match="unparseable: not one JSON object"):
            SingleReader(load_contracts(project)["rows"], 1000).values(LINES[line].encode(), {})


def test_tap_of_several_streams_reports_a_line_without_a_stream(project: Settings) -> None:
    lines = '{"type": "RECORD", "stream": "s", "record": {\nINFO hello\n'
    source, taken = tap(project, ("line", lines), streams="rows = 's'\nothers = 'o'"), Kept()
    with pytest.raises(DeclarationError, match=r"line 2 of the output of .* is not JSON: INFO hello"):
        source.read(None, taken)
    source.close()


def test_tap_delivers_bytes_that_are_not_text_as_a_rejected_record(project: Settings) -> None:
    script = project.path("tap.py")
    line = b'{"type": "RECORD", "stream": "s", "record": {"number": "\xff"}}\n'
    script.write_text(f"import sys\nsys.stdout.buffer.write({line!r})\n")
    source, taken = command_line_tap(project, "tap_rows", "rows", [sys.executable, str(script)]), Kept()
    source.read(None, taken)
    source.close()
    [(_, record)] = taken.records
    with pytest.raises(RecordRejected, match="unparseable: U\\+FFFF, which is no character"):
        SingleReader(load_contracts(project)["rows"], 1000).values(record.text.encode(), {})


def test_tap_delivers_streams_facts_and_exact_digits(project: Settings) -> None:
    lines = [
        '{"type": "SCHEMA", "stream": "s", "schema": {}, "key_properties": []}',
        "",
        '{"type": "RECORD", "stream": "s", "record": {"number": 1.10}, "time_extracted": "2024-01-01T00:00:00Z"}',
        '{"record": {"number": 12345678901234567890.5}, "version": 17, "stream": "o", "type": "RECORD"}',
        '{"type": "ACTIVATE_VERSION", "stream": "o", "version": 17}',
        '{"type": "STATE", "value": {"a": [1]}}',
    ]
    source, taken = tap(project, ("line", "\n".join(lines) + "\n"), streams="rows = 's'\nothers = 'o'"), Kept()
    progress = source.read(None, taken)
    source.close()
    assert state(progress) == {"a": [1]}
    assert source.streams == ("rows", "others")
    [(first, one), (second, two)] = taken.records
    assert (first, one.text, one.facts) == (
        "rows",
        '{"number": 1.10}',
        {"singer.time_extracted": "2024-01-01T00:00:00Z"},
    )
    assert (second, two.text, two.facts) == ("others", '{"number": 12345678901234567890.5}', {"singer.version": "17"})
    assert one.place != two.place


@pytest.mark.parametrize("value", ["true", "17", "1.50", "9" * 5000, "[1]", '{"a": 1}', '"x"', '""'])
def test_tap_delivers_facts_as_they_are_written(project: Settings, value: str) -> None:
    line = f'{{"type": "RECORD", "stream": "s", "record": {{}}, "version": {value}, "time_extracted": {value}}}\n'
    source, taken = tap(project, ("line", line)), Kept()
    source.read(None, taken)
    source.close()
    assert {*taken.facts[0].values()} == {value.strip('"')}


@pytest.mark.parametrize(
    "value",
    [
        '{"row": 0.1234567890123456789}',
        '{"row": 1e400}',
        f'{{"row": {"9" * 5000}}}',
        '{"row": 1.50}',
        '{"row":0.1}',
        '{"row": 12345678901234567890}',
    ],
)
def test_tap_receives_its_state_with_all_digits(project: Settings, value: str) -> None:
    deliveries, at, faults = delivered(tap(project, ("row", 1), ("line", f'{{"type": "STATE", "value": {value}}}\n')))
    assert (deliveries, faults) == ([[1]], [])
    assert position(at or {}).replace(" ", "")[:8] == value.replace(" ", "")[:8]
    command = [sys.executable, "-c", "import sys; print(open(sys.argv[2]).read(), file=sys.stderr)"]
    source = command_line_tap(project, "tap_rows", "rows", command)
    source.read(at, Kept())
    source.close()
    written = (source.tap.scratch / "log").read_text().strip()
    assert written.replace(" ", "") == value.replace(" ", "")


def test_command_line_tap_delivers_its_only_stream(project: Settings) -> None:
    script = project.path("script.json")
    script.write_text(json.dumps([("row", 1), ("state", 1)]))
    source = command_line_tap(project, "tap_rows", "rows", [sys.executable, FAKE, str(script)])
    assert delivered(source)[0] == [[1]]


def test_tap_is_not_run_again_before_its_interval(project: Settings) -> None:
    assert delivered(tap(project, ("row", 1), ("state", 1), lines="every = 3600"))[0] == [[1]]
    assert delivered(declared(project), {"state": {"row": 1}, "run": "r"})[0] == []
    assert runs(project) == [None]


def test_tap_process_ends_when_the_source_is_closed(project: Settings) -> None:
    source = tap(project, ("row", 1), ("state", 1), ("wait", str(project.path("never"))), lines="records = 1")
    assert source.read(None, Kept()) is not None
    assert source._run is not None
    process = source._run._process
    assert process.poll() is None
    source.close()
    assert process.poll() is not None


def test_tap_reports_a_missing_program(project: Settings) -> None:
    with pytest.raises(DeclarationError, match="no-such-tap cannot be run: No such file"):
        command_line_tap(project, "tap_rows", "rows", ["no-such-tap"]).read(None, Kept())
    for name in ("no-such-tap", "./script.json"):
        with pytest.raises(DeclarationError, match="there is no such program"):
            command_line_tap(project, "tap_rows", "rows", [name]).check_program()
    command_line_tap(project, "tap_rows", "rows", [sys.executable]).check_program()


@pytest.mark.long
@options(max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12), st.integers(1, 4))
def test_tap_delivers_each_row_once_after_any_deaths(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[bool, bool]], records: int
) -> None:
    """Rows with or without a following state or death of the tap; each death happens once."""
    project = shop(tmp_path_factory.mktemp("tap") / "shop")
    at, found = None, list[int]()
    deaths = [number for number, (_, dies) in enumerate(rows, 1) if dies]
    for death in [*deaths, None]:
        steps = list[Step]()
        for number, (has_state, _) in enumerate(rows, 1):
            steps += [("row", number), *([("state", number)] if has_state else [])]
            steps += [("die", None)] if number == death else []
        steps += [("state", len(rows))]
        deliveries, at, _ = delivered(tap(project, *steps, lines=f"records = {records}"), at)
        found += [number for numbers in deliveries for number in numbers]
    assert found == list(range(1, len(rows) + 1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "invalid command: None"),
        ("command = 'tap-x --config c'", "invalid command"),
        ("command = ['tap-x', '--state', 's']", "the command has --state"),
        ("command = ['x']\nrecords = -1", "invalid records: -1"),
        ("command = ['x']\nevry = 1", "unknown key 'evry'.*did you mean 'every'"),
        ("command = ['x']\n[streams]\nrow = 's'", "unknown stream 'row'.*did you mean 'rows'"),
        ("command = ['x']\n[streams]\nrows = 's'\nothers = 's'", "two streams take the same rows"),
        ("command = ['x']\nstreams = ['rows']", "invalid streams"),
    ],
)
def test_tap_declaration_reports_each_fault(project: Settings, text: str, told: str) -> None:
    project.path("sources/t.toml").write_text(f'kind = "tap"\n{text}\n')
    with pytest.raises(DeclarationError, match=f"(?s){told}"):
        declared(project)
