"""More of this repository's tables as plain Spark SQL: over the log's `events`, or over other hand-written tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

QUERIES: Final[Mapping[str, str]] = {
    "aircraft_operator": """
        with legs as (
            select tailnum, carrier, timestampadd(MINUTE, minute, time_hour) as at, flight, origin
            from events where tailnum is not null
        ),
        seen as (
            select *, lag(carrier) over (partition by tailnum order by at, carrier, flight, origin) as before from legs
        )
        select tailnum, carrier, at as valid_from, lead(at) over (partition by tailnum order by at) as valid_to
        from seen where before is distinct from carrier
    """,
    "airport_hour": """
        select origin, w.start as window_start, w.end as window_end, count(*) as flights,
               count_if(dep_time is null) as cancelled, cast(avg(dep_delay) as decimal(9, 2)) as departure_delay,
               max(dep_delay) as longest_delay
        from (select *, window(timestampadd(MINUTE, minute, time_hour), '3 hours', '1 hour') as w from events)
        group by origin, w
    """,
    "aircraft_log": """
        with legs as (
            select *, lag(dest) over (partition by tailnum order by departed_at, leg_id) as here
            from flight where tailnum is not null and departed_at is not null
        )
        select tailnum, count(*) as legs, sum(distance) as miles,
               array_sort(array_union(collect_set(origin), collect_set(dest))) as airports,
               max_by(dest, struct(departed_at, leg_id)) as last_airport, count_if(here <> origin) as displaced
        from legs group by tailnum
    """,
    "aircraft_day": """
        with legs as (
            select *, departed_at - lag(departed_at) over (partition by tailnum order by departed_at, leg_id)
                      >= interval 6 hours as apart
            from flight where tailnum is not null and departed_at is not null
        ),
        numbered as (
            select *, count_if(apart) over (partition by tailnum order by departed_at, leg_id) as run from legs
        )
        select tailnum, min(departed_at) as window_start, max(departed_at) + interval 6 hours as window_end,
               count(*) as legs, sum(distance) as miles, min_by(origin, struct(departed_at, leg_id)) as first_airport,
               max_by(dest, struct(departed_at, leg_id)) as last_airport
        from numbered group by tailnum, run
    """,
    "delay_streak": """
        with legs as (
            select *, coalesce(arrival_delay > 30, false) as late,
                   row_number() over (partition by tailnum order by departed_at, leg_id)
                   - row_number() over (partition by tailnum, coalesce(arrival_delay > 30, false)
                                        order by departed_at, leg_id) as streak
            from flight where tailnum is not null and departed_at is not null
        )
        select tailnum, min(departed_at) as started_at, max(departed_at) as ended_at, count(*) as legs,
               max(arrival_delay) as worst
        from legs where late group by tailnum, streak having count(*) >= 3
    """,
    "route_quantiles": """
        select origin, dest, count(*) as flights, approx_count_distinct(tailnum, 0.016) as aircraft,
               percentile_approx(arrival_delay, array(0.5, 0.9), 100) as delays
        from flight group by origin, dest
    """,
    "flight_weather": """
        with observed as (
            select origin, time_hour as at, struct(time_hour, temp, wind_speed, precip, visib) as seen,
                   cast(null as struct<leg_id: string, carrier: string, tailnum: string, departure_delay: int,
                                       cancelled: boolean>) as leg
            from weather
            union all
            select origin, scheduled_at, null, struct(leg_id, carrier, tailnum, departure_delay, cancelled) from flight
        ),
        legs as (
            select origin, at, leg, last_value(seen) ignore nulls over (
                       partition by origin order by at, leg is not null rows unbounded preceding) as seen
            from observed
        )
        select leg.leg_id, leg.carrier, leg.tailnum, leg.departure_delay, leg.cancelled, origin, at as scheduled_at,
               if(at - seen.time_hour <= interval 2 hours, seen, null) as seen, seen.visib, o.valid_from as operator
        from legs left join aircraft_operator o
             on o.tailnum = leg.tailnum and at >= o.valid_from and (o.valid_to is null or at < o.valid_to)
        where leg is not null
    """,
    "weather_punctuality": """
        select case when visib is null then 'unknown' when visib < 1 then 'under 1' when visib < 3 then '1 to 3'
                    when visib < 10 then '3 to 10' else '10 and more' end as visibility_band,
               count(*) as flights, count_if(cancelled) as cancelled, count_if(departure_delay > 15) as left_late,
               cast(avg(departure_delay) as decimal(9, 2)) as departure_delay
        from flight_weather group by 1
    """,
}
