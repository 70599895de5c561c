"""Comparison of CSV with Python's csv module and DuckDB on random files, with every difference explained."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import duckdb
import pytest

from tests.records.reading import csv_records

NAMES = ("x", "y", "z")
FIELDS = ("a", "bc", "", " ", '""', '"a"', '"a,b"', '"a""b"', '"\n"', '"\r\nc"', "d e", "é", "NULL", "0", '" "')
WRONG = ('"a" ', '"a"b', 'a"b', ' "a"', '"')
LINE_ENDS = ("\n", "\r\n", "\r")


def _file(chance: random.Random, fields: tuple[str, ...], ends: tuple[str, ...]) -> str:
    """Return a file of a few records, each of as many columns as the header, or one more or less now and then."""
    lines = [",".join(NAMES)]
    for _ in range(chance.randrange(1, 8)):
        width = chance.choice([3, 3, 3, 3, 2, 4]) if fields[-1] == WRONG[-1] else 3
        lines.append(",".join(chance.choices(fields, k=width)))
        lines += [""] * (chance.random() < 0.2)
    return "".join(line + chance.choice(ends) for line in lines)


def _ours(text: str) -> list[object]:
    """Return each record: its members, or a pair of a reason and its text."""
    return [record[1] for record in csv_records(text.encode()) if isinstance(record, tuple)]


def _python(text: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_csv_differs_from_the_csv_module_only_for_broken_records_and_absent_values(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(2000):
        text = _file(chance, (*FIELDS, *WRONG), LINE_ENDS)
        ours, others = _ours(text), _python(text)[1:]
        blank = [row for row in others if len(row) == 1 and not row[0].strip()]
        # The csv module reads a line of blanks as a record.
        assert len(ours) in range(len(others) - len(blank), len(others) + 1), text
        others = [row for row in others if row not in blank] if len(ours) < len(others) else others
        for record, row in zip(ours, others, strict=True):
            if isinstance(record, tuple):
                # Another number of columns than the header's, text behind a quote, or no closing quote.
                assert len(row) != len(NAMES) or '"' in str(record[1]), text
                continue
            assert isinstance(record, dict)
            # The csv module does not distinguish an empty column and an empty text.
            assert [record.get(name, "") for name in NAMES] == [*row, ""][: len(NAMES)], text
            # Empty columns after those of the header are ignored.
            assert not any(row[len(NAMES) :]), text


@pytest.mark.parametrize(
    ("seed", "files"), [(0, 40), *(pytest.param(seed, 300, marks=pytest.mark.long) for seed in range(1, 5))]
)
def test_csv_equals_the_result_of_duckdb_if_it_is_well_formed(seed: int, files: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with duckdb.connect() as connection:
        for number in range(files):
            # DuckDB wants one line end in a file, and takes a line of blanks alone for a record.
            text = _file(chance, FIELDS, (chance.choice(LINE_ENDS),))
            path = tmp_path / f"{number}.csv"
            path.write_bytes(text.encode())
            query = """SELECT * FROM read_csv($1, all_varchar=true, header=true, delim=',', quote='"', escape='"',
                       auto_detect=false, columns={'x': 'VARCHAR', 'y': 'VARCHAR', 'z': 'VARCHAR'},
                       nullstr='', allow_quoted_nulls=false, parallel=false)"""
            others = connection.execute(query, [str(path)]).fetchall()
            ours = [[isinstance(record, dict) and record.get(name) for name in NAMES] for record in _ours(text)]
            assert ours == [[*row] for row in others], text
