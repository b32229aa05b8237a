#include "agentd/cli_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/cli.h"

#define MAX_SHOWN (64u << 20)

/* ---- harmless text -------------------------------------------------------------- */

/* Length of the UTF-8 character at p, and its code point; 0 if there is none. */
static size_t decode_utf8(const uint8_t *p, size_t n, uint32_t *cp)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (len == 0 || len > n || p[0] > 0xf4)
        return 0;
    uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    *cp = c;
    return len;
}

static bool is_control(uint32_t c)
{
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
}

/* Marks, embeddings, overrides and isolates; line and paragraph separators. */
static bool redirects_text(uint32_t c)
{
    return c == 0x061c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

enum err cli_text_add(struct buf *out, const char *text, size_t n, struct error *e)
{
    const uint8_t *p = (const uint8_t *)text;
    enum err rc = OK;
    for (size_t i = 0; i < n && !rc;) {
        uint32_t c = 0;
        size_t len = decode_utf8(p + i, n - i, &c);
        if (len == 0)
            rc = buf_printf(out, e, "\\x%02x", p[i]);
        else if (is_control(c))
            rc = buf_printf(out, e, "\\x%02x", c);
        else if (redirects_text(c))
            rc = buf_printf(out, e, "\\u%04x", c);
        else
            rc = buf_add(out, p + i, len, e);
        i += len ? len : 1;
    }
    return rc;
}

static void print_some(FILE *f, const char *text, size_t n)
{
    AUTO(buf) struct buf b = BUF_INIT(MAX_SHOWN);
    struct error e;
    if (cli_text_add(&b, text, n, &e))
        fprintf(f, "[%zu bytes of text cannot be shown: %s]", n, e.msg);
    else
        fwrite(buf_str(&b), 1, b.len, f);
}

void cli_text_print(FILE *f, const char *text)
{
    print_some(f, text, strlen(text));
}

/* The most of n bytes that does not end inside a character, if the text is UTF-8. */
static size_t whole_characters(const char *text, size_t n)
{
    size_t less = n;
    while (less && n - less < 3 && ((uint8_t)text[less] & 0xc0) == 0x80)
        less--;
    return ((uint8_t)text[less] & 0xc0) == 0x80 ? n : less;
}

void cli_text_print_head(FILE *f, const char *text, size_t n_lines, size_t n_bytes,
                         const char *indent)
{
    size_t total = strlen(text), at = 0;
    for (size_t line = 0; line < n_lines && at < total && at < n_bytes; line++) {
        size_t n = strcspn(text + at, "\n");
        if (n > n_bytes - at)
            n = whole_characters(text + at, n_bytes - at);
        fputs(line ? indent : "", f);
        print_some(f, text + at, n);
        fputs("\n", f);
        at += n + (text[at + n] == '\n');
    }
    if (total == 0)
        fputs("\n", f);
    if (at < total)
        fprintf(f, "%s[%zu bytes more]\n", indent, total - at);
}

/* ---- JSON ----------------------------------------------------------------------- */

void cli_json_print(FILE *f, const json_t *j, bool pretty)
{
    json_dumpf(j, f,
               JSON_ENCODE_ANY | JSON_ENSURE_ASCII | (pretty ? JSON_INDENT(2) : JSON_COMPACT));
    fputs("\n", f);
}

static void print_scalar(FILE *f, const json_t *v)
{
    if (json_is_string(v))
        cli_text_print(f, json_string_value(v));
    else if (json_is_real(v))
        fprintf(f, "%.6g", json_real_value(v));
    else
        json_dumpf(v, f, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    fputs("\n", f);
}

void cli_fields_print(FILE *f, const json_t *j, int indent)
{
    const char *key;
    const json_t *v;
    size_t i;
    if (json_is_array(j)) {
        json_array_foreach(j, i, v) {
            fprintf(f, "%*s- ", indent, "");
            if (json_is_object(v) || json_is_array(v)) {
                fputs("\n", f);
                cli_fields_print(f, v, indent + 2);
            } else {
                print_scalar(f, v);
            }
        }
        return;
    }
    for (void *it = json_object_iter((json_t *)(uintptr_t)j); it;
         it = json_object_iter_next((json_t *)(uintptr_t)j, it)) {
        key = json_object_iter_key(it);
        v = json_object_iter_value(it);
        fprintf(f, "%*s", indent, "");
        cli_text_print(f, key);
        bool nested = json_object_size(v) > 0 || json_array_size(v) > 0;
        fputs(nested ? ":\n" : ": ", f);
        if (nested)
            cli_fields_print(f, v, indent + 2);
        else
            print_scalar(f, v);
    }
}

/* ---- figures -------------------------------------------------------------------- */

/* v with three significant digits, and the letter of its power of 1000. */
static void scale(double v, const char *const *units, size_t n_units, char *out)
{
    size_t u = 0;
    while (fabs(v) >= 999.5 && u + 1 < n_units) {
        v /= 1000;
        u++;
    }
    int digits = u == 0 || fabs(v) >= 99.95 ? 0 : fabs(v) >= 9.995 ? 1 : 2;
    snprintf(out, CLI_FIGURE_BYTES, "%.*f%s", digits, v, units[u]);
}

const char *cli_figure(double v, char out[CLI_FIGURE_BYTES])
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    scale(v, units, 5, out);
    return out;
}

const char *cli_bytes(double v, char out[CLI_FIGURE_BYTES])
{
    static const char *const units[] = {" B", " kB", " MB", " GB", " TB"};
    scale(v, units, 5, out);
    return out;
}

const char *cli_thousands(int64_t v, char out[CLI_FIGURE_BYTES])
{
    char digits[CLI_FIGURE_BYTES];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)(v < 0 ? 0 : v)), k = 0;
    for (int i = 0; i < n && k < CLI_FIGURE_BYTES - 2; i++) {
        if (i && (n - i) % 3 == 0)
            out[k++] = ',';
        out[k++] = digits[i];
    }
    out[k] = 0;
    return out;
}

const char *cli_duration(double ms, char out[CLI_FIGURE_BYTES])
{
    if (ms < 10)
        snprintf(out, CLI_FIGURE_BYTES, "%.1f ms", ms);
    else if (ms < 1000)
        snprintf(out, CLI_FIGURE_BYTES, "%.0f ms", ms);
    else if (ms < 10000)
        snprintf(out, CLI_FIGURE_BYTES, "%.1f s", ms / 1000);
    else if (ms < 120000)
        snprintf(out, CLI_FIGURE_BYTES, "%.0f s", ms / 1000);
    else
        snprintf(out, CLI_FIGURE_BYTES, "%.0f min %.0f s", floor(ms / 60000),
                 fmod(floor(ms / 1000), 60));
    return out;
}

const char *cli_age(int64_t ms_ago, char out[CLI_FIGURE_BYTES])
{
    int64_t s = ms_ago / 1000;
    if (s < 60)
        snprintf(out, CLI_FIGURE_BYTES, "now");
    else if (s < 3600)
        snprintf(out, CLI_FIGURE_BYTES, "%lld min", (long long)(s / 60));
    else if (s < 86400)
        snprintf(out, CLI_FIGURE_BYTES, "%lld h", (long long)(s / 3600));
    else
        snprintf(out, CLI_FIGURE_BYTES, "%lld d", (long long)(s / 86400));
    return out;
}

/* ---- progress ------------------------------------------------------------------- */

#define BAR_CELLS 20

static enum err add_bar(struct buf *out, double part, struct error *e)
{
    int full = (int)(part * BAR_CELLS + 0.5);
    enum err rc = buf_add_str(out, " ▕", e);
    for (int i = 0; i < BAR_CELLS && !rc; i++)
        rc = buf_add_str(out, i < full ? "█" : " ", e);
    return rc ? rc : buf_printf(out, e, "▏ %.0f %%", part * 100);
}

enum err cli_progress_line(const json_t *p, struct buf *out, struct error *e)
{
    char a[CLI_FIGURE_BYTES], b[CLI_FIGURE_BYTES];
    const char *phase = cli_str(p, "phase");
    double done = cli_num(p, "done"), total = cli_num(p, "total");
    double part = total > 0 ? done / total : 0;
    enum err rc = cli_text_add(out, phase, strnlen(phase, 32), e);
    if (!rc && total > 0)
        rc = buf_printf(out, e, " %s/%s", cli_figure(done, a), cli_figure(total, b));
    if (!rc && total > 0)
        rc = add_bar(out, part < 0 ? 0 : part > 1 ? 1 : part, e);
    if (!rc && cli_num(p, "restored") > 0)
        rc = buf_printf(out, e, " · %s from SSD", cli_figure(cli_num(p, "restored"), a));
    if (!rc && cli_num(p, "tokPerSec") > 0)
        rc = buf_printf(out, e, " · %s tok/s", cli_figure(cli_num(p, "tokPerSec"), a));
    if (!rc && cli_num(p, "etaMs") > 0)
        rc = buf_printf(out, e, " · %s", cli_duration(cli_num(p, "etaMs"), a));
    return rc;
}

/* ---- ledger --------------------------------------------------------------------- */

static void print_tokens(FILE *f, const json_t *o, const char *field, const char *what)
{
    char n[CLI_FIGURE_BYTES];
    fprintf(f, "  %-12s %12s   %s\n", field, cli_thousands(cli_int(o, field), n), what);
}

static void print_stages(FILE *f, const json_t *ms)
{
    const char *sep = "  ms per stage ";
    for (void *it = json_object_iter((json_t *)(uintptr_t)ms); it;
         it = json_object_iter_next((json_t *)(uintptr_t)ms, it)) {
        fputs(sep, f);
        cli_text_print(f, json_object_iter_key(it));
        fprintf(f, " %.1f", json_number_value(json_object_iter_value(it)));
        sep = " · ";
    }
    fputs(json_object_size(ms) ? "\n" : "", f);
}

static void print_resume(FILE *f, const json_t *r)
{
    char a[CLI_FIGURE_BYTES], b[CLI_FIGURE_BYTES];
    fputs("resume ", f);
    cli_text_print(f, cli_str(r, "mode"));
    fprintf(f, ": %s tokens on the tape%s\n", cli_thousands(cli_int(r, "tape"), a),
            json_is_false(json_object_get(r, "same_numerics"))
                ? ", rows of another numerics class among them"
                : "");
    fprintf(f, "  %-12s %12s   read from SSD, %s\n", "restored",
            cli_thousands(cli_int(r, "restored"), a), cli_bytes(cli_num(r, "bytes_read"), b));
    print_tokens(f, r, "recomputed", "on the tape, behind the last saved state");
    print_tokens(f, r, "relost", "saved, but lost to damage or eviction: computed again");
    print_tokens(f, r, "replayed", "run again for the windows, planes untouched");
    if (cli_int(r, "extents_damaged"))
        print_tokens(f, r, "extents_damaged", "set aside");
    print_stages(f, json_object_get(r, "ms"));
}

void cli_ledger_print(FILE *f, const json_t *l, const json_t *resume)
{
    char a[CLI_FIGURE_BYTES], b[CLI_FIGURE_BYTES], c[CLI_FIGURE_BYTES];
    if (json_is_object(resume))
        print_resume(f, resume);
    fprintf(f, "turn: %s prompt tokens, %s steps\n",
            cli_thousands(cli_int(l, "prompt_tokens"), a),
            cli_thousands(cli_int(l, "steps"), b));
    print_tokens(f, l, "resident", "in memory when it began");
    print_tokens(f, l, "restored", "from SSD");
    print_tokens(f, l, "recomputed", "on the tape, computed again");
    print_tokens(f, l, "relost", "saved, lost, computed again");
    print_tokens(f, l, "prefilled", "new input");
    if (cli_int(l, "ahead"))
        print_tokens(f, l, "ahead", "of these while tools still ran");
    print_tokens(f, l, "decoded", "new output");
    if (cli_int(l, "reasoning"))
        print_tokens(f, l, "reasoning", "of these inside thinking");
    if (cli_int(l, "drafts_proposed")) {
        print_tokens(f, l, "drafts_proposed", "guessed ahead");
        print_tokens(f, l, "drafts_accepted", "of these as the model chose");
    }
    if (cli_int(l, "drafts_cut"))
        print_tokens(f, l, "drafts_cut", "too unsure to be checked");
    if (cli_int(l, "drafts_failed"))
        print_tokens(f, l, "drafts_failed", "not guessed, the draft layers failed");
    print_tokens(f, l, "replayed", "outside the sum: run again for the windows");
    fprintf(f, "  read %s, written %s\n", cli_bytes(cli_num(l, "bytes_read"), b),
            cli_bytes(cli_num(l, "bytes_written"), c));
    print_stages(f, json_object_get(l, "ms"));
}
