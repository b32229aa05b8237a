#!/bin/sh
# Runs one libFuzzer target that `make fuzz` has built, for S seconds, from and into its corpus.
#   scripts/fuzz.sh NAME SECONDS
# New inputs that reach new code are merged into tests/fuzz/corpus/NAME, smallest first. A crash is
# kept there, too, as crash-HASH: give it a name that says what it is, and fix what it shows.
set -eu
name=${1:?usage: scripts/fuzz.sh NAME SECONDS} seconds=${2:?usage: scripts/fuzz.sh NAME SECONDS}
cd "$(dirname "$0")/.."
target=build/fuzz/tests/fuzz/fuzz_$name
corpus=tests/fuzz/corpus/$name
found=build/fuzz/found/$name
mkdir -p "$corpus" "$found"
rc=0
"$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$corpus/" "$found" "$corpus" 2> build/fuzz/$name.log || rc=$?
grep -E '^stat::number_of_executed_units|^stat::peak_rss_mb' build/fuzz/$name.log || true
if [ $rc -ne 0 ]; then
    grep -E 'ERROR|SUMMARY|Test unit written' build/fuzz/$name.log || tail -20 build/fuzz/$name.log
    echo "fuzz_$name: stopped by a finding; the whole log is build/fuzz/$name.log"
    exit 1
fi
before=$(ls "$corpus" | wc -l)
"$target" -merge=1 "$corpus" "$found" 2>> build/fuzz/$name.log
echo "fuzz_$name: $seconds s, no finding; corpus $before -> $(ls "$corpus" | wc -l) inputs"
