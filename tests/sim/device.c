/* device.c - see device.h */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#define EXPECT(d, condition, sentence)                                                             \
    do {                                                                                           \
        if (!(condition) && !(d)->violation)                                                       \
            (d)->violation = (sentence);                                                           \
    } while (0)

static struct device *device(struct gpu *g)
{
    return (struct device *)(void *)g;
}

struct gpu *device_handle(struct device *d)
{
    return (struct gpu *)(void *)d;
}

uint64_t device_clock(void *d)
{
    return ((const struct device *)d)->now_ns;
}

bool device_open(struct device *d, const struct sim_config *config)
{
    *d = (struct device){.cost = config->cost,
                         .vocab = config->engine.vocab,
                         .n_blocks = config->engine.n_blocks,
                         .max_rows = config->engine.max_num_batched_tokens,
                         .now_ns = 1000000000, /* 0 is no time */
                         .random = {random_mix(config->seed ^ 0x5157)}};
    d->written_in = calloc(d->n_blocks, sizeof *d->written_in);
    return d->written_in != NULL;
}

void device_close(struct device *d)
{
    free(d->written_in);
    d->written_in = NULL;
}

int32_t device_token(int32_t token, uint32_t position, uint32_t choice, uint32_t vocab)
{
    uint64_t at = (uint64_t)position << 32 | (uint32_t)token;
    return (int32_t)(random_mix(at + choice * 0x632be5abu) % vocab);
}

/* ---- what a step takes ---- */

static double time_of(const struct device *d, const struct gpu_seq *q)
{
    double n = q->n_rows, keys = n * q->pos + n * (n + 1) / 2;
    if (q->n_rows == 1)
        return d->cost.decode_row + keys * d->cost.decode_key;
    return n * d->cost.prefill_row + keys * d->cost.prefill_key;
}

static void time_step(struct device *d, const struct gpu_step *s)
{
    double decodes = 0, all = 0;
    d->decode_rows = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        double ns = time_of(d, &s->seqs[i]);
        all += ns;
        if (s->seqs[i].n_rows > 1)
            continue;
        decodes += ns;
        d->decode_rows++;
    }
    double factor = 1 + d->cost.noise * (2 * random_unit(&d->random) - 1);
    d->step_ns = (d->cost.step + all) * factor;
    d->without_ns = (d->cost.step + decodes) * factor;
}

/* ---- is it a good step ---- */

static void check_blocks(struct device *d, const struct gpu_seq *q)
{
    for (uint32_t b = q->pos / GPU_KV_BLOCK; b * GPU_KV_BLOCK < q->pos + q->n_rows; b++) {
        uint32_t block = q->blocks[b];
        EXPECT(d, block < d->n_blocks, "a step names a block that the pool does not have");
        if (block >= d->n_blocks)
            return;
        EXPECT(d, d->written_in[block] != d->steps, "two sequences write to one block in a step");
        d->written_in[block] = d->steps;
    }
}

static void check_step(struct device *d, const struct gpu_step *s)
{
    uint32_t row = 0;
    EXPECT(d, s->n_rows && s->n_rows <= d->max_rows, "a step has no rows, or more than it may");
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        EXPECT(d, s->seqs[i].first_row == row && s->seqs[i].n_rows,
               "the rows of a step are not in order");
        row += s->seqs[i].n_rows;
        check_blocks(d, &s->seqs[i]);
    }
    EXPECT(d, row == s->n_rows, "the sequences of a step do not cover its rows");
}

/* ---- the backend ---- */

static void compute_outputs(struct device *d, const struct gpu_step *s)
{
    for (uint32_t i = 0, q = 0; i < s->n_outputs; i++) {
        const struct gpu_output *o = &s->outputs[i];
        while (q < s->n_seqs && o->row >= s->seqs[q].first_row + s->seqs[q].n_rows)
            q++;
        EXPECT(d, q < s->n_seqs, "an output names a row that the step does not have");
        if (d->violation)
            return;
        uint32_t position = s->seqs[q].pos + (o->row - s->seqs[q].first_row);
        EXPECT(d, o->position == position + 1, "an output is of another position than its row");
        int32_t token = o->target >= 0 ? o->target
                                       : device_token(s->tokens[o->row], position,
                                                      o->sampling.choice, d->vocab);
        s->results[i] = (struct gpu_result){token, -1.0f};
    }
}

static int submit(struct gpu *g, const struct gpu_step *s)
{
    struct device *d = device(g);
    d->steps++;
    d->step = s;
    check_step(d, s);
    time_step(d, s);
    return 0;
}

static int wait(struct gpu *g)
{
    struct device *d = device(g);
    compute_outputs(d, d->step);
    d->now_ns += (uint64_t)(d->step_ns + 0.5);
    return 0;
}

static int copy_blocks(struct gpu *g, const uint32_t *dst, const uint32_t *src, uint32_t n)
{
    struct device *d = device(g);
    for (uint32_t i = 0; i < n; i++)
        EXPECT(d, dst[i] < d->n_blocks && src[i] < d->n_blocks && dst[i] != src[i],
               "a copy names a block that the pool does not have, or itself");
    d->copies += n;
    return 0;
}

static void rest(struct gpu *g)
{
    (void)g;
}

static const char *numerics(const struct gpu *g)
{
    (void)g;
    return "sim";
}

static const char *kernels(const struct gpu *g)
{
    (void)g;
    return "sim";
}

const struct gpu_ops *device_ops(void)
{
    static const struct gpu_ops ops = {.name = "sim",
                                       .submit = submit,
                                       .wait = wait,
                                       .copy_blocks = copy_blocks,
                                       .rest = rest,
                                       .numerics = numerics,
                                       .kernels = kernels};
    return &ops;
}
