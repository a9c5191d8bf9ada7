/* streams.c - see streams.h. */
#include "streams.h"

#include <assert.h>
#include <stdlib.h>

#include "../../client/llmclient.h"
#include "../support/support.h"
#include "roof.h"

enum { WAIT_MS = 120000, FIRST_PLAIN = 1000, ARENA_BYTES = 1 << 20 };

struct stream {
    uint64_t t_submit, t[STREAMS_TOKENS_MAX];
    uint32_t n;
};

struct streams {
    struct llm_client *client;
    struct llm_limits limits;
    struct rnd rnd;
    uint32_t most, count;
    struct stream *at; /* (most) */
};

struct streams *streams_open(const char *instance, uint32_t most)
{
    struct streams *s = calloc(1, sizeof *s);
    struct llm_options o = LLM_OPTIONS_INIT; /* spin_us is 0: it sleeps at once */
    if (!s || !(s->at = calloc(most, sizeof *s->at)))
        bench_die("no memory for %u streams", most);
    o.max_inflight = most;
    o.arena_bytes = ARENA_BYTES;
    if (llm_connect(&s->client, instance, &o) < 0)
        bench_die("%s", llm_connect_error());
    llm_get_limits(s->client, &s->limits);
    s->most = most;
    s->rnd.state = 1;
    return s;
}

void streams_close(struct streams *s)
{
    llm_close(s->client);
    free(s->at);
    free(s);
}

uint32_t streams_max_len(const struct streams *s)
{
    return s->limits.max_model_len;
}

/* Special tokens are the first or the last of a vocabulary. */
static int32_t plain_token(struct streams *s)
{
    uint32_t vocab = s->limits.vocab;
    uint32_t first = vocab > 4 * FIRST_PLAIN ? FIRST_PLAIN : vocab / 4;
    return (int32_t)(first + rnd_below(&s->rnd, vocab - 2 * first));
}

static void submit(struct streams *s, uint32_t i, uint32_t prompt, uint32_t tokens)
{
    struct llm_request q = LLM_REQUEST_INIT;
    int32_t *ids = llm_reserve(s->client, prompt);
    if (!ids)
        bench_die("%s", llm_errmsg(s->client));
    for (uint32_t j = 0; j < prompt; j++)
        ids[j] = plain_token(s);
    q.tokens = ids, q.n_tokens = prompt, q.max_tokens = tokens;
    q.flags = LLM_SQE_IGNORE_EOS;
    q.user_data = i + 1;
    s->at[i].n = 0;
    s->at[i].t_submit = bench_now_ns();
    if (llm_submit(s->client, &q, NULL) < 0)
        bench_die("%s", llm_errmsg(s->client));
}

static void take(struct streams *s, void (*seen)(void *context, uint64_t now_ns), void *context)
{
    struct llm_event e;
    if (llm_wait(s->client, &e, WAIT_MS) != 1)
        bench_die("a stream stands still: %s", llm_errmsg(s->client));
    if (e.type == LLM_EVENT_ERROR)
        bench_die("a request failed: %s", llm_strerror(e.status));
    if (e.type != LLM_EVENT_TOKENS)
        return;
    uint64_t now = bench_now_ns();
    struct stream *it = &s->at[e.id - 1];
    for (uint32_t i = 0; i < e.n_tokens; i++)
        it->t[it->n++] = now;
    if (seen && it == s->at)
        seen(context, now);
}

void streams_run(struct streams *s, uint32_t count, uint32_t prompt, uint32_t tokens,
                 void (*seen)(void *context, uint64_t now_ns), void *context)
{
    assert(count <= s->most && tokens <= STREAMS_TOKENS_MAX);
    s->count = count;
    for (uint32_t i = 0; i < count; i++)
        submit(s, i, prompt, tokens);
    while (llm_inflight(s->client))
        take(s, seen, context);
}

/* From the moment that the last one has begun to the moment that the first one ends. */
static void common_time(const struct streams *s, uint64_t *from, uint64_t *to)
{
    *from = 0, *to = UINT64_MAX;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct stream *it = &s->at[i];
        *from = it->t[0] > *from ? it->t[0] : *from;
        *to = it->t[it->n - 1] < *to ? it->t[it->n - 1] : *to;
    }
}

double streams_rate(const struct streams *s)
{
    uint64_t from, to, tokens = 0;
    common_time(s, &from, &to);
    if (to <= from)
        bench_die("%u streams never ran at the same time", s->count);
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t j = 0; j < s->at[i].n; j++)
            tokens += s->at[i].t[j] > from && s->at[i].t[j] <= to;
    return (double)tokens / ((double)(to - from) * 1e-9);
}

int streams_gaps(const struct streams *s, float *out, int max)
{
    uint64_t from, to;
    int n = 0;
    common_time(s, &from, &to);
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t j = 1; j < s->at[i].n && n < max; j++)
            if (s->at[i].t[j - 1] >= from && s->at[i].t[j] <= to)
                out[n++] = (float)(s->at[i].t[j] - s->at[i].t[j - 1]) * 1e-6f;
    return n;
}

double streams_first_s(const struct streams *s)
{
    return (double)(s->at[0].t[0] - s->at[0].t_submit) * 1e-9;
}
