/* test_model_logits.c - what the reader says about a golden model, computed in the plainest way,
 * gives the golden logits: names, shapes, row order of Q and K, rotary frequencies of every scaling
 * kind.
 *
 * The forward pass here is a textbook one in double over the tensors as they come out of the file
 * (F32, F16, BF16), independent of any backend. Tolerance of the golden data: 1e-3 + 1e-3 |logit|.
 */
#include "../../appliance/model/model.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors as doubles ---- */

static double f16_to_double(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h >> 15 ? -v : v;
}

static double bf16_to_double(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, 4);
    return (double)v;
}

static double *load(struct model *m, const struct gpu_tensor *t)
{
    struct gpu_source source = model_source(m);
    struct fail f = {0};
    size_t n = t->ne[0] * t->ne[1];
    void *raw = aligned_alloc(64, (t->bytes + 63) & ~(size_t)63);
    double *out = malloc(n * sizeof *out);
    if (source.fetch(source.context, t, raw, &f) < 0)
        fail_msg("%s", f.text);
    for (size_t i = 0; i < n; i++) {
        if (t->type == GPU_F32)
            out[i] = (double)((float *)raw)[i];
        else if (t->type == GPU_F16)
            out[i] = f16_to_double(((uint16_t *)raw)[i]);
        else if (t->type == GPU_BF16)
            out[i] = bf16_to_double(((uint16_t *)raw)[i]);
        else
            fail_msg("%s is %s", t->name, gpu_type_info(t->type)->name);
    }
    free(raw);
    return out;
}

/* ---- the forward pass ---- */

/* y (rows of w) = w x */
static void multiply(const double *w, const double *x, double *y, uint32_t in, uint32_t out)
{
    for (uint32_t o = 0; o < out; o++) {
        y[o] = 0;
        for (uint32_t i = 0; i < in; i++)
            y[o] += w[(size_t)o * in + i] * x[i];
    }
}

static void norm(const double *x, const double *w, double *y, uint32_t n, double eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + eps) * w[i];
}

static void rotate(const struct gpu_model *n, double *x, uint32_t heads, uint32_t pos)
{
    assert_int_equal(n->rope, GPU_ROPE_PAIRS);
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < n->rope_dim / 2; i++) {
            double *pair = x + h * n->head_dim + 2 * i, a = pair[0], b = pair[1];
            double angle = pos * (double)n->rope_freq[i], mag = (double)n->rope_magnitude;
            pair[0] = (a * cos(angle) - b * sin(angle)) * mag;
            pair[1] = (a * sin(angle) + b * cos(angle)) * mag;
        }
}

struct layer {
    double *attn_norm, *q, *k, *v, *o, *ffn_norm, *gate, *up, *down;
    double *keys, *values; /* (rows, kv_heads * head_dim) */
};

static void attend(const struct gpu_model *n, const struct layer *l, const double *q, double *out,
                   uint32_t pos)
{
    uint32_t kv_dim = n->kv_heads * n->head_dim, group = n->heads / n->kv_heads;
    double *weight = malloc((pos + 1) * sizeof *weight);
    for (uint32_t h = 0; h < n->heads; h++) {
        const double *qh = q + h * n->head_dim;
        uint32_t at = h / group * n->head_dim;
        double sum = 0;
        for (uint32_t j = 0; j <= pos; j++) {
            double dot = 0;
            for (uint32_t i = 0; i < n->head_dim; i++)
                dot += qh[i] * l->keys[j * kv_dim + at + i];
            sum += weight[j] = exp(dot * (double)n->attn_scale);
        }
        for (uint32_t i = 0; i < n->head_dim; i++) {
            out[h * n->head_dim + i] = 0;
            for (uint32_t j = 0; j <= pos; j++)
                out[h * n->head_dim + i] += weight[j] / sum * l->values[j * kv_dim + at + i];
        }
    }
    free(weight);
}

static void run_layer(const struct gpu_model *n, struct layer *l, double *x, uint32_t pos)
{
    uint32_t q_dim = n->heads * n->head_dim, kv_dim = n->kv_heads * n->head_dim;
    double h[256], q[256], a[256], g[256], u[256], y[256];
    assert_true(n->hidden <= 256 && q_dim <= 256 && n->ffn <= 256);
    norm(x, l->attn_norm, h, n->hidden, (double)n->rms_eps);
    multiply(l->q, h, q, n->hidden, q_dim);
    multiply(l->k, h, l->keys + pos * kv_dim, n->hidden, kv_dim);
    multiply(l->v, h, l->values + pos * kv_dim, n->hidden, kv_dim);
    rotate(n, q, n->heads, pos);
    rotate(n, l->keys + pos * kv_dim, n->kv_heads, pos);
    attend(n, l, q, a, pos);
    multiply(l->o, a, y, q_dim, n->hidden);
    for (uint32_t i = 0; i < n->hidden; i++)
        x[i] += y[i];
    norm(x, l->ffn_norm, h, n->hidden, (double)n->rms_eps);
    multiply(l->gate, h, g, n->hidden, n->ffn);
    multiply(l->up, h, u, n->hidden, n->ffn);
    for (uint32_t i = 0; i < n->ffn; i++)
        g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    multiply(l->down, g, y, n->ffn, n->hidden);
    for (uint32_t i = 0; i < n->hidden; i++)
        x[i] += y[i];
}

struct net {
    struct model *m;
    double *embedding, *output_norm, *output;
    struct layer *layers;
};

static void net_load(struct net *net, const char *path)
{
    struct fail f = {0};
    if (model_open(&net->m, path, &f) < 0)
        fail_msg("%s", f.text);
    const struct gpu_model *n = &net->m->net;
    size_t kv = (size_t)n->context * n->kv_heads * n->head_dim;
    net->embedding = load(net->m, n->embedding);
    net->output_norm = load(net->m, n->output_norm);
    net->output = load(net->m, n->output);
    net->layers = calloc(n->n_layers, sizeof net->layers[0]);
    for (uint32_t i = 0; i < n->n_layers; i++) {
        const struct gpu_layer *t = &n->layers[i];
        net->layers[i] = (struct layer){
            load(net->m, t->attn_norm), load(net->m, t->q),         load(net->m, t->k),
            load(net->m, t->v),         load(net->m, t->o),         load(net->m, t->ffn_norm),
            load(net->m, t->gate),      load(net->m, t->up),        load(net->m, t->down),
            calloc(kv, sizeof(double)), calloc(kv, sizeof(double)),
        };
    }
}

static void net_free(struct net *net)
{
    for (uint32_t i = 0; i < net->m->net.n_layers; i++) {
        struct layer *l = &net->layers[i];
        double *all[] = {l->attn_norm, l->q,  l->k,    l->v,    l->o,     l->ffn_norm,
                         l->gate,      l->up, l->down, l->keys, l->values};
        for (size_t t = 0; t < sizeof all / sizeof all[0]; t++)
            free(all[t]);
    }
    free(net->layers);
    free(net->embedding);
    free(net->output_norm);
    free(net->output);
    model_close(net->m);
}

static void net_run(struct net *net, uint32_t token, uint32_t pos, double *logits)
{
    const struct gpu_model *n = &net->m->net;
    double x[256], h[256];
    memcpy(x, net->embedding + (size_t)token * n->hidden, n->hidden * sizeof(double));
    for (uint32_t i = 0; i < n->n_layers; i++)
        run_layer(n, &net->layers[i], x, pos);
    norm(x, net->output_norm, h, n->hidden, (double)n->rms_eps);
    multiply(net->output, h, logits, n->hidden, n->vocab);
}

/* ---- against the golden logits ---- */

static void check_row(const char *name, const float *want, const double *got, uint32_t n,
                      uint32_t pos)
{
    for (uint32_t i = 0; i < n; i++) {
        double error = fabs(got[i] - (double)want[i]);
        if (!(error <= 1e-3 + 1e-3 * fabs((double)want[i])))
            fail_msg("%s: position %u, token %u: %f, not %f", name, pos, i, got[i],
                     (double)want[i]);
    }
}

static void check_file(const char *name)
{
    char relative[128];
    struct net net;
    snprintf(relative, sizeof relative, "tiny_gguf/%s.gguf", name);
    net_load(&net, golden_path(relative));
    snprintf(relative, sizeof relative, "tiny_gguf/%s.logits.bin", name);
    float *want = (float *)golden_read(relative, NULL);
    snprintf(relative, sizeof relative, "tiny_gguf/%s.logits.bin.json", name);
    json_t *meta = golden_json(relative), *prompt;
    uint32_t vocab = net.m->net.vocab, rows = 0;
    double *logits = malloc(vocab * sizeof *logits);
    size_t p;
    json_array_foreach(json_object_get(meta, "prompts"), p, prompt)
    {
        json_t *ids = json_object_get(prompt, "ids");
        const float *row = want + json_integer_value(json_object_get(prompt, "offset_floats"));
        for (uint32_t pos = 0; pos < json_array_size(ids); pos++, rows++) {
            net_run(&net, (uint32_t)json_integer_value(json_array_get(ids, pos)), pos, logits);
            check_row(name, row + (size_t)pos * vocab, logits, vocab, pos);
        }
    }
    assert_int_equal(rows, 1 + 22 + 70);
    json_decref(meta);
    free(want);
    free(logits);
    net_free(&net);
}

static void plain_f32(void **state)
{
    (void)state;
    check_file("llama.F32");
}
static void plain_f16(void **state)
{
    (void)state;
    check_file("llama.F16");
}
static void rope_linear(void **state)
{
    (void)state;
    check_file("llama_rope_linear.F16");
}
static void rope_llama3(void **state)
{
    (void)state;
    check_file("llama_rope_llama3.BF16");
}
static void rope_yarn(void **state)
{
    (void)state;
    check_file("llama_rope_yarn.F16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_f32),   cmocka_unit_test(plain_f16), cmocka_unit_test(rope_linear),
        cmocka_unit_test(rope_llama3), cmocka_unit_test(rope_yarn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
