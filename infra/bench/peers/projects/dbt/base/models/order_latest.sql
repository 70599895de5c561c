{{ config(unique_key='order_id') }}
select order_id, change, customer_id, status, amount, changed_at,
    max(loaded_at) over (partition by order_id) as loaded_at
from {{ ref('orders') }}
{% if is_incremental() %}
where order_id in ({{ touched('order_id', ref('orders')) }})
{% endif %}
qualify row_number() over (partition by order_id order by changed_at desc, change desc) = 1
