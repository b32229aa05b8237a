#include "agentd/names.h"

#include <stdio.h>

static const char *const qualities[] = {
    "able",    "amber",  "brave",  "brisk", "bright", "calm",   "clear",  "clever",
    "cosy",    "crisp",  "daring", "deft",  "eager",  "early",  "fair",   "fleet",
    "fond",    "frank",  "gentle", "glad",  "golden", "grand",  "happy",  "hardy",
    "honest",  "humble", "jolly",  "keen",  "kind",   "lively", "loyal",  "lucid",
    "lunar",   "mellow", "merry",  "mild",  "modest", "neat",   "nimble", "noble",
    "patient", "plain",  "polite", "prime", "proud",  "quick",  "quiet",  "rapid",
    "ready",   "robust", "rosy",   "sage",  "silent", "silver", "smooth", "solar",
    "solid",   "steady", "sunny",  "swift", "tidy",   "vivid",  "warm",   "wise",
};

static const char *const animals[] = {
    "badger",   "beaver",   "bison",   "bittern", "camel",  "crane",   "cricket", "curlew",
    "dolphin",  "dormouse", "eagle",   "egret",   "ermine", "falcon",  "ferret",  "finch",
    "gecko",    "gibbon",   "goose",   "grouse",  "hare",   "heron",   "hoopoe",  "ibex",
    "ibis",     "jackdaw",  "kestrel", "kiwi",    "koala",  "lark",    "lemur",   "linnet",
    "llama",    "lynx",     "marmot",  "marten",  "martin", "mole",    "moose",   "newt",
    "ocelot",   "osprey",   "otter",   "owl",     "panda",  "pelican", "pika",    "plover",
    "puffin",   "quail",    "rabbit",  "raven",   "robin",  "seal",    "shrew",   "sparrow",
    "squirrel", "stork",    "swan",    "tapir",   "tern",   "vole",    "walrus",  "wren",
};

void name_make(uint64_t draw, unsigned suffix, char *out, size_t cap)
{
    const size_t n_qualities = sizeof(qualities) / sizeof(qualities[0]);
    const size_t n_animals = sizeof(animals) / sizeof(animals[0]);
    const char *quality = qualities[draw % n_qualities];
    const char *animal = animals[draw / n_qualities % n_animals];

    if (suffix)
        snprintf(out, cap, "%s-%s-%u", quality, animal, suffix);
    else
        snprintf(out, cap, "%s-%s", quality, animal);
}
