#!/usr/bin/env bash
# A real Singer tap, in an environment of its own as taps need one: .venv/share/headwater/tap, pinned and verified.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=$(dirname "$(dirname "$here")")/.venv
tap=$environment/share/headwater/tap
if [[ $tap/.installed -nt $here/requirements.lock ]]; then
    exit 0
fi
"$environment/bin/uv" venv --quiet --clear --python "$environment/bin/python" "$tap"
"$environment/bin/uv" pip sync --quiet --python "$tap/bin/python" --require-hashes "$here/requirements.lock"
touch "$tap/.installed"
