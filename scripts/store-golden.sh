#!/bin/sh
# store-golden.sh: writes the store of this build as tests/golden/store_vN (N: its user_version).
# Run it before a change of sessions/schema.h, and commit what it wrote: tests/sessions/test_migrate
# then holds every later build to reading it.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
make -s build/tests/make_store
build/tests/make_store "$dir"
version=$(sqlite3 "$dir/agentd.db" 'PRAGMA user_version')
out=tests/golden/store_v$version
[ ! -e "$out" ] || { echo "$out is there: a golden store is never made again" >&2; exit 1; }
mkdir -p "$out"
{ sqlite3 "$dir/agentd.db" .dump; echo "PRAGMA user_version = $version;"; } >"$out/agentd.sql"
cp "$dir/master.key" "$dir"/*.pack "$out/"
ls -l "$out"
