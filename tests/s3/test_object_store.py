"""Storage operations in a bucket, as in a folder, and lost answers. No JVM of Spark."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

import duckdb
import pyarrow as pa
import pytest

from lake.config import Settings
from lake.connect.s3.bucket import Bucket
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.session.duck import connect
from lake.store import delta, delta_writer, duckdb_tables
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.storage.access_check import lost_races
from lake.store.storage.objects import Object
from lake.store.storage.ranged import END, WHOLE
from lake.store.table_log import delta_table
from lake.store.upkeep import vacuum
from lake.store.warehouse import Warehouse
from lake.text import literal
from tests.processes import free_port
from tests.s3.wire import Fault, nth, wired
from tests.servers.s3 import KEY, S3
from tests.store.storage_contract import CONTRACT

APP: Final = "table:t"


def settings_of(s3: S3, tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, warehouse=f"{s3.bucket()}/some/where", storage=s3.storage)


@pytest.fixture
def root(s3: S3, tmp_path: Path) -> Address:
    return Warehouse(settings_of(s3, tmp_path)).root


def open_landed(file: Address) -> BinaryIO:
    there = Object.at(file)
    assert there
    return there.open()


def numbered(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def numbers(table: Address, version: int | None = None) -> list[int]:
    return [row["n"] for row in duckdb_tables.rows(table, "SELECT n FROM t ORDER BY n", version=version)]


@pytest.mark.smoke
def test_bucket_stores_files_and_tables(root: Address) -> None:
    for number, part in enumerate(CONTRACT):
        part(root / f"contract-{number}")
    table = root / "silver/t"
    position = delta.start(APP).next(cut=1)
    delta_writer.write(table, numbered(1, 2), position)
    assert (numbers(table), delta.version(table)) == ([1, 2], 0)
    head = delta.head(table, APP)
    assert head is not None
    assert head.metadata == position.metadata
    assert lost_races(root, 5) == 0
    assert "silver/" in [entry.name for entry in root.list()]


def test_listing_is_sorted_by_name_and_deep_on_request(root: Address) -> None:
    for name in ("z", "t/b.parquet", "t/_delta_log/0.json", "tt"):
        assert (root / name).put_if_absent(name.encode())
    assert [entry.name for entry in root.list()] == ["t/", "tt", "z"]
    deep = {entry.name: entry.size for entry in root.list(deep=True)}
    assert deep == {name: len(name) for name in ("t/_delta_log/0.json", "t/b.parquet", "tt", "z")}
    assert [entry.name for entry in (root / "t").list()] == ["_delta_log/", "b.parquet"]
    with pytest.raises(FileNotFoundError):
        next((root / "none").list())


def test_listing_and_deletion_exceed_one_request(root: Address) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda number: (root / f"m/{number:04}").put_if_absent(b""), range(1100)))
    assert [entry.name for entry in (root / "m").list()] == [f"{number:04}" for number in range(1100)]
    root.storage.delete_all([f"{root}/m/{number:04}" for number in range(1100)])
    with pytest.raises(FileNotFoundError):
        next((root / "m").list())


def test_put_if_absent_succeeds_for_one_of_many_writers(root: Address) -> None:
    contents = [f"{number}".encode() * 1000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for number in range(25):
            file = root / f"{number}.json"
            won = list(pool.map(file.put_if_absent, contents))
            assert won.count(True) == 1
            assert file.read() == contents[won.index(True)]


@pytest.mark.parametrize("size", [0, 1, END - 1, END, END + 1, 3 * END + 7])
def test_file_is_read_unchanged_in_parts(root: Address, size: int) -> None:
    content = bytes(number * 31 % 251 for number in range(size))
    file = root / f"{size}.bin"
    assert file.put_if_absent(content)
    assert file.read() == content
    with file.open() as opened:
        for start in {0, size // 3, max(size - END - 5, 0), max(size - 3, 0), size}:
            opened.seek(start)
            assert opened.read(END // 2 + 11) == content[start : start + END // 2 + 11]


@pytest.mark.parametrize("opened", [Address.open, open_landed], ids=["its end first", "landed"])
def test_complete_read_of_a_file_takes_few_requests(
    s3: S3, tmp_path: Path, opened: Callable[[Address], BinaryIO]
) -> None:
    settings = settings_of(s3, tmp_path)
    content = bytes(number * 31 % 251 for number in range(3 * END + 7))
    assert (Warehouse(settings).root / "a.bin").put_if_absent(content)
    with wired(s3.port) as wire:
        with opened(Warehouse(replace(settings, storage=wire.storage)).root / "a.bin") as file:
            assert (file.read(), file.read()) == (content, b"")
            assert (file.seek(5), file.read()) == (5, content[5:])
        assert wire.counted() <= Counter(GET=3, HEAD=1)


@pytest.mark.parametrize(("size", "asked"), [(END, 1), (END + 1, 2), (WHOLE, 2), (WHOLE + 1, 3)])
def test_data_file_that_was_read_at_once_is_cached(s3: S3, tmp_path: Path, size: int, asked: int) -> None:
    settings = settings_of(s3, tmp_path)
    content = bytes(number * 31 % 251 for number in range(size))
    assert (Warehouse(settings).root / "a.parquet").put_if_absent(content)
    with wired(s3.port) as wire:
        file = Warehouse(replace(settings, storage=wire.storage)).root / "a.parquet"
        assert (file.read(), file.read()) == (content, content)
        with file.open() as opened:
            assert (opened.seek(size // 3), opened.read(END)) == (size // 3, content[size // 3 : size // 3 + END])
        assert wire.counted()["GET"] <= asked + (size > WHOLE)


@pytest.mark.parametrize("fault", ["lose", "cut"])
@pytest.mark.parametrize("equal", [True, False])
def test_put_if_absent_reports_success_when_its_answer_is_lost(
    s3: S3, tmp_path: Path, fault: Fault, *, equal: bool
) -> None:
    settings = settings_of(s3, tmp_path)
    with wired(s3.port, nth(1, "PUT", "a.json", fault)) as wire:
        file = Warehouse(replace(settings, storage=wire.storage)).root / "a.json"
        assert file.put_if_absent(b"one")
        assert wire.happened == 1
        assert not file.put_if_absent(b"one" if equal else b"two")
    assert (Warehouse(settings).root / "a.json").read() == b"one"


def test_table_commit_succeeds_after_an_interrupted_request(s3: S3, tmp_path: Path) -> None:
    settings = settings_of(s3, tmp_path)
    with wired(s3.port, nth(1, "PUT", "_delta_log", "cut")) as wire:
        delta_writer.add(Warehouse(replace(settings, storage=wire.storage)).root / "t", numbered(1))
        assert wire.happened == 1
    assert numbers(Warehouse(settings).root / "t") == [1]


def test_recreated_table_has_no_old_rows(root: Address) -> None:
    table = root / "gold/t"
    for turn in (1, 2):
        delta_writer.add(table, numbered(turn))
        delta_writer.add(table, numbered(turn + 10))
        assert numbers(table) == [turn, turn + 10]
        table.storage.delete_table(table.url)
        assert not delta.exists(table)
        with pytest.raises(FileNotFoundError):
            next(table.list())


def test_missing_file_is_named_among_any_number_of_files(root: Address) -> None:
    table = root / "silver/t"
    for number in range(5):
        delta_writer.add(table, numbered(number))
        files = delta.files(delta_table(table))
        assert table.missing(files) == []
        assert root.missing(files) == []
    root.at(files[2]).delete()
    for some in (files, files[2:3], files[1:3]):
        assert table.missing(some) == [files[2]]
    for file in files:
        root.at(file).delete()
    assert table.missing(files) == files


def test_vacuum_deletes_old_versions_and_truncation_ends_the_history(root: Address) -> None:
    table, position = root / "silver/t", delta.start(APP)
    for number in range(4):
        position = position.next(cut=number)
        delta_writer.write(table, numbered(number), position, mode="overwrite")
    version = delta.version(table)
    files = vacuum.unneeded(table, keep=[version - 1], since=version, unnamed=vacuum.GRACE * 0)
    assert len(files) == 2
    root.storage.delete_all([file.url for file in files])
    assert [numbers(table, number) for number in (version - 1, version)] == [[2], [3]]
    head = delta.head(table, APP)
    vacuum.begin_anew(table, head)
    assert vacuum.truncate(table) > 0
    assert (numbers(table), delta.head(table, APP) is not None) == ([3], True)
    assert [entry.name for entry in table.list() if entry.name.endswith(".parquet")] == [
        Path(file).name for file in delta.files(delta_table(table))
    ]


def test_query_reads_allowed_files_only(root: Address) -> None:
    table = root / "silver/t"
    for number in range(2):
        delta_writer.add(table, numbered(number))
    allowed, other = delta.files(delta_table(table))
    con = connect()
    con.execute(f"SET allowed_paths = [{literal(allowed)}]")
    con.execute("SET enable_external_access = false; SET lock_configuration = true")
    assert len(con.sql(f"FROM read_parquet({literal(allowed)})").fetchall()) == 1
    for query in (
        f"FROM read_parquet({literal(other)})",
        f"FROM read_parquet({literal(str(table) + '/*.parquet')})",
        f"FROM glob({literal(str(root) + '/**')})",
        f"FROM read_text({literal(other)})",
        f"ATTACH {literal(str(root) + '/x.db')}",
        f"COPY (SELECT 1) TO {literal(other)}",
    ):
        with pytest.raises(duckdb.PermissionException):
            con.execute(query).fetchall()
    with pytest.raises(duckdb.Error, match="not written by a query"):
        con.execute(f"COPY (SELECT 1 AS a) TO {literal(allowed)} (FORMAT parquet)")


def test_concurrent_queries_read_the_same_rows(root: Address) -> None:
    table = root / "silver/t"
    rows = pa.table({"n": range(200_000), "text": [f"text {number}" for number in range(200_000)]})
    delta_writer.add(table, rows)
    assert Scan(table).arrow(["n"], where="n % 50000 = 1").num_rows == 4
    [file] = delta.files(delta_table(table))
    query = f"SELECT sum(n), count(DISTINCT text) FROM read_parquet({literal(file)})"

    def answer(_: int) -> object:
        with duckdb_tables.connection() as con:
            return con.execute(query).fetchone()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(answer, range(40))) == {(199_999 * 100_000, 200_000)}


@dataclass(frozen=True)
class Overwriting(Bucket):
    """Store that ignores If-None-Match."""

    def put_if_absent(self, url: str, content: bytes) -> str:
        import obstore

        obstore.put(self._client, self._key(url), content)
        return ""


def test_lost_races_detects_a_store_without_conditional_puts(root: Address) -> None:
    assert isinstance(root.storage, Bucket)
    store = root.storage
    overwriting = Overwriting(store.location)
    assert lost_races(root) == 0
    assert lost_races(Address(root.url, overwriting)) == 50
    with pytest.raises(FileNotFoundError):
        next(root.list())


FAULTS: Final = {
    "key": ("the object store refuses this key", {"AWS_SECRET_ACCESS_KEY": "wrong"}, ""),
    "bucket": ("there is no such bucket", {}, "s3://nothing-there/w"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_store_refusal_is_reported_in_one_line_without_the_key(
    s3: S3, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, environment, elsewhere = FAULTS[case]
    settings = settings_of(s3, tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    root = Warehouse(replace(settings, warehouse=elsewhere or settings.warehouse)).root
    store = root.storage
    assert isinstance(store, Bucket)
    fresh = Address(root.url, replace(store))
    for use in (fresh.read, lambda: fresh.put_if_absent(b""), lambda: next(fresh.list())):
        with pytest.raises(Unavailable, match=said) as caught:
            use()
        assert not any(secret in str(caught.value) for secret in KEY.values())


def test_unreachable_store_is_reported_in_one_line(tmp_path: Path, s3: S3) -> None:
    gone = replace(s3.storage, endpoint=f"http://127.0.0.1:{free_port()}")
    root = Warehouse(replace(settings_of(s3, tmp_path), storage=gone)).root
    with pytest.raises(Unavailable, match="the object store does not answer: Error performing"):
        root.read()


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3://B/x", "s3://bucket//x", "s3://bucket/a b", "s3://bucket/../x"],
)
@pytest.mark.parametrize("setting", ["warehouse", "landing", "archive"])
def test_invalid_address_is_rejected_with_an_example(tmp_path: Path, url: str, setting: str) -> None:
    from lake.config import load_settings

    (tmp_path / "pyproject.toml").write_text(f"[tool.lake]\n{setting} = {json.dumps(url)}\n")
    with pytest.raises(DeclarationError, match=re.escape("names no folder of the storage s3")) as caught:
        load_settings(tmp_path)
    assert f'{setting} = "s3://BUCKET/PREFIX"' in str(caught.value)
    assert isinstance(caught.value, LakeError)


@pytest.mark.parametrize("url", ["gs://bucket/x", "s3a://bucket/x"])
def test_url_of_an_unknown_storage_is_rejected_with_those_installed(tmp_path: Path, url: str) -> None:
    from lake.config import load_settings

    (tmp_path / "pyproject.toml").write_text(f"[tool.lake]\narchive = {json.dumps(url)}\n")
    with pytest.raises(DeclarationError, match=f"no storage for {url.partition('b')[0]} is installed") as caught:
        load_settings(tmp_path)
    assert "installed: s3://; " in caught.value.fix
