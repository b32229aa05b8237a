#include "agentd/schema.h"

#include <stdio.h>

#include "agentd/protocol.h"
#include "agentd/verbs.h"

/* One notation into a field of an object. */
static enum err add(json_t *to, const char *field, const char *notation, struct error *e)
{
    json_t *schema = NULL;
    enum err rc = schema_read(notation, &schema, e);

    if (!rc && json_object_set_new(to, field, schema))
        rc = err_set(e, ERR_NOMEM, "schema");
    return rc ? err_wrap(e, rc, "%s", field) : OK;
}

/* A reference to a field of a method or notification; a JSON pointer writes a slash as ~1. */
static json_t *reference(const char *section, const char *name, const char *field)
{
    char path[128];
    int n = snprintf(path, sizeof(path), "#/%s/", section);

    for (const char *s = name; *s && n + 3 < (int)sizeof(path); s++)
        n += snprintf(path + n, sizeof(path) - (size_t)n, *s == '/' ? "~1" : "%c", *s);
    return json_pack("{s:s++}", "$ref", path, "/", field);
}

/* ---- the lines -------------------------------------------------------------------- */

/* A line that names a method, and its parameters. */
static json_t *call_line(const char *section, const char *name, bool has_id)
{
    json_t *properties =
        json_pack("{s:{s:s}, s:{s:s}, s:o}", "jsonrpc", "const", "2.0", "method", "const", name,
                  "params", reference(section, name, "params"));
    json_t *line = json_pack("{s:s, s:o, s:[s, s]}", "type", "object", "properties", properties,
                             "required", "jsonrpc", "method");

    if (has_id)
        json_object_set_new(properties, "id", json_pack("{s:s}", "$ref", "#/$defs/Id"));
    else
        json_array_append_new(json_object_get(line, "required"), json_string("params"));
    return line;
}

static json_t *answer_line(json_t *results)
{
    return json_pack("{s:s, s:{s:{s:s}, s:{s:s}, s:{s:o}}, s:[s, s, s]}", "type", "object",
                     "properties", "jsonrpc", "const", "2.0", "id", "$ref", "#/$defs/Id",
                     "result", "anyOf", results, "required", "jsonrpc", "id", "result");
}

static json_t *error_line(void)
{
    return json_pack("{s:s, s:{s:{s:s}, s:{s:s}, s:{s:s}}, s:[s, s, s]}", "type", "object",
                     "properties", "jsonrpc", "const", "2.0", "id", "$ref", "#/$defs/Id",
                     "error", "$ref", "#/$defs/Error", "required", "jsonrpc", "id", "error");
}

/* ---- the sections ----------------------------------------------------------------- */

static enum err add_types(json_t *document, struct error *e)
{
    json_t *types = json_object();
    enum err rc = OK;

    json_object_set_new(document, "$defs", types);
    for (const struct schema_type *t = schema_types; t->name && !rc; t++)
        rc = add(types, t->name, t->notation, e);
    return rc;
}

static enum err add_methods(json_t *document, json_t *lines, struct error *e)
{
    json_t *methods = json_object(), *results = json_array();
    enum err rc = OK;

    json_object_set_new(document, "methods", methods);
    for (const struct schema_method *m = schema_methods; m->name && !rc; m++) {
        json_t *one = json_pack("{s:s}", "description", m->what);
        json_object_set_new(methods, m->name, one);
        if ((rc = add(one, "params", m->params, e)) || (rc = add(one, "result", m->result, e)))
            err_wrap(e, rc, "%s", m->name);
        json_array_append_new(lines, call_line("methods", m->name, true));
        json_array_append_new(results, reference("methods", m->name, "result"));
    }
    json_array_append_new(lines, answer_line(results));
    json_array_append_new(lines, error_line());
    return rc;
}

static enum err add_notifications(json_t *document, json_t *lines, struct error *e)
{
    json_t *all = json_object();
    enum err rc = OK;

    json_object_set_new(document, "notifications", all);
    for (const struct schema_notification *m = schema_notifications; m->name && !rc; m++) {
        json_t *one = json_pack("{s:s}", "description", m->what);
        json_object_set_new(all, m->name, one);
        if ((rc = add(one, "params", m->params, e)))
            err_wrap(e, rc, "%s", m->name);
        json_array_append_new(lines, call_line("notifications", m->name, false));
    }
    return rc;
}

static void add_errors(json_t *document)
{
    json_t *codes = json_array();

    for (const struct schema_code *c = schema_codes; c->code; c++)
        json_array_append_new(
            codes, json_pack("{s:i, s:s}", "const", c->code, "description", c->what));
    json_object_set_new(document, "errors", json_pack("{s:o}", "codes", codes));
}

enum err schema_document(json_t **out, struct error *e)
{
    json_auto_t *document = json_pack(
        "{s:s, s:s, s:s, s:i, s:s}", "$schema", "https://json-schema.org/draft/2020-12/schema",
        "title", "agentd", "description",
        "One line of the control socket, whichever side sends it. Unknown fields are ignored.",
        "protocolVersion", PROTOCOL_VERSION, "version", AGENTD_VERSION);
    json_auto_t *lines = json_array();
    enum err rc;

    if (!document || !lines)
        return err_set(e, ERR_NOMEM, "schema");
    if ((rc = add_types(document, e)) || (rc = add_methods(document, lines, e)) ||
        (rc = add_notifications(document, lines, e)))
        return rc;
    add_errors(document);
    json_object_set(document, "anyOf", lines);
    *out = json_incref(document);
    return OK;
}
