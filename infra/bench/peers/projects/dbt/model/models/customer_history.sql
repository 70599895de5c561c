{{ config(unique_key='customer_id') }}
select customer_id, region, tier, changed_at as valid_from,
    lead(changed_at) over (partition by customer_id order by changed_at, change) as valid_to, newest as loaded_at
from (
    select *, lag((region, tier)) over (partition by customer_id order by changed_at, change) as before,
        max(loaded_at) over (partition by customer_id) as newest
    from {{ ref('customers') }}
    {% if is_incremental() %}
    where customer_id in ({{ touched('customer_id', ref('customers')) }})
    {% endif %}
)
where before is distinct from (region, tier)
