#!/bin/sh
# Speed of this build on this machine: JSON lines while it runs, a table at the end.
#
#   scripts/bench.sh [GROUP...]       or  make bench G="GROUP..."
#
# Groups, in this order when none is named:
#   ceilings  kernels  parts  real-1  real-2  v4mini  mini-40  company  growth  ced  store  resume
#   ingest  repeat  daemon
# Only when named: million, a million tokens through mini-40 (up to an hour); growth-1m, decode
#   there beside decode at 1,024 tokens (minutes); step, a tool step on a session of 119,000 tokens
#   of geom (minutes).
#
# Each figure that has a ceiling is measured in turns with it; what is reported is the median of at
# least five. A limit is that of docs/performance.md, printed with "ok" or "below".
#
#   THREADS=N         default: all cores. With 1, times are CPU times: on a shared machine
#   REPS=N            default 5
#   BENCH_MODELS=DIR  where checkpoints of tests/configs are made once and kept (build/bench);
#                     real-1 takes 7.7 GB, real-2 15 GB
#   LONGEST=N         tokens that growth and step go to (65536, 119000)
#   FROM=FILE         of growth-1m: the state that million left (KEEP=1); without it the rows of
#                     16,384 tokens are repeated
#   TOKENS=N  KV_RESIDENT=BYTES         of million (1048576, 16M); KEEP=1: leaves its state
#                     in build/bench/million.state
#   LLAMA_BENCH=PATH    llama.cpp's bench: measured in turns with v4mini, and its growth
#   LLAMA_SERVER=PATH   llama.cpp's server: its slot restore, in turns with resume
#   AGENTD_PYTHON=PATH  a Python with the package gguf, which makes their models (python3)
#   LLAMA_MODEL=GGUF    in the place of the one of v4mini's shape that is made
set -eu
cd "$(dirname "$0")/.."
models=${BENCH_MODELS:-build/bench}
threads=${THREADS:-$(nproc)}
reps=${REPS:-5}
all="ceilings kernels parts real-1 real-2 v4mini mini-40 company growth ced store resume ingest repeat daemon"
mkdir -p build/bench "$models"
out=build/bench/figures.jsonl
: > "$out"

say() { echo "bench: $*" >&2; }
speed() { build/tests/bench_speed --threads "$threads" --reps "$reps" "$@" | tee -a "$out"; }

# model NAME: a folder with the checkpoint of tests/configs/NAME.json.
model() {
    if [ ! -f "$models/$1/model.safetensors.index.json" ]; then
        say "making $models/$1"
        rm -rf "$models/$1.new"
        build/tests/make_checkpoint "tests/configs/$1.json" "$models/$1.new" >&2
        mv "$models/$1.new" "$models/$1"
    fi
    echo "$models/$1"
}

# llama_model NAME: llama.cpp's model of the shape of tests/configs/NAME.json.
llama_model() {
    if [ ! -f "$models/$1.gguf" ]; then
        say "making $models/$1.gguf"
        "${AGENTD_PYTHON:-python3}" tests/reference/make_llama_model.py "tests/configs/$1.json" \
            "$models/$1.gguf.new" >&2
        mv "$models/$1.gguf.new" "$models/$1.gguf"
    fi
    echo "$models/$1.gguf"
}

# llama MODEL OPTION...: tokens a second of llama-bench, once; one line a test.
llama() {
    of=$1
    shift
    "$LLAMA_BENCH" -m "$of" -t "$threads" -r 1 -o jsonl "$@" |
        sed -n 's/.*"avg_ts": *\([0-9.]*\).*/\1/p'
}

# In turns: ours, theirs. The ratio of each turn; median of all.
beside_llama() {
    dir=$(model v4mini)
    theirs=${LLAMA_MODEL:-$(llama_model v4mini)}
    for i in $(seq "$reps"); do
        build/tests/bench_speed --threads "$threads" --reps 1 -m "$dir" --name turn --prompt 512 \
            layer | awk -F'"value": ' '/"name": "prefill 512"/ {print "p", $2 + 0}
                                       /"name": "decode"/ {print "d", $2 + 0}'
        echo "P $(llama "$theirs" -p 512 -n 0)"
        echo "D $(llama "$theirs" -p 0 -n 32)"
    done | awk '
        { v[$1] = $2 }
        $1 == "D" { prefill[++n] = v["p"] / v["P"]; decode[n] = v["d"] / v["D"]
                    their_p[n] = v["P"]; their_d[n] = v["D"] }
        function middle(a, i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && a[j] < a[j - 1]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
            return a[int((n + 1) / 2)]
        }
        function line(name, theirs, ratio) {
            printf "{\"group\": \"llama.cpp\", \"name\": \"%s\", \"value\": %.6g, " \
                "\"unit\": \"token/s\", \"against\": \"ours/theirs\", \"ratio\": %.4f, " \
                "\"limit\": 1.50, \"at\": \"least\", \"ok\": %s}\n",
                name, theirs, ratio, (ratio >= 1.5 ? "true" : "false")
        }
        END { line("prefill 512", middle(their_p), middle(prefill))
              line("decode 32", middle(their_d), middle(decode)) }' | tee -a "$out"
}

# What 512 tokens of prompt take behind 4,096 others, against behind none: llama.cpp.
llama_growth() {
    theirs=${LLAMA_MODEL:-$(llama_model v4mini)}
    for i in $(seq "$reps"); do
        llama "$theirs" -p 512 -n 0 -d 0,4096 | tr '\n' ' ' | awk 'NF == 2 {print $2, $2 / $1}'
    done | sort -g -k 2 | awk '
        { rate[NR] = $1; ratio[NR] = $2 }
        END { if (!NR) exit 1
              i = int((NR + 1) / 2)
              printf "{\"group\": \"llama.cpp\", \"name\": \"prefill 512 at 4k\", \"value\": %.6g, " \
                  "\"unit\": \"token/s\", \"against\": \"at 0\", \"ratio\": %.4f}\n", rate[i], ratio[i] }' |
        tee -a "$out"
}

# In turns with llama.cpp's slot restore, where that is there.
resume() {
    if [ -n "${LLAMA_SERVER:-}" ]; then
        set -- --llama-server "$LLAMA_SERVER" --llama-model "$(llama_model geom)"
    else
        say "LLAMA_SERVER is not set: no figure of llama.cpp in this run"
    fi
    build/tests/bench_resume -m "$(model geom)" --reps "$reps" "$@" | tee -a "$out"
}

# `agentd bench store` reports its own medians and limits.
store() {
    build/agentd bench store --dir build/bench "$@" | tee build/bench/store.txt >&2
    awk '/ at (least|most) [0-9.]+: / {
        match($0, / at (least|most) /)
        name = substr($0, 1, RSTART - 1); ok = /: met$/ ? "true" : "false"
        side = $0 ~ / at least / ? "least" : "most"
        n = split(name, w, / +/); value = w[n]; if (value == "") value = w[n - 1]
        sub(/ +[0-9.]+ *$/, "", name)
        limit = $0; sub(/.* at (least|most) /, "", limit)
        printf "{\"group\": \"store\", \"name\": \"%s\", \"value\": %s, \"unit\": \"\", " \
            "\"against\": \"disk\", \"ratio\": %s, \"limit\": %.2f, \"at\": \"%s\", \"ok\": %s}\n",
            name, value, value, limit, side, ok
    }' build/bench/store.txt | tee -a "$out"
}

# one GROUP NAME AGAINST COMMAND...: a bench that prints one line with ratio, limit and ok.
one() {
    group=$1 name=$2 against=$3
    shift 3
    "$@" > build/bench/one.json || true # its exit code is the limit's
    sed "s/^{\"bench\": \"[^\"]*\"/{\"group\": \"$group\", \"name\": \"$name\", \"against\": \"$against\", \"at\": \"most\"/" \
        build/bench/one.json | tee -a "$out"
}

run() {
    case $1 in
    ceilings) speed --dir build/bench ceilings ;;
    kernels) build/tests/bench_kernels "$threads" >&2 ;;
    parts) speed parts ;;
    real-1 | real-2) speed -m "$(model "$1")" --name "$1" --run 8 layer ;;
    v4mini)
        speed -m "$(model v4mini)" --name v4mini --prompt 512 layer
        if [ -n "${LLAMA_BENCH:-}" ]; then beside_llama; else
            say "LLAMA_BENCH is not set: no figure of llama.cpp in this run"
        fi ;;
    mini-40) speed -m "$(model mini-40)" --name mini-40 --prompt 512 layer ;;
    company) for of in v4mini mini-40; do speed -m "$(model $of)" --name "$of company" company; done ;;
    growth)
        speed -m "$(model v4mini)" --name "v4mini growth" growth
        speed -m "$(model mini-40)" --name "mini-40 growth" --longest "${LONGEST:-65536}" growth
        if [ -n "${LLAMA_BENCH:-}" ]; then llama_growth; fi ;;
    growth-1m)
        if [ -n "${FROM:-}" ]; then
            speed -m "$(model mini-40)" --name "mini-40 growth" --from "$FROM" \
                --longest "${LONGEST:-1048448}" growth
        else
            speed -m "$(model mini-40)" --name "mini-40 growth" --repeat 16384 \
                --longest "${LONGEST:-1040384}" growth
        fi ;;
    ced) speed -m "$(model mini-40)" --name mini-40 ced ;;
    million)
        build/tests/bench_million -m "$(model mini-40)" --dir build/bench --threads "$threads" \
            --tokens "${TOKENS:-1048576}" --kv-resident "${KV_RESIDENT:-16M}" \
            ${KEEP:+--keep} | tee -a "$out" ;;
    step)
        build/tests/bench_step -m "$(model geom)" --threads "$threads" --reps "$reps" \
            --tokens "${LONGEST:-119000}" | tee -a "$out" ;;
    store) store; store --appends 100 ;;
    resume) resume ;;
    ingest) one ingest "8,000 tokens, demo" "ingested after" build/tests/bench_ingest "$(model demo)" ;;
    repeat) build/tests/bench_repeat -m "$(model geom)" --reps "$reps" | tee -a "$out" ;;
    daemon) one daemon "a stalled reader" "without it" build/tests/bench_readers ;;
    *) say "no group is called \"$1\"; there are: $all million growth-1m step"; exit 2 ;;
    esac
}

for group in ${*:-$all}; do
    run "$group"
done

# The table: one line a figure, the limits last.
awk '
function field(name, text) {
    text = $0
    if (!sub(".*\"" name "\": *", "", text)) return ""
    if (text ~ /^"/) { text = substr(text, 2); sub(/".*/, "", text) } else sub(/[,}].*/, "", text)
    return text
}
BEGIN { printf "\n%-14s %-42s %10s %-9s %7s %-12s %s\n", "group", "figure", "value", "", "ratio", "to", "limit" }
{
    limit = field("limit")
    printf "%-14s %-42s %10s %-9s %7s %-12s %s\n", field("group"), field("name"), field("value"),
        field("unit"), field("ratio"), field("against"),
        limit == "" ? "" : sprintf("at %s %s: %s", field("at"), limit, field("ok") == "true" ? "ok" : "below")
}' "$out" >&2
