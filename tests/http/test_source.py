"""Files of acknowledged events, and the source that reads them, with damage and gaps. No server."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.config import Settings
from lake.contracts.contract import load_contracts, sound_contracts
from lake.errors import DeclarationError, LakeError, StorageError, Unavailable
from lake.ingest.ingest import ingest_named
from lake.serve import intake_folder
from lake.serve import source as http
from lake.serve.intake_folder import GroupWriter, IntakeFolder
from lake.serve.source import HttpSource
from lake.sources.declared import sound_sources
from lake.sources.source import Gap, Lag
from lake.store.log import Log
from lake.store.log_head import GENERATION
from tests.checks import spark_forbidden
from tests.processes import PATIENCE
from tests.servers.http import shop
from tests.spool import Kept

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Settings:
    return shop(tmp_path / "shop")


def source_of(project: Settings) -> HttpSource:
    sources, faults = sound_sources(project, load_contracts(project))
    assert not faults
    source = sources["web"].open()
    assert isinstance(source, HttpSource)
    return source


def lines(*numbers: int, stream: str = "readings") -> list[bytes]:
    return [json.dumps([stream, json.dumps({"number": n}), {"http.id": f"i{n}"}]).encode() + b"\n" for n in numbers]


def write(project: Settings, *groups: Sequence[int]) -> IntakeFolder:
    folder = IntakeFolder.of(project, "web")
    writer = GroupWriter(folder)
    for group in groups:
        writer.put(lines(*group), len(group))
    writer.close()
    return folder


def read(project: Settings, after: Any = None) -> tuple[list[int], Any]:
    taken = Kept()
    progress = source_of(project).read(after, taken)
    return [json.loads(record.text)["number"] for _, record in taken.records], progress


def test_written_records_are_read_in_order_with_facts_and_places(project: Settings) -> None:
    folder = write(project, [1, 2], [3])
    taken = Kept()
    progress = source_of(project).read(None, taken)
    assert progress == {"spool": folder.spool, "upto": 2}
    assert [record.place for _, record in taken.records] == ["1:0", "1:1", "2:0"]
    assert [record.facts["http.id"] for _, record in taken.records] == ["i1", "i2", "i3"]
    assert read(project, progress) == ([], None)
    assert source_of(project).lag(None).events == 3
    assert source_of(project).lag(progress) == Lag(0, None, 0)


def test_records_beyond_one_delivery_are_read_in_the_next(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, [1], [2, 3], [4])
    monkeypatch.setattr(http, "BATCH_BYTES", 1)
    source, at, told = source_of(project), None, []
    for _ in range(4):
        taken = Kept()
        at = source.read(at, taken) or at
        told.append((len(taken.records), source.more))
    assert told == [(1, True), (2, True), (1, False), (0, False)]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["put", "read", "commit", "acknowledge", "restart"]), max_size=30))
def test_record_is_committed_once_in_any_order_of_reads_commits_and_removals(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    project = shop(tmp_path_factory.mktemp("interleaved") / "shop")
    writer, given_, committed, at, pending = GroupWriter(IntakeFolder.of(project, "web")), 0, list[int](), None, None
    for step in [*steps, "read", "commit"]:
        match step:
            case "put":
                given_ += 1
                writer.put(lines(given_), 1)
            case "read":
                pending = read(project, at)
            case "commit" if pending and pending[1]:
                committed, at, pending = committed + pending[0], pending[1], None
            case "acknowledge" if at:
                source_of(project).acknowledge(at)
            case "restart":
                writer.close()
                writer = GroupWriter(IntakeFolder.of(project, "web"))
    writer.close()
    assert committed == list(range(1, given_ + 1))


def test_group_is_not_read_while_it_is_written(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = GroupWriter(IntakeFolder.of(project, "web"))
    synced = list[str]()

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if len(synced) == 1:
            assert read(project) == ([], None)

    monkeypatch.setattr(os, "fsync", sync)
    writer.put(lines(1), 1)
    folder = writer.folder.path
    assert synced == [str(folder / ".new"), str(folder)]
    assert read(project)[0] == [1]
    writer.close()


def test_full_disk_acknowledges_nothing_and_leaves_no_gap(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = GroupWriter(IntakeFolder.of(project, "web"))
    with monkeypatch.context() as broken:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        broken.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            writer.put(lines(1), 1)
    assert writer.put(lines(2), 1).number == 1
    writer.close()
    assert read(project)[0] == [2]


def test_groups_in_the_logs_are_removed_from_a_full_disk(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, put = IntakeFolder.of(project, "web"), intake_folder._put
    writer = GroupWriter(folder)
    for number in (1, 2, 3):
        writer.put(lines(number), 1)

    def limited(file: Path, content: bytes) -> int:
        if len(folder.groups()) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        return put(file, content)

    monkeypatch.setattr(intake_folder, "_put", limited)
    folder.remove(2)
    assert ([group.number for group in folder.groups()], folder.taken) == ([3], 2)
    writer.close()


def test_writer_waits_for_another_with_patience(project: Settings) -> None:
    first, folder = GroupWriter(IntakeFolder.of(project, "web")), IntakeFolder.of(project, "web")
    with ThreadPoolExecutor() as pool:
        second = pool.submit(GroupWriter, folder, patience=PATIENCE)
        assert not second.done()
        first.close()
        second.result().close()


def test_second_writer_of_a_folder_is_rejected(project: Settings) -> None:
    writer = GroupWriter(IntakeFolder.of(project, "web"))
    with pytest.raises(Unavailable, match="another lake serve http"):
        GroupWriter(IntakeFolder.of(project, "web"))
    writer.close()
    GroupWriter(IntakeFolder.of(project, "web")).close()


def test_missing_file_is_a_gap_until_it_is_given_up(project: Settings) -> None:
    folder = write(project, [1], [2], [3], [4])
    first, second, *_ = folder.groups()
    (folder.path / second.name).unlink()
    numbers, progress = read(project)
    assert numbers == [1]
    with pytest.raises(Gap, match="groups 2 to 2") as told:
        read(project, progress)
    assert "--give-up" in told.value.fix
    assert read(project, source_of(project).skip_gap(progress))[0] == [3, 4]
    assert first.number == 1


def test_files_ingested_by_other_logs_are_a_gap(project: Settings) -> None:
    folder = write(project, [1], [2])
    _, progress = read(project)
    source_of(project).acknowledge(progress)
    assert folder.groups() == []
    with pytest.raises(Gap, match="groups 1 to 2"):
        read(project)
    write(project, [3])
    assert read(project, progress)[0] == [3]
    assert read(project, source_of(project).skip_gap(None))[0] == [3]


def test_recreated_folder_is_a_gap(project: Settings) -> None:
    folder = write(project, [1], [2])
    _, progress = read(project)
    for file in folder.path.iterdir():
        file.unlink()
    with pytest.raises(Gap, match="there is none now"):
        read(project, progress)
    write(project, [5])
    with pytest.raises(Gap, match="recreated"):
        read(project, progress)
    assert read(project, source_of(project).skip_gap(progress))[0] == [5]
    source_of(project).acknowledge(progress)  # progress of the other folder deletes nothing
    assert read(project, source_of(project).skip_gap(progress))[0] == [5]


def test_numbers_begin_above_those_of_the_logs_after_giving_up_a_folder(
    project: Settings,
) -> None:
    at = None
    for generation in range(3):
        write(project, [1], [2])
        taken = Kept()
        source = source_of(project)
        at = source.read(at, taken)
        assert [record.place for _, record in taken.records] == [f"{generation * GENERATION + n}:0" for n in (1, 2)]
        shutil.rmtree(source.declared.folder.path)
        at = source_of(project).skip_gap(at)
        assert at == {"spool": source.declared.folder.spool, "upto": (generation + 1) * GENERATION}
        assert source_of(project).lag(at) == Lag(0, None, 0)


def test_numbers_continue_when_a_folder_lost_only_its_id(project: Settings) -> None:
    folder = write(project, [1], [2])
    (folder.path / "spool.json").unlink()
    writer = GroupWriter(folder, lambda: 1)
    assert writer.put(lines(3), 1).number == 3
    writer.close()


@given(st.data())
@settings(max_examples=40)
def test_truncated_file_is_reported_as_damage(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    project = shop(tmp_path_factory.mktemp("cut") / "shop")
    folder = write(project, [1, 2, 3])
    file = folder.path / folder.groups()[0].name
    content = file.read_bytes()
    file.write_bytes(content[: data.draw(st.integers(0, len(content) - 2))])
    with pytest.raises(StorageError, match="damaged"):
        read(project)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("stream = ['readings']", "unknown key 'stream'.*did you mean 'streams'"),
        ("streams = ['reading']", "no stream 'reading'.*did you mean 'readings'"),
        ("streams = 'readings'", "invalid streams"),
        ("max_body = 0", "invalid max_body: 0.*at least 1"),
        ("rate = true", "invalid rate: True"),
        ("token = 'hunter2'", "token must come from the environment"),
        ("secret.readings = 'whsec_abc'", "secret must come from the environment"),
        ("token.reading = 'env:T'", "token of 'reading', which is not a stream of it"),
        ("max_body = 'x'\nrate = -1", "(?s)2 faults.*max_body.*rate|2 faults.*rate.*max_body"),
    ],
)
def test_wrong_declarations_are_reported_without_secrets(tmp_path: Path, options: str, told: str) -> None:
    project = shop(tmp_path / "shop", options)
    sources, faults = sound_sources(project, load_contracts(project))
    assert not sources
    assert isinstance(faults["web"], DeclarationError)
    assert re.search(f"(?s){told}", str(faults["web"]))
    assert not re.search("hunter2|whsec_abc", str(faults["web"]))


@pytest.mark.parametrize(
    ("web", "kafka", "found"),
    [
        (None, "kind = 'kafka'\nbootstrap = 'env:NOT_SET'", None),
        ("kind = 'http'", "kind = 'kafka'\nbootstrap = 'env:NOT_SET'", "web"),
        ("kind = 'http'", "kind = 'nosuch'", "web"),
    ],
)
def test_faulty_source_of_another_kind_is_reported_and_does_not_stop_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, web: str | None, kafka: str, found: str | None
) -> None:
    settings = _with_sources(tmp_path, web=web, other=kafka)
    declared = http.find_declaration_if_any(settings, load_contracts(settings), None)
    assert (declared and declared.name) == found
    [record] = caplog.records
    assert record.message.startswith("other: ")


@pytest.mark.parametrize("text", ["kind = 'http'\nrate = -1", "kind = ", "streams = []"])
def test_faulty_source_that_may_be_of_kind_http_stops_the_server(tmp_path: Path, text: str) -> None:
    for web in (None, "kind = 'http'"):
        settings = _with_sources(tmp_path / str(bool(web)), web=web, other=text)
        with pytest.raises(DeclarationError, match=r"other\.toml"):
            http.find_declaration_if_any(settings, load_contracts(settings), None)


@pytest.mark.parametrize("options", ["", "streams = ['notes', 'readings']"])
def test_faulty_contract_stops_only_deliveries_that_have_its_events(tmp_path: Path, options: str) -> None:
    settings = shop(tmp_path / "shop", options)

    def failures() -> dict[str, LakeError]:
        failed = dict[str, LakeError]()
        ingest_named(settings, spark_forbidden, ["web"], on_failure=failed.__setitem__)
        return failed

    def post(*streams: str) -> None:
        with closing(GroupWriter(IntakeFolder.of(settings, "web"))) as writer:
            for stream in streams:
                writer.put(lines(1, stream=stream), 1)

    post("notes")
    assert failures() == {}
    contract = settings.path("schemas/notes.avsc")
    text = contract.read_text()
    contract.write_text(text.replace('"key"', '"kee"'))
    contracts, faults = sound_contracts(settings)
    assert sound_sources(settings, contracts)[0]["web"].streams == ("notes", "readings")
    assert failures().keys() == {"notes"}
    post("notes", *contracts)
    assert failures()["web"].what == faults["notes"].what
    assert [Log(settings, stream).head().batch for stream in contracts] == [1] * len(contracts)
    contract.write_text(text)
    assert failures() == {}


def _with_sources(folder: Path, **texts: str | None) -> Settings:
    settings = shop(folder)
    for name, text in texts.items():
        file = settings.path(settings.sources) / f"{name}.toml"
        file.unlink(missing_ok=True) if text is None else file.write_text(text)
    return settings
