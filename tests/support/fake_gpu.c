/* fake_gpu.c - see fake_gpu.h */
#include "fake_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not assert(): a broken step must stop the test with its reason, whatever NDEBUG says. */
#define DEMAND(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "fake_gpu: step broken at line %d: %s\n", __LINE__, #condition);       \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static struct fake_gpu *fake(struct gpu *g)
{
    return (struct fake_gpu *)(void *)g;
}

void fake_gpu_open(struct fake_gpu *g, uint32_t vocab, uint32_t n_blocks, uint32_t max_rows,
                   uint32_t max_seqs, uint32_t max_outputs)
{
    *g = (struct fake_gpu){.vocab = vocab,
                           .n_blocks = n_blocks,
                           .max_rows = max_rows,
                           .max_seqs = max_seqs,
                           .max_outputs = max_outputs,
                           .forced_token = -1};
    g->blocks = calloc(n_blocks, sizeof *g->blocks);
    g->written_by = calloc(n_blocks, sizeof *g->written_by);
    DEMAND(g->blocks && g->written_by);
}

void fake_gpu_close(struct fake_gpu *g)
{
    free(g->blocks);
    free(g->written_by);
    g->blocks = NULL;
    g->written_by = NULL;
}

/* ---- the model ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

uint64_t fake_model_add(uint64_t hash, int32_t token)
{
    return mix(hash + 0x51ed27u + (uint64_t)(uint32_t)token);
}

int32_t fake_model_draw(uint64_t hash, const struct gpu_sampling *s, uint32_t position,
                        uint32_t vocab)
{
    if (s->temperature > 0.0f)
        hash = mix(hash ^ mix(s->seed ^ mix((uint64_t)position << 32 | s->choice)));
    return (int32_t)(hash % vocab);
}

float fake_model_logprob_of(uint64_t hash, int32_t token)
{
    return -(float)(fake_model_add(hash, token) >> 44) / 65536.0f;
}

static uint64_t hash_of(const int32_t *history, uint32_t n)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < n; i++)
        hash = fake_model_add(hash, history[i]);
    return hash;
}

int32_t fake_model_next(const int32_t *history, uint32_t n, const struct gpu_sampling *sampling,
                        uint32_t vocab)
{
    return fake_model_draw(hash_of(history, n), sampling, n, vocab);
}

float fake_model_logprob(const int32_t *history, uint32_t n, int32_t token)
{
    return fake_model_logprob_of(hash_of(history, n), token);
}

uint64_t fake_model_penalize(uint64_t hash, const struct gpu_sampling *s, uint32_t n_prompt)
{
    uint32_t parts[3];
    memcpy(parts, (const float[3]){s->repetition, s->presence, s->frequency}, sizeof parts);
    if (s->repetition != 1.0f || s->presence != 0.0f || s->frequency != 0.0f)
        for (int i = 0; i < 3; i++)
            hash = mix(hash ^ mix((uint64_t)parts[i] << 32 | n_prompt));
    for (uint32_t i = 0; i < s->n_biases; i++) {
        memcpy(parts, &s->biases[i].bias, sizeof *parts);
        hash = mix(hash ^ mix((uint64_t)parts[0] << 32 | (uint32_t)s->biases[i].token));
    }
    return hash;
}

struct gpu_candidate fake_model_candidate(uint64_t hash, uint32_t k, uint32_t vocab)
{
    int32_t token = (int32_t)((hash + k) % vocab);
    return (struct gpu_candidate){token, fake_model_logprob_of(hash, token)};
}

/* ---- a step ---- */

static void check_shape(const struct fake_gpu *g, const struct gpu_step *s)
{
    DEMAND(s->n_rows >= 1 && s->n_rows <= g->max_rows);
    DEMAND(s->n_seqs >= 1 && s->n_seqs <= g->max_seqs && s->n_outputs <= g->max_outputs);
    uint32_t row = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        DEMAND(s->seqs[i].first_row == row && s->seqs[i].n_rows >= 1);
        DEMAND(s->seqs[i].adapter == 0);
        DEMAND(s->seqs[i].pos + s->seqs[i].n_rows <= s->seqs[i].rope_len);
        row += s->seqs[i].n_rows;
        for (uint32_t k = 0; k < i; k++)
            DEMAND(s->seqs[k].blocks != s->seqs[i].blocks);
    }
    DEMAND(row == s->n_rows);
    for (uint32_t i = 0; i < s->n_rows; i++)
        DEMAND(s->tokens[i] >= 0 && (uint32_t)s->tokens[i] < g->vocab);
    for (uint32_t i = 0; i < s->n_outputs; i++) {
        DEMAND(s->outputs[i].row < s->n_rows && s->outputs[i].target < (int32_t)g->vocab);
        DEMAND(!i || s->outputs[i].row >= s->outputs[i - 1].row);
    }
}

static struct fake_cell *cell_of(const struct fake_gpu *g, const struct gpu_seq *q, uint32_t pos)
{
    return &g->blocks[q->blocks[pos / GPU_KV_BLOCK]][pos % GPU_KV_BLOCK];
}

static void write_row(struct fake_gpu *g, const struct gpu_seq *q, uint32_t pos, int32_t token)
{
    uint64_t before = pos ? cell_of(g, q, pos - 1)->hash : 0;
    *cell_of(g, q, pos) = (struct fake_cell){fake_model_add(before, token), token, pos + 1};
}

static void write_rows(struct fake_gpu *g, const struct gpu_step *s)
{
    memset(g->written_by, 0, g->n_blocks * sizeof *g->written_by);
    for (uint32_t i = 0; i < s->n_seqs; i++)
        for (uint32_t k = 0; k < s->seqs[i].n_rows; k++) {
            uint32_t pos = s->seqs[i].pos + k, block = s->seqs[i].blocks[pos / GPU_KV_BLOCK];
            DEMAND(block < g->n_blocks);
            DEMAND(g->written_by[block] == 0 || g->written_by[block] == i + 1);
            g->written_by[block] = i + 1;
            write_row(g, &s->seqs[i], pos, s->tokens[s->seqs[i].first_row + k]);
        }
}

/* Nobody else reads what one sequence writes in this step. */
static void check_readers(const struct fake_gpu *g, const struct gpu_step *s)
{
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        uint32_t end = s->seqs[i].pos + s->seqs[i].n_rows;
        for (uint32_t b = 0; b * GPU_KV_BLOCK < end; b++) {
            uint32_t writer = g->written_by[s->seqs[i].blocks[b]];
            DEMAND(writer == 0 || writer == i + 1);
        }
    }
}

static const struct gpu_seq *sequence_of(const struct gpu_step *s, uint32_t row)
{
    for (uint32_t i = 0; i < s->n_seqs; i++)
        if (row < s->seqs[i].first_row + s->seqs[i].n_rows)
            return &s->seqs[i];
    abort();
}

/* The history as the pool has it: positions 0 .. pos, each written behind the one before it. */
static uint64_t read_history(const struct fake_gpu *g, const struct gpu_seq *q, uint32_t pos)
{
    uint64_t hash = 0;
    for (uint32_t p = 0; p <= pos; p++) {
        const struct fake_cell *c = cell_of(g, q, p);
        DEMAND(c->pos_plus_1 == p + 1);
        hash = fake_model_add(hash, c->token);
        DEMAND(c->hash == hash);
    }
    return hash;
}

static bool has_penalties(const struct gpu_sampling *s)
{
    return s->repetition != 1 || s->presence != 0 || s->frequency != 0;
}

/* The history that penalties are counted in is the one that was computed; without penalties none
 * need be there. */
static void check_history(const struct gpu_output *o, uint64_t hash)
{
    if (!o->history) {
        DEMAND(!has_penalties(&o->sampling) && !o->n_history);
        return;
    }
    DEMAND(o->n_prompt <= o->n_history && o->n_history == o->position);
    DEMAND(hash_of(o->history, o->n_history) == hash);
}

static int32_t draw(const struct fake_gpu *g, const struct gpu_output *o, uint64_t hash)
{
    check_history(o, hash);
    int32_t token = g->draw ? g->draw(g->draw_context, o) : -1;
    if (token >= 0)
        return token;
    hash = fake_model_penalize(hash, &o->sampling, o->n_prompt);
    return g->forced_token >= 0 ? g->forced_token
                                : fake_model_draw(hash, &o->sampling, o->position, g->vocab);
}

static void compute_output(struct fake_gpu *g, const struct gpu_step *s, uint32_t i)
{
    const struct gpu_output *o = &s->outputs[i];
    const struct gpu_seq *q = sequence_of(s, o->row);
    uint32_t pos = q->pos + (o->row - q->first_row);
    DEMAND(o->position == pos + 1);
    uint64_t hash = read_history(g, q, pos);
    int32_t token = o->target;
    if (token < 0)
        token = draw(g, o, hash);
    s->results[i] =
        (struct gpu_result){.token = token, .logprob = fake_model_logprob_of(hash, token)};
    for (uint32_t k = 0; o->top && k < o->n_top; k++)
        o->top[k] = fake_model_candidate(hash, k, g->vocab);
    s->results[i].n_top = o->n_top;
}

static int fake_submit(struct gpu *handle, const struct gpu_step *step)
{
    struct fake_gpu *g = fake(handle);
    DEMAND(!g->in_flight);
    check_shape(g, step);
    if (++g->steps == g->fail_submit_at)
        return -EIO;
    g->in_flight = step;
    return 0;
}

static int fake_wait(struct gpu *handle)
{
    struct fake_gpu *g = fake(handle);
    const struct gpu_step *s = g->in_flight;
    DEMAND(s);
    g->in_flight = NULL;
    if (g->steps == g->fail_wait_at)
        return -EIO;
    write_rows(g, s);
    check_readers(g, s);
    for (uint32_t i = 0; i < s->n_outputs; i++) {
        if (s->soon && g->steps % 2) /* a backend may call it, or not */
            s->soon(s->soon_context, s->n_outputs - i);
        compute_output(g, s, i);
    }
    g->rows_last = s->n_rows;
    if (g->clock)
        *g->clock += g->step_ns + s->n_rows * g->row_ns;
    if (g->watch)
        g->watch(g->watch_context, s);
    return 0;
}

static int fake_copy_blocks(struct gpu *handle, const uint32_t *dst, const uint32_t *src,
                            uint32_t n)
{
    struct fake_gpu *g = fake(handle);
    DEMAND(!g->in_flight);
    if (g->steps == g->fail_copy_at)
        return -EIO;
    for (uint32_t i = 0; i < n; i++) {
        DEMAND(dst[i] < g->n_blocks && src[i] < g->n_blocks && dst[i] != src[i]);
        memcpy(g->blocks[dst[i]], g->blocks[src[i]], sizeof g->blocks[0]);
        g->copies++;
    }
    return 0;
}

const struct gpu_ops *fake_gpu_ops(void)
{
    static const struct gpu_ops ops = {
        .name = "fake", .submit = fake_submit, .wait = fake_wait, .copy_blocks = fake_copy_blocks};
    return &ops;
}
