#!/bin/sh
# A session as a file: written, read by another daemon or a later one, and gone on with. The copy
# has the whole history of the first and nothing in common with it but that.
#
#     make && build/agentd serve -m MODEL &
#     PATH=$PWD/build:$PATH examples/export_import.sh "What is in this folder?" "And how large is it?"
set -eu

if [ $# -ne 2 ]; then
    echo "usage: export_import.sh PROMPT NEXT_PROMPT" >&2
    exit 2
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bundle=$folder/session.agentd

# -d prints the name and comes back at once; wait prints the answer.
name=$(agentctl run -d --approve never "$1")
echo "first: $(agentctl wait "$name")"

agentctl export "$name" -o "$bundle" >/dev/null
# Everything in a bundle is checked before anything of it is taken; --dry-run stops there.
agentctl import "$bundle" --dry-run >/dev/null
copy=$(agentctl import "$bundle" -n "$name-copy" --json |
    sed -n 's/.*"name": *"\([^"]*\)".*/\1/p')

# The same tokens: what follows is asked of a session that remembers.
echo "copy: $(agentctl send "$copy" "$2")"
agentctl diff "$name" "$copy" >&2 || true

# For people instead of daemons: without secrets, and without the tokens to go on from.
agentctl export "$name" --redact -o "$folder/readable.agentd" >/dev/null
if agentctl import "$folder/readable.agentd" 2>/dev/null; then
    echo "a redacted bundle was taken" >&2
    exit 1
fi
