#include "evals/import.h"

#include <ctype.h>
#include <string.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/json.h"

#define MAX_FILE_BYTES ((size_t)4 << 30)
#define MAX_TEXT_BYTES ((size_t)256 << 20)
#define LONG_ANSWER 4096
#define SHORT_ANSWER 128

/* One sample while it is being read. */
struct item {
    struct buf context, question;
    struct wordlist answers;
    enum suite_metric metric;
    uint32_t max_tokens;
};

struct import {
    const char *format, *task;
    enum err (*read)(const struct import *x, const json_t *line, struct item *out,
                     struct error *e);
    const struct tokenizer *tokenizer;
    struct suite_writer *w;
    uint64_t n;
};

static void item_fini(struct item *i)
{
    buf_fini(&i->context);
    buf_fini(&i->question);
    wordlist_fini(&i->answers);
}

static enum err add_field(struct buf *out, const json_t *o, const char *field, struct error *e)
{
    const char *text;
    size_t n;
    enum err rc = json_need_str(o, field, &text, &n, e);
    return rc ? rc : buf_add(out, text, n, e);
}

static enum err add_answer(struct item *out, const json_t *answer, struct error *e)
{
    char number[32];
    if (json_is_string(answer))
        return wordlist_add(&out->answers, json_string_value(answer),
                            json_string_length(answer), e);
    if (!json_is_number(answer))
        return err_set(e, ERR_FORMAT, "an answer is neither a string nor a number");
    int n = snprintf(number, sizeof number, "%lld", (long long)json_integer_value(answer));
    if (json_is_real(answer)) {
        n = snprintf(number, sizeof number, "%.17g", json_real_value(answer));
        if (!strchr(number, '.') && !strchr(number, 'e'))
            n += snprintf(number + n, sizeof number - (size_t)n, ".0");
    }
    return wordlist_add(&out->answers, number, (size_t)n, e);
}

static enum err add_answers(struct item *out, const json_t *o, const char *field,
                            struct error *e)
{
    json_t *list, *answer;
    size_t i;
    enum err rc = json_need_arr(o, field, &list, e);
    if (rc)
        return rc;
    json_array_foreach(list, i, answer) {
        if (!rc)
            rc = add_answer(out, answer, e);
    }
    return rc;
}

/* ---- the formats ------------------------------------------------------------------------ */

static enum err read_ruler(const struct import *x, const json_t *line, struct item *out,
                           struct error *e)
{
    const char *prefix = "";
    size_t n = 0;
    out->metric = strncmp(x->task, "qa", 2) ? SUITE_ALL_MATCH : SUITE_ANY_MATCH;
    out->max_tokens = SHORT_ANSWER;
    enum err rc = add_field(&out->context, line, "input", e);
    if (!rc)
        rc = add_answers(out, line, "outputs", e);
    if (!rc)
        rc = json_opt_str(line, "answer_prefix", &prefix, &n, e);
    return rc ? rc : buf_add(&out->question, prefix, n, e);
}

static enum err add_message(struct item *out, const json_t *message, bool last, struct error *e)
{
    const char *role;
    enum err rc = json_need_str(message, "role", &role, NULL, e);
    if (rc || last)
        return rc ? rc : add_field(&out->question, message, "content", e);
    if (!*role)
        return err_set(e, ERR_FORMAT, "\"role\": empty");
    rc = buf_printf(&out->context, e, "%c%s: ", toupper((unsigned char)role[0]), role + 1);
    if (!rc)
        rc = add_field(&out->context, message, "content", e);
    return rc ? rc : buf_add_str(&out->context, "\n\n", e);
}

static enum err read_mrcr(const struct import *x, const json_t *line, struct item *out,
                          struct error *e)
{
    static const struct json_limits limits = {.max_bytes = MAX_TEXT_BYTES, .max_depth = 8};
    const char *text;
    size_t n, i;
    json_auto_t *messages = NULL;
    json_t *message;
    (void)x;
    out->metric = SUITE_RATIO;
    out->max_tokens = LONG_ANSWER;
    enum err rc = json_need_str(line, "prompt", &text, &n, e);
    if (!rc)
        rc = json_parse(text, n, &limits, &messages, e);
    if (!rc && !json_array_size(messages))
        rc = err_set(e, ERR_FORMAT, "\"prompt\": want the text of an array of messages");
    json_array_foreach(messages, i, message) {
        if (!rc)
            rc = add_message(out, message, i + 1 == json_array_size(messages), e);
    }
    return rc ? rc : add_answer(out, json_object_get(line, "answer"), e);
}

static enum err read_graphwalks(const struct import *x, const json_t *line, struct item *out,
                                struct error *e)
{
    (void)x;
    out->metric = SUITE_SET_F1;
    out->max_tokens = LONG_ANSWER;
    enum err rc = add_field(&out->context, line, "prompt", e);
    return rc ? rc : add_answers(out, line, "answer_nodes", e);
}

static enum err read_longbench(const struct import *x, const json_t *line, struct item *out,
                               struct error *e)
{
    (void)x;
    out->metric = SUITE_CHOICE;
    out->max_tokens = SHORT_ANSWER;
    enum err rc = add_field(&out->context, line, "context", e);
    if (!rc)
        rc = buf_add_str(&out->question, "\n\nQuestion: ", e);
    if (!rc)
        rc = add_field(&out->question, line, "question", e);
    for (char c = 'A'; c <= 'D' && !rc; c++) {
        const char field[] = {'c', 'h', 'o', 'i', 'c', 'e', '_', c, 0};
        rc = buf_printf(&out->question, e, "\n(%c) ", c);
        if (!rc)
            rc = add_field(&out->question, line, field, e);
    }
    if (!rc)
        rc = buf_add_str(&out->question,
                         "\n\nAnswer in this form: \"The correct answer is (letter)\".", e);
    return rc ? rc : add_answer(out, json_object_get(line, "answer"), e);
}

/* InfiniteBench's tasks, by the names of its files. */
static const struct {
    const char *name;
    enum suite_metric metric;
} infinitebench_tasks[] = {
    {"passkey", SUITE_FIRST_INT},          {"number_string", SUITE_FIRST_INT},
    {"kv_retrieval", SUITE_WORD},          {"code_run", SUITE_LAST_INT},
    {"code_debug", SUITE_CODE_OPTION},     {"math_find", SUITE_FIRST_NUMBER},
    {"math_calc", SUITE_NUMBERS},          {"longdialogue_qa_eng", SUITE_UPPER_WORD},
    {"longbook_choice_eng", SUITE_OPTION}, {"longbook_qa_eng", SUITE_F1_WORDS},
    {"longbook_qa_chn", SUITE_F1_CHARS},   {"longbook_sum_eng", SUITE_ROUGE_LSUM},
};
#define N_INFINITEBENCH (sizeof infinitebench_tasks / sizeof *infinitebench_tasks)

/* The options after the question, and as answers the right one and its letter. */
static enum err read_options(const json_t *line, const json_t *answer, struct item *out,
                             struct error *e)
{
    json_t *options;
    size_t i;
    const json_t *o;
    enum err rc = json_need_arr(line, "options", &options, e);
    if (json_array_size(answer) == 2) /* the letter is there already */
        answer = json_array_get(answer, 0);
    for (i = 0; !rc && (o = json_array_get(options, i)); i++) {
        if (!json_is_string(o) || i == 4)
            return err_set(e, ERR_FORMAT, "\"options\": want four strings");
        rc = buf_printf(&out->question, e, "\n%c. %s", 'A' + (int)i, json_string_value(o));
        if (rc || !json_equal(o, answer) || out->answers.n)
            continue;
        const char letter[] = {(char)('A' + i), 0};
        rc = add_answer(out, o, e);
        if (!rc)
            rc = wordlist_add(&out->answers, letter, 1, e);
    }
    if (!rc && !out->answers.n)
        rc = err_set(e, ERR_FORMAT, "the answer is none of \"options\"");
    return rc ? rc
              : buf_add_str(&out->question, "\n\nAnswer in this form: \"The answer is: A\".",
                            e);
}

static enum err read_infinitebench(const struct import *x, const json_t *line, struct item *out,
                                   struct error *e)
{
    const json_t *answer = json_object_get(line, "answer");
    size_t k = 0;
    while (k < N_INFINITEBENCH && strcmp(x->task, infinitebench_tasks[k].name) != 0)
        k++;
    if (k == N_INFINITEBENCH)
        return err_set(e, ERR_UNSUPPORTED,
                       "no scorer for task \"%.40s\" (the file's name says which)", x->task);
    out->metric = infinitebench_tasks[k].metric;
    out->max_tokens = out->metric == SUITE_NUMBERS || out->metric == SUITE_ROUGE_LSUM
                          ? LONG_ANSWER
                          : SHORT_ANSWER;
    enum err rc = add_field(&out->context, line, "context", e);
    if (!rc)
        rc = buf_add_str(&out->question, "\n\n", e);
    if (!rc)
        rc = add_field(&out->question, line, "input", e);
    if (rc)
        return rc;
    if (json_is_array(answer) && json_array_size(answer) == 1)
        answer = json_array_get(answer, 0);
    if (out->metric == SUITE_OPTION || out->metric == SUITE_CODE_OPTION)
        return read_options(line, answer, out, e);
    if (!json_is_array(answer))
        return add_answer(out, answer, e);
    if (out->metric >= SUITE_F1_WORDS || out->metric == SUITE_NUMBERS)
        return add_answers(out, line, "answer", e);
    return add_answer(out, json_array_get(answer, 0), e);
}

const char *const import_formats[] = {"ruler",        "mrcr",          "graphwalks",
                                      "longbench-v2", "infinitebench", NULL};
static enum err (*const readers[])(const struct import *, const json_t *, struct item *,
                                   struct error *) = {read_ruler, read_mrcr, read_graphwalks,
                                                      read_longbench, read_infinitebench};

/* ---- files ------------------------------------------------------------------------------ */

static enum err count(const struct import *x, const struct item *i, uint64_t *n,
                      struct error *e)
{
    AUTO(ids) struct ids ids = IDS_INIT(MAX_TEXT_BYTES);
    enum err rc = tokenizer_encode(x->tokenizer, i->context.data, i->context.len, &ids, e);
    if (!rc)
        rc = tokenizer_encode(x->tokenizer, i->question.data, i->question.len, &ids, e);
    *n = ids.n;
    return rc;
}

static enum err add_item(void *user, json_t *line, struct error *e)
{
    struct import *x = user;
    AUTO(item)
    struct item i = {.context = BUF_INIT(MAX_TEXT_BYTES),
                     .question = BUF_INIT(MAX_TEXT_BYTES),
                     .answers = WORDLIST_INIT};
    struct suite_sample s = {.answer_prefix = "", .answers = &i.answers, .depth = -1};
    uint64_t n_tokens, length = 1024;
    enum err rc = x->read(x, line, &i, e);
    if (!rc && !i.answers.n)
        rc = err_set(e, ERR_FORMAT, "no answer");
    if (!rc)
        rc = count(x, &i, &n_tokens, e);
    if (rc)
        return rc;
    while (length < n_tokens)
        length *= 2;
    snprintf(s.id, sizeof s.id, "%s/%s/%llu/%llu", x->format, x->task,
             (unsigned long long)length, (unsigned long long)x->n);
    snprintf(s.context, sizeof s.context, "%s/%s/%llu/c%llu", x->format, x->task,
             (unsigned long long)length, (unsigned long long)x->n++);
    s.question = buf_str(&i.question);
    s.n_question = i.question.len;
    s.metric = i.metric;
    s.max_tokens = i.max_tokens;
    rc = suite_add_context(x->w, s.context, n_tokens, buf_str(&i.context), i.context.len, e);
    return rc ? rc : suite_add_sample(x->w, &s, e);
}

/* A file that begins with '[' is one array. */
static enum err read_array(const char *path, struct import *x, bool *is_array, struct error *e)
{
    static const struct json_limits limits = {.max_bytes = MAX_FILE_BYTES, .max_depth = 16};
    AUTO(buf) struct buf text = BUF_INIT(MAX_FILE_BYTES);
    AUTO_FILE FILE *f = fopen(path, "re");
    json_auto_t *all = NULL;
    size_t i;
    json_t *line;
    int c = ' ';
    while (f && c != EOF && isspace(c))
        c = getc(f);
    *is_array = c == '[';
    if (!*is_array)
        return OK;
    enum err rc = fs_read_file(path, &text, e);
    if (!rc)
        rc = json_parse(buf_str(&text), text.len, &limits, &all, e);
    if (rc)
        return err_wrap(e, rc, "%s", path);
    json_array_foreach(all, i, line) {
        rc = add_item(x, line, e);
        if (rc)
            return err_wrap(e, rc, "%s, element %zu", path, i);
    }
    return OK;
}

/* The file's name without folder and ending, what ids cannot have as '_'. */
static void name_task(const char *path, char out[64])
{
    const char *slash = strrchr(path, '/');
    snprintf(out, 64, "%s", slash ? slash + 1 : path);
    out[strcspn(out, ".")] = 0;
    for (char *p = out; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '-')
            *p = '_';
}

enum err import_file(const char *format, const char *path, const struct tokenizer *t,
                     struct suite_writer *w, struct error *e)
{
    char task[64];
    bool is_array = false;
    size_t k = 0;
    while (import_formats[k] && strcmp(import_formats[k], format))
        k++;
    if (!import_formats[k])
        return err_set(e, ERR_NOTFOUND, "no format \"%.40s\"", format);
    name_task(path, task);
    struct import x = {
        .format = format, .task = task, .read = readers[k], .tokenizer = t, .w = w};
    enum err rc = read_array(path, &x, &is_array, e);
    if (!rc && !is_array)
        rc = suite_read_lines(path, add_item, &x, e);
    if (!rc && !x.n)
        rc = err_set(e, ERR_FORMAT, "%s: no samples", path);
    return rc;
}
