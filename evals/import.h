/* Benchmarks that the user has as files, as suites that `run` and `score` take.
 *
 *   ruler          JSONL {"input", "outputs", "answer_prefix"?}; all_match, in tasks named qa*
 *                  any_match
 *   mrcr           JSONL {"prompt": text of a JSON array of {"role", "content"}, "answer"};
 *                  ratio. Messages but the last are the context
 *   graphwalks     JSONL {"prompt", "answer_nodes"}; set_f1
 *   longbench-v2   JSON array, or JSONL, of {"context", "question", "choice_A".. "choice_D",
 *                  "answer"}; choice
 *   infinitebench  JSONL {"context", "input", "answer", "options"?}; all twelve tasks, by the
 *                  file's name (passkey, longbook_qa_eng, ...), each with its own metric; a
 *                  file of another name: ERR_UNSUPPORTED
 *
 * Ids are FORMAT/TASK/LENGTH/ORDINAL: the task is the file's name without its ending, LENGTH
 * the power of two that the prompt's tokens fit in, ORDINAL the line. Nothing of the file is
 * changed or left out; a line that is not of the form is an error that names it. */
#ifndef EVALS_IMPORT_H
#define EVALS_IMPORT_H

#include "engine/tokenizer.h"
#include "evals/suite.h"

/* NULL ends. */
extern const char *const import_formats[];

/* Adds all of a file. ERR_NOTFOUND: no such format; ERR_FORMAT with the line. */
NODISCARD enum err import_file(const char *format, const char *path, const struct tokenizer *t,
                               struct suite_writer *w, struct error *e);

#endif
