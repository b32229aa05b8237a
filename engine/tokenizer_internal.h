/* The parts of struct tokenizer, for the files that fill and use it. */
#ifndef ENGINE_TOKENIZER_INTERNAL_H
#define ENGINE_TOKENIZER_INTERNAL_H

#include "engine/bpe.h"
#include "engine/tokenizer.h"

#define TOKENIZER_MAX_ID (1u << 22)
#define TOKENIZER_MAX_TOKEN_BYTES 4096u

struct token {
    uint32_t off; /* into tokenizer.bytes */
    uint16_t len;
    bool exists : 1, is_added : 1, is_text : 1; /* 8 bytes in all: a sampler asks for each */
};

struct tokenizer {
    struct buf bytes;     /* what every token stands for, one after the other */
    struct token *tokens; /* by id */
    uint32_t n_tokens, token_cap;
    uint32_t *added; /* ids of added tokens, ascending by their bytes */
    uint32_t n_added;
    struct bpe bpe;
    struct token_cache *cache; /* NULL: none */
};

/* A tokenizer without tokens. */
NODISCARD enum err tokenizer_new(struct tokenizer **out, struct error *e);
/* Gives id its bytes. ERR_FORMAT when it has some already, ERR_LIMIT for id or length. */
NODISCARD enum err tokenizer_put(struct tokenizer *t, uint32_t id, const void *bytes, size_t n,
                                 bool is_added, struct error *e);
/* Sorts the added tokens once all are put. ERR_FORMAT for two with one text or an empty one. */
NODISCARD enum err tokenizer_index_added(struct tokenizer *t, struct error *e);

/* The GPT-2 alphabet: every byte as a printable character. */
uint32_t tokenizer_byte_to_char(uint8_t byte);
/* The byte of a character, or -1. */
int tokenizer_char_to_byte(uint32_t cp);

#endif
