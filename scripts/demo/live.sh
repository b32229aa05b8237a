#!/bin/sh
# The live part of the demo: the small model of examples/demo-model decides by itself what to call
# and what to say, nothing is forced. It is asked about a file of this repository and a log, killed,
# started again, and asked about the first file once more. Each answer is compared with the file that
# it must come from; a wrong one is a failure.
#   scripts/demo/live.sh WORK     after a build; WORK: an empty folder for the store, mode 0700
set -eu
cd "$(dirname "$0")/../.."
work=$1
build=${AGENTD_BUILD:-build}
session=live
folder=build/live
log=$folder/nightly.log
export AGENTD_SOCKET="$work/live.sock"

fail() {
    printf '\ndemo: FAILED: %s\n' "$*" >&2
    tail -n 20 "$work/live.log" >&2
    exit 1
}
daemon=
cleanup() { [ -z "$daemon" ] || kill "$daemon" 2> /dev/null || true; }
trap cleanup EXIT
trap 'exit 130' INT TERM

start_daemon() {
    "$build/agentd" serve -m examples/demo-model/checkpoint --socket "$AGENTD_SOCKET" \
        --store "$work/live-store" >> "$work/live.log" 2>&1 &
    daemon=$!
    tries=0
    until "$build/agentctl" status -q > /dev/null 2>&1; do
        kill -0 "$daemon" 2> /dev/null || fail "agentd did not start"
        tries=$((tries + 1))
        [ $tries -lt 300 ] || fail "agentd does not answer"
        sleep 0.1
    done
}
first_turn() {
    "$build/agentctl" run -n $session -C . --approve auto --thinking chat --temperature 0 \
        --tools grep,list_dir,read_file --max-tokens 400 "$1" 2> "$work/stderr"
}
next_turn() { "$build/agentctl" send $session "$1" 2> "$work/stderr"; }
n_calls() { "$build/agentctl" logs --jsonl $session | grep -c '"kind":"tool_call"' || true; }
show() { # PROMPT ANSWER
    printf '   > %s\n' "$1"
    grep '^→' "$work/stderr" | sed 's/^/     /' || true
    printf '     %s\n' "$2"
}
want() { # WANTED ANSWER
    [ "$1" = "$2" ] || fail "the answer is \"$2\", the file says \"$1\""
}

# 24 lines of a made-up job; the same on every machine.
mkdir -p "$folder"
awk 'BEGIN {
    split("INFO INFO INFO WARN ERROR", level, " ")
    for (i = 0; i < 24; i++) {
        seed = (seed * 69069 + 20261130) % 2147483648
        s += seed % 7
        printf "%02d:%02d %s job %d took %d\n", 1 + int(s / 60), s % 60, level[1 + int(seed / 64) % 5],
            4100 + 7 * i + int(seed / 4096) % 7, 10 + int(seed / 65536) % 900
    }
}' > "$log"

start_daemon
prompt='What is `ColumnLimit` in .clang-format?'
answer=$(first_turn "$prompt")
show "$prompt" "$answer"
style=$(grep '^ColumnLimit' .clang-format)
want "$style" "$answer"

job=$(awk 'NR == 17 { print $3 " " $4 }' "$log")
prompt="What is \`$job\` in the nightly file in $folder?"
answer=$(next_turn "$prompt")
show "$prompt" "$answer"
want "$(sed -n "s/.*\($job \)/\1/p" "$log")" "$answer"

kill -KILL "$daemon"
wait "$daemon" 2> /dev/null || true
start_daemon
echo "   [agentd is killed with SIGKILL and started again]"

calls=$(n_calls)
prompt='What was `ColumnLimit`?'
answer=$(next_turn "$prompt")
show "$prompt" "$answer"
want "$style" "$answer"

prompt='What is `job 9876`?'
answer=$(next_turn "$prompt")
show "$prompt" "$answer"
! grep -q 'job 9876' "$log" || fail "the log has a job 9876"
want 'job 9876 is not there.' "$answer"

[ "$(n_calls)" -eq "$calls" ] || fail "an answer about what had been read took another call"
restored=$("$build/agentctl" show --json $session | sed -n '/^  "resume"/,/^  }/s/^    "restored": \([0-9]*\).*/\1/p')
[ "${restored:-0}" -gt 0 ] || fail "nothing was restored from disk"
echo "   every answer is as the files say; after the kill $restored tokens came from disk, and no call was needed"
