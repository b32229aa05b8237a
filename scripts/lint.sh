#!/bin/sh
# `make lint`: the rules of the tree that a compiler does not know. Findings are file:line lines;
# any finding fails. Ends with the ten longest functions, for a look, not as a limit.
set -u
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C
files=$(git ls-files -co --exclude-standard -- '*.c' '*.h' '*.cu' '*.cuh' '*.cc' 2>/dev/null |
    while read -r f; do [ -f "$f" ] && echo "$f"; done)
[ -n "$files" ] || files=$(find . -name build -prune -o -name '*.[ch]' -print | sed 's|^\./||')
failed=0

# Folder rules: who may include whom, what has its only place where, who has a main().
awk '
BEGIN {
    may["base"] = "base"
    may["kernels"] = "base kernels"
    may["engine"] = "base kernels engine"
    may["sessions"] = "base sessions"
    may["tools"] = "base tools"
    may["agentd"] = "base engine sessions tools agentd"
    may["evals"] = "base engine evals agentd/client.h"
    may["examples"] = "base engine examples agentd/client.h"
    only["liburing.h"] = only["curl"] = only["sodium.h"] = "base"
    only["sqlite3.h"] = "sessions"
    only["uv.h"] = "agentd"
    only["immintrin.h"] = only["cuda.h"] = only["cuda_runtime.h"] = only["cublas_v2.h"] = "kernels"
    only["cublasLt.h"] = only["cuda_bf16.h"] = only["cuda_fp8.h"] = "kernels"
    only["cmocka.h"] = "tests"
    n_starts = split("fork vfork clone posix_spawn posix_spawnp execl execle execlp execv execve " \
        "execvp execvpe execveat fexecve", starts, " ")
    n_banned = split("strcpy strcat strncpy sprintf strtok atoi gmtime localtime system popen", \
        banned, " ")
}
function finding(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; bad = 1 }
function calls(name) { return code ~ ("(^|[^A-Za-z0-9_.>])" name "[ \t]*\\(") }
function has_word(list, word) { return index(" " list " ", " " word " ") > 0 }

FNR == 1 {
    folder = FILENAME
    sub(/\/.*/, "", folder)
    product = folder in may
    in_comment = 0
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    path = $0
    sub(/^[^"]*"/, "", path)
    sub(/".*/, "", path)
    target = path
    sub(/\/.*/, "", target)
    if (path !~ /\//)
        finding("include \"" path "\": want \"folder/noun.h\"")
    else if (path ~ /\.c$/)
        finding("includes a source file")
    else if (product && !has_word(may[folder], target) && !has_word(may[folder], path))
        finding(folder " may not include \"" path "\"")
    else if (product && path ~ /_internal\.h$/ && target != folder)
        finding("\"" path "\" is internal to " target)
}
/^[ \t]*#[ \t]*include[ \t]*</ {
    path = $0
    sub(/^[^<]*</, "", path)
    sub(/>.*/, "", path)
    first = path
    sub(/\/.*/, "", first)
    place = path in only ? only[path] : first in only ? only[first] : ""
    if (place != "" && folder != place && folder != "tests")
        finding("<" path "> has its only place in " place)
}
{
    # The line without strings and comments.
    code = $0
    gsub(/\\./, "", code)
    gsub(/"[^"]*"/, "\"\"", code)
    while (1) {
        if (in_comment) {
            if (!match(code, /\*\//)) { code = ""; break }
            code = substr(code, RSTART + 2)
            in_comment = 0
        }
        if (!match(code, /\/\*/)) break
        rest = substr(code, RSTART + 2)
        code = substr(code, 1, RSTART - 1)
        if (match(rest, /\*\//)) code = code " " substr(rest, RSTART + 2)
        else { in_comment = 1; break }
    }
    sub(/\/\/.*/, "", code)
    if (FILENAME != "base/banned.h")
        for (i = 1; i <= n_banned; i++)
            if (calls(banned[i])) finding(banned[i] " is banned (base/banned.h)")
    if (product && folder != "tools" && FILENAME != "base/spawn.c")
        for (i = 1; i <= n_starts; i++)
            if (calls(starts[i])) finding(starts[i] ": processes are started in tools and base/spawn.c only")
    if (product && code ~ /^int main\(/ && (FILENAME !~ /\/main_[^\/]*\.c$/ && folder != "examples" ||
        folder !~ /^(agentd|evals|examples|tools)$/))
        finding("main() lives in agentd, evals, examples and tools, in main_NAME.c")
}
/TODO|FIXME/ { finding("unfinished work") }
END { exit bad }
' $files || failed=1

if command -v clang-format-14 >/dev/null; then
    # The first place of each file is enough: make format does the rest.
    clang-format-14 --dry-run --Werror $files 2>&1 | grep ': error:' | sed 's/ \[-W.*//' |
        awk -F: '!seen[$1]++ { print } END { exit NR > 0 }' || failed=1
else
    echo "clang-format-14 is not there: format not checked"
fi

# A function starts with { in the first column and ends with }; its name stands in front of the
# first ( of the lines before.
functions() {
    awk '
    FNR == 1 { head = ""; start = 0 }
    /^\{/ && head ~ /\(/ { name = head; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name); start = FNR }
    /^\}/ { if (start) print FNR - start + 1, label(FILENAME) ":" start, name; start = 0; head = "" }
    /^[A-Za-z]/ { head = $0 }
    function label(f) { return f == "-" || f == "" ? "-" : f }' "$@"
}
echo "longest functions (lines, place, name, change since main):"
functions $files | sort -rn | head -10 | while read -r lines place name; do
    old=$(git show "main:${place%:*}" 2>/dev/null | functions - |
        awk -v name="$name" '$3 == name { print $1; exit }')
    echo "  $lines  $place  $name  $([ -n "$old" ] && echo "$((lines - old))" || echo new)"
done
[ $failed -eq 0 ] && echo "lint: clean"
exit $failed
