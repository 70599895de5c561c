"""The proof that a person is forgotten: a search of every byte under the warehouse, compressed ones unpacked.

Values are looked for as whole words: as they are, as JSON writes them, as an address does, and by the first 32
characters, which is all that Delta's column statistics keep of a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from lake.config import Settings
from lake.run.forget import pattern
from lake.store import delta

STATISTICS: Final = 32
CHUNK: Final = 16 << 20
OVERLAP: Final = 4096


@dataclass(frozen=True)
class Proof:
    """Where any of so many `values` was found: `files` were searched, of `size` bytes in all.

    `found` are files below the warehouse and the folder it lies in; `outside`, landing files and archived ones, which
    are no one's to change but their owner's.
    """

    values: int
    files: int
    size: int
    found: tuple[str, ...]
    outside: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.found

    @property
    def record(self) -> dict[str, Any]:
        """As JSON has it; the values are not in it."""
        return {
            "holds": self.holds,
            "values_searched": self.values,
            "files_searched": self.files,
            "bytes_searched": self.size,
            "found": list(self.found),
            "outside_the_warehouse": list(self.outside),
        }


def search(settings: Settings, values: Collection[str]) -> Proof:
    """Searches for `values` under the warehouse, beside it, and in landing files. Nothing is found of none."""
    if not values:
        return Proof(0, 0, 0, (), ())
    text = pattern(_spelled(values))
    bytes_ = re.compile(text.encode())
    inside = sorted({*_files(settings.warehouse_path), *_files(settings.path(".lake")), settings.keys_path})
    inside = [file for file in inside if file.is_file()]
    sources = [settings.path(settings.landing)] + ([settings.path(settings.archive)] if settings.archive else [])
    outside = sorted(file for folder in sources for file in _files(folder))
    found = [str(file) for file in inside if _holds(file, text, bytes_)]
    beyond = [str(file) for file in outside if _holds(file, text, bytes_)]
    return Proof(len(values), len(inside), sum(file.stat().st_size for file in inside), tuple(found), tuple(beyond))


def _spelled(values: Iterable[str]) -> Iterator[str]:
    for value in values:
        for text in {value, value[:STATISTICS]}:
            yield from {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], quote(text)}


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def _holds(file: Path, text: str, bytes_: re.Pattern[bytes]) -> bool:
    return any(bytes_.search(chunk) for chunk in _chunks(file)) or (file.suffix == ".parquet" and _rows(file, text) > 0)


def _chunks(file: Path) -> Iterator[bytes]:
    """The content of `file` in parts that overlap, so that nothing is cut in two."""
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            yield chunk
            if len(chunk) < CHUNK:
                return
            opened.seek(-OVERLAP, 1)


def _rows(file: Path, text: str) -> int:
    """How many rows of a Parquet file hold one of the values, in any column."""
    with delta.connection() as con:
        con.register("t", con.read_parquet(str(file)))
        found = con.execute("SELECT count(*) FROM t WHERE regexp_matches(to_json(t)::VARCHAR, $1)", [text]).fetchone()
    return int(found[0]) if found else 0
