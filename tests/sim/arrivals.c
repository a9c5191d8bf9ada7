/* arrivals.c - see arrivals.h */
#include "arrivals.h"

#include <stdlib.h>

#include "random.h"

struct source { /* of one kind */
    const struct sim_kind *kind;
    struct random random;
    uint32_t left;         /* requests */
    uint32_t burst;        /* of these, that come at once */
    uint64_t at_ns;        /* when */
    uint32_t client;       /* from whom */
    uint32_t first_client; /* the kind's */
};

static uint32_t draw_length(struct random *r, const struct sim_length *l)
{
    double n = l->least;
    if (l->mean > l->least)
        n += random_exponential(r, (double)l->mean - l->least);
    uint32_t most = l->most > l->least ? l->most : l->least;
    return n < most ? (uint32_t)n : most;
}

static uint32_t draw_burst(struct source *s)
{
    uint32_t n = 1;
    if (s->kind->regular)
        return s->kind->burst;
    while (n < 1000000 && random_unit(&s->random) * s->kind->burst > 1)
        n++;
    return n;
}

static void next_burst(struct source *s)
{
    double gap = (double)s->kind->gap_ns * s->kind->burst;
    s->at_ns += (uint64_t)(s->kind->regular ? gap : random_exponential(&s->random, gap));
    s->burst = draw_burst(s);
    s->client = s->first_client + random_below(&s->random, s->kind->clients);
}

static void open_source(struct source *s, const struct sim_kind *kind, uint64_t seed,
                        uint32_t first_client)
{
    *s = (struct source){.kind = kind,
                         .random = {random_mix(seed)},
                         .left = kind->count,
                         .first_client = first_client};
    next_burst(s);
    if (kind->regular)
        s->at_ns = 0;
    s->at_ns += kind->start_ns;
}

static struct request draw(struct source *s, uint8_t kind)
{
    const struct sim_kind *k = s->kind;
    struct request r = {.arrival_ns = s->at_ns,
                        .client = s->client,
                        .n_prompt = draw_length(&s->random, &k->prompt) + k->shared,
                        .n_output = draw_length(&s->random, &k->output),
                        .next = ARRIVALS_NONE,
                        .flight = ARRIVALS_NONE,
                        .kind = kind};
    if (k->regular) /* each of its clients in turn */
        r.client = s->first_client + s->left % k->clients;
    if (k->cancel_percent && random_below(&s->random, 100) < k->cancel_percent)
        r.cancel_at = 1 + random_below(&s->random, r.n_output);
    s->left--;
    if (!--s->burst)
        next_burst(s);
    return r;
}

/* The one whose next request comes first. */
static uint32_t earliest(const struct source *sources, uint32_t n)
{
    uint32_t first = n;
    for (uint32_t i = 0; i < n; i++)
        if (sources[i].left && (first == n || sources[i].at_ns < sources[first].at_ns))
            first = i;
    return first;
}

bool arrivals_make(struct arrivals *a, const struct sim_config *config)
{
    struct source sources[SIM_KINDS];
    *a = (struct arrivals){0};
    for (uint32_t i = 0; i < config->n_kinds; i++) {
        open_source(&sources[i], &config->kinds[i], config->seed * SIM_KINDS + i, a->n_clients);
        a->n += config->kinds[i].count;
        a->n_clients += config->kinds[i].clients;
    }
    a->requests = calloc(a->n ? a->n : 1, sizeof *a->requests);
    for (uint32_t r = 0; a->requests && r < a->n; r++) {
        uint32_t i = earliest(sources, config->n_kinds);
        a->requests[r] = draw(&sources[i], (uint8_t)i);
    }
    return a->requests != NULL;
}

void arrivals_free(struct arrivals *a)
{
    free(a->requests);
    *a = (struct arrivals){0};
}

int32_t arrivals_token(const struct sim_config *config, const struct arrivals *a, uint32_t r,
                       uint32_t i)
{
    const struct request *q = &a->requests[r];
    bool shared = i < config->kinds[q->kind].shared;
    uint64_t of = shared ? (uint64_t)q->kind << 40 : (r + 1ull) << 20;
    return (int32_t)(random_mix(of + i + config->seed) % config->engine.vocab);
}
