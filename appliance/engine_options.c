/* engine_options.c - see engine_parts.h: what a generation brings in its option map, and what stop
 * strings make of its tokens.
 *
 *     tokens    | The | cat | sat. | \n | Us | er | : |        stop string "\nUser:"
 *                                  ^ ready         ^ n_tokens
 *                                  |<- withheld -->|
 *
 * The text is that of the output alone, from the first token behind the prompt on (what a resumed
 * generation brought with it included). Tokens without text (control tokens) are part of no string,
 * nor do they interrupt one.
 */
#include <assert.h>
#include <string.h>

#include "engine_parts.h"
#include "token_text.h"

/* ---- the map ---- */

static struct submission_verdict verdict(int32_t code, uint32_t fits)
{
    return (struct submission_verdict){code, fits};
}

static uint32_t allowed_keys(const struct llm_sqe *q)
{
    switch (q->op) {
    case LLM_OP_GENERATE:
        return 1u << OPTION_STOP | 1u << OPTION_BIAS | 1u << OPTION_TOP;
    case LLM_OP_CHOOSE:
        return 1u << OPTION_LABELS;
    default:
        return 0;
    }
}

static void clear_biased(struct engine *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int32_t token;
        float bias;
        option_bias(e->option_map, &e->options, i, &token, &bias);
        e->biased[token / 64] = 0;
    }
}

/* Each token in the vocabulary, and once. */
static int32_t check_biases(struct engine *e)
{
    int32_t code = 0;
    uint32_t i = 0;
    for (; i < e->options.n_biases; i++) {
        int32_t token;
        float bias;
        option_bias(e->option_map, &e->options, i, &token, &bias);
        if (token < 0 || (uint32_t)token >= e->config.vocab)
            code = LLM_ETOKEN;
        else if (e->biased[token / 64] >> token % 64 & 1)
            code = LLM_EPARAM;
        if (code)
            break;
        e->biased[token / 64] |= 1ull << token % 64;
    }
    clear_biased(e, i);
    return code;
}

static uint32_t candidates_of(const struct engine *e, uint32_t client)
{
    return e->sink.top ? e->sink.top(e->sink.context, client) : 0;
}

struct submission_verdict engine_check_options(struct engine *e, const struct engine_entry *in)
{
    const char *why;
    struct option_map *m = &e->options;
    m->given = m->n_labels = m->n_stops = m->n_biases = m->top = 0;
    if (!in->q->options_len)
        return verdict(0, 0);
    int32_t code = option_map_read(m, e->option_map, in->q->options_len, &why);
    if (!code && m->given & ~allowed_keys(in->q))
        code = LLM_EPARAM;
    if (!code && m->n_stops && !e->config.text)
        code = LLM_ENOTEXT;
    if (!code && m->top > candidates_of(e, in->client))
        return verdict(LLM_EPARAM, candidates_of(e, in->client));
    return verdict(code ? code : check_biases(e), 0);
}

/* ---- into a sequence ---- */

static void fill_biases(struct sequence *s, const struct engine *e)
{
    for (uint32_t i = 0; i < e->options.n_biases; i++)
        option_bias(e->option_map, &e->options, i, &s->biases[i].token, &s->biases[i].bias);
    s->sampling.biases = s->biases;
    s->sampling.n_biases = e->options.n_biases;
}

static const char *text_of(const struct engine *e, int32_t token, uint32_t *bytes)
{
    *bytes = 0;
    return (uint32_t)token < e->config.text->n ? token_text_of(e->config.text, token, bytes) : "";
}

/* Output that was delivered before. A string that is complete in it had ended the generation, and
 * only the final was lost. */
static void feed_output(struct sequence *s, const struct engine *e)
{
    for (uint32_t i = s->n_prompt; i < s->n_tokens; i++) {
        uint32_t bytes, behind = 0;
        const char *text = text_of(e, s->tokens[i], &bytes);
        if (s->stop) {
            s->stop_cut += bytes;
            continue;
        }
        s->stop = stop_feed(s->stops, &s->stop_state, text, bytes, &behind);
        s->stop_cut = behind;
    }
}

static void fill_stops(struct sequence *s, const struct engine *e)
{
    s->stops->n = 0;
    for (uint32_t i = 0; i < e->options.n_stops; i++) {
        const struct option_stop *o = &e->options.stops[i];
        stop_add(s->stops, e->option_map + o->at, o->bytes);
    }
    s->n_stops = e->options.n_stops;
    s->stop_state = (struct stop_state){0};
    feed_output(s, e);
}

static bool has_penalties(const struct gpu_sampling *s)
{
    return s->repetition != 1 || s->presence != 0 || s->frequency != 0;
}

void engine_fill_options(struct sequence *s, const struct engine *e, const struct engine_entry *in)
{
    s->n_stops = s->n_top = s->withheld = s->stop = s->stop_cut = 0;
    s->lazy = false;
    if (in->q->op != LLM_OP_GENERATE)
        return;
    s->n_top = (uint8_t)e->options.top;
    if (s->n_top)
        s->flags |= LLM_SQE_LOGPROBS;
    if (e->options.n_biases)
        fill_biases(s, e);
    if (e->options.n_stops)
        fill_stops(s, e);
    s->lazy = !s->n_stops && !has_penalties(&s->sampling) && !(s->flags & LLM_SQE_SPECULATE);
}

/* ---- stop strings ---- */

static void set_ready(struct sequence *s, uint32_t ready)
{
    s->owner->unread += ready - s->ready;
    s->ready = ready;
}

/* Whole tokens go as long as `keep` bytes (at most what is withheld) are left behind them. */
static void release(const struct engine *e, struct sequence *s, uint32_t keep)
{
    uint32_t ready = s->ready, bytes;
    for (; ready < s->n_tokens; ready++, s->withheld -= bytes) {
        text_of(e, s->tokens[ready], &bytes);
        if (s->withheld - bytes < keep)
            break;
    }
    set_ready(s, ready);
}

/* `behind` bytes of the text lie from the string's beginning on. The token in which it begins, if
 * not with its first byte, is the last one that goes. */
static void stop_here(const struct engine *e, struct sequence *s, uint32_t behind)
{
    uint32_t bytes;
    if (behind <= s->withheld)
        release(e, s, behind);
    if (s->withheld > behind) {
        text_of(e, s->tokens[s->ready], &bytes);
        s->withheld -= bytes;
        set_ready(s, s->ready + 1);
    }
    s->stop_cut = behind - s->withheld;
}

bool engine_accept(const struct engine *e, struct sequence *s)
{
    uint32_t bytes, behind;
    if (s->lazy || !s->n_stops) {
        set_ready(s, s->n_tokens);
        return false;
    }
    const char *text = text_of(e, s->tokens[s->n_tokens - 1], &bytes);
    s->withheld += bytes;
    s->stop = stop_feed(s->stops, &s->stop_state, text, bytes, &behind);
    if (s->stop)
        stop_here(e, s, behind);
    else if (stop_pending(s->stops, &s->stop_state) <= s->withheld)
        release(e, s, stop_pending(s->stops, &s->stop_state));
    return s->stop;
}

void engine_release_withheld(struct sequence *s)
{
    if (s->op != LLM_OP_GENERATE || s->ready == s->n_tokens)
        return;
    set_ready(s, s->n_tokens);
    s->withheld = 0;
}
