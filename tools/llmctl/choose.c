/* choose.c - `choose`: which of several continuations of a prompt is the likeliest, in one pass.
 *
 * A label is scored as the tokens that it adds to the prompt: those of prompt and label read
 * together, where the prompt's own tokens begin them; else those of the label by itself (the two
 * grow together at the seam, and the prompt has been given as it is).
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmctl.h"

struct choose_options {
    struct prompt_source prompt;
    const char *labels[LLM_CHOICES_MAX];
    bool ids[LLM_CHOICES_MAX]; /* the label was given as token ids */
    uint32_t n_labels, spin_us;
    struct llm_request request;
};

struct choose {
    struct choose_options o;
    struct llm_client *c;
    struct llm_tokenizer *t; /* NULL: ids only */
    struct ctl_job *job;
    struct ctl_tokens tokens[LLM_CHOICES_MAX];
    struct llm_label labels[LLM_CHOICES_MAX];
};

enum {
    O_TOKENS = 256,
    O_TOKENS_FILE,
    O_PROMPT_FILE,
    O_PROMPT,
    O_LABEL,
    O_LABEL_TOKENS,
    O_NO_CACHE,
    O_JSON
};

static const struct option options[] = {
    {"tokens", required_argument, NULL, O_TOKENS},
    {"tokens-file", required_argument, NULL, O_TOKENS_FILE},
    {"prompt-file", required_argument, NULL, O_PROMPT_FILE},
    {"prompt", required_argument, NULL, O_PROMPT},
    {"label", required_argument, NULL, O_LABEL},
    {"label-tokens", required_argument, NULL, O_LABEL_TOKENS},
    {"timeout-ms", required_argument, NULL, CTL_TIMEOUT},
    {"queue-timeout-ms", required_argument, NULL, CTL_QUEUE_TIMEOUT},
    {"priority", required_argument, NULL, CTL_PRIORITY},
    {"no-cache", no_argument, NULL, O_NO_CACHE},
    {"spin-us", required_argument, NULL, CTL_SPIN_US},
    {"json", no_argument, NULL, O_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0}};

static void help(void)
{
    printf("usage: llmctl [-i INSTANCE] choose SOURCE --label TEXT --label TEXT ... [OPTION...]\n\n"
           "Prints, as one JSON object, the log-probability of each label as a continuation of the "
           "prompt,\nand the best one.\n\n"
           "sources (one):\n%s\n"
           "  --label TEXT          a continuation, with the blank that it may begin with; up to "
           "%d\n"
           "  --label-tokens 1,2,3  one as token ids\n"
           "  --timeout-ms N, --queue-timeout-ms N, --priority P   as for complete\n"
           "  --no-cache            neither take from the prefix cache nor leave anything there\n"
           "  --spin-us N           spin so long before sleeping while waiting (50)\n"
           "  --json                accepted: the result is JSON anyway\n",
           prompt_source_help, LLM_CHOICES_MAX);
}

/* ---- arguments ---- */

static int add_label(struct choose_options *o, const char *text, bool ids)
{
    if (o->n_labels == LLM_CHOICES_MAX)
        return ctl_usage("more than %d labels", LLM_CHOICES_MAX);
    if (!*text)
        return ctl_usage("label %u is empty: it has no probability", o->n_labels);
    o->ids[o->n_labels] = ids;
    o->labels[o->n_labels++] = text;
    return 0;
}

static int take_option(int c, struct choose_options *o)
{
    switch (c) {
    case O_TOKENS:
        o->prompt.tokens = optarg;
        return 0;
    case O_TOKENS_FILE:
        o->prompt.tokens_file = optarg;
        return 0;
    case O_PROMPT:
        o->prompt.text = optarg;
        return 0;
    case O_PROMPT_FILE:
        o->prompt.prompt_file = optarg;
        return 0;
    case O_LABEL:
    case O_LABEL_TOKENS:
        return add_label(o, optarg, c == O_LABEL_TOKENS);
    case O_NO_CACHE:
        o->request.flags |= LLM_SQE_NO_CACHE;
        return 0;
    case O_JSON:
        return 0;
    case '?':
        return 2;
    }
    return ctl_set_request_option(c, optarg, &o->request, &o->spin_us);
}

/* 0, an exit status, or -1 after --help */
static int parse(int argc, char **argv, struct choose_options *o)
{
    *o = (struct choose_options){.request = LLM_REQUEST_INIT, .spin_us = 50};
    int c, rc;
    while ((c = ctl_getopt(argc, argv, ":h", options)) != -1) {
        if (c == 'h') {
            help();
            return -1;
        }
        if ((rc = take_option(c, o)))
            return rc;
    }
    if (optind < argc && !o->prompt.text)
        o->prompt.text = argv[optind++];
    if (optind < argc)
        return ctl_usage("unexpected \"%.40s\" (quote a text of several words)", argv[optind]);
    if (!o->n_labels)
        return ctl_usage("choose among what? Give each --label TEXT");
    return prompt_check(&o->prompt, true);
}

static bool needs_tokenizer(const struct choose_options *o)
{
    bool needs = prompt_is_text(&o->prompt);
    for (uint32_t i = 0; i < o->n_labels; i++)
        needs |= !o->ids[i];
    return needs;
}

/* ---- tokens ---- */

/* Of `whole`, what stands behind the prompt. False if it does not begin with it. */
static bool rest_of(const struct ctl_tokens *whole, const struct ctl_tokens *prompt,
                    struct ctl_tokens *out)
{
    if (whole->n <= prompt->n || memcmp(whole->ids, prompt->ids, prompt->n * sizeof *whole->ids))
        return false;
    memmove(whole->ids, whole->ids + prompt->n, (whole->n - prompt->n) * sizeof *whole->ids);
    *out = (struct ctl_tokens){whole->ids, whole->n - prompt->n};
    return true;
}

/* 0 and *found, or an exit status. */
static int read_together(struct choose *v, const char *label, struct ctl_tokens *out, bool *found)
{
    struct ctl_tokens whole = {NULL, 0};
    size_t n = strlen(v->o.prompt.text), bytes = n + strlen(label);
    char *text = malloc(bytes + 1);
    if (!text)
        return ctl_error("out of memory for a label");
    memcpy(text, v->o.prompt.text, n);
    strcpy(text + n, label);
    int rc = ctl_tokens_from_prompt(v->t, text, bytes,
                                    LLM_TOKENIZE_SPECIAL | LLM_TOKENIZE_ADD_SPECIAL, &whole);
    free(text);
    *found = !rc && rest_of(&whole, &v->job->prompt, out);
    if (!*found)
        free(whole.ids);
    return rc;
}

static int label_tokens(struct choose *v, uint32_t i)
{
    const char *label = v->o.labels[i];
    bool found = false;
    int rc = 0;
    if (v->o.ids[i])
        return ctl_tokens_from_text(label, &v->tokens[i]);
    if (v->o.prompt.text)
        rc = read_together(v, label, &v->tokens[i], &found);
    if (rc || found)
        return rc;
    return ctl_tokens_from_prompt(v->t, label, strlen(label), LLM_TOKENIZE_SPECIAL, &v->tokens[i]);
}

static int make_job(struct choose *v)
{
    struct llm_request *r = &v->job->request;
    *r = v->o.request;
    r->op = LLM_OP_CHOOSE;
    v->job->first = -1;
    int rc = prompt_tokens(&v->o.prompt, v->t, LLM_TOKENIZE_SPECIAL | LLM_TOKENIZE_ADD_SPECIAL,
                           &v->job->prompt);
    for (uint32_t i = 0; i < v->o.n_labels && !rc; i++) {
        rc = label_tokens(v, i);
        v->labels[i] = (struct llm_label){v->tokens[i].ids, (uint32_t)v->tokens[i].n};
    }
    r->labels = v->labels;
    r->n_labels = v->o.n_labels;
    return rc;
}

/* ---- the result ---- */

static double sum_of(const struct ctl_choice *c)
{
    double sum = 0;
    for (size_t i = 0; i < c->n; i++)
        sum += (double)c->logprobs[i];
    return sum;
}

/* Of equal ones the first, as llm_choose_best. */
static uint32_t best_of(const struct ctl_job *job)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < job->n_choices; i++)
        if (sum_of(&job->choices[i]) > sum_of(&job->choices[best]))
            best = i;
    return best;
}

static json_t *label_json(const struct choose *v, uint32_t i)
{
    const struct ctl_choice *c = &v->job->choices[i];
    json_t *o = json_object(), *tokens = json_array(), *logprobs = json_array();
    for (size_t k = 0; k < v->tokens[i].n; k++)
        json_array_append_new(tokens, json_integer(v->tokens[i].ids[k]));
    for (size_t k = 0; k < c->n; k++)
        json_array_append_new(logprobs, ctl_number(c->logprobs[k]));
    json_object_set_new(o, "label", ctl_json_string(v->o.labels[i]));
    json_object_set_new(o, "tokens", tokens);
    json_object_set_new(o, "logprobs", logprobs);
    json_object_set_new(o, "logprob", ctl_number(sum_of(c)));
    json_object_set_new(o, "mean_logprob",
                        c->n ? ctl_number(sum_of(c) / (double)c->n) : json_null());
    return o;
}

/* Among the labels alone: e^(sum - log of the sum of all e^sum). */
static void set_probabilities(json_t *all, const struct ctl_job *job)
{
    double top = sum_of(&job->choices[best_of(job)]), total = 0;
    for (uint32_t i = 0; i < job->n_choices; i++)
        total += exp(sum_of(&job->choices[i]) - top);
    for (uint32_t i = 0; i < job->n_choices; i++)
        json_object_set_new(json_array_get(all, i), "probability",
                            ctl_number(exp(sum_of(&job->choices[i]) - top) / total));
}

static const struct ctl_choice *first_failed(const struct ctl_job *job)
{
    for (uint32_t i = 0; i < job->n_choices; i++)
        if (job->choices[i].status < 0)
            return &job->choices[i];
    return NULL;
}

static bool incomplete(const struct choose *v)
{
    for (uint32_t i = 0; i < v->job->n_choices; i++)
        if (v->job->choices[i].n < v->tokens[i].n)
            return true;
    return false;
}

static int print(const struct choose *v)
{
    const struct ctl_job *job = v->job;
    const struct ctl_choice *failed = first_failed(job);
    json_t *o = json_pack("{s:I}", "prompt_tokens", (json_int_t)job->prompt.n);
    if (failed) {
        json_object_set_new(o, "error", ctl_error_json(job, failed));
        return ctl_print_json(o) ? 1 : ctl_print_refusal(job, failed);
    }
    if (incomplete(v)) {
        json_decref(o);
        return ctl_interrupted() ? 130 : ctl_error("the time was over before all labels were read");
    }
    uint32_t best = best_of(job);
    json_t *all = json_array();
    for (uint32_t i = 0; i < job->n_choices; i++)
        json_array_append_new(all, label_json(v, i));
    set_probabilities(all, job);
    json_object_set_new(o, "best", json_integer(best));
    json_object_set_new(o, "label", ctl_json_string(v->o.labels[best]));
    json_object_set_new(o, "labels", all);
    json_object_set_new(o, "cached_tokens", json_integer(job->choices[0].result.cached_tokens));
    json_object_set_new(o, "timing", ctl_timing_json(job, &job->choices[0]));
    return ctl_print_json(o);
}

static int choose(struct choose *v)
{
    v->job = calloc(1, sizeof *v->job);
    v->c = ctl_connect(v->o.n_labels, v->o.spin_us);
    if (!v->job || !v->c || (needs_tokenizer(&v->o) && !(v->t = ctl_tokenizer(v->c))))
        return 1;
    int rc = make_job(v);
    rc = rc ? rc : ctl_run_jobs(v->c, v->job, 1, NULL, NULL);
    return rc ? rc : print(v);
}

int cmd_choose(int argc, char **argv)
{
    struct choose v = {0};
    int rc = parse(argc, argv, &v.o);
    if (rc)
        return rc < 0 ? 0 : rc;
    rc = choose(&v);
    for (uint32_t i = 0; i < v.o.n_labels; i++)
        free(v.tokens[i].ids);
    ctl_free_jobs(v.job, v.job ? 1 : 0);
    llm_tokenizer_close(v.t);
    llm_close(v.c);
    return rc;
}
