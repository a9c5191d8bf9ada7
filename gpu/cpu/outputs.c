/* outputs.c - from the last layer's rows to tokens: the rows that outputs name, their norm, the head
 * CPU_OUTPUT_ROWS rows at a time, each thread collecting of its own slices what sampling wants to
 * know, and sampling, one output a thread at a time.
 */
#include <string.h>

#include "turn.h"

void turn_keep_wanted(struct turn *t)
{
    const struct cpu_workspace *w = &t->g->w;
    uint32_t n = t->g->n_wanted;
    struct cpu_share s = turn_share(t, n);
    if (n == t->n_rows)
        return;
    for (uint32_t i = s.from; i < s.to; i++) {
        uint32_t row = w->wanted[i];
        memcpy(w->last_x + i * t->x_stride, t->x + row * t->x_stride, t->x_stride * sizeof *t->x);
        memcpy(w->last_attn + i * t->q_stride, t->attn + row * t->q_stride,
               t->q_stride * sizeof *t->attn);
    }
    turn_barrier(t);
    t->n_rows = n;
    t->x = w->last_x;
    t->attn = w->last_attn;
}

/* The threads share out the head by slices of the vocabulary, and each looks at what it has just
 * computed, unless there are so few slices that the shares would be uneven. */
enum { HEAD_SLICES = 4, SLICE_PANELS = SAMPLE_SLICE / LINEAR_PANEL };

static bool share_slices(const struct turn *t)
{
    return sample_slices(t->g->model.vocab) >= HEAD_SLICES * t->parts;
}

/* The outputs of wanted rows first .. first + n - 1, whose logits are there. */
static void sample(const struct turn *t, uint32_t first, uint32_t n)
{
    const struct gpu *g = t->g;
    size_t stride = linear_stride(g->model.vocab), slices = sample_slices(g->model.vocab);
    bool last =
        t->thread == 0 && first + n == t->n_rows; /* nothing follows that sweeps the caches */
    void (*soon)(void *context, uint32_t left) = last ? t->step->soon : NULL;
    for (uint32_t i = t->thread; i < t->step->n_outputs; i += t->parts) {
        const struct gpu_output *o = &t->step->outputs[i];
        uint32_t row = g->w.wanted_of[i] - first;
        if (g->w.wanted_of[i] < first || row >= n)
            continue;
        if (soon)
            soon(t->step->soon_context, (t->step->n_outputs - i - 1) / t->parts + 1);
        const float *logits = g->w.logits + row * stride;
        const struct sample_slice *of = share_slices(t) ? g->w.slices + row * slices : NULL;
        t->step->results[i] =
            g->sample->row(logits, of, g->model.vocab, o, g->w.threads[t->thread].scratch);
        if (o->logits)
            memcpy(o->logits, logits, g->model.vocab * sizeof *logits);
    }
}

/* One slice of the logits of n wanted rows, and what is collected of it. */
static void head_slice(const struct turn *t, const struct linear_input *in, uint32_t first,
                       uint32_t n, uint32_t slice)
{
    const struct gpu *g = t->g;
    uint32_t vocab = g->model.vocab, slices = sample_slices(vocab), at = slice * SAMPLE_SLICE;
    uint32_t p0 = slice * SLICE_PANELS, p1 = min_u32(p0 + SLICE_PANELS, g->head.panels);
    size_t stride = linear_stride(vocab);
    g->linear->multiply(&g->head, p0, p1, in, first, n, g->w.logits + at, stride);
    for (uint32_t r = 0; r < n; r++)
        g->sample->slice(g->w.logits + r * stride + at, min_u32(SAMPLE_SLICE, vocab - at),
                         g->w.slices + (size_t)r * slices + slice);
}

static void head(const struct turn *t, const struct linear_input *in, uint32_t first, uint32_t n)
{
    const struct gpu *g = t->g;
    if (share_slices(t)) {
        struct cpu_share s = turn_share(t, sample_slices(g->model.vocab));
        for (uint32_t i = s.from; i < s.to; i++)
            head_slice(t, in, first, n, i);
    } else {
        struct cpu_share s = turn_share(t, g->head.panels);
        g->linear->multiply(&g->head, s.from, s.to, in, first, n,
                            g->w.logits + (size_t)s.from * LINEAR_PANEL,
                            linear_stride(g->model.vocab));
    }
}

/* Logits of the wanted rows, CPU_OUTPUT_ROWS at a time. */
void turn_outputs(const struct turn *t)
{
    struct linear_input in = turn_norm(t, t->g->output_norm, &t->g->head);
    for (uint32_t first = 0; first < t->n_rows; first += CPU_OUTPUT_ROWS) {
        uint32_t n = min_u32(CPU_OUTPUT_ROWS, t->n_rows - first);
        if (first > 0)
            turn_barrier(t); /* the rows before are sampled */
        head(t, &in, first, n);
        turn_barrier(t);
        sample(t, first, n);
    }
}
