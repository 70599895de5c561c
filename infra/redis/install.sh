#!/usr/bin/env bash
# Debian's Redis, where neither Redis nor Valkey is installed yet. No server of the system is started: tests start their
# own.
set -euo pipefail

if command -v redis-server >/dev/null || command -v valkey-server >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "redis: not installed, and there is no apt-get" >&2
    echo "  fix: install Redis 7 or Valkey, so that \`redis-server\` or \`valkey-server\` is on the path" >&2
    exit 2
fi
as_root=()
[[ $EUID == 0 ]] || as_root=(sudo)

# The package would start a server at once.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
    "${as_root[@]}" chmod +x $policy
    trap '"${as_root[@]}" rm -f $policy' EXIT
fi
"${as_root[@]}" apt-get install --yes --no-install-recommends redis-server redis-tools
