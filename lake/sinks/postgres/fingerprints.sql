create function lake_text(value boolean) returns text immutable strict language sql as $$ select value::text || ';' $$;
create function lake_text(value smallint) returns text immutable strict language sql as $$ select value::text || ';' $$;
create function lake_text(value integer) returns text immutable strict language sql as $$ select value::text || ';' $$;
create function lake_text(value bigint) returns text immutable strict language sql as $$ select value::text || ';' $$;
create function lake_text(value numeric) returns text immutable strict language sql as $$ select value::text || ';' $$;
create function lake_text(value text) returns text immutable strict language sql as
$$ select octet_length(value) || ':' || value || ';' $$;
create function lake_text(value bytea) returns text immutable strict language sql as
$$ select upper(encode(value, 'hex')) || ';' $$;
create function lake_text(value date) returns text immutable strict language sql as
$$ select (value - date '1970-01-01') || ';' $$;
create function lake_text(value timestamp) returns text immutable strict language sql as
$$ select (extract(epoch from value) * 1000000)::bigint || ';' $$;
create function lake_text(value timestamptz) returns text immutable strict language sql as
$$ select (extract(epoch from value) * 1000000)::bigint || ';' $$;

-- The bits of a double: sign, exponent, and 52 of its significand. A power of two is taken out until that is odd.
create function lake_text(value double precision) returns text immutable strict language sql as $$
    select case
        when value = 'NaN' then 'nan'
        when abs(value) = 'Infinity' then case when value < 0 then '-inf' else 'inf' end
        when value = 0 then '0'
        else case when value < 0 then '-' else '' end
            || (significand >> zeros) || 'b' || (greatest(exponent, 1) - 1075 + zeros)
        end || ';'
    from (select ('x' || encode(float8send(value), 'hex'))::bit(64) as bits) as sent,
        lateral (select substring(bits from 2 for 11)::integer as exponent) as e,
        lateral (select substring(bits from 13)::bigint + case when exponent > 0 then 1::bigint << 52 else 0 end
            as significand) as s,
        lateral (select length(bits_of) - length(rtrim(bits_of, '0')) as zeros
            from (select significand::bit(64)::text as bits_of) as t) as z
$$;
create function lake_text(value real) returns text immutable strict language sql as
$$ select lake_text(value::double precision) $$;

create function lake_text(value anyarray) returns text immutable strict language plpgsql as $$
begin
    if array_ndims(value) > 1 then
        raise 'arrays of arrays have no fingerprint in PostgreSQL';
    end if;
    return (
        select '[' || coalesce(string_agg(coalesce(lake_text(value[place]), '~'), '' order by place), '') || ']'
        from generate_subscripts(value, 1) as place
    );
end $$;

-- A column of a row or a field of a struct, nothing where it is null.
create function lake_named(name text, value anyelement) returns text immutable language sql as
$$ select coalesce(octet_length(name) || ':' || name || '=' || lake_text(value), '') $$;

-- What a row's text is hashed to, and rows as they are compared.
create function lake_hash(content text) returns bigint immutable strict language sql as
$$ select ('x' || left(md5(convert_to(content, 'UTF8')), 16))::bit(64)::bigint $$;
create function lake_fingerprint(rows bigint, total numeric) returns text immutable language sql as $$
    select rows || '-' || lpad(to_hex((coalesce(total, 0) - 18446744073709551616 * floor(
        (coalesce(total, 0) + 9223372036854775808) / 18446744073709551616))::bigint), 16, '0')
$$;
