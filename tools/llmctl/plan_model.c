/* plan_model.c - see plan.h. */
#include "plan.h"

#include <math.h>
#include <string.h>

/* ---- memory ---- */

uint64_t plan_block_bytes(const struct gpu_model *m, enum gpu_kv_type type)
{
    uint64_t element = type == GPU_KV_F32 ? 4 : type == GPU_KV_F16 ? 2 : 1;
    uint64_t scale = type == GPU_KV_INT8 ? sizeof(float) : 0;
    uint64_t head = (uint64_t)m->head_dim * element + scale;
    return head * 2 * m->kv_heads * m->n_layers * GPU_KV_BLOCK;
}

uint64_t plan_workspace_bytes(const struct gpu_model *m, uint32_t rows, uint32_t max_len)
{
    uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    uint64_t row = 4ull * m->hidden + 2 * q + 2 * kv + m->ffn;
    return sizeof(float) * (row * rows + 8ull * m->vocab + (uint64_t)max_len * m->rope_dim);
}

bool plan_pool(struct plan_memory *m)
{
    uint64_t taken = m->weights_bytes + m->workspace_bytes;
    m->blocks = m->memory_bytes > taken ? (m->memory_bytes - taken) / m->block_bytes : 0;
    m->token_bytes = (double)m->block_bytes / GPU_KV_BLOCK;
    return m->memory_bytes > taken;
}

/* ---- time ---- */

static double fixed_part(const struct plan_speed *s)
{
    return s->step_s > s->row_s ? s->step_s - s->row_s : 0;
}

/* P(wait > t) = 0.05 for the load r and the mean wait. */
static double wait_p95(double r, double mean)
{
    return r > 0.05 ? mean / r * log(r / 0.05) : 0;
}

void plan_times(struct plan_times *out, const struct plan_speed *s, const struct plan_load *l)
{
    double c0 = fixed_part(s), c1 = s->row_s, rate = l->requests_per_s;
    double rho = rate * c1 * (l->prompt + l->output);
    *out = (struct plan_times){.holds = false};
    if (rho >= 1)
        return;
    double step = fmax(c0 + c1, c0 / (1 - rho)), running = rate * l->output * step;
    double reads = ceil(l->prompt / l->chunk) * (c0 + c1 * running) + l->prompt * c1;
    double r = rate * reads;
    if (running > l->users || r >= 1)
        return;
    double wait = r * reads / (2 * (1 - r)), busy = fmin(1, running);
    out->holds = true;
    out->step_s = step;
    out->running = running;
    out->reading = r;
    out->ttft_s = wait + reads + busy * step / 2;
    out->ttft_p95_s = wait_p95(r, wait) + reads + busy * step;
    out->gap_s = step;
    out->gap_beside_prompt_s = c0 + c1 * (fmax(running, 1) + fmin(l->prompt, l->chunk));
}

static bool holds_at(const struct plan_speed *s, const struct plan_load *l, double rate)
{
    struct plan_load at = *l;
    struct plan_times t;
    at.requests_per_s = rate;
    plan_times(&t, s, &at);
    return t.holds;
}

double plan_max_rate(const struct plan_speed *s, const struct plan_load *l)
{
    double low = 0, high = 1;
    while (high < 1e12 && holds_at(s, l, high))
        high *= 2;
    for (int i = 0; i < 80; i++) {
        double middle = (low + high) / 2;
        if (holds_at(s, l, middle))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- money ---- */

void plan_cost(struct plan_cost *c, const struct plan_load *l)
{
    double tokens = l->prompt + l->output;
    double hosted = (l->prompt * c->hosted_in + l->output * c->hosted_out) * 1e-6; /* a request */
    double an_hour = l->requests_per_s * tokens * 3600;
    c->per_million = an_hour > 0 ? c->per_hour / an_hour * 1e6 : 0;
    c->hosted_per_million = tokens > 0 ? hosted / tokens * 1e6 : 0;
    c->break_even_requests_per_s = hosted > 0 ? c->per_hour / (3600 * hosted) : 0;
}
