/* The --dump file of `agentd score`: planes, rings and the tensors between the layers, as a
 * safetensors file under the names of the golden vectors (tests/golden/README.md). */
#ifndef AGENTD_SCORE_DUMP_H
#define AGENTD_SCORE_DUMP_H

#include "base/state.h"
#include "engine/record.h"

struct dump;

NODISCARD enum err dump_new(struct dump **out, struct error *e);
void dump_free(struct dump *d);

/* PREFIX.window_kv32, .window_pos of all layers now, and window_lo, dec_lo of this moment. An
 * empty prefix: names without a dot in front. */
NODISCARD enum err dump_windows(struct dump *d, const char *prefix, const struct engine *m,
                                const struct seq *s, struct error *e);
/* PREFIX.L{s}.compress_kv32, index_k32 of every KV source. */
NODISCARD enum err dump_planes(struct dump *d, const char *prefix, const struct engine *m,
                               const struct seq *s, struct error *e);
/* pending.L{s}.u32, g32 of every unfinished group. */
NODISCARD enum err dump_pending(struct dump *d, const struct engine *m, const struct seq *s,
                                struct error *e);
NODISCARD enum err dump_i32(struct dump *d, const char *name, int32_t value, struct error *e);
/* What was recorded over the segments of the tape: L{i}.* and prefill_logits of the first input
 * segment, decode.* of every generated position, input_logits and generated_logits. */
NODISCARD enum err dump_record(struct dump *d, const struct record *r,
                               const struct segment *segs, size_t n_segs, struct error *e);
/* Per segment: window_lo [n][layers], dec_lo [n]; lo [n][layers]. */
NODISCARD enum err dump_window_lo(struct dump *d, const int64_t *lo, size_t n,
                                  uint32_t n_layers, struct error *e);

NODISCARD enum err dump_write(const struct dump *d, const char *path, struct error *e);

#endif
