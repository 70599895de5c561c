"""Contract of a storage: each function checks one part of it in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from lake.store.storage import Address


def file_is_put_once_read_and_deleted(folder: Address) -> None:
    file = folder / "a.json"
    assert (file.head(), file.exists()) == (None, False)
    assert [file.put_if_absent(content) for content in (b"first", b"second")] == [True, False]
    assert file.read() == b"first"
    with file.open() as opened:
        assert (opened.seek(-2, 2), opened.read()) == (3, b"st")
    [entry] = folder.list()
    assert (entry.name, entry.size, entry) == ("a.json", 5, file.head())
    for _ in range(2):
        file.delete()
    assert not file.exists()
    with pytest.raises(FileNotFoundError):
        file.read()


def local_file_replaces_one_of_its_name(folder: Address) -> None:
    with TemporaryDirectory() as home:
        for content in (b"first", b"second", b""):
            (Path(home) / "file").write_bytes(content)
            (folder / "deep/b").put_file(Path(home) / "file")
            assert (folder / "deep/b").read() == content


def folder_is_listed_by_name_and_deep_on_request(folder: Address) -> None:
    folder.storage.make_folder((folder / "t/_delta_log").url)
    for name in ("z", "t/b.parquet", "t/_delta_log/0.json"):
        (folder / name).put_if_absent(name.encode())
    assert [entry.name for entry in folder.list()] == ["t/", "z"]
    deep = {entry.name: entry.size for entry in folder.list(deep=True)}
    assert deep == {name: len(name) for name in ("t/_delta_log/0.json", "t/b.parquet", "z")}
    with pytest.raises(FileNotFoundError):
        next((folder / "none").list())


def deep_listing_has_the_files_after_a_name(folder: Address) -> None:
    names = ["a.b", "a/b", "a/c", "a/d/e", "a/d/f", "a0", "b", "ä/b"]
    for name in names:
        folder.storage.make_folder((folder / name).parent.url)
        (folder / name).put_if_absent(b"x")
    assert [entry.name for entry in folder.list(deep=True)] == names
    for after in (*names[:-1], "a", "a/", "a/bb", "a/d", "a/d/", "aa"):
        assert [entry.name for entry in folder.list(deep=True, after=after)] == [name for name in names if name > after]


def concurrent_puts_of_a_file_have_one_winner(folder: Address) -> None:
    contents = [f"{number}".encode() * 1000 for number in range(8)]
    with ThreadPoolExecutor() as pool:
        for number in range(20):
            file = folder / f"{number}.json"
            won = list(pool.map(file.put_if_absent, contents))
            assert won.count(True) == 1
            assert file.read() == contents[won.index(True)]


def missing_files_are_named(folder: Address) -> None:
    files = [folder / f"{number}.parquet" for number in range(5)]
    for file in files[1:4]:
        file.put_if_absent(b"x")
    urls = [file.url for file in files]
    for some in (urls, urls[:2], urls[2:3]):
        for to_read in (False, True):
            assert [*folder.missing(some, to_read=to_read)] == [url for url in some if url in (urls[0], urls[4])]


def tables_and_folders_are_deleted(folder: Address) -> None:
    for name in ("t", "u"):
        folder.storage.make_folder((folder / name / "_delta_log").url)
        for file in ("_delta_log/0.json", "a.parquet"):
            (folder / name / file).put_if_absent(b"x")
    folder.storage.delete_table((folder / "t").url)
    assert [entry.name for entry in folder.list(deep=True)] == ["u/_delta_log/0.json", "u/a.parquet"]
    folder.storage.delete_all([(folder / "u" / file).url for file in ("a.parquet", "none.parquet")])
    folder.storage.delete_folder((folder / "u").url)
    assert not (folder / "u/_delta_log/0.json").exists()


CONTRACT: Final[tuple[Callable[[Address], None], ...]] = (
    file_is_put_once_read_and_deleted,
    local_file_replaces_one_of_its_name,
    folder_is_listed_by_name_and_deep_on_request,
    deep_listing_has_the_files_after_a_name,
    concurrent_puts_of_a_file_have_one_winner,
    missing_files_are_named,
    tables_and_folders_are_deleted,
)
