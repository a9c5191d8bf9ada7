/* dialog.h - a conversation: messages, the model's chat template, answers that stream.
 *
 * The whole conversation is rendered and sent for each answer; the engine knows nothing of
 * templates or turns.
 */
#ifndef LLMCTL_DIALOG_H
#define LLMCTL_DIALOG_H

#include "llmctl.h"

struct dialog_options {
    const char *template_file; /* NULL: the model's own */
    const char *system;        /* NULL: none */
    const char *stream;        /* NULL or "bytes", "words", "sentences" */
    struct llm_request request;
    uint32_t spin_us;
    bool length_given; /* -n: else an answer may take what the model's length leaves */
    bool timing;
};

struct dialog;

/* Connects and parses the template. NULL after a message. The options' strings outlive the dialog.
 */
struct dialog *dialog_open(const struct dialog_options *o);
void dialog_close(struct dialog *d);

/* Adds a user message, streams the answer to stdout and keeps it. Interrupted, what came so far is
 * kept. 0, 130 if interrupted, or 1 after a message: then the user message is forgotten. */
int dialog_ask(struct dialog *d, const char *text, size_t bytes);

/* Forgets all messages; `system` (may be NULL: none) becomes the new first one. */
int dialog_reset(struct dialog *d, const char *system);
void dialog_set_timing(struct dialog *d, bool on);
bool dialog_timing(const struct dialog *d);

#endif
