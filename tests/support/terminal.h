/* agentctl on a pseudo-terminal of its own: what a person at it sees and types. */
#ifndef TESTS_SUPPORT_TERMINAL_H
#define TESTS_SUPPORT_TERMINAL_H

#include <stddef.h>
#include <sys/types.h>

#define TERMINAL_BYTES 65536

struct terminal {
    pid_t pid;
    int master;
    int out; /* stdout when it is no terminal: an unlinked file; else -1 */
    char seen[TERMINAL_BYTES], result[TERMINAL_BYTES];
    size_t n;
    size_t mark; /* terminal_until looks from here on */
};

enum terminal_stdout { STDOUT_TERMINAL, STDOUT_FILE };

/* Starts it as the leader of a session whose terminal this is; argv without the program's name,
 * NULL ends. */
void terminal_start(struct terminal *t, enum terminal_stdout out, const char *const *argv);
#define TERMINAL(t, out, ...) terminal_start(t, out, (const char *const[]){__VA_ARGS__, NULL})
/* Reads until `text` appears behind what the last call has found; fails the test after 20 s. */
void terminal_until(struct terminal *t, const char *text);
/* As if typed; "\x03" is Ctrl-C. */
void terminal_type(struct terminal *t, const char *keys);
/* Reads to the end; the exit code, -signal when killed by one. result holds what went to a
 * file. */
int terminal_end(struct terminal *t);
/* Closes the window: what runs there gets SIGHUP. The same result. */
int terminal_close(struct terminal *t);

#endif
