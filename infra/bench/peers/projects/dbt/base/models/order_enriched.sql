{{ config(unique_key='change') }}
select o.change, o.order_id, o.customer_id, o.status, o.amount, o.changed_at, c.region, c.tier,
    greatest(o.loaded_at, l.loaded_at) as loaded_at
from {{ ref('orders') }} o
left join {{ ref('customer_latest') }} l on l.customer_id = o.customer_id
left join {{ ref('customer_history') }} c
    on c.customer_id = o.customer_id and c.valid_from <= o.changed_at
    and (c.valid_to is null or o.changed_at < c.valid_to)
{% if is_incremental() %}
where greatest(o.loaded_at, l.loaded_at) > (select max(loaded_at) from {{ this }})
{% endif %}
