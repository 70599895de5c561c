#!/usr/bin/env bash
# Debian's PostgreSQL 15, where no PostgreSQL is installed yet, and psqlODBC with the driver manager that pyodbc loads, by
# which tests read it. No cluster of the system is made and nothing is started: infra/postgres/server.sh makes one of
# this project's own.
set -euo pipefail

has_server() { compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null || command -v postgres >/dev/null; }
has_odbc() { compgen -G "/usr/lib/*/odbc/psqlodbcw.so" >/dev/null && compgen -G "/usr/lib/*/libodbc.so.2" >/dev/null; }
if has_server && has_odbc; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "postgres: not installed, and there is no apt-get" >&2
    echo "  fix: install PostgreSQL 13 or newer, so that \`postgres\` is on the path" >&2
    exit 2
fi
as_root=()
[[ $EUID == 0 ]] || as_root=(sudo)

# What postgresql-common reads before it would make the cluster `main`.
"${as_root[@]}" mkdir -p /etc/postgresql-common/createcluster.d
echo "create_main_cluster = false" | "${as_root[@]}" tee /etc/postgresql-common/createcluster.d/headwater.conf >/dev/null
packages=(odbc-postgresql libodbc2)
has_server || packages+=(postgresql-15)
"${as_root[@]}" apt-get install --yes --no-install-recommends "${packages[@]}"
