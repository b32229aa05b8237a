/* agentd/rpc: a line of the control socket. What is taken has a method and an id of an allowed
 * type; what is refused gets an answer that is itself one line of JSON under the line's id. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agentd/rpc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rpc_message m;
    enum rpc_code code;
    struct error e = {0};

    if (rpc_parse((const char *)data, size, &m, &code, &e) == OK) {
        check(m.method[0] != '\0');
        check(!m.params || json_is_object(m.params));
        check(!m.id || json_is_string(m.id) || json_is_integer(m.id) || json_is_null(m.id));
        check(!memchr(data, 0, size));
    } else {
        json_t *answer = rpc_error(m.id, code, &e);
        char *text = json_dumps(answer, JSON_COMPACT);
        check(text && !strchr(text, '\n'));
        free(text);
        json_decref(answer);
    }
    rpc_message_fini(&m);
    return 0;
}
