#!/bin/sh
# The recorded trajectory of the demo: what the model "said" in each of its runs, as the array that
# `agentctl run --forced` takes. The tools really run and the model really computes every token;
# only the choice of tokens is recorded, because a random checkpoint cannot talk.
#   scripts/demo/trajectory.sh LOG     (path of the log, from the workspace)
set -eu
log=$1
dsml='｜DSML｜'
# Text on stdin -> one entry. No tabs or other control characters but the newline come here.
entry() {
    sed 's/\\/\\\\/g; s/"/\\"/g' |
        awk 'BEGIN { printf "{\"text\": \"" }
             { printf "%s%s", newline, $0; newline = "\\n" }
             END { printf "\"}" }'
}

# call REASONING TOOL [NAME IS_STRING VALUE]...
call() {
    reasoning=$1 tool=$2
    shift 2
    {
        printf '%s</think>\n\n<%s calls>\n<%s invoke name="%s">\n' "$reasoning" "$dsml" "$dsml" "$tool"
        while [ $# -gt 0 ]; do
            printf '<%s parameter name="%s" string="%s">%s</%s parameter>\n' "$dsml" "$1" "$2" "$3" "$dsml"
            shift 3
        done
        printf '</%s invoke>\n</%s calls>\n' "$dsml" "$dsml"
    } | entry
    printf ',\n'
}

slow="echo begin >> $log.tries; sleep 3; awk '\$2 == \"ERROR\" { n[\$3]++ } END { for (w in n) print n[w], w }' $log; echo end >> $log.tries"

printf '['
call 'First an overview of what lies here.' list_dir
call 'The job writes through the store. How are errors reported in this tree?' \
    read_file path true base/err.h
call 'And how is memory bounded?' read_file path true base/buf.h
call 'Now the log itself: how does it begin?' \
    read_file path true "$log" offset false 1 limit false 90
call 'Normal so far. Which lines are errors?' grep pattern true ERROR path true "$log"
call 'All of one kind: no connection within 500 ms. Count them per worker; the log is long, so this takes a moment.' \
    run command true "$slow"
call 'The call was interrupted and its outcome is unknown. Counting changes nothing, so I do it again.' \
    run command true "$slow"
call 'One worker only. What do its waits look like before it fails?' \
    run command true "grep 'worker-2 ' $log | sed -n 's/.*wait_ms=//p' | head -n 60 | tr '\\n' ' '"
call 'They grow steadily: connections are not given back. What does the middle of the log say?' \
    read_file path true "$log" offset false 180 limit false 90
call 'Who waits on what in this tree? The engine is one owner of resources.' \
    read_file path true engine/engine.h
call 'The tools are the other.' read_file path true tools/tools.h
call 'State goes to disk here:' read_file path true sessions/head.h
call 'And what is a session?' read_file path true sessions/session.h
call 'Where is it all opened?' read_file path true sessions/store.h
call 'How is a client told that all is busy?' grep pattern true 'ERR_BUSY' include true '*.h'
call 'And the end of the log: did the job recover?' \
    read_file path true "$log" offset false 360 limit false 61
call 'It did not. One last figure: how many lines warn of slow connections?' \
    run command true "grep -c WARN $log"
printf '%s</think>%s' \
    'The counts agree with the listing.' \
    'Worker 2 does not give its connections back: its waits grow from line to line until it gets none within 500 ms, which happens 14 times, and no other worker is affected.' |
    entry
printf ']\n'
