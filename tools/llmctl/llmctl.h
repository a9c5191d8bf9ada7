/* llmctl.h - llmctl: one file a subcommand, over libllmclient and the board.
 *
 * A cmd_ function gets the arguments from its own name on and returns the exit status: 0, 1 (it
 * failed), 2 (usage), 130 (interrupted). Results go to stdout, words for people to stderr.
 */
#ifndef LLMCTL_H
#define LLMCTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../client/llmclient.h"

extern const char *ctl_instance; /* -i NAME, else $LLMD_INSTANCE, else "default" */

int cmd_complete(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_detokenize(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_render(int argc, char **argv);
int cmd_session(int argc, char **argv);
int cmd_choose(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_drain(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_serve(int argc, char **argv);

/* "llmctl: ..." to stderr; returns 1, so that a caller can `return ctl_error(...)`. */
__attribute__((format(printf, 1, 2))) int ctl_error(const char *format, ...);
/* The same for usage errors: returns 2 and names the help. */
__attribute__((format(printf, 1, 2))) int ctl_usage(const char *format, ...);
/* 0, or a usage error: that `option` has no instance's name. */
int ctl_check_instance(const char *option, const char *name);

/* JSON on one line, 9 significant digits, never NaN; takes the reference. Returns 0, or 1 if stdout
 * is gone. */
int ctl_print_json(json_t *value);
/* A string of any bytes, as arguments are: what is no UTF-8 becomes U+FFFD. NULL: no memory. */
json_t *ctl_json_string(const char *bytes);
#define CTL_JSON (JSON_COMPACT | JSON_REAL_PRECISION(9) | JSON_ENCODE_ANY)

/* ---- token sources (source.c) ---- */

struct ctl_tokens {
    int32_t *ids; /* malloc'ed */
    size_t n;
};

/* Reads a whole file, "-" is stdin. malloc'ed, NUL-terminated beyond *bytes. NULL after a message.
 */
char *ctl_read_file(const char *path, size_t *bytes);
/* "1,2,3" or "[1, 2, 3]". 0 or an exit status after a message. */
int ctl_tokens_from_text(const char *text, struct ctl_tokens *out);
/* A JSON array, or, for a name that ends in .bin, little-endian int32. */
int ctl_tokens_from_file(const char *path, struct ctl_tokens *out);
int ctl_tokens_from_json(const json_t *array, struct ctl_tokens *out);
int ctl_tokens_from_prompt(struct llm_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                           struct ctl_tokens *out);

struct prompt_source { /* exactly one is given; of a session, one or none */
    const char *tokens, *tokens_file, *prompt_file, *text;
};

bool prompt_given(const struct prompt_source *s);
bool prompt_is_text(const struct prompt_source *s); /* a tokenizer is needed */
/* 0, or a message and 2: more than one, or none where one is needed. */
int prompt_check(const struct prompt_source *s, bool needed);
/* The token ids; none where no source is given. flags: enum llm_tokenize_flags. */
int prompt_tokens(const struct prompt_source *s, struct llm_tokenizer *t, unsigned flags,
                  struct ctl_tokens *out);
extern const char prompt_source_help[];
/* The token with which the model's texts begin, or -1: what stands at the front of a session that is
 * opened for a text. */
int32_t prompt_first_token(const struct llm_tokenizer *t);

/* ---- command lines (getopt.c) ---- */

struct option;
/* As getopt_long(3); `shorts` begins with ':' (or "+:"). '?' comes after a message with the help's name:
 * the status is 2. */
int ctl_getopt(int argc, char **argv, const char *shorts, const struct option *options);

/* ---- jobs (job.c): requests and what came of them ---- */

struct ctl_choice {
    int32_t *tokens;           /* (n) */
    float *logprobs;           /* (n) */
    uint64_t *t_ns;            /* (n) when each token was taken from the ring */
    struct llm_candidate *top; /* (n, top_logprobs), then token -1; NULL: not asked for */
    size_t n, room;
    bool done;
    int32_t status;   /* < 0: refused or failed */
    uint32_t fitting; /* with status: the number that would have fitted, or 0; LLM_EDEADLINE: the
                       * estimate, microseconds */
    uint32_t length;  /* of a session's operation: the tokens that it has now */
    uint32_t finish;
    struct llm_result result;
};

struct ctl_job {
    json_t *id; /* given by the user, or NULL */
    struct ctl_tokens prompt;
    struct llm_request request;
    struct ctl_sampling *sampling; /* its own, malloc'ed, or NULL */
    bool open_session;             /* where its session is not there, it is opened first */
    int32_t first;                 /* >= 0: the token that stands at the front of such a session */
    bool sent, missing, opened;    /* missing: the session was not there */
    struct {
        int32_t status;
        uint32_t fitting;
    } opening; /* what came of opening it */
    uint64_t t_submit_ns;
    char refusal[256];        /* the library's sentence where it refused the request itself */
    uint32_t n_choices, open; /* open: finals still owed */
    struct ctl_choice *choices;
};

/* Submits all jobs over one connection and takes events until every final came. Jobs of one session
 * run one after the other, in their order. on_tokens (may be NULL) sees each event with tokens as it
 * arrives. SIGINT cancels what runs and still collects it.
 * 0, or an exit status after a message. */
int ctl_run_jobs(struct llm_client *c, struct ctl_job *jobs, size_t n,
                 void (*on_tokens)(void *context, const struct llm_event *e), void *context);
void ctl_free_jobs(struct ctl_job *jobs, size_t n);
bool ctl_interrupted(void);

/* Why the choice was refused or failed, in words. */
const char *ctl_refusal(const struct ctl_job *job, const struct ctl_choice *c);
/* Says so: "llmctl: <why> (<what would have fitted>)". Returns 1. */
int ctl_print_refusal(const struct ctl_job *job, const struct ctl_choice *c);
/* {"code", "message", "fits" (LLM_EDEADLINE: "estimate_ms" too, and `fits` the deadline in ms)} */
json_t *ctl_error_json(const struct ctl_job *job, const struct ctl_choice *c);
/* A log-probability as JSON has numbers: no infinity, NaN is null. */
json_t *ctl_number(double v);
/* {"queue_us", "ttft_us", "itl_us": {"p50", "p95", "p99", "max"}} */
json_t *ctl_timing_json(const struct ctl_job *job, const struct ctl_choice *c);

/* The result of a job as JSON, but for its id; t may be NULL (no text then). */
json_t *ctl_job_result(const struct ctl_job *job, struct llm_tokenizer *t);
/* Prints it on one line behind the id, which comes back with all the digits it was given. As
 * ctl_print_json. */
int ctl_print_result(const struct ctl_job *job, struct llm_tokenizer *t);
/* TTFT, tokens/s on one line to stderr. */
void ctl_print_timing(const struct ctl_job *job);

/* Detokenizes n tokens; flags: more enum llm_detok_flags than UTF8. malloc'ed; NULL when out of
 * memory. */
char *ctl_text(const struct llm_tokenizer *t, const int32_t *tokens, size_t n, unsigned flags,
               size_t *bytes);
/* The same without the last `cut` bytes of the tokens (llm_result.stop_cut). */
char *ctl_text_cut(const struct llm_tokenizer *t, const int32_t *tokens, size_t n, unsigned flags,
                   uint32_t cut, size_t *bytes);

/* Connects for `finals` requests at once, with room for `top` candidates of each token; NULL after a
 * message. */
struct llm_client *ctl_connect_top(size_t finals, uint32_t spin_us, uint32_t top);
struct llm_client *ctl_connect(size_t finals, uint32_t spin_us);
struct llm_tokenizer *ctl_tokenizer(struct llm_client *c); /* NULL after a message */

/* ---- parameters (params.c) ---- */

/* Options that every command that generates has: entries for its getopt_long table, and their values. */
enum ctl_request_option {
    CTL_MAX_TOKENS = 1024,
    CTL_TEMPERATURE,
    CTL_TOP_K,
    CTL_TOP_P,
    CTL_MIN_P,
    CTL_REPETITION,
    CTL_PRESENCE,
    CTL_FREQUENCY,
    CTL_STOP,
    CTL_LOGIT_BIAS,
    CTL_TOP_LOGPROBS,
    CTL_SEED,
    CTL_SPIN_US,
    CTL_DEADLINE,
    CTL_TIMEOUT,
    CTL_QUEUE_TIMEOUT,
    CTL_MAX_ITL,
    CTL_PRIORITY,
    CTL_SPECULATIVE
};
#define CTL_REQUEST_OPTIONS                                                                        \
    {"n", required_argument, NULL, CTL_MAX_TOKENS},                                                \
        {"max-tokens", required_argument, NULL, CTL_MAX_TOKENS},                                   \
        {"temperature", required_argument, NULL, CTL_TEMPERATURE},                                 \
        {"top-k", required_argument, NULL, CTL_TOP_K},                                             \
        {"top-p", required_argument, NULL, CTL_TOP_P},                                             \
        {"min-p", required_argument, NULL, CTL_MIN_P},                                             \
        {"repetition-penalty", required_argument, NULL, CTL_REPETITION},                           \
        {"presence-penalty", required_argument, NULL, CTL_PRESENCE},                               \
        {"frequency-penalty", required_argument, NULL, CTL_FREQUENCY},                             \
        {"seed", required_argument, NULL, CTL_SEED},                                               \
        {"deadline-ms", required_argument, NULL, CTL_DEADLINE},                                    \
        {"timeout-ms", required_argument, NULL, CTL_TIMEOUT},                                      \
        {"queue-timeout-ms", required_argument, NULL, CTL_QUEUE_TIMEOUT},                          \
        {"max-itl-ms", required_argument, NULL, CTL_MAX_ITL},                                      \
        {"priority", required_argument, NULL, CTL_PRIORITY},                                       \
        {"speculative", required_argument, NULL, CTL_SPECULATIVE},                                 \
    {                                                                                              \
        "spin-us", required_argument, NULL, CTL_SPIN_US                                            \
    }
/* Takes such an option ('n' counts as CTL_MAX_TOKENS). 0, or 2 after a message; others are ignored. */
int ctl_set_request_option(int option, const char *text, struct llm_request *r, uint32_t *spin_us);

/* ---- stop strings, biases, candidates (sampling.c) ---- */

struct ctl_sampling {
    uint32_t n_stops, n_biases;
    struct llm_stop stops[LLM_STOPS_MAX]; /* texts are the caller's */
    struct llm_bias biases[LLM_BIASES_MAX];
};
#define CTL_SAMPLING_OPTIONS                                                                       \
    {"stop", required_argument, NULL, CTL_STOP},                                                   \
        {"logit-bias", required_argument, NULL, CTL_LOGIT_BIAS},                                   \
    {                                                                                              \
        "top-logprobs", required_argument, NULL, CTL_TOP_LOGPROBS                                  \
    }
extern const char ctl_sampling_help[];

/* As ctl_set_request_option. */
int ctl_set_sampling_option(int option, const char *text, struct ctl_sampling *s,
                            struct llm_request *r);
/* The request points to it then. */
void ctl_use_sampling(const struct ctl_sampling *s, struct llm_request *r);
/* A line's keys, in place of the flags'. *own is made where the line has any; it is the caller's in
 * any case. 0, or 1 after a message. */
int ctl_sampling_from_json(const json_t *line, const char *where, const struct ctl_sampling *flags,
                           struct llm_request *r, struct ctl_sampling **own);
/* How many bytes are left of a text that a detokenizer has given out for tokens up to `last`, if the
 * tokens' last `cut` bytes are cut off. */
size_t ctl_cut_text(const struct llm_tokenizer *t, int32_t last, uint32_t cut, const char *text,
                    size_t bytes);
/* [{"token", "logprob"}, ...] of one token. */
json_t *ctl_top_json(const struct llm_candidate *top, uint32_t n);

/* Their lines in a --help: what is promised, and what is given up; how it is computed. */
extern const char ctl_promises_help[], ctl_speculative_help[];

/* A whole decimal number in [min, max], or a float; 0, or 2 after a message naming `what`. */
int ctl_parse_uint(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *out);
int ctl_parse_float(const char *what, const char *text, float *out);
/* The same for a number that is not negative. */
int ctl_parse_amount(const char *what, const char *text, double *out);
/* Reads a request's keys out of one JSON line: everything but the prompt. `where` is used in
 * messages. */
int ctl_request_from_json(const json_t *line, const char *where, struct llm_request *r);

#endif
