{# Changes of files that are newer than those read already; a change that is there already is left out. #}
{% macro landed(stream, columns) %}
select *, timestamp '{{ run_started_at.strftime("%Y-%m-%d %H:%M:%S.%f") }}' as loaded_at
from read_json('landing/{{ stream }}/*.jsonl', columns = {{ columns }}, filename = 'file')
{% if is_incremental() %}
where file > (select max(file) from {{ this }}) and change not in (select change from {{ this }})
{% endif %}
qualify row_number() over (partition by change order by file) = 1
{% endmacro %}

{# Keys of rows that were loaded after this table was last computed. #}
{% macro touched(key, relation) %}
select {{ key }} from {{ relation }} where loaded_at > (select max(loaded_at) from {{ this }})
{% endmacro %}
