MODEL (
  name orders.customer_latest,
  kind INCREMENTAL_BY_UNIQUE_KEY (unique_key customer_id),
  allow_partials TRUE
);

SELECT customer_id, change, region, tier, changed_at
FROM orders.customers
WHERE customer_id IN (SELECT customer_id FROM orders.customers WHERE loaded_at BETWEEN @start_ts AND @end_ts)
QUALIFY ROW_NUMBER() OVER (PARTITION BY customer_id ORDER BY changed_at DESC, change DESC) = 1
