#!/usr/bin/env bash
# The tools of `make bench W=peers`, pinned, each in an environment of its own: .lake/peers/dbt, .lake/peers/sqlmesh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
for tool in dbt sqlmesh; do
    environment=$root/.lake/peers/$tool
    if [[ ! $environment/.installed -nt $here/$tool.txt ]]; then
        "$root/.venv/bin/uv" venv --quiet --clear --python "$root/.venv/bin/python" "$environment"
        "$root/.venv/bin/uv" pip sync --quiet --python "$environment/bin/python" "$here/$tool.txt"
        touch "$environment/.installed"
    fi
done
