/* avx2_sample.c - sample_pass.h in AVX2: the same bits as sample_plain.c. */
#include "sample_pass.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <float.h>

#include "avx2_math.h"

/* NaN to -infinity, +infinity to the largest float: min and max take their second operand where
 * one is NaN. */
static inline __m256 clean(__m256 x)
{
    return _mm256_max_ps(_mm256_min_ps(_mm256_set1_ps(FLT_MAX), x), avx2_bits(0xff800000u));
}

/* The last n % 8 logits, cleaned, then -infinity: it is no maximum and weighs 0. */
static inline __m256 load_tail(const float *x, uint32_t n)
{
    float tail[SAMPLE_LANES];
    _mm256_storeu_ps(tail, avx2_bits(0xff800000u));
    memcpy(tail, x + n / 8 * 8, n % 8 * sizeof *x);
    return clean(_mm256_loadu_ps(tail));
}

static void highest(const float *x, uint32_t n, float lane[SAMPLE_LANES])
{
    __m256 top = n % 8 ? load_tail(x, n) : avx2_bits(0xff800000u);
    for (uint32_t j = 0; j + 8 <= n; j += 8)
        top = _mm256_max_ps(top, clean(_mm256_loadu_ps(x + j)));
    _mm256_storeu_ps(lane, top);
}

static inline __m256 weight(__m256 x, __m256 top, __m256 temperature)
{
    return avx2_exp(_mm256_div_ps(_mm256_sub_ps(x, top), temperature));
}

static float sum(const float *x, uint32_t n, float top, float temperature)
{
    const __m256 top8 = _mm256_set1_ps(top), temperature8 = _mm256_set1_ps(temperature);
    __m256 lane = _mm256_setzero_ps();
    for (uint32_t j = 0; j + 8 <= n; j += 8)
        lane = _mm256_add_ps(lane, weight(clean(_mm256_loadu_ps(x + j)), top8, temperature8));
    if (n % 8)
        lane = _mm256_add_ps(lane, weight(load_tail(x, n), top8, temperature8));
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(lane), _mm256_extractf128_ps(lane, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

static void weigh(const float *x, uint32_t n, float top, float temperature, float *w)
{
    const __m256 top8 = _mm256_set1_ps(top), temperature8 = _mm256_set1_ps(temperature);
    for (uint32_t j = 0; j + 8 <= n; j += 8)
        _mm256_storeu_ps(w + j, weight(clean(_mm256_loadu_ps(x + j)), top8, temperature8));
    if (n % 8) {
        float tail[SAMPLE_LANES];
        _mm256_storeu_ps(tail, weight(load_tail(x, n), top8, temperature8));
        memcpy(w + n / 8 * 8, tail, n % 8 * sizeof *w);
    }
}

static uint32_t collect(const float *x, uint32_t n, float cut, uint32_t first_id, uint32_t *ids)
{
    const __m256 cut8 = _mm256_set1_ps(cut);
    uint32_t found = 0;
    for (uint32_t j = 0; j < n; j += 8) {
        __m256 x8 = n - j >= 8 ? _mm256_loadu_ps(x + j) : load_tail(x, n);
        unsigned hits = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x8, cut8, _CMP_GE_OQ));
        for (; hits; hits &= hits - 1)
            ids[found++] = first_id + j + (uint32_t)__builtin_ctz(hits);
    }
    return found;
}

const struct sample_pass sample_pass_avx2 = {highest, sum, weigh, collect};

static void slice_of(const float *logits, uint32_t n, struct sample_slice *out)
{
    sample_slice(&sample_pass_avx2, logits, n, out);
}

static struct gpu_result row(const float *logits, const struct sample_slice *slices, uint32_t vocab,
                             const struct gpu_output *out, void *scratch)
{
    return sample_row(&sample_pass_avx2, logits, slices, vocab, out, scratch);
}

const struct sample_kernels sample_avx2 = {slice_of, row};

#else

const struct sample_pass sample_pass_avx2 = {0};
const struct sample_kernels sample_avx2 = {0};

#endif
