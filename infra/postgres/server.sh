#!/usr/bin/env bash
# A PostgreSQL of this project's own whose log can be decoded, reachable from this machine only, until Ctrl-C.
#
#   POSTGRES_DATA   its folder, by default .lake/postgres; as root, who may not run it, one of the user postgres
#   POSTGRES_PORT   by default 5433
#   POSTGRES_DSN    the file that gets the connection string with the password, by default .lake/postgres.dsn
#
# Further arguments are for `postgres`, such as -c max_slot_wal_keep_size=64MB.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
port=${POSTGRES_PORT:-5433}
dsn=${POSTGRES_DSN:-$project/.lake/postgres.dsn}
bin=$(compgen -G "/usr/lib/postgresql/*/bin" | sort -V | tail -1 || true)
bin=${bin:-$(dirname "$(command -v postgres)")}

user=()
if [[ $EUID == 0 ]]; then
    data=${POSTGRES_DATA:-/var/lib/postgresql/headwater${project//\//-}}
    user=(setpriv --reuid=postgres --regid=postgres --clear-groups --)
else
    data=${POSTGRES_DATA:-$project/.lake/postgres}
fi

if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    echo "postgres: port $port is in use; set POSTGRES_PORT to another port" >&2
    exit 75
fi

umask 077
mkdir -p "$data" "$(dirname "$dsn")"
[[ $EUID != 0 ]] || chown postgres: "$data"
cd "$data"
if [[ ! -s $data/PG_VERSION ]]; then
    password=$(od -An -N18 -tx1 /dev/urandom | tr -d ' \n')
    secret=$(mktemp)
    trap 'rm -f "$secret"' EXIT
    echo "$password" >"$secret"
    [[ $EUID != 0 ]] || chown postgres: "$secret"
    "${user[@]}" "$bin/initdb" --pgdata="$data" --username=postgres --pwfile="$secret" --auth=scram-sha-256 \
        --encoding=UTF8 --locale=C --no-instructions >/dev/null
    rm -f "$secret"
    echo "host=127.0.0.1 port=$port dbname=postgres user=postgres password=$password" >"$dsn"
else
    sed -i "s/port=[0-9]*/port=$port/" "$dsn"
fi
echo "postgres: 127.0.0.1:$port  connection string in $dsn"
exec "${user[@]}" "$bin/postgres" -D "$data" -c listen_addresses=127.0.0.1 -c port="$port" \
    -c unix_socket_directories= -c wal_level=logical -c max_prepared_transactions=10 -c max_replication_slots=20 \
    -c max_wal_senders=20 "$@"
