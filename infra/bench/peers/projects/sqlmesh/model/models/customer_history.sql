-- All versions of each customer with new changes replace those before.
MODEL (
  name orders.customer_history,
  kind INCREMENTAL_BY_PARTITION,
  partitioned_by customer_id,
  allow_partials TRUE
);

WITH touched AS (
  SELECT *, LAG((region, tier)) OVER (PARTITION BY customer_id ORDER BY changed_at, change) AS before
  FROM orders.customers
  WHERE customer_id IN (SELECT customer_id FROM orders.customers WHERE loaded_at BETWEEN @start_ts AND @end_ts)
)
SELECT customer_id, region, tier, changed_at AS valid_from,
  LEAD(changed_at) OVER (PARTITION BY customer_id ORDER BY changed_at, change) AS valid_to
FROM touched
WHERE before IS DISTINCT FROM (region, tier)
