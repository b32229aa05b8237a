/* A server for tests of the client side: one thread, one connection at a time, answers decided
 * by a function. It knows framing and nothing else of the protocol, so that it can also break
 * it. */
#ifndef TESTS_SUPPORT_FAKE_SERVER_H
#define TESTS_SUPPORT_FAKE_SERVER_H

#include <jansson.h>
#include <stdbool.h>

struct fake_server;

/* Called in the server's thread for each request. Writes with fake_send and its like; returning
 * false closes the connection. */
typedef bool fake_handler(struct fake_server *s, void *user, const json_t *request);

/* Listens on a socket in a fresh temporary folder. Fails the program when that cannot be done.
 */
struct fake_server *fake_server_new(fake_handler *handler, void *user);
/* Ends the thread, removes socket and folder. */
void fake_server_free(struct fake_server *s);
const char *fake_server_path(const struct fake_server *s);
/* Waits until no handler runs. What the test wrote before is seen by later handlers, what
 * earlier handlers wrote by the test. */
void fake_server_sync(struct fake_server *s);

/* From the handler: one line, n bytes as they are, or an answer to the request. Each blocks
 * until all is written; a peer that is gone is no error here. take_* are consumed. */
void fake_send(struct fake_server *s, const char *bytes, size_t n);
void fake_answer(struct fake_server *s, const json_t *request, json_t *take_result);
void fake_refuse(struct fake_server *s, const json_t *request, int code, const char *message,
                 json_t *take_data);
void fake_notify(struct fake_server *s, const char *method, json_t *take_params);
/* Answers `initialize` and says true; false for every other request. */
bool fake_initialize(struct fake_server *s, const json_t *request);

#endif
