/* generate_options.c - flags of `complete` and `score`, and the requests that they ask for. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate_options.h"

enum {
    O_TOKENS = 256,
    O_TOKENS_FILE,
    O_PROMPT_FILE,
    O_PROMPT,
    O_JSONL,
    O_CHOICES,
    O_IGNORE_EOS,
    O_LOGPROBS,
    O_JSON,
    O_TIMING,
    O_ECHO,
    O_SESSION,
    O_KEEP,
    O_INTERRUPT,
    O_NO_CACHE
};

static const struct option options[] = {{"tokens", required_argument, NULL, O_TOKENS},
                                        {"tokens-file", required_argument, NULL, O_TOKENS_FILE},
                                        {"prompt-file", required_argument, NULL, O_PROMPT_FILE},
                                        {"prompt", required_argument, NULL, O_PROMPT},
                                        {"jsonl", required_argument, NULL, O_JSONL},
                                        {"choices", required_argument, NULL, O_CHOICES},
                                        {"ignore-eos", no_argument, NULL, O_IGNORE_EOS},
                                        {"logprobs", no_argument, NULL, O_LOGPROBS},
                                        {"json", no_argument, NULL, O_JSON},
                                        {"timing", no_argument, NULL, O_TIMING},
                                        {"echo", no_argument, NULL, O_ECHO},
                                        {"session", required_argument, NULL, O_SESSION},
                                        {"keep", required_argument, NULL, O_KEEP},
                                        {"interrupt", no_argument, NULL, O_INTERRUPT},
                                        {"no-cache", no_argument, NULL, O_NO_CACHE},
                                        CTL_REQUEST_OPTIONS,
                                        CTL_SAMPLING_OPTIONS,
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

static void help(uint32_t op)
{
    printf("usage: llmctl [-i INSTANCE] %s SOURCE [OPTION...]\n\n"
           "sources (one):\n"
           "%s"
           "  --jsonl FILE          many requests at once: a JSON object a line, keys as these "
           "options with _\n"
           "                        (tokens or prompt, n, choices, temperature, ..., id); one "
           "result a line, in order\n",
           op == LLM_OP_SCORE ? "score" : "complete", prompt_source_help);
    if (op == LLM_OP_GENERATE)
        printf("\ngeneration:\n"
               "  -n N                  at most N tokens (16)\n"
               "  --temperature T       0: greedy (0)\n"
               "  --top-k K, --top-p P, --min-p P   0, 1, 0: off\n"
               "%s"
               "  --seed S              the same seed draws the same tokens\n"
               "  --choices N           N continuations of one prompt\n"
               "  --ignore-eos          go on past the end-of-generation token\n"
               "  --logprobs            needs --json: log-probability of each token\n"
               "  --echo                print the prompt's text before its continuation\n"
               "  --timing              time to first token and tokens/s, to standard error\n"
               "\nsessions (llmctl session):\n"
               "  --session NAME        behind the session's history, which grows by prompt and "
               "answer; opened where it\n"
               "                        is not there. The prompt may be left out\n"
               "  --keep N              the session's first N tokens only\n"
               "  --interrupt           what is being generated on it ends\n"
               "\npromises:\n"
               "%s"
               "\nspeculation:\n"
               "%s",
               ctl_sampling_help, ctl_promises_help, ctl_speculative_help);
    printf("\n  --no-cache            neither take from the prefix cache nor leave anything there\n"
           "  --spin-us N           spin so long before sleeping while waiting (50)\n"
           "  --json                the result as one JSON object\n");
}

static int set_choices(struct llm_request *r, const char *text)
{
    uint64_t v = 0;
    int rc = ctl_parse_uint("--choices", text, 1, LLM_CHOICES_MAX, &v);
    r->choices = (uint32_t)v;
    return rc;
}

static int set_session(const char *name, struct llm_request *r)
{
    if (!*name)
        return ctl_usage("--session: a session has a name");
    r->session = llm_session_key(name);
    return 0;
}

static int set_keep(const char *text, struct llm_request *r)
{
    return ctl_parse_uint("--keep", text, 0, UINT32_MAX, &r->session_keep);
}

static int check(const struct generate_options *o, uint32_t op)
{
    const struct llm_request *r = &o->request;
    if (op == LLM_OP_SCORE && r->choices != 1)
        return ctl_usage("a score has no --choices");
    if (op == LLM_OP_SCORE && r->session)
        return ctl_usage("a score has no --session");
    if (op == LLM_OP_SCORE && (r->n_stops || r->n_biases || r->top_logprobs))
        return ctl_usage("a score has no --stop, --logit-bias or --top-logprobs");
    if (op == LLM_OP_SCORE && r->flags & (LLM_SQE_SPECULATE | LLM_SQE_NO_SPECULATION))
        return ctl_usage("a score has no --speculative");
    bool prints_json = o->json || o->jsonl || r->choices != 1;
    if (!prints_json && (r->flags & LLM_SQE_LOGPROBS || r->top_logprobs))
        return ctl_usage("--%slogprobs needs --json: a text has no place for them",
                         r->top_logprobs ? "top-" : "");
    if (!r->session && (r->session_keep != LLM_SESSION_ALL || r->flags & LLM_SQE_INTERRUPT))
        return ctl_usage("--keep and --interrupt are of a --session");
    if (o->jsonl && prompt_given(&o->prompt))
        return ctl_usage("give one source of the prompt, not --jsonl and another");
    if (!o->jsonl && !r->session && !prompt_given(&o->prompt))
        return ctl_usage(
            "what is the prompt? TEXT, --prompt-file, --tokens, --tokens-file or --jsonl");
    return prompt_check(&o->prompt, false);
}

int generate_options_parse(int argc, char **argv, uint32_t op, struct generate_options *o,
                           bool *help_shown)
{
    *o = (struct generate_options){.request = LLM_REQUEST_INIT, .spin_us = 50};
    o->request.op = op;
    *help_shown = false;
    int c;
    while ((c = ctl_getopt(argc, argv, ":n:h", options)) != -1) {
        int rc = 0;
        switch (c) {
        case O_TOKENS:
            o->prompt.tokens = optarg;
            break;
        case O_TOKENS_FILE:
            o->prompt.tokens_file = optarg;
            break;
        case O_PROMPT_FILE:
            o->prompt.prompt_file = optarg;
            break;
        case O_PROMPT:
            o->prompt.text = optarg;
            break;
        case O_JSONL:
            o->jsonl = optarg;
            break;
        case O_IGNORE_EOS:
            o->request.flags |= LLM_SQE_IGNORE_EOS;
            break;
        case O_LOGPROBS:
            o->request.flags |= LLM_SQE_LOGPROBS;
            break;
        case O_CHOICES:
            rc = set_choices(&o->request, optarg);
            break;
        case O_JSON:
            o->json = true;
            break;
        case O_TIMING:
            o->timing = true;
            break;
        case O_ECHO:
            o->echo = true;
            break;
        case O_SESSION:
            rc = set_session(optarg, &o->request);
            break;
        case O_KEEP:
            rc = set_keep(optarg, &o->request);
            break;
        case O_INTERRUPT:
            o->request.flags |= LLM_SQE_INTERRUPT;
            break;
        case O_NO_CACHE:
            o->request.flags |= LLM_SQE_NO_CACHE;
            break;
        case 'h':
            help(op);
            *help_shown = true;
            return 0;
        case '?':
            return 2;
        default:
            rc = ctl_set_request_option(c, optarg, &o->request, &o->spin_us);
            rc = rc ? rc : ctl_set_sampling_option(c, optarg, &o->sampling, &o->request);
        }
        if (rc)
            return rc;
    }
    if (optind < argc && !o->prompt.text)
        o->prompt.text = argv[optind++];
    if (optind < argc)
        return ctl_usage("unexpected \"%.40s\" (quote a text of several words)", argv[optind]);
    ctl_use_sampling(&o->sampling, &o->request);
    return check(o, op);
}

bool generate_needs_tokenizer(const struct generate_options *o)
{
    return prompt_is_text(&o->prompt);
}

/* How the text of a job becomes tokens: what stands at the front of a text (bos) stands at the front
 * of a session, once. */
static unsigned tokenize_flags(struct ctl_job *job, const struct llm_tokenizer *t, bool is_text)
{
    job->open_session = job->request.session && job->request.session_keep == LLM_SESSION_ALL;
    job->first = job->open_session && is_text ? prompt_first_token(t) : -1;
    return LLM_TOKENIZE_SPECIAL | (job->request.session ? 0 : LLM_TOKENIZE_ADD_SPECIAL);
}

int generate_jobs(const struct generate_options *o, struct llm_tokenizer *t, struct ctl_job **jobs,
                  size_t *n)
{
    struct ctl_job *job = calloc(1, sizeof *job);
    if (!job)
        return ctl_error("out of memory");
    job->request = o->request;
    unsigned flags = tokenize_flags(job, t, prompt_is_text(&o->prompt));
    int rc = prompt_tokens(&o->prompt, t, flags, &job->prompt);
    if (rc) {
        ctl_free_jobs(job, 1);
        return rc;
    }
    *jobs = job;
    *n = 1;
    return 0;
}

int generate_lines(const struct generate_options *o, json_t **lines)
{
    size_t bytes, number = 0;
    char *data = ctl_read_file(o->jsonl, &bytes);
    if (!data)
        return 1;
    json_t *all = json_array();
    for (char *at = data, *end = data + bytes; at < end;) {
        char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        number++;
        if (strspn(at, " \t\r") < (size_t)(stop - at)) {
            json_error_t error;
            json_t *line = json_loadb(at, (size_t)(stop - at), JSON_ALLOW_NUL, &error);
            if (!line) {
                json_decref(all);
                free(data);
                return ctl_error("%s:%zu:%d: %s", o->jsonl, number, error.column, error.text);
            }
            json_array_append_new(all, line);
        }
        at = stop + 1;
    }
    free(data);
    *lines = all;
    return 0;
}

static int line_job(const struct generate_options *o, const json_t *line, size_t number,
                    struct llm_tokenizer *t, struct ctl_job *job)
{
    char where[160];
    snprintf(where, sizeof where, "%.120s: request %zu", o->jsonl, number);
    job->request = o->request;
    int rc = ctl_request_from_json(line, where, &job->request);
    if (!rc)
        rc = ctl_sampling_from_json(line, where, &o->sampling, &job->request, &job->sampling);
    if (rc)
        return rc;
    const json_t *tokens = json_object_get(line, "tokens"),
                 *prompt = json_object_get(line, "prompt");
    if (tokens ? !!prompt : !prompt && !job->request.session)
        return ctl_error("%s: needs \"tokens\" or \"prompt\", one of them", where);
    if (prompt && !json_is_string(prompt))
        return ctl_error("%s: \"prompt\" must be a string", where);
    unsigned flags = tokenize_flags(job, t, prompt);
    if (tokens)
        rc = ctl_tokens_from_json(tokens, &job->prompt);
    else if (prompt)
        rc = ctl_tokens_from_prompt(t, json_string_value(prompt), json_string_length(prompt), flags,
                                    &job->prompt);
    job->id = json_incref(json_object_get(line, "id"));
    return rc ? ctl_error("%s: see above", where) : 0;
}

int generate_line_jobs(const struct generate_options *o, const json_t *lines,
                       struct llm_tokenizer *t, struct ctl_job **jobs, size_t *n)
{
    size_t count = json_array_size(lines);
    struct ctl_job *all = calloc(count ? count : 1, sizeof *all);
    if (!all)
        return ctl_error("out of memory for %zu requests", count);
    for (size_t i = 0; i < count; i++) {
        int rc = line_job(o, json_array_get(lines, i), i + 1, t, &all[i]);
        if (rc) {
            ctl_free_jobs(all, count);
            return rc;
        }
    }
    *jobs = all;
    *n = count;
    return 0;
}
