{{ config(unique_key='customer_id') }}
select customer_id, change, region, tier, changed_at,
    max(loaded_at) over (partition by customer_id) as loaded_at
from {{ ref('customers') }}
{% if is_incremental() %}
where customer_id in ({{ touched('customer_id', ref('customers')) }})
{% endif %}
qualify row_number() over (partition by customer_id order by changed_at desc, change desc) = 1
