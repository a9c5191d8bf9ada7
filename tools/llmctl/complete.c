/* complete.c - `complete` and `score`: run requests, print what came. */
#include <stdio.h>
#include <stdlib.h>

#include "generate_options.h"

static bool lines_need_text(const json_t *lines)
{
    size_t i;
    json_t *line;
    json_array_foreach((json_t *)lines, i, line)
    {
        if (json_object_get(line, "prompt"))
            return true;
    }
    return false;
}

/* Finals that all lines bring together; a line without choices has the flag's. */
static size_t lines_finals(const struct generate_options *o, const json_t *lines)
{
    size_t i, n = 0;
    json_t *line;
    json_array_foreach((json_t *)lines, i, line)
    {
        const json_t *choices = json_object_get(line, "choices");
        n += json_is_integer(choices) && json_integer_value(choices) > 0
                 ? (size_t)json_integer_value(choices)
                 : o->request.choices;
    }
    return n;
}

/* Candidates that the flags or any line ask for. */
static uint32_t most_top(const struct generate_options *o, const json_t *lines)
{
    size_t i;
    json_t *line;
    json_array_foreach((json_t *)lines, i, line)
    {
        if (json_object_get(line, "top_logprobs"))
            return LLM_TOP_MAX;
    }
    return o->request.top_logprobs;
}

/* Prints a stream's text as it comes. With stop strings a token behind: the last one may have to be
 * cut. */
struct printer {
    struct llm_detokenizer *d;
    const struct llm_tokenizer *t;
    bool lost, one_behind, held;
    int32_t last; /* if held */
};

static void print_token(struct printer *p, int32_t token, uint32_t cut)
{
    char text[8192];
    long n = llm_detokenize(p->d, token, text, sizeof text);
    if (n > 0 && cut)
        n = (long)ctl_cut_text(p->t, token, cut, text, (size_t)n);
    if (n > 0 && fwrite(text, 1, (size_t)n, stdout) != (size_t)n)
        p->lost = true;
}

static void print_tokens(void *context, const struct llm_event *e)
{
    struct printer *p = context;
    for (uint32_t i = 0; i < e->n_tokens; i++) {
        if (p->held)
            print_token(p, p->last, 0);
        p->last = e->tokens[i];
        p->held = p->one_behind;
        if (!p->held)
            print_token(p, p->last, 0);
    }
    if (fflush(stdout))
        p->lost = true;
}

/* What waits for its rest at a cut does not belong to the answer. */
static void print_end(struct printer *p, uint32_t cut)
{
    char rest[8192];
    if (p->held)
        print_token(p, p->last, cut);
    long n = cut ? 0 : llm_detokenize_flush(p->d, rest, sizeof rest);
    if (n > 0)
        fwrite(rest, 1, (size_t)n, stdout);
}

static int report_failure(const struct ctl_job *job)
{
    for (uint32_t i = 0; i < job->n_choices; i++) {
        const struct ctl_choice *c = &job->choices[i];
        if (c->status >= 0)
            continue;
        return ctl_print_refusal(job, c);
    }
    return ctl_interrupted() ? 130 : 0;
}

/* One prompt, its text streamed. */
static int stream(struct llm_client *c, struct llm_tokenizer *t, const struct generate_options *o,
                  struct ctl_job *job)
{
    struct printer p = {.t = t, .one_behind = job->request.n_stops};
    if (llm_detokenizer_open(&p.d, t, LLM_DETOK_UTF8 | LLM_DETOK_CONTINUE) < 0)
        return ctl_error("out of memory for the detokenizer");
    if (o->echo) {
        size_t bytes;
        char *text = ctl_text(t, job->prompt.ids, job->prompt.n, LLM_DETOK_SHOW_SPECIAL, &bytes);
        if (text)
            fwrite(text, 1, bytes, stdout);
        free(text);
        fflush(stdout);
    }
    int rc = ctl_run_jobs(c, job, 1, print_tokens, &p);
    const struct ctl_choice *only = job->choices;
    print_end(&p, only ? only->result.stop_cut : 0);
    if (o->echo || (only && (only->n || only->status >= 0)))
        putchar('\n'); /* a refused request has no line to end */
    llm_detokenizer_close(p.d);
    if (fflush(stdout) || p.lost)
        return ctl_error("cannot write to standard output");
    if (!rc && o->timing)
        ctl_print_timing(job);
    return rc ? rc : report_failure(job);
}

static int print_score(const struct ctl_job *job)
{
    json_t *o = ctl_job_result(job, NULL);
    const json_t *perplexity = json_object_get(o, "perplexity");
    if (perplexity)
        printf("%zu tokens, perplexity %.6g\n", job->prompt.n, json_number_value(perplexity));
    json_decref(o);
    return report_failure(job);
}

static int print_results(const struct ctl_job *jobs, size_t n, struct llm_tokenizer *t, bool lines)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++) {
        if (ctl_print_result(&jobs[i], t))
            return 1;
        if (!lines)
            failed |= report_failure(&jobs[i]);
    }
    return ctl_interrupted() ? 130 : failed;
}

static int run(int argc, char **argv, uint32_t op)
{
    struct generate_options o;
    bool help;
    int rc = generate_options_parse(argc, argv, op, &o, &help);
    if (rc || help)
        return rc;
    json_t *lines = NULL;
    struct llm_client *c = NULL;
    struct llm_tokenizer *t = NULL;
    struct ctl_job *jobs = NULL;
    size_t n = 0;
    if (o.jsonl && (rc = generate_lines(&o, &lines)))
        return rc;
    rc = 1;
    c = ctl_connect_top(lines ? lines_finals(&o, lines) : o.request.choices, o.spin_us,
                        most_top(&o, lines));
    if (!c)
        goto out;
    bool needs = generate_needs_tokenizer(&o) || (lines && lines_need_text(lines));
    bool one_stream = op == LLM_OP_GENERATE && !o.json && !lines && o.request.choices == 1;
    if (needs || one_stream) {
        if (!(t = ctl_tokenizer(c)))
            goto out;
    } else if (llm_tokenizer_open(&t, c) < 0) {
        t = NULL; /* a result without text */
    }
    rc = lines ? generate_line_jobs(&o, lines, t, &jobs, &n) : generate_jobs(&o, t, &jobs, &n);
    if (rc)
        goto out;
    if (one_stream) {
        rc = stream(c, t, &o, jobs);
        goto out;
    }
    rc = ctl_run_jobs(c, jobs, n, NULL, NULL);
    if (rc)
        goto out;
    rc = op == LLM_OP_SCORE && !o.json && !lines ? print_score(jobs)
                                                 : print_results(jobs, n, t, lines);
out:
    ctl_free_jobs(jobs, n);
    llm_tokenizer_close(t);
    llm_close(c);
    json_decref(lines);
    return rc;
}

int cmd_complete(int argc, char **argv)
{
    return run(argc, argv, LLM_OP_GENERATE);
}

int cmd_score(int argc, char **argv)
{
    return run(argc, argv, LLM_OP_SCORE);
}
