#!/bin/sh
# From nothing to tested: installs what is missing, builds, runs every test and fuzz corpus.
# The last line is `N passed, N failed`, and the exit status says the same.
set -u
cd "$(dirname "$0")/.." || exit 2
if ! scripts/deps.sh || ! make -j"$(nproc)" tests; then
    echo "the build failed"
    echo "0 passed, 1 failed"
    exit 1
fi
exec tests/run build
