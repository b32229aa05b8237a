#include "agentd/verb_text.h"

#include <stdio.h>
#include <unistd.h>

#include "agentd/verbs.h"
#include "base/fs.h"
#include "base/json.h"
#include "engine/unicode.h"

bool verb_text_options(const struct command *c, int argc, char **argv, void *values,
                       int *exit_code)
{
    struct options o;
    struct error e = {0};
    enum err rc = options_parse(c, argc, (const char *const *)argv, values, &o, &e);
    if (!rc && !o.help)
        return false;
    if (rc)
        fprintf(stderr, "agentd %s: %s\n", c->name, e.msg);
    else
        options_usage(c, "agentd", stdout);
    *exit_code = rc ? EXIT_USAGE : EXIT_DONE;
    return true;
}

int verb_text_fail(const char *verb, enum err rc, const struct error *e)
{
    int code = verb_fail(verb, rc, e);
    return rc == ERR_FORMAT || rc == ERR_INVAL || rc == ERR_UNSUPPORTED ? EXIT_FAILED : code;
}

enum err verb_text_read(struct buf *out, struct error *e)
{
    return fs_read_fd(STDIN_FILENO, "stdin", out, e);
}

enum err verb_text_write(const void *bytes, size_t n, struct error *e)
{
    return fs_write(STDOUT_FILENO, "stdout", bytes, n, e);
}

enum err verb_text_write_json(const json_t *v, struct error *e)
{
    AUTO(buf) struct buf out = BUF_INIT(8ull * VERB_TEXT_MAX_BYTES);
    enum err rc = json_write(v, 0, &out, e);
    if (!rc)
        rc = buf_add_byte(&out, '\n', e);
    return rc ? rc : verb_text_write(out.data, out.len, e);
}

json_t *verb_text_string(const void *bytes, size_t n)
{
    AUTO(buf) struct buf clean = BUF_INIT(3 * n + 8);
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        unsigned len = utf8_decode(p + i, n - i, &cp);
        if (len ? buf_add(&clean, p + i, len, NULL) : buf_add_str(&clean, "\xef\xbf\xbd", NULL))
            return NULL;
        i += len ? len : 1;
    }
    return json_stringn(buf_str(&clean), clean.len);
}
