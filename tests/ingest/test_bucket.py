"""Landing files in a bucket, without a server: listing, reading, archiving, races."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings, load_settings
from lake.connect.s3 import KIND
from lake.contracts.contract import Contract, load_contract, load_contracts
from lake.errors import DeclarationError, Unavailable
from lake.ingest import files, landing
from lake.ingest.delivery import FileDelivery
from lake.ingest.files import File
from lake.ops import doctor
from lake.records.reader import RecordReader
from lake.serve.intake_folder import IntakeFolder
from lake.session import spark_session
from lake.store.storage import Address, access_check, address_of, objects
from lake.store.storage.objects import Object
from lake.store.storage.positioned import SizedCache
from tests.checks import present
from tests.ingest.every_file import CONTRACTS
from tests.ingest.every_file import files as every
from tests.shop import contract, declare
from tests.store.memory import Bucket

URL: Final = "s3://acme/landing"
AT: Final = 1_700_000_000


class Died(Exception):
    """Death of a process."""


def read(project: Settings, contract: Contract, file: File) -> list[dict[str, object]]:
    """Return the records of one file, or the row with its fault."""
    rows: list[dict[str, object]] = (
        FileDelivery(project, contract, (file,)).read(RecordReader(contract, 10_000)).to_pylist()
    )
    return rows


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Bucket used for every URL."""
    made = Bucket()
    made.at = AT
    monkeypatch.setattr("lake.connect.s3.bucket.bucket", lambda *_: made)
    monkeypatch.setattr(objects, "_PARTS", SizedCache())
    return made


@pytest.fixture
def bucket_settings(project: Settings, bucket: Bucket) -> Settings:
    return replace(project, landing=URL, archive="s3://acme/done")


def put(bucket: Bucket, name: str, content: bytes = b'{"id": 1}\n') -> None:
    bucket.put(f"{URL}/{name}", content)


def test_files_in_a_bucket_are_listed_and_read_like_local_files(
    project: Settings, bucket_settings: Settings, bucket: Bucket
) -> None:
    declare(project, *CONTRACTS.values())
    for name, content in every():
        file = project.path("landing") / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        os.utime(file, (AT, AT))
        put(bucket, name, content)
    for stream, about in load_contracts(project).items():
        ours, theirs = landing.list_files(project, stream), landing.list_files(bucket_settings, stream)
        assert [(one.name, one.size, one.mtime) for one in ours] == [(one.name, one.size, one.mtime) for one in theirs]
        for local, remote in zip(ours, theirs, strict=True):
            assert read(project, about, local) == read(bucket_settings, about, remote), local.name


def test_objects_are_read_by_tasks_as_in_this_process(
    bucket_settings: Settings, bucket: Bucket, spark: SparkSession
) -> None:
    declare(bucket_settings, CONTRACTS["plain"])
    for name, content in every():
        put(bucket, name, content)
    plain = load_contract(bucket_settings, "plain")
    reader, delivery = (
        RecordReader(plain, 10_000),
        FileDelivery(bucket_settings, plain, tuple(landing.list_files(bucket_settings, "plain"))),
    )
    by_tasks = delivery.frame(spark, reader).toArrow()
    assert by_tasks.sort_by("_position").to_pylist() == delivery.read(reader).sort_by("_position").to_pylist()
    delivery.close()
    put(bucket, "plain/new.jsonl")
    late = FileDelivery(bucket_settings, plain, tuple(landing.list_files(bucket_settings, "plain")))
    put(bucket, "plain/new.jsonl", b'{"id": 2}\n')
    with pytest.raises(FileNotFoundError):
        late.frame(spark, reader)
    late.close()
    assert not list(bucket_settings.path(".lake/staging").iterdir())


def test_object_is_read_like_a_file_with_few_requests(bucket: Bucket, tmp_path: Path) -> None:
    chance = random.Random(1)
    for size in (0, 1, objects.FIRST, objects.FIRST + 1, objects.WHOLE, objects.WHOLE + 1, 3 * objects.WHOLE):
        content = chance.randbytes(size)
        bucket.put(f"{URL}/{size}", content)
        one = present(Object.at(Address(f"{URL}/{size}", bucket)))
        file = tmp_path / "file"
        file.write_bytes(content)
        bucket.asked.clear()
        assert one.read_bytes() == content
        assert len(bucket.asked) <= (1 if size <= objects.WHOLE else 8)
        with one.open() as ours, file.open("rb") as theirs:
            for _ in range(60):
                at, whence = chance.choice([(chance.randint(0, size), 0), (-chance.randint(0, size), 2)])
                length = chance.choice([1, 7, 1 << 12, 1 << 17])
                assert ours.seek(at, whence) == theirs.seek(at, whence)
                for _ in range(chance.randint(1, 3)):
                    assert ours.read(length) == theirs.read(length)
    bucket.put(f"{URL}/1", b"other")
    with pytest.raises(FileNotFoundError):
        Object(one.address.parent / "1", 1, AT, "gone").read_bytes()


def test_listing_skips_objects_that_are_no_landing_files(bucket_settings: Settings, bucket: Bucket) -> None:
    assert landing.list_files(bucket_settings, "orders") == []
    for name in ("a.jsonl", ".a", "_a", "a.jsonl.part", "a.TMP", "sub/a.jsonl", "deep/er/a.jsonl"):
        put(bucket, f"orders/{name}")
    put(bucket, "orders2/b.jsonl")
    assert [file.name for file in landing.list_files(bucket_settings, "orders")] == ["orders/a.jsonl"]


def test_object_put_again_within_the_second_is_another(bucket_settings: Settings, bucket: Bucket) -> None:
    declare(bucket_settings, contract("orders", {"id": "long"}))
    put(bucket, "orders/a.jsonl", b'{"id": 1}\n')
    [before] = landing.list_files(bucket_settings, "orders")
    put(bucket, "orders/a.jsonl", b'{"id": 2}\n')
    [after] = landing.list_files(bucket_settings, "orders")
    assert (before.mark[:3], before.unchanged(), after.unchanged()) == (after.mark[:3], False, True)
    assert landing.pending(bucket_settings, "orders", {before.mark}, set()) == []
    with pytest.raises(FileNotFoundError):  # the newer object is not read in place of the older one
        read(bucket_settings, load_contract(bucket_settings, "orders"), before)
    assert files.unchanged([before, after]) == (after,)


PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "bucket to bucket": (URL, "s3://acme/done"),
    "bucket to folder": (URL, "done"),
    "folder to bucket": ("landing", "s3://acme/done"),
    "folder to folder": ("landing", "done"),
}
NAMES: Final = ("a.jsonl", "sp ace.jsonl.gz", "é\\back.jsonl", "no\u00a0break.jsonl", "per%20cent.csv")


@pytest.fixture(params=PLACES)
def archive_settings(project: Settings, bucket: Bucket, request: pytest.FixtureRequest) -> Settings:
    """Project whose files land, and are archived, in a folder or a bucket."""
    at, to = PLACES[request.param]
    settings = replace(project, landing=at if "://" in at else Path(at), archive=to if "://" in to else Path(to))
    for number, name in enumerate(NAMES):
        land(settings, bucket, name, f"{number}")
    return settings


def land(settings: Settings, bucket: Bucket, name: str, content: str) -> None:
    if settings.urls.get("landing"):
        put(bucket, f"orders/{name}", content.encode())
        return
    file = settings.path("landing/orders") / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    os.utime(file, (AT, AT))


def content_of(file: File | None) -> str:
    return present(file).path.read_bytes().decode()


def test_file_is_found_again_where_it_landed_and_in_the_archive(archive_settings: Settings, bucket: Bucket) -> None:
    there = landing.list_files(archive_settings, "orders")
    assert len(there) == len(NAMES)
    contents = {file.mark: content_of(file) for file in there}

    def again() -> Iterator[tuple[files.Mark, File]]:
        for mark in contents:
            file = present(landing.find_file(archive_settings, "orders", mark))
            assert (file.mark, file.unchanged()) == (mark, True)
            yield mark, file

    assert {mark: content_of(file) for mark, file in again()} == contents
    landing.archive(archive_settings, "orders", {*contents})
    assert landing.list_files(archive_settings, "orders") == []
    assert {mark: content_of(file) for mark, file in again()} == contents
    for mark in contents:
        land(archive_settings, bucket, Path(mark[0]).name, "other")
    assert {mark: content_of(file) for mark, file in again()} == contents
    assert landing.find_file(archive_settings, "orders", ("orders/a.jsonl", 99, 1)) is None


@pytest.fixture
def local_archive(bucket_settings: Settings, bucket: Bucket) -> Settings:
    put(bucket, "orders/a.jsonl", b"first")
    return replace(bucket_settings, archive=Path("done"))


@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), (0o077, 0o600)], ids=["for a group", "for nobody else"])
def test_file_of_a_bucket_is_archived_with_the_mode_of_other_files(
    local_archive: Settings, umask: int, mode: int
) -> None:
    marks = {file.mark for file in landing.list_files(local_archive, "orders")}
    before = os.umask(umask)
    try:
        landing.archive(local_archive, "orders", marks)
    finally:
        os.umask(before)
    [copy] = local_archive.path("done/orders").iterdir()
    assert copy.stat().st_mode & 0o777 == mode


def test_copy_from_a_bucket_that_fails_leaves_nothing(
    local_archive: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(content: BinaryIO, new: BinaryIO, _: int) -> None:
        new.write(content.read(1))
        raise OSError(errno.ENOSPC, "no space left")

    [file] = landing.list_files(local_archive, "orders")
    monkeypatch.setattr("shutil.copyfileobj", fail)
    landing.archive(local_archive, "orders", {file.mark})
    assert "orders/a.jsonl stays in the landing folder: no space left" in caplog.text
    assert not [*local_archive.path("done/orders").iterdir()]
    assert landing.list_files(local_archive, "orders") == [file]


@pytest.mark.parametrize("step", range(17))
def test_archive_that_was_cut_short_is_completed(archive_settings: Settings, bucket: Bucket, step: int) -> None:
    marks = {file.mark: content_of(file) for file in landing.list_files(archive_settings, "orders")}
    left = iter(range(step))

    def die() -> None:
        if next(left, None) is None:
            raise Died

    bucket.step = die
    died = False
    try:
        landing.archive(archive_settings, "orders", {*marks})
    except Died:
        died = True
    bucket.step = lambda: None
    for mark, content in marks.items():
        assert content_of(landing.find_file(archive_settings, "orders", mark)) == content
    landing.archive(archive_settings, "orders", {*marks})
    assert landing.list_files(archive_settings, "orders") == []
    assert {mark: content_of(landing.find_file(archive_settings, "orders", mark)) for mark in marks} == marks
    assert died or step >= len(NAMES) or not archive_settings.urls


def test_file_put_in_place_of_an_archived_one_is_kept(bucket_settings: Settings, bucket: Bucket) -> None:
    """A bucket has no rename: an object put before or after the copy is new, and must not be lost."""
    for steps in (1, 2):
        put(bucket, "orders/a.jsonl", b"first")
        [file] = landing.list_files(bucket_settings, "orders")
        passed: list[int] = []

        def step(passed: list[int] = passed, steps: int = steps) -> None:
            passed.append(1)
            if len(passed) == steps:
                put(bucket, "orders/a.jsonl", b"other")

        bucket.step = step
        files.move(file, landing.folder(bucket_settings, "s3://acme/done", "orders"))
        bucket.step = lambda: None
        assert steps == 2 or [content_of(one) for one in landing.list_files(bucket_settings, "orders")] == ["other"]
        bucket.files.clear()


def test_object_is_not_lost_when_two_hosts_archive_it(bucket_settings: Settings, bucket: Bucket) -> None:
    """Before one request of the first host, the second archives the object."""
    target = landing.folder(bucket_settings, "s3://acme/done", "orders")
    for number in range(3):
        put(bucket, "orders/a.jsonl", b"first")
        [file] = landing.list_files(bucket_settings, "orders")
        requests = iter(range(number + 1))

        def step(requests: Iterator[int] = requests, file: File = file, number: int = number) -> None:
            if next(requests, None) == number:
                files.move(file, target)

        bucket.step = step
        files.move(file, target)
        bucket.step = lambda: None
        assert landing.list_files(bucket_settings, "orders") == []
        assert content_of(landing.find_file(bucket_settings, "orders", file.mark)) == "first"


def test_file_put_back_where_it_landed_is_found_again(bucket_settings: Settings, bucket: Bucket) -> None:
    put(bucket, "orders/a.jsonl", b"first")
    [file] = landing.list_files(bucket_settings, "orders")
    bucket.files.clear()
    assert landing.find_file(bucket_settings, "orders", file.mark) is None
    bucket.at += 3600
    put(bucket, "orders/a.jsonl", b"other")
    assert landing.find_file(bucket_settings, "orders", file.mark) is None
    put(bucket, "orders/a.jsonl", b"first")
    again = present(landing.find_file(bucket_settings, "orders", file.mark))
    assert (again.mark, again.unchanged(), again.mtime) == (file.mark, True, AT * 10**9)


def test_unavailable_store_is_not_reported_as_a_fault_of_a_file(
    bucket_settings: Settings, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(bucket_settings, contract("orders", {"id": "long"}))
    put(bucket, "orders/a.jsonl")
    [file] = landing.list_files(bucket_settings, "orders")

    def away(*_: object) -> bytes:
        raise Unavailable("the object store does not answer")

    monkeypatch.setattr(bucket, "part", away)
    with pytest.raises(Unavailable):
        read(bucket_settings, load_contract(bucket_settings, "orders"), file)


@pytest.mark.parametrize(
    ("landing", "archive"), [(URL, URL), (URL, f"{URL}/"), ("landing", "landing"), ("landing", "./landing/")]
)
def test_archive_that_is_the_landing_folder_is_rejected(project: Settings, landing: str, archive: str) -> None:
    project.path("pyproject.toml").write_text(f'[tool.lake]\nlanding = "{landing}"\narchive = "{archive}"\n')
    with pytest.raises(DeclarationError, match=r"setting 'archive': .* is the landing folder itself"):
        load_settings(project.project)


@pytest.mark.parametrize("inner", ["", "/deeper"])
@pytest.mark.parametrize("name", ["landing", "archive"])
@pytest.mark.parametrize(("warehouse", "place"), [("s3://acme/w", "s3://acme/files"), ("w", "files")])
def test_archived_batches_are_rejected_within_landing_or_archive(
    project: Settings, warehouse: str, place: str, name: str, inner: str
) -> None:
    def settings(cold: str) -> Settings:
        lines = {"warehouse": warehouse, name: place, "cold": cold}
        text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
        project.path("pyproject.toml").write_text(f"[tool.lake]\n{text}")
        return load_settings(project.project)

    with pytest.raises(DeclarationError, match=rf"setting 'cold': .* is within '{name}'"):
        settings(f"{place}{inner}")
    accepted = settings(f"{place}-old{inner}")
    assert accepted.place(accepted.cold).endswith(f"files-old{inner}")


def test_session_reads_buckets_when_any_setting_names_one(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "class_path", lambda _: "")
    assert "spark.hadoop.fs.s3.impl" not in spark_session.embedded_conf(project)
    for each in (replace(project, warehouse=URL), replace(project, landing=URL), replace(project, archive=URL)):
        assert "spark.hadoop.fs.s3.impl" in spark_session.embedded_conf(each)


def test_doctor_examines_listing_writing_and_deleting_in_a_bucket(
    bucket_settings: Settings, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, "orders/a.jsonl")
    found = [(one.subject, one.ok, one.found.partition(" can be ")[2]) for one in doctor._landing(bucket_settings)]
    assert found == [("landing", True, "listed and deleted"), ("archive", True, "listed and written and deleted")]
    assert [*bucket.files] == [f"{URL}/orders/a.jsonl"]

    def refused(*_: object) -> None:
        raise Unavailable("the object store refuses this key", fix="give this key the rights")

    monkeypatch.setattr(bucket, "delete", refused)
    assert [one.ok for one in doctor._landing(bucket_settings)] == [False, False]
    assert [one.ok for one in doctor._landing(replace(bucket_settings, archive=None))] == [True]


def test_object_without_an_etag_is_reported(
    bucket_settings: Settings, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, "orders/a.jsonl")
    head = bucket.head
    monkeypatch.setattr(bucket, "head", lambda url: (found := head(url)) and replace(found, tag=""))
    with pytest.raises(DeclarationError, match="an object of orders has no ETag") as told:
        files.list_bucket(address_of(bucket_settings, URL) / "orders", "orders")
    assert told.value.where == f"{URL}/orders/a.jsonl"


def test_doctor_examines_whether_files_can_be_archived_to_a_folder(project: Settings, tmp_path: Path) -> None:
    for archive, well in ((tmp_path / "done", True), (Path("/proc/none"), False)):
        findings = {one.subject: one.ok for one in doctor._landing(replace(project, archive=archive))}
        assert findings == {"landing": True, "archive": well}


def test_doctor_races_a_bucket_for_archived_batches(
    project: Settings, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = replace(project, warehouse=f"{URL}/w", cold="s3://acme/cold")
    lost = {"s3://acme/cold": 0, "s3://acme/colder": 1}
    monkeypatch.setattr(access_check, "lost_races", lambda place: lost[place.url])
    found = [doctor._cold(replace(archives, cold=place)) for place in lost]
    assert [[(one.subject, one.ok) for one in each] for each in found] == [[("cold", True)], [("cold", False)]]

    def refused(*_: object, **__: object) -> None:
        raise Unavailable("the object store refuses this key", fix="give this key the rights")

    monkeypatch.setattr(bucket, "list", refused)
    [finding] = doctor._cold(archives)
    assert finding.found == "the object store refuses this key (s3://acme/cold)"


def test_intake_by_http_stays_on_this_machine(project: Settings, bucket_settings: Settings) -> None:
    assert IntakeFolder.of(project, "hooks").path == project.path("landing/.http/hooks")
    assert IntakeFolder.of(bucket_settings, "hooks").path == project.path(".lake/landing/.http/hooks")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("[PATH_NOT_FOUND] Path does not exist: s3://acme/landing/a.jsonl", ""),
        ("Caused by: org.apache.parquet.ParquetException at org.apache.hadoop.fs.s3a.S3AInputStream.read", ""),
        ("org.apache.hadoop.fs.s3a.RemoteFileChangedException: re-open `s3://acme/a': the file changed", ""),
        ('No FileSystem for scheme "s3"', "this Spark reads no object store"),
        ("java.nio.file.AccessDeniedException: s3://acme/a: Forbidden (status code: 403)", "refuses this key"),
        ("NoAuthWithAWSException: no providers in chain", "no key for the object store"),
        ("SdkClientException: Unable to execute HTTP request: Connection refused", "does not answer"),
        ("UnknownStoreException: NoSuchBucket", "there is no such bucket"),
    ],
)
def test_spark_error_of_the_store_is_distinguished_from_a_fault_of_a_file(said: str, told: str) -> None:
    fault = KIND.read_error(RuntimeError(said), f"{URL}/a.jsonl")
    assert (fault is not None) == bool(told)
    assert told in str(fault)
