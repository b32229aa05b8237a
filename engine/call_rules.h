/* The rules behind engine/constrain.h as its state machine reads them: names of tools, names of
 * their parameters, and for each parameter what its value may be. Private to engine/. */
#ifndef ENGINE_CALL_RULES_H
#define ENGINE_CALL_RULES_H

#include "engine/constrain.h"
#include "engine/tokenizer.h"

#define CALL_RULES_NAME_BYTES 200u

/* A word that is written byte by byte: a name, or one of the few values that a parameter may
 * have. */
struct rule_word {
    char *text;
    uint16_t len;
    uint8_t types;  /* parameters: those of the value (value_type.h) */
    bool takes_any; /* tools: parameters of any name */
    /* Words in a row, sorted by bytes. Tools: their parameters. Parameters: the strings that
     * the value may be; empty: any. */
    uint16_t first, last;
    /* Parameters: the values that are no strings, as JSON; empty: any of the types. */
    uint16_t first_json, last_json;
};

struct call_rules {
    const struct tokenizer *tokenizer;
    uint32_t mark, eos;
    struct rule_word *words; /* tools, then the parameters of each, then values */
    uint32_t n_tools, n_words;
    /* Ids that are text, mark and EOS left out: bit id % 32 of word id / 32. */
    uint32_t *text, n_text; /* [ceil(n_text / 32)] */
};

#endif
