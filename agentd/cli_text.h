/* How agentctl shows text and figures. Nothing here talks to a daemon.
 *
 * Text that a model, a tool, a file or a daemon wrote may hold terminal escapes. cli_text_*
 * shows line feeds and tabs as they are and every other control character (C0, DEL, C1), every
 * mark that changes the direction of text, and every byte that is not UTF-8 as a spelling:
 * \x1b, \u202e. */
#ifndef AGENTD_CLI_TEXT_H
#define AGENTD_CLI_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"

/* Appends text made harmless. ERR_LIMIT, ERR_NOMEM. */
NODISCARD enum err cli_text_add(struct buf *out, const char *text, size_t n, struct error *e);
/* Writes text made harmless. */
void cli_text_print(FILE *f, const char *text);
/* The same, at most n_lines lines and n_bytes bytes, the lines after the first behind `indent`;
 * says how much was left out. Ends the last line. */
void cli_text_print_head(FILE *f, const char *text, size_t n_lines, size_t n_bytes,
                         const char *indent);

/* JSON for people and machines alike: keys as they came, ASCII only, a newline behind. */
void cli_json_print(FILE *f, const json_t *j, bool pretty);
/* Objects and arrays as indented "name: value" lines, text made harmless. */
void cli_fields_print(FILE *f, const json_t *j, int indent);

#define CLI_FIGURE_BYTES 24
/* "987", "12.3k", "118k", "1.02M": three significant digits. Returns out. */
const char *cli_figure(double v, char out[CLI_FIGURE_BYTES]);
/* "61,204". Returns out. */
const char *cli_thousands(int64_t v, char out[CLI_FIGURE_BYTES]);
/* "512 B", "54.8 MB": powers of 1000. Returns out. */
const char *cli_bytes(double v, char out[CLI_FIGURE_BYTES]);
/* "45 s", "3 min 20 s", "850 ms". Returns out. */
const char *cli_duration(double ms, char out[CLI_FIGURE_BYTES]);
/* How long ago a Unix time is: "now", "5 min", "3 h", "12 d". Returns out. */
const char *cli_age(int64_t ms_ago, char out[CLI_FIGURE_BYTES]);

/* The status line for session/progress: "prefill 118k/203k ▕███▏ 58 % · 96k from SSD · 1.9k
 * tok/s · 45 s". Any text for a phase it does not know. */
NODISCARD enum err cli_progress_line(const json_t *progress, struct buf *out, struct error *e);

/* The turn's ledger, and the resume's if there is one, as a table. */
void cli_ledger_print(FILE *f, const json_t *ledger, const json_t *resume);

#endif
