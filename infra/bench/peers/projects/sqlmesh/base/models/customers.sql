-- Changes, loaded at the time of their file.
MODEL (
  name orders.customers,
  kind INCREMENTAL_BY_UNIQUE_KEY (unique_key change),
  allow_partials TRUE
);

SELECT change, customer_id, region, tier, changed_at, last_modified::TIMESTAMP AS loaded_at
FROM READ_JSON('landing/customers/*.jsonl', columns = {change: 'BIGINT', customer_id: 'BIGINT', region: 'VARCHAR', tier: 'VARCHAR', changed_at: 'TIMESTAMP'}, filename = 'file')
JOIN (SELECT filename AS file, last_modified FROM READ_BLOB('landing/customers/*.jsonl')) USING (file)
WHERE last_modified BETWEEN @start_ts AND @end_ts
