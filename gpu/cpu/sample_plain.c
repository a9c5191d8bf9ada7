/* sample_plain.c - sample_pass.h in plain C. */
#include <float.h>
#include <math.h>

#include "math.h"
#include "sample_pass.h"

static void highest(const float *x, uint32_t n, float lane[SAMPLE_LANES])
{
    for (uint32_t i = 0; i < SAMPLE_LANES; i++)
        lane[i] = -INFINITY;
    for (uint32_t j = 0; j < n; j++) {
        float c = sample_clean(x[j]);
        lane[j % SAMPLE_LANES] = c > lane[j % SAMPLE_LANES] ? c : lane[j % SAMPLE_LANES];
    }
}

static float weight(float x, float top, float temperature)
{
    return math_exp((sample_clean(x) - top) / temperature);
}

static float sum(const float *x, uint32_t n, float top, float temperature)
{
    float lane[SAMPLE_LANES] = {0};
    for (uint32_t j = 0; j < n; j++)
        lane[j % SAMPLE_LANES] += weight(x[j], top, temperature);
    for (uint32_t distance = SAMPLE_LANES / 2; distance; distance /= 2)
        for (uint32_t i = 0; i < distance; i++)
            lane[i] += lane[i + distance];
    return lane[0];
}

static void weigh(const float *x, uint32_t n, float top, float temperature, float *w)
{
    for (uint32_t j = 0; j < n; j++)
        w[j] = weight(x[j], top, temperature);
}

static uint32_t collect(const float *x, uint32_t n, float cut, uint32_t first_id, uint32_t *ids)
{
    uint32_t found = 0;
    for (uint32_t j = 0; j < n; j++)
        if (x[j] >= cut)
            ids[found++] = first_id + j;
    return found;
}

const struct sample_pass sample_pass_plain = {highest, sum, weigh, collect};

static void slice_of(const float *logits, uint32_t n, struct sample_slice *out)
{
    sample_slice(&sample_pass_plain, logits, n, out);
}

static struct gpu_result row(const float *logits, const struct sample_slice *slices, uint32_t vocab,
                             const struct gpu_output *out, void *scratch)
{
    return sample_row(&sample_pass_plain, logits, slices, vocab, out, scratch);
}

const struct sample_kernels sample_plain = {slice_of, row};
