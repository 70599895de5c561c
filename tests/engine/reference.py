"""Tables of the flights as DuckDB computes them from the landing files, by queries that share nothing with the jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import duckdb

FLIGHTS: Final = """
    create view f as
    select *, time_hour + to_minutes(minute) as scheduled_at, scheduled_at + to_minutes(dep_delay) as departed_at,
           concat_ws('-', carrier, flight, origin, strftime(time_hour, '%Y%m%dT%H')) as leg_id
    from read_json({files}, columns = {{
        carrier: 'varchar', flight: 'int', tailnum: 'varchar', origin: 'varchar', dest: 'varchar', distance: 'int',
        dep_time: 'int', dep_delay: 'int', arr_delay: 'int', minute: 'int', time_hour: 'timestamp'}})
"""
WEATHER: Final = """
    create view w as select origin, time_hour as seen_at, temp::decimal(5, 2) as temp, visib::decimal(5, 2) as visib
    from read_json('{landed}/weather/2013-??.jsonl',
                   columns = {{origin: 'varchar', time_hour: 'timestamp', temp: 'varchar', visib: 'varchar'}})
"""
# Each query returns the columns that its test compares.
QUERIES: Final = {
    "aircraft_operator": """
        with seen as (
            select tailnum, carrier, scheduled_at,
                   lag(carrier) over (partition by tailnum order by scheduled_at, carrier, flight, origin) as before
            from f where tailnum is not null
        )
        select tailnum, carrier, scheduled_at as valid_from,
               lead(scheduled_at) over (partition by tailnum order by scheduled_at) as valid_to
        from seen where before is distinct from carrier
    """,
    "flight_weather": """
        select leg_id, if(scheduled_at - seen_at <= interval 2 hours, temp, null) as temperature,
               if(scheduled_at - seen_at <= interval 2 hours, visib, null) as visibility
        from f asof left join w on f.origin = w.origin and f.scheduled_at >= w.seen_at
    """,
    "aircraft_log": """
        with legs as (
            select *, lag(dest) over (partition by tailnum order by departed_at, leg_id) as here
            from f where tailnum is not null and departed_at is not null
        )
        select tailnum, count(*) as legs, sum(distance) as miles, max_by(dest, (departed_at, leg_id)) as last_airport,
               count(*) filter (here <> origin) as displaced
        from legs group by tailnum
    """,
    "airport_hour": """
        select origin, s as window_start, count(*) as flights, count(*) filter (dep_time is null) as cancelled,
               max(dep_delay) as longest_delay
        from (select *, unnest([0, 1, 2]) as back, date_trunc('hour', scheduled_at) - to_hours(back) as s from f)
        group by origin, s
    """,
    "aircraft_day": """
        with legs as (
            select *, departed_at - lag(departed_at) over o >= interval 6 hours as apart
            from f where tailnum is not null and departed_at is not null
            window o as (partition by tailnum order by departed_at, leg_id)
        ),
        numbered as (
            select *, count(*) filter (apart) over (partition by tailnum order by departed_at, leg_id) as run from legs
        )
        select tailnum, min(departed_at) as window_start, count(*) as legs, sum(distance) as miles,
               min_by(origin, (departed_at, leg_id)) as first_airport,
               max_by(dest, (departed_at, leg_id)) as last_airport
        from numbered group by tailnum, run
    """,
    "delay_streak": """
        with legs as (
            select *, coalesce(arr_delay > 30, false) as late,
                   row_number() over (partition by tailnum order by departed_at, leg_id)
                   - row_number() over (partition by tailnum, late order by departed_at, leg_id) as streak
            from f where tailnum is not null and departed_at is not null
        )
        select tailnum, min(departed_at) as started_at, max(departed_at) as ended_at, count(*) as legs,
               max(arr_delay) as worst
        from legs where late group by tailnum, streak having count(*) >= 3
    """,
    "weather_punctuality": """
        with seen as (
            select f.*, if(scheduled_at - seen_at <= interval 2 hours, visib, null) as miles
            from f asof left join w on f.origin = w.origin and f.scheduled_at >= w.seen_at
        )
        select case when miles is null then 'unknown' when miles < 1 then 'under 1' when miles < 3 then '1 to 3'
                    when miles < 10 then '3 to 10' else '10 and more' end as visibility_band,
               count(*) as flights, count(*) filter (dep_time is null) as cancelled,
               count(*) filter (dep_delay > 15) as left_late
        from seen group by 1
    """,
    "route_quantiles": "select origin, dest, count(*) as flights from f group by all",
}


def computed(landed: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of `table`; instants are naive, in UTC."""
    files = sorted(str(file) for file in (landed / "flights").iterdir() if "made" not in file.name)
    with duckdb.connect() as con:
        con.execute(FLIGHTS.format(files=files))
        con.execute(WEATHER.format(landed=landed))
        rows = con.sql(QUERIES[table])
        return [dict(zip(rows.columns, row, strict=True)) for row in rows.fetchall()]
