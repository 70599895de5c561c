MODEL (
  name orders.daily_revenue,
  kind FULL,
  allow_partials TRUE
);

SELECT status, DATE_TRUNC('day', changed_at) AS day, COUNT(*) AS orders, SUM(amount) AS revenue
FROM orders.order_latest
WHERE status <> 'cancelled'
GROUP BY ALL
