{{ config(materialized='table') }}
select status, date_trunc('day', changed_at) as day, count(*) as orders, sum(amount) as revenue
from {{ ref('order_latest') }} where status <> 'cancelled' group by all
