-- Changes, loaded at the time of their file.
MODEL (
  name orders.orders,
  kind INCREMENTAL_BY_UNIQUE_KEY (unique_key change),
  allow_partials TRUE
);

SELECT change, order_id, customer_id, status, amount, changed_at, last_modified::TIMESTAMP AS loaded_at
FROM READ_JSON('landing/orders/*.jsonl', columns = {change: 'BIGINT', order_id: 'BIGINT', customer_id: 'BIGINT', status: 'VARCHAR', amount: 'DECIMAL(12, 2)', changed_at: 'TIMESTAMP'}, filename = 'file')
JOIN (SELECT filename AS file, last_modified FROM READ_BLOB('landing/orders/*.jsonl')) USING (file)
WHERE last_modified BETWEEN @start_ts AND @end_ts
