"""Example tables over a handful of legs. Times are UTC in 2013; New York is five hours behind."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

from lake.testing import Lakehouse
from tests.jobs.reading import as_cells, cells

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.long

LEGS = """
    scheduled    carrier  flight  tailnum  origin  dest  miles  left_late  arrived_late
    01-02 11:00  AA       1       N1AA     JFK     LAX   2475   0          -5
    01-02 21:30  AA       2       N1AA     JFK     BOS   187    10         35
    01-03 12:00  UA       9       N1AA     EWR     ORD   719    40         45
    01-03 13:20  UA       10      N1AA     EWR     SFO   2565   31         31
    01-02 11:30  UA       7       N7UA     EWR     ORD   719    20         90
    01-02 12:45  UA       8       N7UA     EWR     ORD   719    -3         12
    01-02 13:10  DL       5       -        LGA     ATL   762    -          -
    01-01 14:00  DL       4       N4DL     LGA     ATL   762    2          -8
"""
WEATHER = """
    hour         origin  temp   visib
    01-02 11:00  JFK     30.00  10.00
    01-02 20:00  JFK     33.50  2.50
    01-03 12:00  EWR     28.00  0.50
    01-03 13:00  EWR     28.50  9.00
    01-02 09:00  EWR     25.00  10.00
"""


def instant(text: str) -> datetime:
    return datetime.fromisoformat(f"2013-{text}+00:00")


def clock(at: datetime) -> int:
    local = at.astimezone(ZoneInfo("America/New_York"))
    return local.hour * 100 + local.minute


def flight(leg: dict[str, Any]) -> dict[str, Any]:
    """Return a record of the stream flights."""
    at = instant(leg["scheduled"])
    local = at.astimezone(ZoneInfo("America/New_York"))
    late = {name: None if leg[name] is None else int(leg[name]) for name in ("left_late", "arrived_late")}
    departed = None if late["left_late"] is None else at + timedelta(minutes=late["left_late"])
    return {
        **{"year": local.year, "month": local.month, "day": local.day, "hour": local.hour, "minute": local.minute},
        **{name: leg[name] for name in ("carrier", "flight", "tailnum", "origin", "dest")},
        **{"distance": int(leg["miles"]), "flight": int(leg["flight"]), "sched_dep_time": clock(at)},
        **{"sched_arr_time": 1200, "arr_time": None if departed is None else 1200, "air_time": None},
        **{"dep_time": None if departed is None else clock(departed)},
        **{"dep_delay": late["left_late"], "arr_delay": late["arrived_late"]},
        "time_hour": at.replace(minute=0).isoformat(),
    }


def hour(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record of the stream weather."""
    at = instant(row["hour"])
    local = at.astimezone(ZoneInfo("America/New_York"))
    return {
        **{"origin": row["origin"], "temp": row["temp"], "visib": row["visib"], "time_hour": at.isoformat()},
        **{"year": local.year, "month": local.month, "day": local.day, "hour": local.hour, "precip": "0.00"},
    }


@pytest.fixture(scope="module")
def lakehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return the tables after two cycles: half of the legs and the weather come in the second."""
    lakehouse = Lakehouse(REPOSITORY, tmp_path_factory.mktemp("examples"))
    legs, hours = [flight(leg) for leg in cells(LEGS)], [hour(row) for row in cells(WEATHER)]
    lakehouse.land("flights", *legs[::2]).land("weather", *hours[:2]).run()
    return lakehouse.land("flights", *legs[1::2]).land("weather", *hours[2:]).run()


TABLES = {
    "aircraft_operator": """
        tailnum  carrier  valid_from   valid_to     is_current
        N1AA     AA       01-02 11:00  01-03 12:00  false
        N1AA     UA       01-03 12:00  -            true
        N4DL     DL       01-01 14:00  -            true
        N7UA     UA       01-02 11:30  -            true
        """,
    "aircraft_position": """
        tailnum  airport  at           carrier  flight
        N1AA     SFO      01-03 13:51  UA       10
        N4DL     ATL      01-01 14:02  DL       4
        N7UA     ORD      01-02 12:42  UA       8
        """,
    "flight_weather": """
        leg_id                  scheduled_at  temperature  visibility
        AA-1-JFK-20130102T11    01-02 11:00   30.00        10.00
        AA-2-JFK-20130102T21    01-02 21:30   33.50        2.50
        DL-4-LGA-20130101T14    01-01 14:00   -            -
        DL-5-LGA-20130102T13    01-02 13:10   -            -
        UA-10-EWR-20130103T13   01-03 13:20   28.50        9.00
        UA-7-EWR-20130102T11    01-02 11:30   -            -
        UA-8-EWR-20130102T12    01-02 12:45   -            -
        UA-9-EWR-20130103T12    01-03 12:00   28.00        0.50
        """,
    "aircraft_log": """
        tailnum  legs  miles  airports                 last_airport  displaced
        N1AA     4     5946   BOS EWR JFK LAX ORD SFO  SFO           3
        N4DL     1     762    ATL LGA                  ATL           0
        N7UA     2     1438   EWR ORD                  ORD           1
        """,
    "aircraft_day": """
        tailnum  window_start  window_end   legs  miles  first_airport  last_airport
        N1AA     01-02 11:00   01-02 17:00  1     2475   JFK            LAX
        N1AA     01-02 21:40   01-03 03:40  1     187    JFK            BOS
        N1AA     01-03 12:40   01-03 19:51  2     3284   EWR            SFO
        N4DL     01-01 14:02   01-01 20:02  1     762    LGA            ATL
        N7UA     01-02 11:50   01-02 18:42  2     1438   EWR            ORD
        """,
    "delay_streak": """
        tailnum  started_at   ended_at     legs  worst
        N1AA     01-02 21:40  01-03 13:51  3     45
        """,
    "weather_punctuality": """
        visibility_band  flights  cancelled  left_late  departure_delay
        1 to 3           1        0          0          10.00
        10 and more      1        0          0          0.00
        3 to 10          1        0          1          31.00
        under 1          1        0          1          40.00
        unknown          4        1          1          6.33
        """,
    "airport_hour": """
        origin  window_start  window_end   flights  cancelled  departure_delay  longest_delay  is_final
        EWR     01-02 09:00   01-02 12:00  1        0          20.00            20             true
        EWR     01-02 10:00   01-02 13:00  2        0          8.50             20             true
        EWR     01-02 11:00   01-02 14:00  2        0          8.50             20             true
        EWR     01-02 12:00   01-02 15:00  1        0          -3.00            -3             true
        EWR     01-03 10:00   01-03 13:00  1        0          40.00            40             false
        EWR     01-03 11:00   01-03 14:00  2        0          35.50            40             false
        EWR     01-03 12:00   01-03 15:00  2        0          35.50            40             false
        EWR     01-03 13:00   01-03 16:00  1        0          31.00            31             false
        JFK     01-02 09:00   01-02 12:00  1        0          0.00             0              true
        JFK     01-02 10:00   01-02 13:00  1        0          0.00             0              true
        JFK     01-02 11:00   01-02 14:00  1        0          0.00             0              true
        JFK     01-02 19:00   01-02 22:00  1        0          10.00            10             true
        JFK     01-02 20:00   01-02 23:00  1        0          10.00            10             true
        JFK     01-02 21:00   01-03 00:00  1        0          10.00            10             true
        LGA     01-01 12:00   01-01 15:00  1        0          2.00             2              true
        LGA     01-01 13:00   01-01 16:00  1        0          2.00             2              true
        LGA     01-01 14:00   01-01 17:00  1        0          2.00             2              true
        LGA     01-02 11:00   01-02 14:00  1        1          -                -              true
        LGA     01-02 12:00   01-02 15:00  1        1          -                -              true
        LGA     01-02 13:00   01-02 16:00  1        1          -                -              true
        """,
}


@pytest.mark.parametrize("name", TABLES)
def test_example_table_equals_its_expected_rows(lakehouse: Lakehouse, name: Any) -> None:
    expected = cells(TABLES[name])
    found = as_cells(lakehouse.table(name), *expected[0])
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_leg_has_the_operator_version_of_its_time(lakehouse: Lakehouse) -> None:
    versions = {row["version_id"]: row for row in lakehouse.table("aircraft_operator")}
    for leg in lakehouse.table("flight_weather"):
        if leg["tailnum"] is None:
            assert leg["operator_version"] is None
        else:
            version = versions[leg["operator_version"]]
            assert (version["tailnum"], version["carrier"]) == (leg["tailnum"], leg["carrier"])


def test_route_quantiles_are_near_those_of_its_legs(lakehouse: Lakehouse) -> None:
    [route] = [row for row in lakehouse.table("route_quantiles") if (row["origin"], row["dest"]) == ("EWR", "ORD")]
    assert (route["flights"], route["aircraft"]) == (3, 2)
    assert route["median_delay"] == pytest.approx(45, rel=0.01)
    assert route["worst_tenth"] == pytest.approx(45, rel=0.01)


def test_example_table_has_expectations_and_a_test(lakehouse: Lakehouse) -> None:
    tables = set(lakehouse.project.tables)
    assert tables == {path.stem for path in (REPOSITORY / "quality").glob("*.json")}
    older = {
        "flight",
        "carrier_daily",
        "carrier_league",
        "airport_month",
        "route_first",
    }  # tests/engine/test_flights.py
    assert tables - set(TABLES) - older == {"route_quantiles"}
