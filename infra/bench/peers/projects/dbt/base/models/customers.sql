{{ config(unique_key='change') }}
{{ landed('customers', "{change: 'BIGINT', customer_id: 'BIGINT', region: 'VARCHAR', tier: 'VARCHAR', changed_at: 'TIMESTAMP'}") }}
