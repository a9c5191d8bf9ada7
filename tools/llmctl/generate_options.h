/* generate_options.h - the flags that `complete` and `score` share. */
#ifndef LLMCTL_GENERATE_OPTIONS_H
#define LLMCTL_GENERATE_OPTIONS_H

#include "llmctl.h"

struct generate_options {
    struct prompt_source prompt; /* or jsonl */
    const char *jsonl;
    struct llm_request request;
    struct ctl_sampling sampling;
    uint32_t spin_us;
    bool json, timing, echo;
};

/* Reads the flags. 0, or an exit status; *help is set where --help was printed. */
int generate_options_parse(int argc, char **argv, uint32_t op, struct generate_options *o,
                           bool *help);

/* Makes the jobs: one, or one a line of --jsonl. t may be NULL where no text is needed (then text
 * is refused with the tokenizer's own message by the caller). */
bool generate_needs_tokenizer(const struct generate_options *o);
int generate_jobs(const struct generate_options *o, struct llm_tokenizer *t, struct ctl_job **jobs,
                  size_t *n);
/* Reads --jsonl before connecting, so that the connection can be sized: lines in *lines (a JSON
 * array). */
int generate_lines(const struct generate_options *o, json_t **lines);
int generate_line_jobs(const struct generate_options *o, const json_t *lines,
                       struct llm_tokenizer *t, struct ctl_job **jobs, size_t *n);

#endif
