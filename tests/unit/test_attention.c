/* test_attention.c - paged attention: right against a naive softmax in double, the same bits from
 * both bodies, and pure: a row's result depends on its position and history alone.
 */
#include "../../gpu/cpu/attention.h" /* before cmocka.h, which has a macro fail */
#include "../../gpu/cpu/math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct pool {
    struct attn_shape shape;
    uint32_t length; /* tokens stored */
    uint32_t n_blocks;
    uint32_t *blocks; /* a permutation: block i lies at blocks[i] */
    void *bytes;
    float *q, *k, *v; /* (length, heads or kv_heads, head_dim) */
    size_t q_row, kv_row;
    void *scratch;
};

static uint64_t lcg_state;

static uint32_t lcg(void)
{
    lcg_state = lcg_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(lcg_state >> 33);
}

static float uniform(float range)
{
    return ((float)(lcg() >> 7) / 0x1p+24f * 2.0f - 1.0f) * range;
}

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

static float *random_rows(size_t n, float range)
{
    float *x = allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = uniform(range);
    return x;
}

/* A permutation of 2 n ids, so that holes lie between a sequence's blocks. */
static void shuffle_blocks(struct pool *p)
{
    uint32_t n = p->n_blocks;
    for (uint32_t i = 0; i < n; i++)
        p->blocks[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = lcg() % (i + 1), t = p->blocks[i];
        p->blocks[i] = p->blocks[j];
        p->blocks[j] = t;
    }
}

/* Every slot that is not stored holds all-ones bits, a NaN in both formats. */
static void fill_pool(struct pool *p, const struct attn_kernels *kernels)
{
    memset(p->bytes, 0xff, p->n_blocks * attn_block_bytes(&p->shape));
    for (uint32_t i = 0; i < p->length; i++)
        kernels->store(&p->shape, p->bytes, p->blocks, i, p->k + i * p->kv_row,
                       p->v + i * p->kv_row);
}

static void make_pool(struct pool *p, struct attn_shape shape, uint32_t length)
{
    lcg_state = length * 1000u + shape.head_dim * 10u + shape.heads;
    p->shape = shape;
    p->length = length;
    p->n_blocks = 2 * ((length + 15) / 16);
    p->blocks = allocate(p->n_blocks * sizeof *p->blocks);
    p->bytes = allocate(p->n_blocks * attn_block_bytes(&shape));
    p->q_row = (size_t)shape.heads * shape.head_dim;
    p->kv_row = (size_t)shape.kv_heads * shape.head_dim;
    p->q = random_rows(length * p->q_row, 4.0f);
    p->k = random_rows(length * p->kv_row, 2.0f);
    p->v = random_rows(length * p->kv_row, 1.0f);
    p->scratch = allocate(attn_scratch_bytes(&shape));
    shuffle_blocks(p);
    fill_pool(p, &attn_plain);
}

static void free_pool(struct pool *p)
{
    free(p->blocks);
    free(p->bytes);
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->scratch);
}

/* All query heads of rows pos .. pos + n - 1 into out (n, q_row). */
static void attend(struct pool *p, const struct attn_kernels *kernels, uint32_t pos, uint32_t n,
                   float *out)
{
    memset(p->scratch, 0xff, attn_scratch_bytes(&p->shape));
    for (uint32_t h = 0; h < p->shape.kv_heads; h++)
        kernels->rows(&p->shape, p->bytes, p->blocks, pos, n, h, p->q + pos * p->q_row, p->q_row,
                      out, p->q_row, p->scratch);
}

static double stored(const struct pool *p, float x)
{
    return p->shape.kv_type == GPU_KV_F16 ? (double)math_from_f16(math_to_f16(x)) : (double)x;
}

/* One head of one row, the textbook way. */
static void naive(const struct pool *p, uint32_t pos, uint32_t head, double *out)
{
    uint32_t dim = p->shape.head_dim, kv = head / (p->shape.heads / p->shape.kv_heads);
    double *score = allocate((pos + 1) * sizeof *score), top = -INFINITY, sum = 0;
    for (uint32_t j = 0; j <= pos; j++) {
        score[j] = 0;
        for (uint32_t d = 0; d < dim; d++)
            score[j] += (double)p->q[pos * p->q_row + head * dim + d] *
                        stored(p, p->k[j * p->kv_row + kv * dim + d]);
        score[j] *= (double)p->shape.scale;
        top = fmax(top, score[j]);
    }
    memset(out, 0, dim * sizeof *out);
    for (uint32_t j = 0; j <= pos; j++) {
        double w = exp(score[j] - top);
        sum += w;
        for (uint32_t d = 0; d < dim; d++)
            out[d] += w * stored(p, p->v[j * p->kv_row + kv * dim + d]);
    }
    for (uint32_t d = 0; d < dim; d++)
        out[d] /= sum;
    free(score);
}

static void close_to_naive(const struct pool *p, uint32_t pos, const float *row)
{
    double want[256];
    for (uint32_t h = 0; h < p->shape.heads; h++) {
        naive(p, pos, h, want);
        for (uint32_t d = 0; d < p->shape.head_dim; d++)
            assert_true(fabs((double)row[h * p->shape.head_dim + d] - want[d]) < 2e-5);
    }
}

/* ---- shapes ---- */

struct example {
    uint32_t heads, kv_heads, head_dim, length;
};

static const struct example examples[] = {
    {9, 3, 64, 530}, /* SmolLM2's ratio, three spans */
    {4, 4, 16, 70},  {1, 1, 8, 300},   {4, 2, 24, 257}, {8, 2, 128, 150},
    {5, 1, 40, 120}, {14, 2, 32, 260}, {6, 1, 72, 50},  {4, 1, 256, 40},
    {32, 1, 16, 90}, {2, 2, 8, 1300},  {3, 1, 16, 1},
};
enum { N_EXAMPLES = sizeof examples / sizeof *examples };

static struct attn_shape shape_of(const struct example *e, enum gpu_kv_type type)
{
    return (struct attn_shape){e->heads, e->kv_heads, e->head_dim, 1.0f / sqrtf((float)e->head_dim),
                               type};
}

static bool have_avx2(void)
{
    return attn_avx2.rows && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* Whole prompts by the plain body: near the double result at chosen rows. */
static void plain_is_right(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_EXAMPLES; i++) {
        struct pool p;
        make_pool(&p, shape_of(&examples[i / 2], i % 2 ? GPU_KV_F32 : GPU_KV_F16),
                  examples[i / 2].length);
        float *row = allocate(p.q_row * sizeof *row);
        uint32_t stride = p.length > 100 ? 37 : 5;
        for (uint32_t pos = 0; pos < p.length; pos += stride) {
            attend(&p, &attn_plain, pos, 1, row);
            close_to_naive(&p, pos, row);
        }
        attend(&p, &attn_plain, p.length - 1, 1, row);
        close_to_naive(&p, p.length - 1, row);
        free(row);
        free_pool(&p);
    }
}

static void same_rows(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (math_bits(a[i]) != math_bits(b[i]))
            fail_msg("element %zu: %a and %a", i, (double)a[i], (double)b[i]);
}

/* Both bodies, a whole prompt in one call. */
static void avx2_same_bits(void **state)
{
    (void)state;
    if (!have_avx2())
        skip();
    for (int i = 0; i < 2 * N_EXAMPLES; i++) {
        struct pool p;
        make_pool(&p, shape_of(&examples[i / 2], i % 2 ? GPU_KV_F32 : GPU_KV_F16),
                  examples[i / 2].length);
        float *plain = allocate(p.length * p.q_row * sizeof *plain);
        float *fast = allocate(p.length * p.q_row * sizeof *fast);
        attend(&p, &attn_plain, 0, p.length, plain);
        attend(&p, &attn_avx2, 0, p.length, fast);
        same_rows(plain, fast, p.length * p.q_row);
        free(plain);
        free(fast);
        free_pool(&p);
    }
}

/* What store leaves in the pool is the same, too, also for values that f16 cannot hold. */
static void avx2_same_store(void **state)
{
    (void)state;
    if (!have_avx2())
        skip();
    static const float special[] = {0.0f,     -0.0f,     65504.0f, 65519.9f,  65520.0f,
                                    -1e30f,   1e-8f,     2.98e-8f, -2.99e-8f, 6.1e-5f,
                                    INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 2 * N_EXAMPLES; i++) {
        struct pool p;
        make_pool(&p, shape_of(&examples[i / 2], i % 2 ? GPU_KV_F32 : GPU_KV_F16),
                  examples[i / 2].length);
        size_t bytes = p.n_blocks * attn_block_bytes(&p.shape);
        for (size_t j = 0; j < p.length * p.kv_row; j += 3)
            p.k[j] = special[lcg() % 13], p.v[j] = special[lcg() % 13];
        fill_pool(&p, &attn_plain);
        void *plain = allocate(bytes);
        memcpy(plain, p.bytes, bytes);
        fill_pool(&p, &attn_avx2);
        assert_memory_equal(plain, p.bytes, bytes);
        free(plain);
        free_pool(&p);
    }
}

/* ---- purity ---- */

/* Rows in chunks of random sizes, later tokens not yet stored (NaN in their slots), in blocks at
 * other places: the same bits as all rows at once. */
static void chunks_change_nothing(const struct attn_kernels *kernels, struct pool *p)
{
    size_t n = p->length * p->q_row;
    float *whole = allocate(n * sizeof *whole), *cut = allocate(n * sizeof *cut);
    attend(p, kernels, 0, p->length, whole);
    shuffle_blocks(p);
    memset(p->bytes, 0xff, p->n_blocks * attn_block_bytes(&p->shape));
    for (uint32_t pos = 0; pos < p->length;) {
        uint32_t rows = lcg() % 3 ? 1 + lcg() % 4 : 1 + lcg() % 80;
        rows = rows < p->length - pos ? rows : p->length - pos;
        for (uint32_t i = pos; i < pos + rows; i++)
            kernels->store(&p->shape, p->bytes, p->blocks, i, p->k + i * p->kv_row,
                           p->v + i * p->kv_row);
        attend(p, kernels, pos, rows, cut + pos * p->q_row);
        pos += rows;
    }
    same_rows(whole, cut, n);
    for (size_t i = 0; i < n; i++)
        assert_true(isfinite(cut[i]));
    free(whole);
    free(cut);
}

static void pure(void **state)
{
    (void)state;
    for (int i = 0; i < N_EXAMPLES; i++) {
        struct pool p;
        make_pool(&p, shape_of(&examples[i], i % 2 ? GPU_KV_F32 : GPU_KV_F16), examples[i].length);
        chunks_change_nothing(&attn_plain, &p);
        if (have_avx2())
            chunks_change_nothing(&attn_avx2, &p);
        free_pool(&p);
    }
}

/* Later rows of the same chunk are stored, but a row does not see them: not even infinities. */
static void masked_is_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_EXAMPLES; i++) {
        struct pool p;
        make_pool(&p, shape_of(&examples[i], i % 2 ? GPU_KV_F32 : GPU_KV_F16), examples[i].length);
        uint32_t seen = p.length / 2 + 1;
        size_t n = seen * p.q_row;
        float *before = allocate(n * sizeof *before);
        float *after = allocate(p.length * p.q_row * sizeof *after);
        attend(&p, &attn_plain, 0, seen, before);
        for (size_t j = seen * p.kv_row; j < p.length * p.kv_row; j++)
            p.k[j] = p.v[j] = INFINITY;
        fill_pool(&p, &attn_plain);
        attend(&p, &attn_plain, 0, p.length, after);
        same_rows(before, after, n);
        if (have_avx2()) {
            attend(&p, &attn_avx2, 0, p.length, after);
            same_rows(before, after, n);
        }
        free(before);
        free(after);
        free_pool(&p);
    }
}

/* Scores a thousand apart: no overflow, the highest key wins alone. */
static void extreme_scores(void **state)
{
    (void)state;
    struct example e = {6, 2, 16, 600};
    struct pool p;
    make_pool(&p, shape_of(&e, GPU_KV_F32), e.length);
    for (size_t j = 0; j < p.length * p.q_row; j++)
        p.q[j] *= 100.0f;
    float *plain = allocate(p.length * p.q_row * sizeof *plain);
    attend(&p, &attn_plain, 0, p.length, plain);
    for (uint32_t pos = 0; pos < p.length; pos += 41)
        close_to_naive(&p, pos, plain + pos * p.q_row);
    if (have_avx2()) {
        float *fast = allocate(p.length * p.q_row * sizeof *fast);
        attend(&p, &attn_avx2, 0, p.length, fast);
        same_rows(plain, fast, p.length * p.q_row);
        free(fast);
    }
    free(plain);
    free_pool(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_is_right),    cmocka_unit_test(avx2_same_bits),
        cmocka_unit_test(avx2_same_store),   cmocka_unit_test(pure),
        cmocka_unit_test(masked_is_nothing), cmocka_unit_test(extreme_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
