/* layer.c - what a layer does with each row by itself: everything but attention.
 *
 * Outputs that only lead on to something else are made in tiles, a few panels of a chunk of rows,
 * and go on from there while they lie in the cache: gate and up to SwiGLU and quantization, o and
 * down to the residual stream.
 */
#include <assert.h>
#include <string.h>

#include "turn.h"

/* ---- inputs of a product ---- */

/* Own rows, in whole groups: a group's activation blocks lie side by side. */
static struct cpu_share own_rows(const struct turn *t)
{
    struct cpu_share s = turn_share(t, (t->n_rows + LINEAR_GROUP - 1) / LINEAR_GROUP);
    return (struct cpu_share){min_u32(s.from * LINEAR_GROUP, t->n_rows),
                              min_u32(s.to * LINEAR_GROUP, t->n_rows)};
}

/* norm (rows, hidden): its first row alone is used where nobody reads floats. */
static void stage_rows(const struct turn *t, const struct stage *s, struct cpu_share rows,
                       float *norm, struct act *acts)
{
    const struct gpu *g = t->g;
    for (uint32_t r = rows.from; r < rows.to; r++) {
        const float *x = s->from + r * s->stride;
        if (s->weight) {
            float *y = s->f32 ? norm + r * t->x_stride : norm;
            g->ops->rms_norm(x, s->weight, g->model.rms_eps, s->k, y);
            x = y;
        }
        if (s->int8)
            g->linear->quantize(x, s->k, linear_act(acts, s->k, r));
    }
}

struct linear_input turn_stage(const struct turn *t, const struct stage *s)
{
    const struct cpu_private *mine = &t->g->w.threads[t->thread];
    bool private = t->n_rows <= CPU_PRIVATE_ROWS;
    float *norm = private || !s->f32 ? mine->norm : t->norm;
    struct act *acts = private ? mine->acts : t->acts;
    stage_rows(t, s, private ? (struct cpu_share){0, t->n_rows} : own_rows(t), norm, acts);
    if (!private)
        turn_barrier(t);
    return (struct linear_input){.acts = acts,
                                 .f32 = s->weight ? norm : s->from,
                                 .stride = s->weight ? t->x_stride : s->stride};
}

static void stage_for(struct stage *s, const struct linear *l)
{
    s->int8 |= l->int8;
    s->f32 |= !l->int8;
}

static struct stage stage_norm(const struct turn *t, const float *weight)
{
    return (struct stage){
        .from = t->x, .stride = t->x_stride, .k = t->g->model.hidden, .weight = weight};
}

struct linear_input turn_norm(const struct turn *t, const float *weight, const struct linear *l)
{
    struct stage s = stage_norm(t, weight);
    stage_for(&s, l);
    return turn_stage(t, &s);
}

/* ---- q, k, v ---- */

struct product {
    const struct linear *l;
    const float *bias; /* or NULL */
    float *y;          /* (n_rows, stride) */
    size_t stride;
};

/* Panels of one product for rows first .. first + n - 1. */
static void multiply(const struct turn *t, const struct product *p, struct cpu_share panels,
                     const struct linear_input *in, uint32_t first, uint32_t n)
{
    const struct gpu *g = t->g;
    uint32_t from = panels.from * LINEAR_PANEL, to = min_u32(panels.to * LINEAR_PANEL, p->l->n);
    float *y = p->y + first * p->stride + from;
    g->linear->multiply(p->l, panels.from, panels.to, in, first, n, y, p->stride);
    for (uint32_t r = 0; p->bias && r < n; r++)
        g->ops->add(y + r * p->stride, p->bias + from, NULL, to - from);
}

/* Several products of the same input: the threads share out all their panels as if they were one
 * matrix. */
static void multiply_all(const struct turn *t, const struct product *products, int n_products,
                         const struct linear_input *in)
{
    uint32_t total = 0;
    for (int i = 0; i < n_products; i++)
        total += products[i].l->panels;
    struct cpu_share s = turn_share(t, total);
    for (uint32_t first = 0; first < t->n_rows; first += CPU_CHUNK) {
        uint32_t n = min_u32(CPU_CHUNK, t->n_rows - first), before = 0;
        for (int i = 0; i < n_products; i++) {
            const struct product *p = &products[i];
            struct cpu_share here = {s.from > before ? s.from - before : 0,
                                     s.to > before ? min_u32(s.to - before, p->l->panels) : 0};
            before += p->l->panels;
            if (here.from < here.to)
                multiply(t, p, here, in, first, n);
        }
    }
}

static void store_kv(const struct turn *t, uint32_t layer)
{
    const struct gpu *g = t->g;
    uint8_t *kv = cpu_layer_kv(g, layer);
    struct cpu_share rows = turn_share(t, t->n_rows);
    const struct gpu_seq *s = t->step->seqs;
    for (uint32_t r = rows.from; r < rows.to; r++) {
        uint32_t row = t->first + r;
        while (row >= s->first_row + s->n_rows)
            s++;
        uint32_t pos = s->pos + (row - s->first_row);
        float *k = t->k + r * t->kv_stride, *v = t->v + r * t->kv_stride;
        turn_rotate(g, k, g->model.kv_heads, pos, k);
        g->attn->store(&g->shape, kv, s->blocks, pos, k, v);
    }
}

void turn_qkv(const struct turn *t, uint32_t layer)
{
    const struct cpu_layer *l = &t->g->layers[layer];
    struct stage s = stage_norm(t, l->attn_norm);
    const struct product products[] = {{&l->q, l->q_bias, t->q, t->q_stride},
                                       {&l->k, l->k_bias, t->k, t->kv_stride},
                                       {&l->v, l->v_bias, t->v, t->kv_stride}};
    for (int i = 0; i < 3; i++)
        stage_for(&s, products[i].l);
    struct linear_input in = turn_stage(t, &s);
    multiply_all(t, products, 3, &in);
    turn_barrier(t);
    store_kv(t, layer);
    turn_barrier(t);
}

/* ---- tiles ---- */

/* Panels whose outputs for n rows fill a tile; whole blocks of 32 columns, four of which are
 * quantized together. */
static uint32_t tile_panels(uint32_t n)
{
    static_assert(CPU_TILE >= CPU_CHUNK * LINEAR_PANEL * 8, "a chunk of rows has 8 panels");
    return CPU_TILE / LINEAR_PANEL / n & ~7u;
}

/* x += in W' (+ bias) for rows first .. first + n - 1 and some panels. */
static void add_tile(const struct turn *t, const struct linear *l, const float *bias,
                     const struct linear_input *in, uint32_t first, uint32_t n,
                     struct cpu_share panels)
{
    const struct gpu *g = t->g;
    float *tile = g->w.threads[t->thread].tile;
    uint32_t from = panels.from * LINEAR_PANEL, to = min_u32(panels.to * LINEAR_PANEL, l->n);
    size_t stride = linear_stride(to - from);
    g->linear->multiply(l, panels.from, panels.to, in, first, n, tile, stride);
    for (uint32_t r = 0; r < n; r++)
        g->ops->add(t->x + (first + r) * t->x_stride + from, tile + r * stride,
                    bias ? bias + from : NULL, to - from);
}

static void add_product(const struct turn *t, const struct linear *l, const float *bias,
                        const struct linear_input *in)
{
    struct cpu_share s = turn_share(t, l->panels);
    for (uint32_t first = 0, n; first < t->n_rows; first += n) {
        n = min_u32(CPU_CHUNK, t->n_rows - first);
        for (uint32_t p = s.from, wide = tile_panels(n); p < s.to; p += wide)
            add_tile(t, l, bias, in, first, n, (struct cpu_share){p, min_u32(p + wide, s.to)});
    }
    turn_barrier(t);
}

static void project_attention(const struct turn *t, const struct cpu_layer *l)
{
    struct stage s = {
        .from = t->attn, .stride = t->q_stride, .k = t->g->model.heads * t->g->model.head_dim};
    stage_for(&s, &l->o);
    struct linear_input in = turn_stage(t, &s);
    add_product(t, &l->o, l->o_bias, &in);
}

/* ---- feed-forward ---- */

/* SwiGLU of columns from .. to - 1 of a row: into the input of the down projection. */
static void finish_ffn_row(const struct turn *t, bool int8, float *gate, const float *up,
                           uint32_t row, uint32_t from, uint32_t to)
{
    const struct gpu *g = t->g;
    float *y = int8 ? gate : t->ffn + row * t->ffn_stride + from;
    g->ops->swiglu(gate, up, to - from, y);
    if (int8)
        g->linear->quantize(y, to - from,
                            linear_act(t->ffn_acts, g->model.ffn, row) +
                                (size_t)from / LINEAR_BLOCK * LINEAR_GROUP);
}

static void ffn_tile(const struct turn *t, const struct cpu_layer *l, const struct linear_input *in,
                     uint32_t first, uint32_t n, struct cpu_share panels)
{
    const struct gpu *g = t->g;
    float *gate = g->w.threads[t->thread].tile, *up = gate + CPU_TILE;
    uint32_t from = panels.from * LINEAR_PANEL,
             to = min_u32(panels.to * LINEAR_PANEL, g->model.ffn);
    size_t stride = linear_stride(to - from);
    g->linear->multiply(&l->gate, panels.from, panels.to, in, first, n, gate, stride);
    g->linear->multiply(&l->up, panels.from, panels.to, in, first, n, up, stride);
    for (uint32_t r = 0; r < n; r++)
        finish_ffn_row(t, l->down.int8, gate + r * stride, up + r * stride, first + r, from, to);
}

static void gate_and_up(const struct turn *t, const struct cpu_layer *l)
{
    enum { BLOCK_PANELS = LINEAR_BLOCK / LINEAR_PANEL };
    struct stage stage = stage_norm(t, l->ffn_norm);
    stage_for(&stage, &l->gate);
    stage_for(&stage, &l->up);
    struct linear_input in = turn_stage(t, &stage);
    struct cpu_share s = turn_share(t, (l->gate.panels + BLOCK_PANELS - 1) / BLOCK_PANELS);
    uint32_t end = min_u32(s.to * BLOCK_PANELS, l->gate.panels);
    for (uint32_t first = 0, n; first < t->n_rows; first += n) {
        n = min_u32(CPU_CHUNK, t->n_rows - first);
        for (uint32_t p = s.from * BLOCK_PANELS, wide = tile_panels(n); p < end; p += wide)
            ffn_tile(t, l, &in, first, n, (struct cpu_share){p, min_u32(p + wide, end)});
    }
    turn_barrier(t);
}

void turn_rest_of_layer(const struct turn *t, uint32_t layer)
{
    const struct cpu_layer *l = &t->g->layers[layer];
    project_attention(t, l);
    gate_and_up(t, l);
    struct linear_input in = {.acts = t->ffn_acts, .f32 = t->ffn, .stride = t->ffn_stride};
    add_product(t, &l->down, NULL, &in);
}

/* ---- from tokens to rows ---- */

void turn_embed(const struct turn *t)
{
    struct cpu_share rows = own_rows(t);
    for (uint32_t r = rows.from; r < rows.to; r++)
        linear_row(&t->g->embedding, (uint32_t)t->step->tokens[t->first + r],
                   t->x + r * t->x_stride);
    turn_barrier(t);
}
