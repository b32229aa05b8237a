#!/bin/sh
# Types the commands of a page of documentation, as its reader would, and compares what they print.
#   tests/agentd/quickstart.sh PAGE [GOT]     exit 1, with a diff, when something else was printed;
#                                             GOT: a file for what was
# A line "    $ command" of the page is a command ("    > ..." goes on with it); the indented lines
# below it are its output, stdout and stderr together. All of them run in one shell, in the top
# folder of the tree, with a home of their own. After "... &" the daemon is waited for. Progress
# bars, which depend on the speed of the machine, are not compared.
set -eu
cd "$(dirname "$0")/../.."
page=$1
home=$(mktemp -d)
trap 'for pid in $(cat "$home/pids" 2> /dev/null); do kill -KILL "$pid" 2> /dev/null || true; done; rm -rf "$home"' EXIT
mkdir -m 700 "$home/run" "$home/tmp"

# The page as a script that prints each command in front of what it printed.
awk -v home="$home" '
    function flush() {
        if (command == "")
            return
        quoted = shown
        gsub(/\047/, "\047\\\047\047", quoted)
        printf "printf \047%%s\\n\047 \047%s\047\n", quoted
        if (command ~ /&$/)
            printf "%s\necho $! >> %s/pids\nready\n", command, home
        else
            print command
        command = ""
    }
    /^    \$ / { flush(); shown = $0; command = substr($0, 7); next }
    /^    > / && command != "" { shown = shown "\n" $0; command = command "\n" substr($0, 7); next }
    { flush() }
    END { flush() }' "$page" > "$home/commands"
{
    echo 'ready() { n=0; until build/agentctl status -q > /dev/null 2>&1 || [ $n -gt 300 ]; do n=$((n + 1)); sleep 0.1; done; }'
    cat "$home/commands"
    echo "kill \$(cat $home/pids) 2> /dev/null"
} > "$home/script"
[ -s "$home/commands" ] || { echo "quickstart: no command in $page" >&2; exit 1; }

# What the page says: its commands and their output.
awk '/^    / { print; next } ' "$page" > "$home/want"

# Output stands on the page with four blanks in front, as the commands do.
env -u AGENTD_SOCKET HOME="$home" TMPDIR="$home/tmp" XDG_RUNTIME_DIR="$home/run" XDG_STATE_HOME= XDG_DATA_HOME= \
    XDG_CONFIG_HOME= XDG_CACHE_HOME= NO_COLOR=1 sh "$home/script" 2>&1 < /dev/null |
    grep -v '^prefill' | awk '/^    [$>] / { print; next } { print "    " $0 }' > "$home/got"
[ -z "${2:-}" ] || cp "$home/got" "$2"
diff -u "$home/want" "$home/got"
