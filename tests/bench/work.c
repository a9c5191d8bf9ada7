/* work.c - see work.h. */
#include "work.h"

#include "../../gpu/cpu/linear.h"

static double weights(const struct gpu_tensor *t)
{
    return (double)t->ne[0] * (double)t->ne[1];
}

static void count(struct work *w, const struct gpu_tensor *t, double *sum)
{
    struct linear l = {0};
    linear_shape(&l, t->type, (uint32_t)t->ne[0], (uint32_t)t->ne[1], linear_quantized(t->type));
    w->bytes += (double)l.panels * (double)l.panel_bytes;
    w->int8 &= linear_quantized(t->type);
    *sum += weights(t);
}

struct work work_of(const struct gpu_model *m)
{
    struct work w = {.int8 = true};
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct gpu_layer *l = &m->layers[i];
        const struct gpu_tensor *all[] = {l->q, l->k, l->v, l->o, l->gate, l->up, l->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            count(&w, all[j], &w.layer_weights);
    }
    count(&w, m->output, &w.head_weights);
    return w;
}

static double lower(double reading, double multiplying, bool *by_reading)
{
    *by_reading = multiplying <= 0 || reading <= multiplying;
    return *by_reading ? reading : multiplying;
}

double work_decode_limit(const struct work *w, uint32_t streams, double read_bytes_per_s,
                         double ops_per_s, bool *by_reading)
{
    double multiplied = w->layer_weights + w->head_weights;
    return lower(streams * read_bytes_per_s / w->bytes, w->int8 ? ops_per_s / (2 * multiplied) : 0,
                 by_reading);
}

double work_prefill_limit(const struct work *w, uint32_t tokens, double read_bytes_per_s,
                          double ops_per_s, bool *by_reading)
{
    double multiplied = tokens * w->layer_weights + w->head_weights;
    return lower(tokens * read_bytes_per_s / w->bytes,
                 w->int8 ? tokens * ops_per_s / (2 * multiplied) : 0, by_reading);
}
