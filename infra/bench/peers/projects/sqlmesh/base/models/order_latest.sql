MODEL (
  name orders.order_latest,
  kind INCREMENTAL_BY_UNIQUE_KEY (unique_key order_id),
  allow_partials TRUE
);

SELECT order_id, change, customer_id, status, amount, changed_at
FROM orders.orders
WHERE order_id IN (SELECT order_id FROM orders.orders WHERE loaded_at BETWEEN @start_ts AND @end_ts)
QUALIFY ROW_NUMBER() OVER (PARTITION BY order_id ORDER BY changed_at DESC, change DESC) = 1
