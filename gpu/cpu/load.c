/* load.c - from a model's tensors to packed weights.
 *
 * Owns the weights' one mapping: every matrix in panels, every vector as f32. The list of weights
 * is made once and walked three times: check (shapes, types, sizes), place (addresses), fetch
 * (fetch.c). A tied output is the embedding's panels: they serve products and look-ups alike.
 */
#include "backend.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "memory.h"

/* Larger numbers are somebody's mistake; with these no size below overflows 64 bits. */
enum { WIDTH_MAX = 1 << 20, VOCAB_MAX = 1 << 24, LAYERS_MAX = 4096, HEAD_DIM_MAX = 256 };

/* ---- what there is ---- */

static void list_matrix(struct weight_list *list, const char *role, const struct gpu_tensor *t,
                        struct linear *to, uint32_t k, uint32_t n)
{
    list->at[list->n++] = (struct weight){.tensor = t, .matrix = to, .k = k, .n = n, .role = role};
}

static void list_vector(struct weight_list *list, const char *role, const struct gpu_tensor *t,
                        float **to, uint32_t n, bool optional)
{
    list->at[list->n++] =
        (struct weight){.tensor = t, .vector = to, .n = n, .optional = optional, .role = role};
}

enum { WEIGHTS_OF_LAYER = 13, WEIGHTS_OF_MODEL = 3 };

static void list_layer(struct weight_list *list, const struct gpu_model *m,
                       const struct gpu_layer *from, struct cpu_layer *to)
{
    uint32_t hidden = m->hidden, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    list_vector(list, "attention norm", from->attn_norm, &to->attn_norm, hidden, false);
    list_matrix(list, "query weight", from->q, &to->q, hidden, q);
    list_matrix(list, "key weight", from->k, &to->k, hidden, kv);
    list_matrix(list, "value weight", from->v, &to->v, hidden, kv);
    list_vector(list, "query bias", from->q_bias, &to->q_bias, q, true);
    list_vector(list, "key bias", from->k_bias, &to->k_bias, kv, true);
    list_vector(list, "value bias", from->v_bias, &to->v_bias, kv, true);
    list_matrix(list, "attention output weight", from->o, &to->o, q, hidden);
    list_vector(list, "attention output bias", from->o_bias, &to->o_bias, hidden, true);
    list_vector(list, "feed-forward norm", from->ffn_norm, &to->ffn_norm, hidden, false);
    list_matrix(list, "gate weight", from->gate, &to->gate, hidden, m->ffn);
    list_matrix(list, "up weight", from->up, &to->up, hidden, m->ffn);
    list_matrix(list, "down weight", from->down, &to->down, m->ffn, hidden);
}

static int list_weights(struct gpu *g, struct weight_list *list, struct fail *f)
{
    const struct gpu_model *m = &g->model;
    g->layers = calloc(m->n_layers, sizeof *g->layers);
    list->at = calloc((size_t)m->n_layers * WEIGHTS_OF_LAYER + WEIGHTS_OF_MODEL, sizeof *list->at);
    if (!g->layers || !list->at)
        return fail(f, -ENOMEM, "no memory for the description of %" PRIu32 " layers", m->n_layers);
    list_matrix(list, "token embedding", m->embedding, &g->embedding, m->hidden, m->vocab);
    for (uint32_t i = 0; i < m->n_layers; i++)
        list_layer(list, m, &m->layers[i], &g->layers[i]);
    list_vector(list, "output norm", m->output_norm, &g->output_norm, m->hidden, false);
    if (m->output != m->embedding)
        list_matrix(list, "output weight", m->output, &g->head, m->hidden, m->vocab);
    return 0;
}

/* ---- check ---- */

static int check_range(const char *what, uint32_t value, uint32_t max, struct fail *f)
{
    if (value >= 1 && value <= max)
        return 0;
    return fail(f, -ENOTSUP, "model: %s is %" PRIu32 ", this backend computes 1 to %" PRIu32, what,
                value, max);
}

static int check_heads(const struct gpu_model *m, struct fail *f)
{
    if (m->head_dim % 8 != 0)
        return fail(f, -ENOTSUP,
                    "model: head size %" PRIu32 " is not a multiple of 8, which this backend needs",
                    m->head_dim);
    if (m->heads % m->kv_heads != 0)
        return fail(f, -ENOTSUP,
                    "model: %" PRIu32 " attention heads do not divide evenly over %" PRIu32
                    " key/value heads",
                    m->heads, m->kv_heads);
    if (m->heads * m->head_dim > WIDTH_MAX)
        return fail(f, -ENOTSUP, "model: %" PRIu32 " heads of %" PRIu32 " are wider than %d",
                    m->heads, m->head_dim, WIDTH_MAX);
    if (m->rope_dim % 2 != 0 || m->rope_dim > m->head_dim || (m->rope_dim && !m->rope_freq))
        return fail(f, -ENOTSUP,
                    "model: RoPE over %" PRIu32 " of a head's %" PRIu32
                    " elements: it must be even and not more",
                    m->rope_dim, m->head_dim);
    return 0;
}

static int check_model(const struct gpu_model *m, struct fail *f)
{
    const struct {
        const char *what;
        uint32_t value, max;
    } ranges[] = {
        {"vocabulary size", m->vocab, VOCAB_MAX},
        {"hidden size", m->hidden, WIDTH_MAX},
        {"number of layers", m->n_layers, LAYERS_MAX},
        {"number of heads", m->heads, WIDTH_MAX},
        {"number of key/value heads", m->kv_heads, m->heads},
        {"head size", m->head_dim, HEAD_DIM_MAX},
        {"feed-forward size", m->ffn, WIDTH_MAX},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        int error = check_range(ranges[i].what, ranges[i].value, ranges[i].max, f);
        if (error)
            return error;
    }
    if (m->rope != GPU_ROPE_PAIRS && m->rope != GPU_ROPE_HALVES)
        return fail(f, -ENOTSUP, "model: RoPE kind %d is unknown to this backend", (int)m->rope);
    return check_heads(m, f);
}

static int check_shape(const struct weight *w, const struct gpu_type_info *info, struct fail *f)
{
    const struct gpu_tensor *t = w->tensor;
    uint64_t ne0 = w->matrix ? w->k : w->n, ne1 = w->matrix ? w->n : 1;
    if (t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != 1 || t->ne[3] != 1)
        return fail(f, -EINVAL,
                    "%s (%s): shape %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                    ", expected %" PRIu64 " x %" PRIu64,
                    t->name, w->role, t->ne[0], t->ne[1], t->ne[2], t->ne[3], ne0, ne1);
    if (ne0 % info->block != 0)
        return fail(f, -EINVAL,
                    "%s (%s): rows of %" PRIu64 " elements are no whole blocks of %s (%" PRIu32 ")",
                    t->name, w->role, ne0, info->name, info->block);
    uint64_t bytes = gpu_row_bytes(t->type, ne0) * ne1;
    if (t->bytes != bytes)
        return fail(f, -EINVAL, "%s (%s): %" PRIu64 " bytes, its shape and type %s need %" PRIu64,
                    t->name, w->role, t->bytes, info->name, bytes);
    return 0;
}

static int check_weight(const struct weight *w, struct fail *f)
{
    const struct gpu_tensor *t = w->tensor;
    if (!t)
        return w->optional ? 0 : fail(f, -EINVAL, "model: the %s is missing", w->role);
    const struct gpu_type_info *info = gpu_type_info(t->type);
    if (!info || (w->vector && linear_quantized(t->type)))
        return fail(f, -ENOTSUP, "%s (%s): type %s (%d) cannot be computed here; convert the model",
                    t->name, w->role, info ? info->name : "unknown", (int)t->type);
    return check_shape(w, info, f);
}

/* ---- place ---- */

static void place_weight(const struct gpu *g, const struct weight *w, struct cpu_plan *plan)
{
    if (!w->tensor)
        return;
    if (w->vector) {
        *w->vector = cpu_take(plan, linear_stride(w->n) * sizeof(float));
        return;
    }
    linear_shape(w->matrix, w->tensor->type, w->k, w->n, g->config.activations != GPU_ACT_F32);
    w->matrix->panels_at = cpu_take(plan, (uint64_t)w->matrix->panels * w->matrix->panel_bytes);
}

static uint64_t place_all(const struct gpu *g, const struct weight_list *list, uint8_t *base)
{
    struct cpu_plan plan = {.base = base};
    for (uint32_t i = 0; i < list->n; i++)
        place_weight(g, &list->at[i], &plan);
    return plan.used;
}

static void settle_weights(struct gpu *g, const struct pages *p, void *context)
{
    place_all(g, context, p->at);
    cpu_near(g, p);
}

static int place_weights(struct gpu *g, struct weight_list *list, struct fail *f)
{
    uint64_t bytes = place_all(g, list, NULL), staging = cpu_staging_bytes(g, list);
    if (!cpu_fits(g, bytes, staging))
        return fail(f, -ENOMEM,
                    "the weights take %" PRIu64 " MiB, reading them %" PRIu64 " more, and %" PRIu64
                    " MiB are free (of the machine or of this process's memory control group): "
                    "free memory, raise the group's limit, or use a smaller model",
                    pages_whole(bytes) >> 20, pages_whole(staging) >> 20, cpu_memory_left(g) >> 20);
    if (!cpu_map(g, &g->weights_pages, bytes, settle_weights, list))
        return memory_refused("weights", bytes, f);
    g->weights = g->weights_pages.at;
    g->weights_bytes = bytes;
    return 0;
}

/* ---- load ---- */

static void count_macs(struct gpu *g)
{
    g->row_macs = 0;
    for (uint32_t i = 0; i < g->model.n_layers; i++) {
        const struct cpu_layer *l = &g->layers[i];
        const struct linear *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            g->row_macs += (double)all[j]->n * all[j]->k;
    }
    g->output_macs = (double)g->head.n * g->head.k;
    g->key_macs = 2.0 * g->model.n_layers * g->model.heads * g->model.head_dim;
}

static void finish_load(struct gpu *g, const struct weight_list *list)
{
    const struct gpu_model *m = &g->model;
    uint64_t huge = pages_huge_bytes("", &g->weights_pages);
    g->weights_huge_bytes = huge < g->weights_bytes ? huge : g->weights_bytes;
    if (m->output == m->embedding)
        g->head = g->embedding;
    g->ffn_f32 = g->int8 = false;
    for (uint32_t i = 0; i < list->n; i++)
        g->int8 |= list->at[i].tensor && list->at[i].matrix && list->at[i].matrix->int8;
    for (uint32_t i = 0; i < m->n_layers; i++)
        g->ffn_f32 |= !g->layers[i].down.int8;
    g->shape = (struct attn_shape){.heads = m->heads,
                                   .kv_heads = m->kv_heads,
                                   .head_dim = m->head_dim,
                                   .scale = m->attn_scale,
                                   .kv_type = g->config.kv_type};
    g->layer_block_bytes = attn_block_bytes(&g->shape);
    g->block_bytes = g->shape.block_stride = g->layer_block_bytes * m->n_layers;
    count_macs(g);
}

int cpu_load(struct gpu *g, const struct gpu_model *m, const struct gpu_source *source,
             struct fail *f)
{
    struct weight_list list = {0};
    int error = check_model(m, f);
    if (error)
        return error;
    g->model = *m;
    error = list_weights(g, &list, f);
    for (uint32_t i = 0; i < list.n && !error; i++)
        error = check_weight(&list.at[i], f);
    if (!error)
        error = place_weights(g, &list, f);
    if (!error)
        error = cpu_fetch_weights(g, &list, source, f);
    if (error)
        cpu_unload(g);
    else
        finish_load(g, &list);
    free(list.at);
    return error;
}

void cpu_unload(struct gpu *g)
{
    pages_unmap(&g->weights_pages);
    free(g->layers);
    g->weights = NULL;
    g->weights_bytes = 0;
    g->layers = NULL;
}
