/* agentd tokenize, detokenize: stdin bytes to ids, one a line, and back. */
#include <stdio.h>
#include <string.h>

#include "agentd/verb_text.h"
#include "agentd/verbs.h"

struct tokenize_options {
    const char *model;
    bool special;
};

static const struct option tokenize_table[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct tokenize_options, model), "DIR",
     .help = "folder with tokenizer.json", .required = true},
    {"special", 0, OPTION_FLAG, offsetof(struct tokenize_options, special),
     .help = "match the text of added tokens"},
};

static const struct option detokenize_table[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct tokenize_options, model), "DIR",
     .help = "folder with tokenizer.json", .required = true},
};

static enum err write_ids(const struct ids *ids, struct error *e)
{
    AUTO(buf) struct buf out = BUF_INIT(12 * ids->n + 1);
    enum err rc = OK;
    for (size_t i = 0; i < ids->n && !rc; i++)
        rc = buf_printf(&out, e, "%u\n", ids->v[i]);
    return rc ? rc : verb_text_write(out.data, out.len, e);
}

static enum err tokenize(const struct tokenizer *t, bool special, struct error *e)
{
    AUTO(buf) struct buf in = BUF_INIT(VERB_TEXT_MAX_BYTES);
    AUTO(ids) struct ids ids = IDS_INIT(VERB_TEXT_MAX_BYTES);
    enum err rc = verb_text_read(&in, e);
    if (!rc)
        rc = special ? tokenizer_encode_special(t, buf_str(&in), in.len, &ids, e)
                     : tokenizer_encode(t, buf_str(&in), in.len, &ids, e);
    return rc ? rc : write_ids(&ids, e);
}

const struct command verb_tokenize_command = {"tokenize",
                                              "",
                                              "stdin bytes to token ids, one a line",
                                              OPTION_TABLE(tokenize_table),
                                              OPTION_TABLE_EMPTY,
                                              0,
                                              0};

int verb_tokenize(int argc, char **argv)
{
    struct tokenize_options o = {0};
    struct error e = {0};
    int code;
    if (verb_text_options(&verb_tokenize_command, argc, argv, &o, &code))
        return code;
    struct tokenizer *t = NULL;
    enum err rc = tokenizer_open(&t, o.model, &e);
    if (rc)
        return verb_fail("tokenize", rc, &e);
    rc = tokenize(t, o.special, &e);
    tokenizer_free(t);
    return rc ? verb_text_fail("tokenize", rc, &e) : EXIT_DONE;
}

/* Decimal ids, parted by any white space. */
static enum err read_ids(const struct buf *text, struct ids *out, struct error *e)
{
    static const char white[] = " \t\r\n";
    const char *s = buf_str(text);
    if (strlen(s) != text->len)
        return err_set(e, ERR_FORMAT, "ids: a NUL byte at offset %zu", strlen(s));
    for (s += strspn(s, white); *s; s += strspn(s, white)) {
        size_t n = strcspn(s, white);
        char word[16] = "";
        int64_t id = 0;
        if (n < sizeof word)
            memcpy(word, s, n);
        if (options_parse_int(word, 0, UINT32_MAX - 1, &id, NULL))
            return err_set(e, ERR_FORMAT, "ids: \"%.*s\" is no token id", n < 40 ? (int)n : 40,
                           s);
        enum err rc = ids_add(out, (uint32_t)id, e);
        if (rc)
            return rc;
        s += n;
    }
    return OK;
}

static enum err detokenize(const struct tokenizer *t, struct error *e)
{
    AUTO(buf) struct buf in = BUF_INIT(VERB_TEXT_MAX_BYTES);
    AUTO(buf) struct buf out = BUF_INIT(8ull * VERB_TEXT_MAX_BYTES);
    AUTO(ids) struct ids ids = IDS_INIT(VERB_TEXT_MAX_BYTES);
    enum err rc = verb_text_read(&in, e);
    if (!rc)
        rc = read_ids(&in, &ids, e);
    if (!rc)
        rc = tokenizer_decode(t, ids.v, ids.n, &out, e);
    return rc ? rc : verb_text_write(out.data, out.len, e);
}

const struct command verb_detokenize_command = {"detokenize",
                                                "",
                                                "token ids on stdin to bytes",
                                                OPTION_TABLE(detokenize_table),
                                                OPTION_TABLE_EMPTY,
                                                0,
                                                0};

int verb_detokenize(int argc, char **argv)
{
    struct tokenize_options o = {0};
    struct error e = {0};
    int code;
    if (verb_text_options(&verb_detokenize_command, argc, argv, &o, &code))
        return code;
    struct tokenizer *t = NULL;
    enum err rc = tokenizer_open(&t, o.model, &e);
    if (rc)
        return verb_fail("detokenize", rc, &e);
    rc = detokenize(t, &e);
    tokenizer_free(t);
    return rc ? verb_text_fail("detokenize", rc, &e) : EXIT_DONE;
}
