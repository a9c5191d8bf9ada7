/* answer.c - see answer.h.
 *
 *   token -> detokenizer -> tool parser -> text, tool calls of the choice
 *        `-> log-probabilities
 */
#include "answer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "objects.h"

enum { TEXT_MAX = 8192 };

/* ---- beginning and end of the choices ---- */

static unsigned text_flags(const struct call *c)
{
    return LLM_DETOK_UTF8 | (c->params.api == API_COMPLETION ? LLM_DETOK_CONTINUE : 0);
}

static enum tool_format format_of(const struct call *c)
{
    if (!c->params.tools || c->params.tool_choice == TOOL_NONE)
        return TOOLS_NONE;
    return tools_format_of_template(c->model->template_source);
}

static void take_text(struct call *c, uint32_t index, const char *text, size_t bytes);

static bool wants_scores(const struct call *c)
{
    return c->params.echo && c->params.logprobs;
}

static void plan_units(struct call *c)
{
    c->next_unit = wants_scores(c) ? 0 : c->n_prompts;
    c->end_unit = c->params.max_tokens ? 2 * c->n_prompts : c->n_prompts;
    c->scores_owed = wants_scores(c) ? c->n_prompts : 0;
}

static int begin_choice(struct call *c, uint32_t index, struct problem *problem)
{
    struct choice *k = &c->choices[index];
    const struct prompt *prompt = &c->prompts[index / c->params.n];
    k->held.id = -1;
    tools_begin(&k->tools, format_of(c));
    int rc = llm_detokenizer_open(&k->detokenizer, c->model->tokenizer, text_flags(c));
    if (rc < 0)
        return problem_of_engine(problem, rc, 0, NULL);
    if (c->params.echo)
        buffer_add(&k->text, prompt->text, prompt->bytes);
    if (wants_scores(c)) { /* nothing is known of what stands before the first token */
        struct token first = {.id = prompt->tokens[0], .logprob = NAN};
        object_add_logprob(c, k, &first);
    }
    if (c->forced)
        take_text(c, index, c->forced, strlen(c->forced));
    return 0;
}

int answer_begin(struct call *c, struct problem *problem)
{
    uint32_t n = call_choices(c);
    c->choices = calloc(n, sizeof *c->choices);
    c->part_ids = calloc(2 * c->n_prompts, sizeof *c->part_ids);
    plan_units(c);
    if (!c->choices || !c->part_ids)
        return problem_memory(problem);
    c->owed = n;
    c->numerics_id = c->model->limits.numerics_id;
    for (uint32_t i = 0; i < n; i++)
        if (begin_choice(c, i, problem))
            return -1;
    return 0;
}

void answer_free(struct call *c)
{
    for (uint32_t i = 0; c->choices && i < call_choices(c); i++) {
        struct choice *k = &c->choices[i];
        struct logprobs *l = &k->logprobs;
        llm_detokenizer_close(k->detokenizer);
        tools_free(&k->tools);
        struct buffer *const all[] = {&k->text,   &k->calls,  &k->arguments, &l->content,
                                      &l->tokens, &l->values, &l->tops,      &l->offsets};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            buffer_free(all[j]);
    }
    free(c->choices);
    c->choices = NULL;
}

static size_t bytes_of(const struct choice *k)
{
    const struct logprobs *l = &k->logprobs;
    return k->text.bytes + k->calls.bytes + k->arguments.bytes + l->content.bytes +
           l->tokens.bytes + l->values.bytes + l->tops.bytes + l->offsets.bytes;
}

static void weigh(struct call *c, struct choice *k)
{
    size_t bytes = bytes_of(k);
    c->answer_bytes += bytes - k->bytes;
    k->bytes = bytes;
}

bool answer_too_large(const struct call *c)
{
    return !c->params.stream && c->answer_bytes > c->max_answer_bytes;
}

/* ---- tool calls ---- */

struct sink_context {
    struct call *call;
    uint32_t index; /* of the choice */
};

static struct choice *choice_of(void *context)
{
    struct sink_context *s = context;
    return &s->call->choices[s->index];
}

static void on_text(void *context, const char *text, size_t bytes)
{
    buffer_add(&choice_of(context)->text, text, bytes);
}

/* Puts the arguments that came into `calls`: more of them in a stream, all of them else. */
static void settle_arguments(const struct call *c, struct choice *k)
{
    if (!k->tools.n_calls)
        return;
    if (!c->params.stream) {
        json_put_string(&k->calls, k->arguments.data, k->arguments.bytes);
        buffer_text(&k->calls, "}}");
    } else if (k->arguments.bytes) {
        buffer_format(&k->calls,
                      "%s{\"index\":%u,\"function\":{\"arguments\":", k->calls.bytes ? "," : "",
                      k->tools.n_calls - 1);
        json_put_string(&k->calls, k->arguments.data, k->arguments.bytes);
        buffer_text(&k->calls, "}}");
    }
    buffer_clear(&k->arguments);
}

static void on_call(void *context, unsigned call, const char *name, size_t bytes)
{
    struct sink_context *s = context;
    struct choice *k = choice_of(context);
    const char *unique = strrchr(s->call->id, '-');
    if (call) {
        k->tools.n_calls = call; /* those that were open before this one */
        settle_arguments(s->call, k);
        k->tools.n_calls = call + 1;
    }
    buffer_text(&k->calls, k->calls.bytes ? ",{" : "{");
    if (s->call->params.stream)
        buffer_format(&k->calls, "\"index\":%u,", call);
    buffer_format(&k->calls,
                  "\"id\":\"call_%s%02x%02x\",\"type\":\"function\",\"function\":{\"name\":",
                  unique ? unique + 1 : "", s->index, call & 255);
    json_put_string(&k->calls, name, bytes);
    buffer_text(&k->calls, s->call->params.stream ? ",\"arguments\":\"\"}}" : ",\"arguments\":");
}

static void on_arguments(void *context, unsigned call, const char *text, size_t bytes)
{
    (void)call;
    buffer_add(&choice_of(context)->arguments, text, bytes);
}

static struct tool_sink sink_of(struct sink_context *s)
{
    return (struct tool_sink){on_text, on_call, on_arguments, s};
}

/* ---- tokens ---- */

static void take_text(struct call *c, uint32_t index, const char *text, size_t bytes)
{
    struct sink_context s = {c, index};
    struct tool_sink sink = sink_of(&s);
    tools_feed(&c->choices[index].tools, text, bytes, &sink);
}

/* Llama's and Mistral's markers are control tokens, which a detokenizer leaves out. */
static bool take_marker(struct call *c, uint32_t index, int32_t token)
{
    struct choice *k = &c->choices[index];
    const char *marker = k->tools.format == TOOLS_NONE ? NULL : tools_marker(k->tools.format),
               *text;
    if (!marker || !llm_token_is_control(c->model->tokenizer, token))
        return false;
    long bytes = llm_token_bytes(c->model->tokenizer, token, &text);
    if (bytes != (long)strlen(marker) || memcmp(text, marker, (size_t)bytes))
        return false;
    take_text(c, index, text, (size_t)bytes);
    return true;
}

/* How much of a text that ends with the token lies in the token's last `cut` bytes. They begin a
 * character, as stop strings do. */
static size_t shown_of_cut(const struct call *c, int32_t token, size_t cut)
{
    const char *bytes;
    long n = cut ? llm_token_bytes(c->model->tokenizer, token, &bytes) : 0;
    return n >= (long)cut && cut ? utf8_shown(bytes + n - cut, cut) : 0;
}

/* `cut`: bytes at the end of its text that do not belong to the answer. */
static void count_token(struct call *c, uint32_t index, const struct token *t, size_t cut)
{
    struct choice *k = &c->choices[index];
    char text[TEXT_MAX];
    size_t shown = shown_of_cut(c, t->id, cut);
    k->n_tokens++;
    if (c->params.logprobs)
        object_add_logprob(c, k, t);
    if (take_marker(c, index, t->id))
        return;
    long n = llm_detokenize(k->detokenizer, t->id, text, sizeof text);
    if (n < 0)
        k->text.failed = true;
    else if ((size_t)n > shown)
        take_text(c, index, text, (size_t)n - shown);
    if (cut)
        llm_detokenizer_reset(k->detokenizer); /* what waits for its rest is cut off as well */
}

static void settle_held(struct call *c, uint32_t index, size_t cut)
{
    struct choice *k = &c->choices[index];
    if (k->held.id >= 0)
        count_token(c, index, &k->held, cut);
    k->held.id = -1;
}

/* Whether a stop string may begin in the token's text: the engine delivers such a token when it knows
 * that none does, or with the final that says how much of it to cut off. */
static bool may_be_cut(const struct call *c, int32_t token)
{
    const char *text;
    long bytes = c->params.n_stops ? llm_token_bytes(c->model->tokenizer, token, &text) : 0;
    for (long at = 0; at < bytes; at++)
        for (uint32_t s = 0; s < c->params.n_stops; s++) {
            size_t rest = (size_t)(bytes - at), stop = c->params.stops[s].bytes;
            if (!memcmp(text + at, c->params.stops[s].text, rest < stop ? rest : stop))
                return true;
        }
    return false;
}

static void take_tokens(struct call *c, const struct llm_client *client, uint32_t index,
                        const struct llm_event *e)
{
    struct choice *k = &c->choices[index];
    for (uint32_t i = 0; i < e->n_tokens; i++) {
        settle_held(c, index, 0);
        struct token *t = &k->held;
        t->id = e->tokens[i];
        t->logprob = e->logprobs[i];
        t->n_top =
            c->params.top_logprobs ? llm_event_top(client, i, t->top, c->params.top_logprobs) : 0;
        if (!llm_token_is_control(c->model->tokenizer, t->id) && !may_be_cut(c, t->id))
            settle_held(c, index, 0);
    }
}

/* ---- finals ---- */

static const char *finish_name(const struct call *c, const struct choice *k, uint32_t finish)
{
    if (finish != LLM_FINISH_STOP)
        return "length"; /* max_tokens, or the time that the request allowed */
    bool calls = k->tools.n_calls && c->params.tool_choice != TOOL_NAMED;
    return calls ? "tool_calls" : "stop";
}

static void take_rest(struct call *c, uint32_t index)
{
    struct choice *k = &c->choices[index];
    struct sink_context s = {c, index};
    struct tool_sink sink = sink_of(&s);
    char text[TEXT_MAX];
    long n = llm_detokenize_flush(k->detokenizer, text, sizeof text);
    if (n > 0)
        take_text(c, index, text, (size_t)n);
    tools_end(&k->tools, &sink);
}

static void finish_choice(struct call *c, uint32_t index, uint32_t finish)
{
    struct choice *k = &c->choices[index];
    take_rest(c, index);
    settle_arguments(c, k);
    k->finish = finish_name(c, k, finish);
}

static void take_final(struct call *c, uint32_t index, const struct llm_event *e)
{
    bool end_token = e->finish == LLM_FINISH_STOP && !e->result.stop;
    if (!end_token)
        settle_held(c, index, e->result.stop ? e->result.stop_cut : 0);
    finish_choice(c, index, e->finish);
    c->cached_tokens += index % c->params.n ? 0 : e->result.cached_tokens;
    if (e->result.numerics_id)
        c->numerics_id = e->result.numerics_id;
}

/* A call that had to be made is made: nothing is to come. */
static bool has_what_was_forced(const struct call *c, const struct choice *k)
{
    return c->forced && k->tools.n_calls && k->tools.state == TOOL_CLOSED;
}

bool answer_event(struct call *c, const struct llm_client *client, uint32_t index,
                  const struct llm_event *e, struct buffer *out)
{
    struct choice *k = &c->choices[index];
    if (k->finish)
        return false;
    if (e->type == LLM_EVENT_TOKENS)
        take_tokens(c, client, index, e);
    else
        take_final(c, index, e);
    if (!k->finish && has_what_was_forced(c, k))
        finish_choice(c, index, LLM_FINISH_STOP);
    if (c->params.stream) {
        if (!k->finish)
            settle_arguments(c, k);
        if (!k->begun || k->text.bytes || k->calls.bytes || k->logprobs.n || k->finish)
            object_chunk(c, k, index, out);
    }
    weigh(c, k);
    return k->finish;
}

void answer_score(struct call *c, uint32_t prompt, const struct llm_event *e)
{
    for (uint32_t i = 0; i < e->n_tokens; i++) {
        struct token t = {.id = e->tokens[i], .logprob = e->logprobs[i]};
        if (c->params.top_logprobs) /* of a prompt's token no others are known */
            t.n_top = 1, t.top[0] = (struct llm_candidate){t.id, t.logprob};
        for (uint32_t k = 0; k < c->params.n; k++)
            object_add_logprob(c, &c->choices[prompt * c->params.n + k], &t);
    }
}

void answer_scored(struct call *c, struct buffer *out)
{
    for (uint32_t i = 0; i < call_choices(c); i++) {
        c->choices[i].finish = "length";
        if (c->params.stream)
            object_chunk(c, &c->choices[i], i, out);
    }
    c->owed = 0;
}

void answer_finish(struct call *c, struct buffer *out)
{
    if (!c->params.stream) {
        object_answer(c, out);
        return;
    }
    if (c->params.include_usage)
        object_usage_chunk(c, out);
    buffer_text(out, "data: [DONE]\n\n");
}

void answer_fail(struct call *c, const struct problem *problem, struct buffer *out)
{
    (void)c;
    buffer_text(out, "data: ");
    problem_write(problem, out);
    buffer_text(out, "\n\n");
}
