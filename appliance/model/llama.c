/* llama.c - architecture "llama" as GGUF files carry it: hyperparameters and the table of tensors.
 *
 * What it accepts is complete and fully understood: every tensor of the architecture is there with
 * the shape that the hyperparameters ask for, and there is no tensor or setting besides that would
 * change the result. A file that asks for more than this program computes is refused by that name,
 * never run approximately.
 *
 * The Q and K rows of these files are permuted for a rotation of neighbouring pairs
 * (reshape(heads, 2, head_dim / 2).swapaxes(1, 2)), hence GPU_ROPE_PAIRS.
 *
 * Source of names and keys: the GGUF specification; llama.cpp's tensor table for this architecture.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

/* Caps: no product of these overflows 64 bits. */
enum {
    LAYERS_MAX = 4096,
    HIDDEN_MAX = 1 << 20,
    FFN_MAX = 1 << 24,
    HEADS_MAX = 1 << 14,
    HEAD_DIM_MAX = 1 << 14,
    CONTEXT_MAX = 1 << 30
};

/* ---- what is refused by name ---- */

/* Settings of related architectures that would change the result: allowed only at the value that
 * means "off". */
static int check_scales(struct opened *o, struct fail *f)
{
    static const struct {
        const char *key;
        float neutral;
    } scales[] = {
        {"llama.logit_scale", 1},
        {"llama.embedding_scale", 1},
        {"llama.residual_scale", 1},
        {"llama.attn_logit_softcapping", 0},
        {"llama.final_logit_softcapping", 0},
        {"llama.attention.clamp_kqv", 0},
        {"llama.attention.max_alibi_bias", 0},
    };
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        float v = scales[i].neutral;
        int rc = gguf_f32(o->file, scales[i].key, GGUF_OPTIONAL, &v, f);
        if (rc < 0)
            return rc;
        if (v != scales[i].neutral && v != 0)
            return gguf_refuse(o->file, f, -ENOTSUP,
                               "key '%s' is %g, which this program does not compute; take a plain "
                               "llama model",
                               scales[i].key, (double)v);
    }
    return 0;
}

static int check_flags(struct opened *o, struct fail *f)
{
    bool parallel = false, causal = true;
    uint32_t experts = 0;
    int rc = gguf_u32(o->file, "llama.expert_count", 0, UINT32_MAX, GGUF_OPTIONAL, &experts, f);
    if (rc >= 0)
        rc = gguf_bool(o->file, "llama.use_parallel_residual", GGUF_OPTIONAL, &parallel, f);
    if (rc >= 0)
        rc = gguf_bool(o->file, "llama.attention.causal", GGUF_OPTIONAL, &causal, f);
    if (rc < 0)
        return rc;
    if (experts)
        return gguf_refuse(o->file, f, -ENOTSUP,
                           "key 'llama.expert_count' is %" PRIu32 ": mixture-of-experts models are "
                           "not supported; take a dense one",
                           experts);
    if (parallel || !causal)
        return gguf_refuse(o->file, f, -ENOTSUP,
                           "key '%s' is %s, which this program does not compute",
                           parallel ? "llama.use_parallel_residual" : "llama.attention.causal",
                           parallel ? "true" : "false");
    return 0;
}

/* ---- hyperparameters ---- */

static int read_head_dim(struct opened *o, struct fail *f)
{
    struct gpu_model *n = &o->m.net;
    uint32_t value_dim;
    n->head_dim = n->hidden / n->heads;
    int rc = gguf_u32(o->file, "llama.attention.key_length", 1, HEAD_DIM_MAX, GGUF_OPTIONAL,
                      &n->head_dim, f);
    if (rc < 0)
        return rc;
    if (rc == 0 && (n->hidden % n->heads || n->head_dim > HEAD_DIM_MAX))
        return gguf_refuse(o->file, f, -EINVAL,
                           "embedding_length %" PRIu32 " cannot be divided among %" PRIu32
                           " heads and key 'llama.attention.key_length' is missing: the file is "
                           "damaged",
                           n->hidden, n->heads);
    value_dim = n->head_dim;
    rc = gguf_u32(o->file, "llama.attention.value_length", 1, HEAD_DIM_MAX, GGUF_OPTIONAL,
                  &value_dim, f);
    if (rc < 0)
        return rc;
    if (value_dim != n->head_dim)
        return gguf_refuse(o->file, f, -ENOTSUP,
                           "key 'llama.attention.value_length' is %" PRIu32
                           " and key_length %" PRIu32 ": heads of two sizes are not supported",
                           value_dim, n->head_dim);
    return 0;
}

static int read_heads(struct opened *o, struct fail *f)
{
    struct gpu_model *n = &o->m.net;
    int rc = gguf_u32_uniform(o->file, "llama.attention.head_count", n->n_layers, 1, HEADS_MAX,
                              GGUF_NEEDED, &n->heads, f);
    if (rc < 0)
        return rc;
    n->kv_heads = n->heads;
    rc = gguf_u32_uniform(o->file, "llama.attention.head_count_kv", n->n_layers, 1, HEADS_MAX,
                          GGUF_OPTIONAL, &n->kv_heads, f);
    if (rc < 0)
        return rc;
    if (n->kv_heads > n->heads || n->heads % n->kv_heads)
        return gguf_refuse(o->file, f, -EINVAL,
                           "key 'llama.attention.head_count_kv' is %" PRIu32
                           ", which does not divide "
                           "the %" PRIu32 " heads: the file is damaged",
                           n->kv_heads, n->heads);
    return read_head_dim(o, f);
}

static int read_floats(struct opened *o, struct fail *f)
{
    struct gpu_model *n = &o->m.net;
    int rc =
        gguf_f32(o->file, "llama.attention.layer_norm_rms_epsilon", GGUF_NEEDED, &n->rms_eps, f);
    if (rc < 0)
        return rc;
    if (n->rms_eps < 0 || n->rms_eps >= 1)
        return gguf_refuse(o->file, f, -EINVAL,
                           "key 'llama.attention.layer_norm_rms_epsilon' is %g, it must be 0 to 1: "
                           "the file is damaged",
                           (double)n->rms_eps);
    n->attn_scale = (float)(1.0 / sqrt(n->head_dim));
    rc = gguf_f32(o->file, "llama.attention.scale", GGUF_OPTIONAL, &n->attn_scale, f);
    if (rc < 0)
        return rc;
    if (n->attn_scale <= 0)
        return gguf_refuse(
            o->file, f, -EINVAL,
            "key 'llama.attention.scale' is %g, it must be above 0: the file is damaged",
            (double)n->attn_scale);
    return 0;
}

static int read_context(struct opened *o, struct fail *f)
{
    int rc = gguf_u32(o->file, "llama.context_length", 1, CONTEXT_MAX, GGUF_NEEDED,
                      &o->m.net.context, f);
    return rc < 0 ? rc : 0;
}

/* A sliding window is not computed; up to its length it makes no difference, so that is how long
 * sequences may become. After the frequencies, which the model's own length decides. */
static int limit_to_window(struct opened *o, struct fail *f)
{
    uint32_t window = 0;
    int rc = gguf_u32(o->file, "llama.attention.sliding_window", 0, UINT32_MAX, GGUF_OPTIONAL,
                      &window, f);
    if (rc < 0)
        return rc;
    if (window && window < o->m.net.context)
        o->m.net.context = window;
    return 0;
}

static int read_rope_dim(struct opened *o, struct fail *f)
{
    struct gpu_model *n = &o->m.net;
    n->rope = GPU_ROPE_PAIRS;
    n->rope_dim = n->head_dim;
    int rc = gguf_u32(o->file, "llama.rope.dimension_count", 2, HEAD_DIM_MAX, GGUF_OPTIONAL,
                      &n->rope_dim, f);
    if (rc < 0)
        return rc;
    if (n->rope_dim % 2 || n->rope_dim > n->head_dim)
        return gguf_refuse(o->file, f, -EINVAL,
                           "rotary dimension %" PRIu32
                           " (key 'llama.rope.dimension_count'): it must be "
                           "even and at most the head's %" PRIu32 ": the file is damaged",
                           n->rope_dim, n->head_dim);
    return 0;
}

static int read_vocab_size(struct opened *o, struct fail *f)
{
    uint32_t vocab = o->m.vocab.n_tokens;
    int rc = gguf_u32(o->file, "llama.vocab_size", 1, UINT32_MAX, GGUF_OPTIONAL, &vocab, f);
    if (rc < 0)
        return rc;
    if (vocab != o->m.vocab.n_tokens)
        return gguf_refuse(o->file, f, -EINVAL,
                           "key 'llama.vocab_size' is %" PRIu32 " and the tokenizer has %" PRIu32
                           " tokens: the file is damaged",
                           vocab, o->m.vocab.n_tokens);
    o->m.net.vocab = vocab;
    return 0;
}

static int read_shape(struct opened *o, struct fail *f)
{
    struct gpu_model *n = &o->m.net;
    int rc = gguf_u32(o->file, "llama.block_count", 1, LAYERS_MAX, GGUF_NEEDED, &n->n_layers, f);
    if (rc >= 0 && n->n_layers > o->file->n_tensors)
        rc = gguf_refuse(o->file, f, -EINVAL,
                         "key 'llama.block_count' is %" PRIu32 ", the file has only %" PRIu32
                         " tensors: it is damaged",
                         n->n_layers, o->file->n_tensors);
    if (rc >= 0)
        rc = gguf_u32(o->file, "llama.embedding_length", 1, HIDDEN_MAX, GGUF_NEEDED, &n->hidden, f);
    if (rc >= 0)
        rc = gguf_u32_uniform(o->file, "llama.feed_forward_length", n->n_layers, 1, FFN_MAX,
                              GGUF_NEEDED, &n->ffn, f);
    return rc < 0 ? rc : 0;
}

/* ---- tensors ---- */

struct wanted {
    const char *name;
    uint64_t ne0, ne1; /* ne1 1: a vector, which is F32 in every file */
    bool optional;
    const struct gpu_tensor **out;
};

static int check_tensor(struct opened *o, const struct gpu_tensor *t, const struct wanted *w,
                        struct fail *f)
{
    bool vector = w->ne1 == 1;
    if (t->ne[0] != w->ne0 || t->ne[1] != w->ne1 || t->ne[2] != 1 || t->ne[3] != 1)
        return gguf_refuse(o->file, f, -EINVAL,
                           "tensor '%s' has the shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64
                           ", %" PRIu64 "], the hyperparameters ask for [%" PRIu64 ", %" PRIu64
                           "]: the file is damaged",
                           t->name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], w->ne0, w->ne1);
    if (vector && t->type != GPU_F32)
        return gguf_refuse(o->file, f, -ENOTSUP,
                           "tensor '%s' is %s, norms and biases are read as F32 only; convert the "
                           "model again",
                           t->name, gpu_type_info(t->type)->name);
    return 0;
}

static int take(struct opened *o, const struct wanted *w, struct fail *f)
{
    const struct gpu_tensor *t = gguf_tensor(o->file, w->name);
    *w->out = t;
    if (!t && w->optional)
        return 0;
    if (!t)
        return gguf_refuse(o->file, f, -EINVAL,
                           "tensor '%s' is missing: the file is damaged or not a whole llama model",
                           w->name);
    o->tensors[t - o->file->tensors].used = true;
    return check_tensor(o, t, w, f);
}

static int take_layer(struct opened *o, uint32_t i, struct fail *f)
{
    const struct gpu_model *n = &o->m.net;
    struct gpu_layer *l = &n->layers[i];
    uint64_t q = (uint64_t)n->heads * n->head_dim, kv = (uint64_t)n->kv_heads * n->head_dim;
    struct wanted all[] = {
        {"attn_norm.weight", n->hidden, 1, false, &l->attn_norm},
        {"attn_q.weight", n->hidden, q, false, &l->q},
        {"attn_k.weight", n->hidden, kv, false, &l->k},
        {"attn_v.weight", n->hidden, kv, false, &l->v},
        {"attn_q.bias", q, 1, true, &l->q_bias},
        {"attn_k.bias", kv, 1, true, &l->k_bias},
        {"attn_v.bias", kv, 1, true, &l->v_bias},
        {"attn_output.weight", q, n->hidden, false, &l->o},
        {"attn_output.bias", n->hidden, 1, true, &l->o_bias},
        {"ffn_norm.weight", n->hidden, 1, false, &l->ffn_norm},
        {"ffn_gate.weight", n->hidden, n->ffn, false, &l->gate},
        {"ffn_up.weight", n->hidden, n->ffn, false, &l->up},
        {"ffn_down.weight", n->ffn, n->hidden, false, &l->down},
    };
    for (size_t t = 0; t < sizeof all / sizeof all[0]; t++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", i, all[t].name);
        all[t].name = name;
        int rc = take(o, &all[t], f);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int take_global(struct opened *o, struct fail *f)
{
    struct gpu_model *n = &o->m.net;
    const struct wanted all[] = {
        {"token_embd.weight", n->hidden, n->vocab, false, &n->embedding},
        {"output_norm.weight", n->hidden, 1, false, &n->output_norm},
        {"output.weight", n->hidden, n->vocab, true, &n->output},
    };
    for (size_t t = 0; t < sizeof all / sizeof all[0]; t++) {
        int rc = take(o, &all[t], f);
        if (rc < 0)
            return rc;
    }
    if (!n->output)
        n->output = n->embedding; /* tied */
    return 0;
}

/* Tensors that may be there and are not needed: old converters stored the plain frequencies. */
static bool ignorable(const char *name)
{
    const char *old = strstr(name, ".attn_rot_embd");
    return strcmp(name, "rope_freqs.weight") == 0 ||
           (old &&
            (strcmp(old, ".attn_rot_embd") == 0 || strcmp(old, ".attn_rot_embd.weight") == 0));
}

static int refuse_unknown(struct opened *o, struct fail *f)
{
    for (uint32_t i = 0; i < o->file->n_tensors; i++) {
        const char *name = o->file->tensors[i].name;
        if (!o->tensors[i].used && !ignorable(name))
            return gguf_refuse(o->file, f, -ENOTSUP,
                               "tensor '%s' has no place in the architecture llama as this program "
                               "computes it: the model would give wrong results",
                               name);
    }
    return 0;
}

static int take_tensors(struct opened *o, struct fail *f)
{
    struct gpu_model *n = &o->m.net;
    int rc = take_global(o, f);
    if (rc < 0)
        return rc;
    n->layers = calloc(n->n_layers, sizeof n->layers[0]);
    if (!n->layers)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory for its %" PRIu32 " layers",
                           n->n_layers);
    for (uint32_t i = 0; i < n->n_layers; i++)
        if ((rc = take_layer(o, i, f)) < 0)
            return rc;
    return refuse_unknown(o, f);
}

/* ---- rotary frequencies ---- */

/* rope_freqs.weight, where the file has it (Llama 3.1 and later): what divides each frequency. */
static int read_rope(struct opened *o, struct fail *f)
{
    uint32_t n = o->m.net.rope_dim / 2;
    const struct gpu_tensor *t = NULL;
    const struct wanted w = {"rope_freqs.weight", n, 1, true, &t};
    int rc = take(o, &w, f);
    if (rc < 0)
        return rc;
    if (!t)
        return rope_read(o, NULL, f);
    assert(t->bytes == n * sizeof(float));
    float *divisors = aligned_alloc(64, (t->bytes + 63) & ~(size_t)63);
    if (!divisors)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory for its rotary frequencies");
    rc = model_fetch(o, t, divisors, f);
    if (rc == 0)
        rc = rope_read(o, divisors, f);
    free(divisors);
    return rc;
}

int llama_read(struct opened *o, struct fail *f)
{
    static int (*const steps[])(struct opened *, struct fail *) = {
        check_flags,   check_scales,    read_shape,   read_heads, read_floats,     read_context,
        read_rope_dim, read_vocab_size, take_tensors, read_rope,  limit_to_window,
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int rc = steps[i](o, f);
        if (rc < 0)
            return rc;
    }
    return 0;
}
