#!/bin/sh
# strace, with which tests see what a server asks the kernel for; without it those tests are skipped.
set -eu
command -v strace >/dev/null && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get install --yes --no-install-recommends --quiet strace >/dev/null ||
        echo "strace cannot be installed; its tests are skipped" >&2
else
    echo "strace is not installed: apt-get install strace; its tests are skipped" >&2
fi
