/* result.c - what came of a job, as JSON and as a line for people. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmctl.h"

/* Bytes that one more token can bring at most: each of its bytes and of the held tail may become
 * U+FFFD. */
static size_t text_room(const struct llm_tokenizer *t, int32_t token)
{
    const char *bytes;
    long n = llm_token_bytes(t, token, &bytes);
    return 3 * (n > 0 ? (size_t)n : 0) + 64;
}

char *ctl_text(const struct llm_tokenizer *t, const int32_t *tokens, size_t n, unsigned flags,
               size_t *bytes)
{
    return ctl_text_cut(t, tokens, n, flags, 0, bytes);
}

char *ctl_text_cut(const struct llm_tokenizer *t, const int32_t *tokens, size_t n, unsigned flags,
                   uint32_t cut, size_t *bytes)
{
    struct llm_detokenizer *d;
    if (llm_detokenizer_open(&d, t, LLM_DETOK_UTF8 | flags) < 0)
        return NULL;
    size_t room = 0, used = 0;
    char *text = NULL;
    for (size_t i = 0; i <= n; i++) {
        if (i == n && cut && n) { /* what waits for its rest is cut off, too */
            used = ctl_cut_text(t, tokens[n - 1], cut, text, used);
            break;
        }
        size_t need = used + (i < n ? text_room(t, tokens[i]) : 64);
        if (need > room) {
            char *grown = realloc(text, room = need * 2);
            if (!grown)
                goto fail;
            text = grown;
        }
        long got = i < n ? llm_detokenize(d, tokens[i], text + used, room - used)
                         : llm_detokenize_flush(d, text + used, room - used);
        if (got < 0)
            goto fail;
        used += (size_t)got;
    }
    llm_detokenizer_close(d);
    *bytes = used;
    return text;

fail:
    llm_detokenizer_close(d);
    free(text);
    return NULL;
}

json_t *ctl_number(double v)
{
    if (isnan(v))
        return json_null();
    return json_real(isinf(v) ? (v > 0 ? 3.40282347e38 : -3.40282347e38) : v);
}

static const char *finish_name(const struct ctl_choice *c)
{
    static const char *const names[] = {"none",    "stop",     "length",  "cancelled",
                                        "timeout", "deadline", "refused", "error"};
    bool late = c->finish == LLM_FINISH_DEADLINE || c->finish == LLM_FINISH_TIMEOUT;
    if (c->status < 0 && !late)
        return c->status == LLM_EENGINE || c->status == LLM_EOWNERDEAD || c->status == LLM_EEVICTED
                   ? "error"
                   : "refused";
    return c->finish < sizeof names / sizeof *names ? names[c->finish] : "none";
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* gaps (n) ns sorted; nearest rank */
static double quantile_us(const uint64_t *gaps, size_t n, double q)
{
    size_t rank = (size_t)ceil(q * (double)n);
    return (double)gaps[rank ? rank - 1 : 0] * 1e-3;
}

static json_t *itl_json(const struct ctl_choice *c)
{
    json_t *o = json_object();
    size_t n = c->n > 1 ? c->n - 1 : 0;
    uint64_t *gaps = n ? malloc(n * sizeof *gaps) : NULL;
    if (gaps) {
        for (size_t i = 0; i < n; i++)
            gaps[i] = c->t_ns[i + 1] - c->t_ns[i];
        qsort(gaps, n, sizeof *gaps, by_value);
    }
    json_object_set_new(o, "p50", gaps ? ctl_number(quantile_us(gaps, n, 0.5)) : json_null());
    json_object_set_new(o, "p95", gaps ? ctl_number(quantile_us(gaps, n, 0.95)) : json_null());
    json_object_set_new(o, "p99", gaps ? ctl_number(quantile_us(gaps, n, 0.99)) : json_null());
    json_object_set_new(o, "max", gaps ? ctl_number((double)gaps[n - 1] * 1e-3) : json_null());
    free(gaps);
    return o;
}

json_t *ctl_timing_json(const struct ctl_job *job, const struct ctl_choice *c)
{
    json_t *o = json_object();
    const struct llm_result *r = &c->result;
    json_object_set_new(o, "queue_us",
                        r->t_admit ? ctl_number((double)(r->t_admit - r->t_arrival) * 1e-3)
                                   : json_null());
    json_object_set_new(o, "ttft_us",
                        c->n ? ctl_number((double)(c->t_ns[0] - job->t_submit_ns) * 1e-3)
                             : json_null());
    json_object_set_new(o, "itl_us", itl_json(c));
    return o;
}

static void set_tokens(json_t *o, const struct ctl_job *job, const struct ctl_choice *c,
                       const struct llm_tokenizer *t)
{
    json_t *tokens = json_array();
    for (size_t i = 0; i < c->n; i++)
        json_array_append_new(tokens, json_integer(c->tokens[i]));
    json_object_set_new(o, "tokens", tokens);
    size_t bytes;
    char *text =
        t ? ctl_text_cut(t, c->tokens, c->n, LLM_DETOK_CONTINUE, c->result.stop_cut, &bytes) : NULL;
    if (text)
        json_object_set_new(o, "text", json_stringn(text, bytes));
    free(text);
    uint32_t n_top = job->request.top_logprobs;
    if (!(job->request.flags & LLM_SQE_LOGPROBS) && !n_top)
        return;
    json_t *logprobs = json_array();
    for (size_t i = 0; i < c->n; i++)
        json_array_append_new(logprobs, ctl_number(c->logprobs[i]));
    json_object_set_new(o, "logprobs", logprobs);
    if (!n_top)
        return;
    json_t *top = json_array();
    for (size_t i = 0; i < c->n; i++)
        json_array_append_new(top, ctl_top_json(c->top + i * n_top, n_top));
    json_object_set_new(o, "top_logprobs", top);
}

/* Which stop string ended it; one that is no text is told by its number alone. */
static void set_stop(json_t *o, const struct ctl_job *job, const struct ctl_choice *c)
{
    uint32_t i = c->result.stop;
    if (c->status < 0 || !i || i > job->request.n_stops)
        return;
    const struct llm_stop *s = &job->request.stops[i - 1];
    json_t *text = json_stringn(s->text, s->bytes);
    json_object_set_new(o, "stop_reason", text ? text : json_integer(i));
}

/* It was to keep more of a session than there is, `fitting` tokens or none. */
static bool keeps_too_much(const struct ctl_job *job, const struct ctl_choice *c)
{
    const struct llm_request *r = &job->request;
    bool keeps = r->session && r->session_keep && r->session_keep != LLM_SESSION_ALL;
    return keeps && c->status == LLM_EPARAM && !*job->refusal &&
           (c->fitting || r->op == LLM_OP_SESSION_APPEND);
}

/* A sentence of its own lasts until the next one. */
const char *ctl_refusal(const struct ctl_job *job, const struct ctl_choice *c)
{
    static char text[96];
    if (keeps_too_much(job, c)) {
        snprintf(text, sizeof text, "the session has %u tokens: keep at most %u", c->fitting,
                 c->fitting);
        return text;
    }
    return *job->refusal ? job->refusal : llm_strerror(c->status);
}

/* A deadline of so many whole milliseconds would have been accepted. */
static uint32_t fitting_ms(const struct ctl_choice *c)
{
    return c->fitting / 1000 + (c->fitting % 1000 != 0);
}

json_t *ctl_error_json(const struct ctl_job *job, const struct ctl_choice *c)
{
    json_t *e = json_pack("{s:i, s:s}", "code", c->status, "message", ctl_refusal(job, c));
    bool deadline = c->status == LLM_EDEADLINE;
    if (c->fitting)
        json_object_set_new(e, "fits", json_integer(deadline ? fitting_ms(c) : c->fitting));
    if (c->fitting && deadline)
        json_object_set_new(e, "estimate_ms", json_real((double)c->fitting * 1e-3));
    return e;
}

int ctl_print_refusal(const struct ctl_job *job, const struct ctl_choice *c)
{
    if (c->fitting && c->status == LLM_EDEADLINE)
        return ctl_error("%s (it would take %u ms)", ctl_refusal(job, c), fitting_ms(c));
    if (c->fitting && !keeps_too_much(job, c))
        return ctl_error("%s (%u would fit)", ctl_refusal(job, c), c->fitting);
    return ctl_error("%s", ctl_refusal(job, c));
}

static void set_choice(json_t *o, const struct ctl_job *job, const struct ctl_choice *c,
                       const struct llm_tokenizer *t)
{
    if (job->request.op == LLM_OP_SCORE) {
        json_t *logprobs = json_array();
        double sum = 0;
        for (size_t i = 0; i < c->n; i++) {
            json_array_append_new(logprobs, ctl_number(c->logprobs[i]));
            sum += (double)c->logprobs[i];
        }
        json_object_set_new(o, "logprobs", logprobs);
        if (c->n)
            json_object_set_new(o, "perplexity", ctl_number(exp(-sum / (double)c->n)));
    } else {
        set_tokens(o, job, c, t);
    }
    json_object_set_new(o, "finish_reason", json_string(finish_name(c)));
    set_stop(o, job, c);
    if (c->status < 0)
        json_object_set_new(o, "error", ctl_error_json(job, c));
    json_object_set_new(o, "cached_tokens", json_integer(c->result.cached_tokens));
    json_object_set_new(o, "preemptions", json_integer(c->result.preemptions));
    json_object_set_new(o, "timing", ctl_timing_json(job, c));
}

json_t *ctl_job_result(const struct ctl_job *job, struct llm_tokenizer *t)
{
    json_t *o = json_object();
    json_object_set_new(o, "prompt_tokens", json_integer((json_int_t)job->prompt.n));
    set_choice(o, job, &job->choices[0], t);
    if (job->n_choices > 1) {
        json_t *all = json_array();
        for (uint32_t i = 0; i < job->n_choices; i++) {
            json_t *one = json_pack("{s:i}", "choice", (int)i);
            set_choice(one, job, &job->choices[i], t);
            json_array_append_new(all, one);
        }
        json_object_set_new(o, "choices", all);
    }
    return o;
}

int ctl_print_result(const struct ctl_job *job, struct llm_tokenizer *t)
{
    json_t *result = ctl_job_result(job, t);
    char *id = job->id ? json_dumps(job->id, JSON_COMPACT | JSON_ENCODE_ANY) : strdup("null");
    char *rest = json_dumps(result, CTL_JSON);
    bool made = id && rest;
    bool lost = made && (printf("{\"id\":%s,%s\n", id, rest + 1) < 0 || fflush(stdout));
    free(id);
    free(rest);
    json_decref(result);
    if (!made)
        return ctl_error("out of memory for the result");
    return lost ? ctl_error("cannot write to standard output") : 0;
}

void ctl_print_timing(const struct ctl_job *job)
{
    const struct ctl_choice *c = &job->choices[0];
    if (!c->n)
        return;
    double ttft_ms = (double)(c->t_ns[0] - job->t_submit_ns) * 1e-6;
    double s = (double)(c->t_ns[c->n - 1] - c->t_ns[0]) * 1e-9;
    fprintf(stderr, "[%zu prompt tokens, time to first token %.1f ms, %zu tokens", job->prompt.n,
            ttft_ms, c->n);
    if (c->n > 1 && s > 0)
        fprintf(stderr, ", %.1f tokens/s", (double)(c->n - 1) / s);
    fprintf(stderr, "]\n");
}
