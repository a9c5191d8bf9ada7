/* test_backend_steps.c - pure logits whatever a step consists of: sequences of any model, their rows
 * dealt out to steps at random, whole sequences and parts of them side by side, outputs of many rows,
 * few or none, and not always all threads; every output has the bits that the plain reference gives
 * its sequence alone, three rows at a time. What is dealt follows from a seed.
 */
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/backend.h"
#include "../support/gpu_rig.h"
#include "../support/support.h"
#include "../support/tiny_model.h"

enum { SEQS = 5, LEN = 320, TABLE = LEN / GPU_KV_BLOCK, BLOCKS = SEQS * TABLE, ROWS = 700 };

/* A sequence, and how far steps have come with it. */
struct seq {
    uint32_t len, pos;
    int32_t ids[LEN];
    uint32_t table[TABLE];
    float *want; /* (len, vocab) */
};

struct scene {
    uint32_t seed;
    struct rnd r;
    struct tiny_model model;
    struct seq seqs[SEQS];
    struct gpu_config config;
};

/* A step, and where each output's logits stand in the reference. */
struct dealt {
    struct gpu_step step;
    struct gpu_seq seqs[SEQS];
    int32_t tokens[ROWS];
    struct gpu_output outputs[ROWS];
    struct gpu_result results[ROWS];
    const float *want[ROWS];
    float *logits; /* (ROWS, vocab) */
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- the reference ---- */

/* Rows for which the plain reference does not take long. */
static uint32_t rows_of_model(const struct tiny_config *m)
{
    uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    uint64_t macs = m->hidden * (2 * q + 2 * kv + 3ull * m->ffn) * m->n_layers;
    macs += (uint64_t)m->hidden * m->vocab;
    return (uint32_t)(60000000 / macs);
}

static void make_seqs(struct scene *s, uint32_t rows)
{
    struct gpu_source source = tiny_source(&s->model);
    struct gpu_config c = s->config;
    struct gpu_rig plain;
    uint32_t first = rnd_below(&s->r, BLOCKS);
    c.threads = 1;
    c.plain = true;
    c.max_rows = c.max_outputs = CPU_ROWS_EACH - 1;
    gpu_rig_open(&plain, &c, &s->model.net, &source, BLOCKS);
    for (uint32_t i = 0; i < SEQS; i++) {
        struct seq *q = &s->seqs[i];
        q->len = 1 + rnd_below(&s->r, least(LEN, 1 + 2 * rows / SEQS));
        for (uint32_t b = 0; b < TABLE; b++)
            q->table[b] = (first + (i * TABLE + b) * 7) % BLOCKS;
        for (uint32_t p = 0; p < q->len; p++)
            q->ids[p] = (int32_t)rnd_below(&s->r, plain.vocab);
        q->want = calloc((size_t)q->len * plain.vocab, sizeof *q->want);
        assert_non_null(q->want);
        gpu_rig_feed(&plain, q->table, 0, q->ids, q->len, 0, q->want);
    }
    gpu_rig_close(&plain);
}

/* ---- steps ---- */

static void deal_output(struct scene *s, struct dealt *d, uint32_t row, const float *want)
{
    uint32_t i = d->step.n_outputs++, vocab = s->model.net.vocab;
    d->want[i] = want;
    d->outputs[i] =
        (struct gpu_output){.row = row, .target = -1, .logits = d->logits + (size_t)i * vocab};
}

/* Some rows of one sequence; `of`: one of so many rows has an output, 0: none. */
static void deal_seq(struct scene *s, struct dealt *d, struct seq *q, uint32_t n, uint32_t of)
{
    struct gpu_step *t = &d->step;
    d->seqs[t->n_seqs++] =
        (struct gpu_seq){.blocks = q->table, .pos = q->pos, .first_row = t->n_rows, .n_rows = n};
    for (uint32_t i = 0; i < n; i++, q->pos++) {
        uint32_t row = t->n_rows++, times = of && rnd_below(&s->r, of) == 0;
        times += times && rnd_below(&s->r, 8) == 0;
        d->tokens[row] = q->ids[q->pos];
        for (; times > 0 && t->n_outputs < s->config.max_outputs; times--)
            deal_output(s, d, row, q->want + (size_t)q->pos * s->model.net.vocab);
    }
}

/* False: all sequences are done. */
static bool deal(struct scene *s, struct dealt *d)
{
    static const uint32_t outputs_of[] = {0, 1, 3, 20};
    uint32_t left = 1 + rnd_below(&s->r, s->config.max_rows), of = outputs_of[rnd_below(&s->r, 4)];
    bool all = rnd_below(&s->r, 3) > 0; /* as many rows as there are room for */
    uint32_t first = rnd_below(&s->r, SEQS);
    left = all ? s->config.max_rows : left;
    d->step = (struct gpu_step){
        .tokens = d->tokens, .seqs = d->seqs, .outputs = d->outputs, .results = d->results};
    for (uint32_t i = 0; i < SEQS && left > 0; i++) {
        struct seq *q = &s->seqs[(first + i) % SEQS];
        uint32_t most = least(left, q->len - q->pos);
        if (most == 0)
            continue;
        uint32_t n = rnd_below(&s->r, 2) ? most : 1 + rnd_below(&s->r, most);
        deal_seq(s, d, q, n, of);
        left -= n;
    }
    return d->step.n_rows > 0;
}

static void check_outputs(const struct scene *s, const struct dealt *d)
{
    for (uint32_t i = 0; i < d->step.n_outputs; i++) {
        const struct gpu_output *o = &d->outputs[i];
        if (memcmp(o->logits, d->want[i], s->model.net.vocab * sizeof *o->logits))
            fail_msg("seed %u, %u threads, step of %u rows, %u outputs: row %u has other logits",
                     s->seed, s->config.threads, d->step.n_rows, d->step.n_outputs, o->row);
        float best = o->logits[d->results[i].token];
        for (uint32_t v = 0; v < s->model.net.vocab; v++)
            assert_true(o->logits[v] <= best);
    }
}

/* Some threads sit the next step out. */
static void choose_crew(struct scene *s, struct gpu *g)
{
    struct crew *c = &g->crew;
    for (uint32_t i = 1; i < s->config.threads && c->state == CREW_SETTLED; i++) {
        bool in = rnd_below(&s->r, 4) > 0;
        c->size += (unsigned)in - (unsigned)c->in[i];
        c->in[i] = in;
    }
}

static void check_steps(struct scene *s, struct dealt *d)
{
    struct gpu_source source = tiny_source(&s->model);
    struct gpu_rig r;
    gpu_rig_open(&r, &s->config, &s->model.net, &source, BLOCKS);
    for (uint32_t i = 0; i < SEQS; i++)
        s->seqs[i].pos = 0;
    while (deal(s, d)) {
        if (rnd_below(&s->r, 2))
            choose_crew(s, r.gpu);
        gpu_rig_step(&r, &d->step);
        check_outputs(s, d);
    }
    gpu_rig_close(&r);
}

static void check_model(uint32_t seed, struct dealt *d)
{
    struct scene s = {.seed = seed, .r = {seed}};
    struct tiny_config m = tiny_any(&s.r);
    uint32_t rows = least(rows_of_model(&m), ROWS);
    tiny_make(&s.model, &m);
    s.config = (struct gpu_config){.max_seqs = SEQS,
                                   .max_len = LEN,
                                   .activations = (enum gpu_activations)rnd_below(&s.r, 3),
                                   .kv_type = (enum gpu_kv_type)rnd_below(&s.r, GPU_KV_TYPES)};
    make_seqs(&s, rows);
    d->logits = calloc((size_t)ROWS * m.vocab, sizeof *d->logits);
    assert_non_null(d->logits);
    for (int i = 0; i < 4; i++) {
        s.config.avx2 = rnd_below(&s.r, 2);
        s.config.threads = 1 + rnd_below(&s.r, rnd_below(&s.r, 4) ? 4 : 9);
        s.config.max_rows = 1 + rnd_below(&s.r, rnd_below(&s.r, 2) ? ROWS : 64);
        s.config.max_outputs = 1 + rnd_below(&s.r, s.config.max_rows);
        check_steps(&s, d);
    }
    free(d->logits);
    for (uint32_t i = 0; i < SEQS; i++)
        free(s.seqs[i].want);
    tiny_free(&s.model);
}

static void any_steps(void **state)
{
    (void)state;
    static struct dealt d;
    uint32_t last = test_exhaustive() ? 200 : test_sanitized() ? 4 : 12;
    for (uint32_t seed = 1; seed <= last; seed++)
        check_model(seed, &d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
