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
    O_JSONL,
    O_CHOICES,
    O_IGNORE_EOS,
    O_LOGPROBS,
    O_JSON,
    O_TIMING,
    O_ECHO
};

static const struct option options[] = {{"tokens", required_argument, NULL, O_TOKENS},
                                        {"tokens-file", required_argument, NULL, O_TOKENS_FILE},
                                        {"prompt-file", required_argument, NULL, O_PROMPT_FILE},
                                        {"jsonl", required_argument, NULL, O_JSONL},
                                        {"choices", required_argument, NULL, O_CHOICES},
                                        {"ignore-eos", no_argument, NULL, O_IGNORE_EOS},
                                        {"logprobs", no_argument, NULL, O_LOGPROBS},
                                        {"json", no_argument, NULL, O_JSON},
                                        {"timing", no_argument, NULL, O_TIMING},
                                        {"echo", no_argument, NULL, O_ECHO},
                                        CTL_REQUEST_OPTIONS,
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

static void help(const char *name, uint32_t op)
{
    printf("usage: llmctl [-i INSTANCE] %s SOURCE [OPTION...]\n\n"
           "sources (one):\n"
           "  TEXT                  text, tokenized with the engine's vocabulary\n"
           "  --prompt-file FILE    the exact bytes of a file (- is standard input)\n"
           "  --tokens 1,2,3        token ids, used exactly\n"
           "  --tokens-file FILE    a JSON array of ids, or raw little-endian int32 (.bin)\n"
           "  --jsonl FILE          many requests at once: a JSON object a line, keys as these "
           "options with _\n"
           "                        (tokens or prompt, n, choices, temperature, ..., id); one "
           "result a line, in order\n",
           name);
    if (op == LLM_OP_GENERATE)
        printf("\ngeneration:\n"
               "  -n N                  at most N tokens (16)\n"
               "  --temperature T       0: greedy (0)\n"
               "  --top-k K, --top-p P, --min-p P   0, 1, 0: off\n"
               "  --seed S              the same seed draws the same tokens\n"
               "  --choices N           N continuations of one prompt\n"
               "  --ignore-eos          go on past the end-of-generation token\n"
               "  --logprobs            with --json: log-probability of each token\n"
               "  --echo                print the prompt's text before its continuation\n"
               "  --timing              time to first token and tokens/s, to standard error\n");
    printf("\n  --spin-us N           spin so long before sleeping while waiting (50)\n"
           "  --json                the result as one JSON object\n");
}

static int set_choices(struct llm_request *r, const char *text)
{
    uint64_t v = 0;
    int rc = ctl_parse_uint("--choices", text, 1, LLM_CHOICES_MAX, &v);
    r->choices = (uint32_t)v;
    return rc;
}

static int one_source(const struct generate_options *o)
{
    int n = !!o->tokens + !!o->tokens_file + !!o->prompt_file + !!o->text + !!o->jsonl;
    if (n == 1)
        return 0;
    if (n)
        return ctl_usage("give one source of the prompt, not %d", n);
    return ctl_usage("what is the prompt? TEXT, --prompt-file, --tokens, --tokens-file or --jsonl");
}

int generate_options_parse(int argc, char **argv, uint32_t op, struct generate_options *o,
                           bool *help_shown)
{
    *o = (struct generate_options){.request = LLM_REQUEST_INIT, .spin_us = 50};
    o->request.op = op;
    *help_shown = false;
    int c;
    while ((c = getopt_long(argc, argv, "n:h", options, NULL)) != -1) {
        int rc = 0;
        switch (c) {
        case O_TOKENS:
            o->tokens = optarg;
            break;
        case O_TOKENS_FILE:
            o->tokens_file = optarg;
            break;
        case O_PROMPT_FILE:
            o->prompt_file = optarg;
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
        case 'h':
            help(argv[0], op);
            *help_shown = true;
            return 0;
        case '?':
            return 2;
        default:
            rc = ctl_set_request_option(c, optarg, &o->request, &o->spin_us);
        }
        if (rc)
            return rc;
    }
    if (optind < argc)
        o->text = argv[optind++];
    if (optind < argc)
        return ctl_usage("unexpected \"%.40s\" (quote a text of several words)", argv[optind]);
    if (op == LLM_OP_SCORE && o->request.choices != 1)
        return ctl_usage("a score has no --choices");
    return one_source(o);
}

bool generate_needs_tokenizer(const struct generate_options *o)
{
    return o->text || o->prompt_file;
}

int generate_jobs(const struct generate_options *o, struct llm_tokenizer *t, struct ctl_job **jobs,
                  size_t *n)
{
    struct ctl_job *job = calloc(1, sizeof *job);
    if (!job)
        return ctl_error("out of memory");
    job->request = o->request;
    int rc;
    if (o->tokens) {
        rc = ctl_tokens_from_text(o->tokens, &job->prompt);
    } else if (o->tokens_file) {
        rc = ctl_tokens_from_file(o->tokens_file, &job->prompt);
    } else if (o->text) {
        rc = ctl_tokens_from_prompt(t, o->text, strlen(o->text),
                                    LLM_TOKENIZE_SPECIAL | LLM_TOKENIZE_ADD_SPECIAL, &job->prompt);
    } else {
        size_t bytes;
        char *text = ctl_read_file(o->prompt_file, &bytes);
        rc = text ? ctl_tokens_from_prompt(t, text, bytes,
                                           LLM_TOKENIZE_SPECIAL | LLM_TOKENIZE_ADD_SPECIAL,
                                           &job->prompt)
                  : 1;
        free(text);
    }
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
    if (rc)
        return rc;
    const json_t *tokens = json_object_get(line, "tokens"),
                 *prompt = json_object_get(line, "prompt");
    if (!tokens == !prompt)
        return ctl_error("%s: needs \"tokens\" or \"prompt\", one of them", where);
    if (prompt && !json_is_string(prompt))
        return ctl_error("%s: \"prompt\" must be a string", where);
    if (tokens)
        rc = ctl_tokens_from_json(tokens, &job->prompt);
    else
        rc = ctl_tokens_from_prompt(t, json_string_value(prompt), json_string_length(prompt),
                                    LLM_TOKENIZE_SPECIAL | LLM_TOKENIZE_ADD_SPECIAL, &job->prompt);
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
