MODEL (
  name orders.customer_history,
  kind SCD_TYPE_2_BY_TIME (unique_key customer_id, updated_at_name changed_at, updated_at_as_valid_from TRUE),
  allow_partials TRUE
);

SELECT customer_id, region, tier, changed_at::TIMESTAMP AS changed_at
FROM orders.customer_latest
