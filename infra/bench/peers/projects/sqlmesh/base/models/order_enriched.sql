MODEL (
  name orders.order_enriched,
  kind INCREMENTAL_BY_UNIQUE_KEY (unique_key change),
  allow_partials TRUE
);

SELECT o.change, o.order_id, o.customer_id, o.status, o.amount, o.changed_at, c.region, c.tier
FROM orders.orders AS o
LEFT JOIN orders.customer_history AS c
  ON c.customer_id = o.customer_id AND c.valid_from <= o.changed_at
  AND (c.valid_to IS NULL OR o.changed_at < c.valid_to)
WHERE o.loaded_at BETWEEN @start_ts AND @end_ts
  OR o.customer_id IN (SELECT customer_id FROM orders.customers WHERE loaded_at BETWEEN @start_ts AND @end_ts)
