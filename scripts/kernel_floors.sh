#!/bin/sh
# Prints the table of docs/kernels.md: for each CUDA kernel at shapes of the released model, its
# operations, least bytes, floor on an H200, and registers as ptxas reports them (after make cuda).
#   scripts/kernel_floors.sh [BUILD_DIR]
# The last column is a prediction, not a measurement; the text of docs/kernels.md says how it is made.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
ls "$build"/obj/cuda/kernels/*.log >/dev/null 2>&1 || { echo "run make cuda first" >&2; exit 1; }
cat "$build"/obj/cuda/kernels/*.log | awk '
BEGIN {
    # H200: bf16 tensor cores, memory; lanes that issue one instruction a clock; per multiprocessor and
    # clock: operations by mma.sync (0.62 of 989 TFLOP/s), bytes of shared memory.
    FLOPS = 790e12; BYTES = 4.3e12; SMS = 132; CLOCK = 1.8e9; LANES = SMS * 128 * CLOCK
    MMA = 613e12 / SMS / CLOCK; SHARED = 128
    D = 5120; HC = 4; HEADS = 64; d = 512; Q = 1280; INTER = 2304; EXPERTS = 384; TOP = 6
    LIST = 128 + 512; IH = 32; ID = 128; CONTEXT = 1048576
}
# Registers of the sm_90a code of each kernel, the largest over its variants.
/Compiling entry function/ { split($0, q, "\047"); name = q[2]; wanted = q[4] == "sm_90a"; next }
/Used [0-9]+ registers/ && wanted {
    for (i = 1; i <= NF; i++) if ($i == "registers,") n = $(i - 1)
    for (i = 1; i <= NF; i++) if ($i == "registers") n = $(i - 1)
    regs[name] = n
}
function registers(kernel, m, best) {
    best = 0
    for (m in regs) if (index(m, length(kernel) kernel) && regs[m] > best) best = regs[m]
    return best
}
# ops: multiply-adds times two; bytes: each input and output once; work: instructions of the lanes;
# blocks: of the launch, one to a multiprocessor below 132. Where clocks are given, they are those of a
# block that has a multiprocessor to itself, its phases one after another, and there is no work.
function row(kernel, what, shared, ops, bytes, tensor, work, blocks, clocks, t, floor, time) {
    floor = bytes / BYTES
    t = ops / FLOPS
    if (t > floor) floor = t
    time = clocks ? ceil(blocks / SMS) * clocks / CLOCK : work / LANES * (blocks < SMS ? SMS / blocks : 1)
    if (!clocks && blocks < SMS && floor * SMS / blocks > time) time = floor * SMS / blocks
    if (floor > time) time = floor
    if (time < 2e-6) time = 2e-6
    printf "| `%s` | %s | %.3g | %.3g | %.2f | %d | %s | %s | %.0f %% |\n", kernel, what, ops / 1e9,
        bytes / 1e6, floor * 1e6, registers(kernel), shared, tensor ? "yes" : "", 100 * floor / time
}
END {
    print "| kernel | shape | GFLOP | MB | floor us | registers | shared bytes | tensor cores | predicted |"
    print "|---|---|---|---|---|---|---|---|---|"
    V = 129280
    for (s = 1; s <= 2; s++) {
        n = s == 1 ? 1 : 2048
        t = n " token" (n > 1 ? "s" : "")
        row("embed_token", t, 0, 0, n * (2 * D + 4 * HC * D), 0, n * D * 12, n)
        row("hc_mix_token", t, 960, 2 * n * 24 * HC * D, 24 * HC * D * 4 + n * HC * D * 4, 0, n * 25 * HC * D * 3, n)
        row("hc_collapse_value", t, 0, 2 * n * HC * D, n * (HC + 1) * D * 4, 0, n * D * 30, n * 20)
        row("hc_update_channel", t, 0, 2 * n * HC * (HC + 1) * D, n * (2 * HC + 1) * D * 4, 0, n * D * 90, n * 20)
        row("rmsnorm_row", t, 32, 3 * n * D, 2 * n * D * 4, 0, n * D * 20, n)
        k = n <= 8 ? 5760 : 15360
        row(n <= 8 ? "linear_mma_part" : "linear_mma", t ", wq_a 1280 x 5120 FP8", k, 2 * n * Q * D, Q * D * 33 / 32 + n * (D + Q) * 4, 1, lin(n, Q, D), grid(n, Q, 8))
        row("linear_mma", t ", wq_b 32768 x 1280 FP8", k, 2 * n * HEADS * d * Q, HEADS * d * Q * 33 / 32 + n * (Q + HEADS * d) * 4, 1, lin(n, HEADS * d, Q), grid(n, HEADS * d, 1))
        row(n <= 8 ? "linear_mma_part" : "linear_mma", t ", wo_b 5120 x 8192 FP8", k, 2 * n * D * 8192, D * 8192 * 33 / 32 + n * (D + 8192) * 4, 1, lin(n, D, 8192), grid(n, D, 2))
        row("rope_pair", t ", 64 heads", 0, 6 * n * HEADS * 32, 2 * n * HEADS * 64 * 4, 0, n * HEADS * 32 * 40, n * 16)
        row("encode_group", t ", 512 FP4", 0, 3 * n * d, n * (d * 4 + 288), 0, n * d * 25, n / 4)
        h = n > 1 ? 64 : 16
        row(n > 1 ? "attention_mma" : "attention_mma_tile", t ", 640 keys", attention_shared(h), 4 * n * HEADS * LIST * d, n * (2 * HEADS * d * 4 + 512 * 288 + 128 * 528), 1, 0, n > 1 ? n : LIST / 64 * HEADS / 16, (n > 1 ? LIST / 64 : 1) * tile_clocks(h))
        together = n > 1 ? 32 : 1
        row("index_score_mma", t ", 1M context, ratio 2", 33152, 2 * n * IH * ID * CONTEXT / 2, (n > 1 ? n / 64 : 1) * CONTEXT / 2 * 68 + n * CONTEXT / 2 * 4, 1, 0, n / together * CONTEXT / 2 / 512, 512 * ID * 5 / 128 + together * query_clocks())
        row("index_choose_rows", t ", 524,288 scores", 1088, 0, n * CONTEXT / 2 * 4, 0, n * CONTEXT / 2 * 60, n)
        row("route_token", t ", 384 experts", EXPERTS * 8, 0, n * EXPERTS * 4, 0, n * EXPERTS * 250, n)
        e = n * TOP < EXPERTS ? n * TOP : EXPERTS
        row("moe_mma", t ", 6 of 384 FP4, w1 w3 w2", n * TOP > 16 * EXPERTS ? 15360 : 6400, 6 * n * TOP * INTER * D, e * 3 * INTER * D * 17 / 32 + n * 2 * D * 4, 1, 3 * moe(n * TOP, e, INTER, D), e * INTER / 64)
        row("engram_gate_stream", t, 16, 10 * n * HC * D, n * (3 * HC + 1) * D * 4, 0, n * HC * D * 30, n * HC)
    }
    # Draws; double is half as fast as float. In the order: 66 exchanges of pairs, then six merges, of which
    # one is a row here. A sum is one block a row: its rounds of 4,096 terms, and about twenty where the
    # place of the sum changes, each two scans of a warp and one of warps.
    for (n = 1; n <= 16; n += 15) {
        t = n " row" (n > 1 ? "s" : "") ", 129,280 ids"; parts = n * ceil(V / 2048)
        row("sample_look", t, 128, 0, n * V * 4, 0, n * V * 25, parts)
        row("sample_weigh", t, 128, 45 * n * V, n * V * 12, 0, n * V * 150, parts)
        row("sample_sort", t, 24576, 0, n * V * 20, 0, n * V * 66 / 2 * 14, parts)
        row("sample_merge", t ", one of six", 0, 0, n * V * 24, 0, n * V * 17 * 10, parts)
        row("sample_draw", t, 528, n * V, n * V * 8, 0, 0, n, (ceil(V / 4096) + 20) * 700)
    }
}
# Instructions of staging (expanding a weight: 4.5 a value, an input: 1.5) and of fragments and products.
function lin(n, out, in_, rows, outs) {
    rows = n <= 8 ? 8 : 64; outs = n <= 8 ? 64 : 128
    return ceil(n / rows) * out * in_ * 4.5 + ceil(out / outs) * n * in_ * 1.5 + \
        ceil(n / rows) * rows * out * in_ / 2048 * 32 * (n <= 8 ? 7 : 2.5)
}
function moe(pairs, experts, out, in_, wide, rows, tiles) {
    wide = pairs > 16 * EXPERTS; rows = wide ? 64 : 16
    tiles = pairs / rows > experts ? pairs / rows : experts
    rows = pairs / tiles
    return tiles * (out * in_ * 4.5 + rows * in_ * out / (wide ? 128 : 64) * 1.5 + \
        ceil(rows / 8) * 8 * out * in_ / 2048 * 32 * (wide ? 2.5 : 5))
}
function grid(n, out, parts) { return n <= 8 ? ceil(out / 64) * parts : ceil(n / 64) * ceil(out / 128) }
# A tile of 64 keys for h heads: decoding (5 instructions a value), the larger of products and shared
# memory for scores, weights (45 instructions each), the same for values, adding them. Each product
# is made of two terms.
function tile_clocks(h, product, scores, values) {
    product = h * 64 * d * 2 * 2 / MMA
    scores = (8 * 16 * d * 4 + h / 16 * 64 * d * 2) / SHARED
    values = (h / 16 * 64 * d * 2 + h * 4096) / SHARED # keys, and the weights for each 32 columns
    return (h == 16 ? 16 * d * 12 / 128 : 0) + 64 * d * 5 / 128 + larger(product, scores) + \
        h * 64 * 45 / 128 + larger(product, values) + h * d * 2 / 128
}
function attention_shared(h) {
    return 2 * h * 520 * 2 + 64 * 520 * 2 + 2 * h * 72 * 2 + (8 * 16 / h + 8 + 1) * h * 4 + 64 * 5
}
# A query against 512 rows: the larger of products, shared memory (each warp reads the query) and
# instructions (fragments, products; then weights of 32 x 512 products).
function query_clocks(issue) {
    issue = 8 * (IH / 8 * (ID / 16 * 5 + 64) + 50) / 4
    return larger(larger(2 * IH * 512 * ID / MMA, 8 * IH * ID * 2 / SHARED), issue)
}
function larger(x, y) { return x > y ? x : y }
function ceil(x) { return int(x) == x ? x : int(x) + 1 }
'
