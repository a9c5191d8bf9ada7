/* split.h - pre-tokenizers: how a byte-level BPE model's text falls into words before it is merged.
 *
 * A family is one to six regular expressions. The first cuts the text into its matches and what
 * lies between them; each piece is then cut by the next, as if it stood alone. Compiled once;
 * afterwards read-only, so that many threads may split at once (each with match data of its own).
 *
 * Every expression runs in linear time: a repeat is over one character class, and no match attempt
 * that scans a run of characters fails without an alternative that consumes that run.
 */
#ifndef LLMD_CLIENT_TEXT_SPLIT_H
#define LLMD_CLIENT_TEXT_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

enum { SPLIT_PASSES_MAX = 6 };

struct split {
    struct pcre2_real_code_8 *passes[SPLIT_PASSES_MAX];
    unsigned n_passes;
    struct pcre2_real_match_context_8 *limits; /* none: texts may be long */
    bool whole_words; /* a word that is a token is not merged ("ignore_merges") */
    bool composes;    /* the model's tokenizer normalises text to NFC first */
};

/* By the checkpoint's name of the pre-tokenizer. 0, LLM_ENOTEXT for an unknown name, -ENOMEM;
 * split_free in either case. */
int split_open(struct split *s, const char *pre);
void split_free(struct split *s);

/* What a thread needs to split; NULL without memory. */
struct pcre2_real_match_data_8 *split_match_data(void);
void split_match_data_free(struct pcre2_real_match_data_8 *data);

/* Calls word for each piece of well-formed UTF-8, in order; they cover it. Stops at the first
 * result other than 0 and returns it; -ENOMEM. */
int split_text(const struct split *s, struct pcre2_real_match_data_8 *data, const char *text,
               size_t bytes, int (*word)(void *to, const char *at, size_t bytes), void *to);

#endif
