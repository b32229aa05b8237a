/* The table of built-in tools, and what is derived from it. */
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "tools/schema.h"
#include "tools/tools.h"
#include "tools/tools_internal.h"

#define PATH_PARAM "\"path\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 4096, "

static const struct tool table[] = {
    {"edit",
     "Replace text in a file of the workspace. old_string must occur exactly once, byte for "
     "byte, "
     "unless replace_all is true; give enough surrounding lines to make it unique.",
     "{\"type\": \"object\", \"properties\": {" PATH_PARAM
     "\"description\": \"File, relative to the workspace\"}, "
     "\"old_string\": {\"type\": \"string\", \"minLength\": 1, \"description\": \"Text to "
     "replace\"}, "
     "\"new_string\": {\"type\": \"string\", \"description\": \"Text to put in its place\"}, "
     "\"replace_all\": {\"type\": \"boolean\", \"description\": \"Replace every occurrence; "
     "default false\"}}, "
     "\"required\": [\"path\", \"old_string\", \"new_string\"], \"additionalProperties\": "
     "false}",
     TOOL_WRITES},
    {"grep",
     "Search files of the workspace for lines that match a POSIX extended regular expression. "
     "Prints path:line:text. Binary files and .git folders are skipped.",
     "{\"type\": \"object\", \"properties\": {"
     "\"pattern\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 4096, "
     "\"description\": \"Regular expression, or plain text with fixed\"}, " PATH_PARAM
     "\"description\": \"File or folder to search; default the whole workspace\"}, "
     "\"include\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 256, "
     "\"description\": \"Only files whose name (or path, if it has a /) matches this glob, "
     "such "
     "as *.c\"}, "
     "\"fixed\": {\"type\": \"boolean\", \"description\": \"The pattern is plain text\"}, "
     "\"ignore_case\": {\"type\": \"boolean\"}, "
     "\"max_matches\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 10000, "
     "\"description\": \"Stop after this many lines; default 200\"}}, "
     "\"required\": [\"pattern\"], \"additionalProperties\": false}",
     TOOL_READS},
    {"http_fetch",
     "Fetch a text from the network with HTTP GET. Returns status, content type and the text "
     "as it is; a redirect to another host is reported, not followed. Private and local "
     "addresses cannot be fetched from.",
     "{\"type\": \"object\", \"properties\": {"
     "\"url\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 4095, "
     "\"description\": \"http or https URL\"}, "
     "\"max_bytes\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 8388608, "
     "\"description\": \"Read at most this much of the body; default 1048576\"}, "
     "\"timeout_ms\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 120000, "
     "\"description\": \"Time limit in milliseconds; default 30000\"}}, "
     "\"required\": [\"url\"], \"additionalProperties\": false}",
     TOOL_FETCHES},
    {"jobs",
     "See to commands that `run` started in the background: list them, read what one has "
     "printed since it was last read, or kill one. Reading can wait for its end.",
     "{\"type\": \"object\", \"properties\": {"
     "\"action\": {\"type\": \"string\", \"enum\": [\"list\", \"read\", \"kill\"]}, "
     "\"job\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 16, "
     "\"description\": \"Which one, for read and kill\"}, "
     "\"wait_ms\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 600000, "
     "\"description\": \"For read: wait for its end, at most this long; default 0\"}}, "
     "\"required\": [\"action\"], \"additionalProperties\": false}",
     TOOL_KEEPS},
    {"list_dir",
     "List a folder of the workspace: one entry a line, sorted; folders end in /, symbolic "
     "links "
     "show their target, files their size in bytes.",
     "{\"type\": \"object\", \"properties\": {" PATH_PARAM
     "\"description\": \"Folder; default the workspace itself\"}, "
     "\"depth\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 10, "
     "\"description\": \"Levels to descend; default 1\"}}, "
     "\"additionalProperties\": false}",
     TOOL_READS},
    {"read_file", "Read a text file of the workspace, whole or a range of lines.",
     "{\"type\": \"object\", \"properties\": {" PATH_PARAM
     "\"description\": \"File, relative to the workspace\"}, "
     "\"offset\": {\"type\": \"integer\", \"minimum\": 1, "
     "\"description\": \"First line to read, from 1; default 1\"}, "
     "\"limit\": {\"type\": \"integer\", \"minimum\": 1, "
     "\"description\": \"Number of lines; default all\"}}, "
     "\"required\": [\"path\"], \"additionalProperties\": false}",
     TOOL_READS},
    {"run",
     "Run a command with bash and return what it prints (stdout and stderr together). It "
     "begins "
     "in the workspace, or in the folder that an earlier command changed to with cd. There is "
     "no "
     "terminal and no input; processes left in the background are stopped when the command "
     "ends. With background it is started as a job of its own and its name is returned at "
     "once; see to it with the tool jobs.",
     "{\"type\": \"object\", \"properties\": {"
     "\"command\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 100000, "
     "\"description\": \"The command line for bash -c\"}, "
     "\"timeout_ms\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 86400000, "
     "\"description\": \"Time limit in milliseconds; default 120000, in the background "
     "3600000\"}, "
     "\"background\": {\"type\": \"boolean\", \"description\": \"Do not wait for its end; "
     "default false\"}}, "
     "\"required\": [\"command\"], \"additionalProperties\": false}",
     TOOL_EXECUTES},
    {"todo",
     "Keep a list of what is to be done in this session. With items the list is replaced by "
     "them; without, it is shown. It is kept whatever happens to the conversation.",
     "{\"type\": \"object\", \"properties\": {"
     "\"items\": {\"type\": \"array\", \"maxItems\": 100, \"items\": {\"type\": "
     "\"object\", \"properties\": {"
     "\"text\": {\"type\": \"string\", \"minLength\": 1, \"maxLength\": 500}, "
     "\"status\": {\"type\": \"string\", \"enum\": [\"open\", \"active\", \"done\"]}}, "
     "\"required\": [\"text\", \"status\"], \"additionalProperties\": false}, "
     "\"description\": \"The whole new list, in order\"}}, "
     "\"additionalProperties\": false}",
     TOOL_KEEPS},
    {"write_file",
     "Write a file of the workspace: creates it (and missing folders), or replaces its "
     "content.",
     "{\"type\": \"object\", \"properties\": {" PATH_PARAM
     "\"description\": \"File, relative to the workspace\"}, "
     "\"content\": {\"type\": \"string\", \"description\": \"The whole new content\"}}, "
     "\"required\": [\"path\", \"content\"], \"additionalProperties\": false}",
     TOOL_WRITES},
};

enum { N_TOOLS = sizeof table / sizeof table[0] };

const struct tool *tool_list(size_t *n)
{
    *n = N_TOOLS;
    return table;
}

const struct tool *tool_find(const char *name)
{
    for (size_t i = 0; name && i < N_TOOLS; i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

static enum err no_such_tool(const char *name, struct error *e)
{
    char safe[48], all[160];
    size_t n = 0;
    for (; name && name[n] && n + 1 < sizeof safe; n++)
        safe[n] = name[n] > 0x20 && name[n] < 0x7F ? name[n] : '?';
    safe[n] = '\0';
    n = 0;
    for (size_t i = 0; i < N_TOOLS && n < sizeof all; i++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", table[i].name);
    return err_set(e, ERR_NOTFOUND, "there is no tool \"%s\"; there is %s", safe, all);
}

static json_t *function_object(const struct tool *t)
{
    json_t *parameters = json_loads(t->parameters, JSON_REJECT_DUPLICATES, NULL);
    return json_pack("{s:s, s:s, s:o}", "name", t->name, "description", t->description,
                     "parameters", parameters);
}

enum err tool_functions(const char *const *names, size_t n_names, bool may_fetch, json_t **out,
                        struct error *e)
{
    bool wanted[N_TOOLS] = {false};
    for (size_t i = 0; i < n_names; i++) {
        const struct tool *t = tool_find(names[i]);
        if (!t)
            return no_such_tool(names[i], e);
        if (t->risk == TOOL_FETCHES && !may_fetch)
            return err_set(e, ERR_DENIED, TOOL_FETCH_OFF, t->name);
        wanted[t - table] = true;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < N_TOOLS; i++) {
        bool is_off = table[i].risk == TOOL_FETCHES && !may_fetch;
        if (n_names ? !wanted[i] : is_off)
            continue;
        if (json_array_append_new(list, function_object(&table[i])) != 0) {
            json_decref(list);
            return err_set(e, ERR_NOMEM, "tool list: no memory");
        }
    }
    *out = list;
    return OK;
}

enum err tool_check(const char *name, const json_t *arguments, struct error *e)
{
    const struct tool *t = tool_find(name);
    if (!t)
        return no_such_tool(name, e);
    if (!json_is_object(arguments))
        return err_set(e, ERR_INVAL, "%s: arguments: want an object", t->name);
    json_t *schema = json_loads(t->parameters, JSON_REJECT_DUPLICATES, NULL);
    if (!schema)
        return err_set(e, ERR_NOMEM, "%s: no memory for its schema", t->name);
    enum err rc = schema_check(schema, arguments, e);
    json_decref(schema);
    return rc ? err_wrap(e, rc, "%s", t->name) : OK;
}

enum err tool_mode_parse(const char *s, enum tool_mode *out, struct error *e)
{
    for (int m = TOOL_MODE_READ_ONLY; m <= TOOL_MODE_FULL_ACCESS; m++) {
        if (s && !strcmp(s, tool_mode_name((enum tool_mode)m))) {
            *out = (enum tool_mode)m;
            return OK;
        }
    }
    return err_set(e, ERR_INVAL,
                   "sandbox mode \"%.40s\": want read-only, workspace-write or full-access",
                   s ? s : "");
}

const char *tool_mode_name(enum tool_mode mode)
{
    static const char *const names[] = {"read-only", "workspace-write", "full-access"};
    return names[mode];
}

const char *tool_end_name(enum tool_end end)
{
    static const char *const names[] = {"exited",       "signalled", "timed_out", "cancelled",
                                        "output_limit", "refused",   "lost"};
    return names[end];
}
