#!/bin/sh
# What agentd is for, end to end, on the CPU. First a small model that decides by itself
# (scripts/demo/live.sh). Then the main job, on a random checkpoint: a real agent session over real
# tool output, killed with SIGKILL in the middle of a tool call, resumed from disk without prefill,
# and proof that all that follows is bit-equal to a session that never stopped.
#
#   sh scripts/demo.sh        installs what a build needs, builds, runs; under 3 minutes on 2 cores
#
# Every line under "proved" was checked by this script; its exit status says whether all were.
set -eu
cd "$(dirname "$0")/.."
session=import-job
work=build/demo
log=$work/import.log
min_tokens=60000
min_steps=12

say() { printf '\n== %s\n' "$*"; }
show_file() { sed 's/^/   /' "$1"; }
fail() {
    printf '\ndemo: FAILED: %s\n' "$*" >&2
    if [ -s "$work/agentd.log" ]; then
        echo "the end of $work/agentd.log:" >&2
        tail -n 20 "$work/agentd.log" >&2
    fi
    exit 1
}
# number NAME [OBJECT]: a number from pretty JSON on stdin, at the top level or inside an object.
number() {
    awk -v name="\"$1\":" -v object="${2:+\"$2\": {}" '
        object == "" && /^  "/ && $1 == name { print $2 + 0; exit }
        object != "" && /^  "/ { inside = index($0, object) > 0 }
        inside && /^    "/ && $1 == name { print $2 + 0; exit }'
}
thousands() { echo "$1" | sed -e ':a' -e 's/\([0-9]\)\([0-9]\{3\}\)\($\|,\)/\1,\2\3/' -e 'ta'; }
# total_ms OBJECT: the sum of its "ms"; "index" is a part of "read".
total_ms() {
    awk -v object="\"$1\": {" '
        /^  "/ { inside = index($0, object) > 0 }
        inside && /^    "/ { in_ms = $1 == "\"ms\":" }
        inside && in_ms && /^      "/ && $1 != "\"index\":" { sum += $2 }
        END { printf "%.1f", sum }'
}

daemon=
runtime=
cleanup() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    [ -z "$runtime" ] || rm -rf "$runtime"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

start_daemon() {
    build/agentd serve -m "$work/model" --socket "$AGENTD_SOCKET" --store "$runtime/store" \
        >> "$work/agentd.log" 2>&1 &
    daemon=$!
    tries=0
    until build/agentctl status -q > /dev/null 2>&1; do
        kill -0 "$daemon" 2>/dev/null || fail "agentd did not start"
        tries=$((tries + 1))
        [ $tries -lt 300 ] || fail "agentd does not answer"
        sleep 0.1
    done
}

say "build"
scripts/deps.sh
mkdir -p build
make -j"$(nproc)" all build/tests/make_checkpoint > build/demo-build.log 2>&1 ||
    { tail -n 20 build/demo-build.log; fail "the build: see build/demo-build.log"; }
rm -rf "$work"
mkdir -p "$work"
build/tests/make_checkpoint tests/configs/demo.json "$work/model"
sh scripts/demo/make_log.sh > "$log"
sh scripts/demo/trajectory.sh "$log" > "$work/forced.json"
recorded=$(grep -c '"text"' "$work/forced.json")
echo "   checkpoint of $(du -sh "$work/model" | cut -f1), a log of $(wc -l < "$log") lines, a trajectory of $recorded runs"

# Outside of the workspace: where no mount can cover them, tools refuse a workspace that holds the
# daemon's own files. Not in /tmp, which may be memory.
runtime=$(mktemp -d "${TMPDIR:-/var/tmp}/agentd-demo.XXXXXX")
mkdir -m 700 "$runtime/live"
say "live: a small model decides what to call; nothing is forced"
sh scripts/demo/live.sh "$runtime/live" || fail "the live part"

say "a session begins: its tools read this repository and the log"
export AGENTD_SOCKET="$runtime/agentd.sock"
start_daemon
build/agentctl run -n $session -C . --approve auto --thinking thinking --max-steps 64 \
    --forced "$work/forced.json" "The nightly import failed. Find out why: its log is $log." \
    > "$work/answer.1" 2> "$work/stderr.1" &
client=$!
# The tool itself writes the marker: it is really running then, with seconds to go.
tries=0
until [ -s "$log.tries" ]; do
    kill -0 $client 2>/dev/null || { cat "$work/stderr.1"; fail "the turn ended before the call"; }
    tries=$((tries + 1))
    [ $tries -lt 900 ] || fail "the call that is to be killed never began"
    sleep 0.2
done
sleep 1
show_file "$work/stderr.1"

say "SIGKILL, in the middle of that tool call"
kill -KILL "$daemon"
wait "$daemon" 2>/dev/null || true
daemon=
client_code=0
wait $client || client_code=$?
[ $client_code -eq 3 ] || fail "agentctl run ended with $client_code, want 3: daemon unreachable"
[ ! -s "$work/answer.1" ] || fail "agentctl printed an answer that it cannot have"
echo "   agentd is gone; agentctl says so (exit code 3)"

say "agentd starts again: the session is there, and its turn goes on by itself"
start_daemon
build/agentctl ps -a > "$work/ps"
show_file "$work/ps"
grep -q "^$session " "$work/ps" || fail "the session is not listed"
build/agentctl wait $session > "$work/answer.2" 2> "$work/stderr.2" ||
    { cat "$work/stderr.2"; fail "the turn did not end with an answer"; }
show_file "$work/stderr.2"
build/agentctl logs $session > "$work/events"
printf '   answer: %s\n\n   what the model was told of the call that was cut:\n' "$(cat "$work/answer.2")"
grep 'interrupted: ' "$work/events" | sed 's/^/   /' || true
build/agentctl logs --jsonl $session > "$work/events.jsonl"
build/agentctl show --json $session > "$work/session.json"

say "verify: a fresh process computes the whole tape from token 0, never stopping"
build/agentctl verify --json $session > "$work/verify.json" ||
    { show_file "$work/verify.json"; fail "the digests are not equal"; }
show_file "$work/verify.json"

say "the ledger of the turn, and of the resume it began with"
build/agentctl wait -v $session 2> "$work/ledger" > /dev/null
show_file "$work/ledger"

say "checks"
results=$(grep -c '"kind":"tool_result"' "$work/events.jsonl") || true
unknown=$(grep '"kind":"tool_result"' "$work/events.jsonl" | grep -c '"status":"interrupted"') || true
tokens=$(number tokens < "$work/session.json")
[ "$results" -ge $min_steps ] || fail "$results tool results, want $min_steps"
[ "$tokens" -ge $min_tokens ] || fail "$tokens tokens, want $min_tokens"
[ "$unknown" -eq 1 ] || fail "$unknown calls with an unknown outcome, want 1"
grep '"status":"interrupted"' "$work/events.jsonl" | grep -q 'outcome is unknown' ||
    fail "the model was not told that the outcome is unknown"
[ "$(tr '\n' ' ' < "$log.tries")" = "begin begin end " ] ||
    fail "the slow command was not run as it should: $(tr '\n' ' ' < "$log.tries")"
workers=$(awk '$2 == "ERROR" { n[$3]++ } END { for (w in n) print n[w], w }' "$log")
grep '"kind":"tool_result"' "$work/events.jsonl" | grep -q "\"$workers" ||
    fail "no tool result says \"$workers\""
case $(cat "$work/answer.2") in
*"which happens ${workers%% *} times"*) ;;
*) fail "the answer is not the recorded one" ;;
esac
mode=$(sed -n '/^  "resume"/,/^  }/s/^    "mode": "\(.*\)",*$/\1/p' "$work/session.json")
tape=$(number tape resume < "$work/session.json")
restored=$(number restored resume < "$work/session.json")
recomputed=$(number recomputed resume < "$work/session.json")
relost=$(number relost resume < "$work/session.json")
replayed=$(number replayed resume < "$work/session.json")
bytes=$(number bytes_read resume < "$work/session.json")
resume_ms=$(total_ms resume < "$work/session.json")
[ "$mode" = exact ] || fail "the resume was \"$mode\", want exact"
[ "$tape" -gt 0 ] && [ $((restored + recomputed)) -eq "$tape" ] && [ "$relost" -eq 0 ] ||
    fail "the ledger of the resume does not add up: $restored + $recomputed of $tape, relost $relost"
[ $((recomputed * 100)) -le "$tape" ] || fail "$recomputed of $tape tokens were computed again"
rows=$(number rows < "$work/verify.json")
verified=$(number tokens < "$work/verify.json")
cold_ms=$(number ms < "$work/verify.json")
[ "$verified" -eq "$tokens" ] || fail "verify looked at $verified of $tokens tokens"
unproved=$(number segmentsWithoutDigest < "$work/verify.json")
[ "$unproved" -eq 0 ] || fail "$unproved segments have no digest to compare with"
[ "$rows" -gt 0 ] || fail "verify compared no row"
echo "   all passed"

say "cost of the resume, beside computing the same tokens cold"
awk -v restored="$restored" -v recomputed="$recomputed" -v replayed="$replayed" -v tape="$tape" \
    -v bytes="$bytes" -v ms="$resume_ms" -v cold="$cold_ms" -v tokens="$tokens" 'BEGIN {
    printf "   %-28s %12s %14s\n", "", "resume", "cold (verify)"
    printf "   %-28s %12d %14d\n", "tokens", tape, tokens
    printf "   %-28s %12d %14d\n", "restored from disk", restored, 0
    printf "   %-28s %12d %14d\n", "recomputed or prefilled", recomputed, tokens
    printf "   %-28s %12d %14d\n", "replayed", replayed, 0
    printf "   %-28s %12.1f %14.1f\n", "MB read", bytes / 1e6, 0
    printf "   %-28s %12.1f %14.1f\n", "milliseconds", ms, cold
    printf "   a token: %.4f ms resumed, %.4f ms cold\n", ms / tape, cold / tokens }'

say "proved"
echo "  0. A live model chose its calls and found what the files say; killed and resumed, it still knew the first."
echo "  1. $(thousands "$tokens") tokens of a real tool loop, $results tool calls; agentd killed with SIGKILL inside call $(
    grep '"kind":"tool_result"' "$work/events.jsonl" | grep -n '"status":"interrupted"' | cut -d: -f1)."
echo "  2. Nothing that was acknowledged is lost: the session went on by itself to its end."
echo "  3. The cut call was shown to the model as \"outcome unknown\", was not run again by itself,"
echo "     and ran to its end when the model asked for it again."
echo "  4. The resume was exact: $(thousands "$restored") of $(thousands "$tape") tokens came from disk, $recomputed were computed again."
echo "  5. All $(thousands "$rows") rows of logits are bit-equal to those of a process that never stopped."
