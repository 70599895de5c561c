from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.gold.carrier_daily import carrier_daily
from lake import View, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(View(key=(), identity="carrier"), carrier_daily, log("airlines"))
def carrier_league(days: DataFrame, airlines: DataFrame) -> DataFrame:
    """The carriers by punctuality: the smaller the share of late arrivals, the better the rank.

    name: the airline's, as last announced
    flights: scheduled
    share_cancelled: of scheduled flights
    share_late: of arrived flights, those more than 15 minutes late
    mean_delay: minutes after schedule at arrival
    rank: 1 is best; ties by share cancelled, then carrier code
    """
    return days.sparkSession.sql(
        """
        with total as (
            select carrier, sum(flights) as flights, sum(cancelled) as cancelled, sum(arrived) as arrived,
                   sum(arrived_late) as arrived_late, sum(arrival_delay) as arrival_delay
            from {days} group by carrier
        ),
        airline as (
            select carrier, max_by(name, struct(_batch, _bucket, _offset)) as name from {airlines} group by carrier
        ),
        share as (
            select carrier, name, flights,
                   cast(cast(cancelled as decimal(12)) / flights as decimal(7, 5)) as share_cancelled,
                   cast(cast(arrived_late as decimal(12)) / nullif(arrived, 0) as decimal(7, 5)) as share_late,
                   cast(cast(arrival_delay as decimal(12)) / nullif(arrived, 0) as decimal(9, 3)) as mean_delay
            from total left join airline using (carrier)
        )
        select cast(row_number() over (order by share_late nulls last, share_cancelled, carrier) as int) as rank,
               share.*
        from share
        """,
        days=days,
        airlines=airlines,
    )
