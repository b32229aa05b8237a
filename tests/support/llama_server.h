/* llama.cpp's llama-server as a child, on the loopback: for benches that compare with it.
 * Everything that goes wrong ends the program with a message. */
#ifndef TESTS_SUPPORT_LLAMA_SERVER_H
#define TESTS_SUPPORT_LLAMA_SERVER_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

struct llama_server {
    pid_t pid;
    uint16_t port;
    char log[128];
};

struct llama_options {
    const char *program, *model; /* llama-server; a GGUF file */
    const char *slots;           /* folder that slots are saved to */
    const char *log;             /* file, appended to */
    unsigned threads, context;
};

/* One slot. Waits until it answers, its model loaded and warmed up. */
void llama_start(struct llama_server *s, const struct llama_options *o);
/* POST of a body (taken); the answer, whose status must be 200. */
json_t *llama_post(const struct llama_server *s, const char *path, json_t *body);
/* SIGTERM, waits. */
void llama_stop(struct llama_server *s);

#endif
