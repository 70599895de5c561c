{{ config(unique_key='change') }}
{{ landed('orders', "{change: 'BIGINT', order_id: 'BIGINT', customer_id: 'BIGINT', status: 'VARCHAR', amount: 'DECIMAL(12, 2)', changed_at: 'TIMESTAMP'}") }}
