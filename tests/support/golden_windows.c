#include "tests/support/golden_windows.h"

#include "engine/config.h"
#include "tests/support/test.h"

void golden_windows(struct golden *g, const char *prefix, const struct engine *m,
                    const struct seq *s, double same, double share, double max)
{
    const struct config *c = engine_config(m);
    char name[96];
    snprintf(name, sizeof(name), "%s.window_pos", prefix);
    const int64_t *want_pos = golden_i64(g, name, NULL);
    snprintf(name, sizeof(name), "%s.window_kv32", prefix);
    const float *want = golden_f32(g, name, NULL);
    size_t slots = (size_t)c->n_layers * c->window, d = c->head_dim;
    int64_t *pos = calloc(slots, sizeof(*pos));
    float *keys = calloc(slots, d * sizeof(*keys));
    assert_true(pos && keys);
    for (uint32_t l = 0; l < c->n_layers; l++)
        engine_read_window(s, l, pos + (size_t)l * c->window, keys + (size_t)l * c->window * d);
    for (size_t i = 0; i < slots; i++)
        if (pos[i] != want_pos[i])
            fail_msg("%s: layer %zu, slot %zu holds position %lld, want %lld", prefix,
                     i / c->window, i % c->window, (long long)pos[i], (long long)want_pos[i]);
    assert_mostly(name, keys, want, slots, d, same, share, max);
    free(pos);
    free(keys);
}
