#!/usr/bin/env bash
# The official client of Delta Sharing, in an environment of its own as it wants an older pyarrow:
# .venv/share/headwater/sharing, pinned and verified.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=$(dirname "$(dirname "$here")")/.venv
client=$environment/share/headwater/sharing
if [[ $client/.installed -nt $here/requirements.lock ]]; then
    exit 0
fi
"$environment/bin/uv" venv --quiet --clear --python "$environment/bin/python" "$client"
"$environment/bin/uv" pip sync --quiet --python "$client/bin/python" --require-hashes "$here/requirements.lock"
touch "$client/.installed"
