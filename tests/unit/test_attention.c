/* test_attention.c - paged attention: right against a naive softmax in double, the same bits from
 * both bodies, and pure: a row's result depends on its position and history alone.
 */
#include "../../gpu/cpu/attention.h" /* before cmocka.h, which has a macro fail */
#include "../../gpu/cpu/math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
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

/* Every slot that is not stored holds all-ones bits: a NaN, or -1 with a NaN for a scale. */
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

/* What the cache makes of a vector of the head's size. */
static void stored(const struct pool *p, const float *x, double *out)
{
    uint32_t n = p->shape.head_dim;
    float top = 0;
    for (uint32_t d = 0; d < n; d++)
        top = fmaxf(top, fabsf(x[d]));
    for (uint32_t d = 0; d < n; d++)
        switch (p->shape.kv_type) {
        case GPU_KV_F16:
            out[d] = (double)math_from_f16(math_to_f16(x[d]));
            break;
        case GPU_KV_INT8:
            out[d] = top > 0 ? (double)rintf(x[d] * (127 / top)) * (double)top / 127 : 0;
            break;
        default:
            out[d] = (double)x[d];
        }
}

/* One head of one row, the textbook way. */
static void naive(const struct pool *p, uint32_t pos, uint32_t head, double *out)
{
    uint32_t dim = p->shape.head_dim, kv = head / (p->shape.heads / p->shape.kv_heads);
    double *score = allocate((pos + 1) * sizeof *score), top = -INFINITY, sum = 0, vector[256];
    for (uint32_t j = 0; j <= pos; j++) {
        score[j] = 0;
        stored(p, p->k + j * p->kv_row + kv * dim, vector);
        for (uint32_t d = 0; d < dim; d++)
            score[j] += (double)p->q[pos * p->q_row + head * dim + d] * vector[d];
        score[j] *= (double)p->shape.scale;
        top = fmax(top, score[j]);
    }
    memset(out, 0, dim * sizeof *out);
    for (uint32_t j = 0; j <= pos; j++) {
        double w = exp(score[j] - top);
        sum += w;
        stored(p, p->v + j * p->kv_row + kv * dim, vector);
        for (uint32_t d = 0; d < dim; d++)
            out[d] += w * vector[d];
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

/* A type for each example: int8 for SmolLM2's shape, and for every third. */
static enum gpu_kv_type type_by_turns(int example)
{
    return (enum gpu_kv_type)((example + GPU_KV_INT8) % GPU_KV_TYPES);
}

static bool have_avx2(void)
{
    return attn_avx2.rows && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* Whole prompts by the plain body: near the double result at chosen rows. */
static void plain_is_right(void **state)
{
    (void)state;
    for (int i = 0; i < GPU_KV_TYPES * N_EXAMPLES; i++) {
        const struct example *e = &examples[i / GPU_KV_TYPES];
        struct pool p;
        make_pool(&p, shape_of(e, (enum gpu_kv_type)(i % GPU_KV_TYPES)), e->length);
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
    for (int i = 0; i < GPU_KV_TYPES * N_EXAMPLES; i++) {
        const struct example *e = &examples[i / GPU_KV_TYPES];
        struct pool p;
        make_pool(&p, shape_of(e, (enum gpu_kv_type)(i % GPU_KV_TYPES)), e->length);
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
    for (int i = 0; i < GPU_KV_TYPES * N_EXAMPLES; i++) {
        const struct example *e = &examples[i / GPU_KV_TYPES];
        struct pool p;
        make_pool(&p, shape_of(e, (enum gpu_kv_type)(i % GPU_KV_TYPES)), e->length);
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

/* ---- int8 ---- */

enum { DIM = 16, TILE_BYTES = 16 * DIM + 16 * 4 };
static const struct attn_shape one_head = {1, 1, DIM, 0.25f, GPU_KV_INT8, 0};

/* The pool of one block, as attention.h lays it out. */
struct int8_block {
    _Alignas(64) int8_t k[DIM][16];
    float k_scale[16];
    int8_t v[16][DIM];
    float v_scale[16];
};

static void put(const struct attn_kernels *kernels, struct int8_block *b, uint32_t pos,
                const float *k, const float *v)
{
    static const uint32_t table[1] = {0};
    kernels->store(&one_head, b, table, pos, k, v);
}

static void int8_vector(const struct attn_kernels *kernels, const float *x, float scale,
                        const int8_t *want)
{
    struct int8_block b;
    memset(&b, 0x55, sizeof b);
    put(kernels, &b, 3, x, x);
    assert_memory_equal(&b.k_scale[3], &scale, sizeof scale);
    assert_memory_equal(&b.v_scale[3], &scale, sizeof scale);
    for (uint32_t d = 0; d < DIM; d++) {
        assert_int_equal(b.k[d][3], want[d]);
        assert_int_equal(b.v[3][d], want[d]);
    }
}

static void int8_values_of(const struct attn_kernels *kernels)
{
    static const int8_t zeros[DIM];
    int8_vector(kernels, (float[DIM]){127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.49f},
                1.0f, (int8_t[DIM]){127, -127, 0, 2, 2, 0, -2, -2, 126});
    int8_vector(kernels, (float[DIM]){0.5f, -1, 0.25f}, 1 / 127.0f, (int8_t[DIM]){64, -127, 32});
    int8_vector(kernels, (float[DIM]){[15] = -254e30f}, 2e30f, (int8_t[DIM]){[15] = -127});
    int8_vector(kernels, (float[DIM]){3.4028235e38f, -3.4028235e38f}, 3.4028235e38f / 127,
                (int8_t[DIM]){127, -127});
    int8_vector(kernels, (float[DIM]){0x1.fcp-120f}, 0x1p-126f, (int8_t[DIM]){127});
    int8_vector(kernels, (float[DIM]){0}, 0, zeros);
    int8_vector(kernels, (float[DIM]){-0.0f, 1e-40f, -1e-38f}, 0, zeros);
    int8_vector(kernels, (float[DIM]){1, INFINITY}, NAN, zeros);
    int8_vector(kernels, (float[DIM]){1, [9] = -INFINITY}, NAN, zeros);
    int8_vector(kernels, (float[DIM]){NAN, 1, INFINITY}, NAN, zeros);
}

static void int8_values(void **state)
{
    (void)state;
    int8_values_of(&attn_plain);
    if (have_avx2())
        int8_values_of(&attn_avx2);
}

/* One scale a token and head: what is stored of one is the same bytes whatever the others are. */
static void int8_scale_of_one_token_and_head(void **state)
{
    (void)state;
    struct example e = {2, 2, 16, 16};
    struct pool p;
    make_pool(&p, shape_of(&e, GPU_KV_INT8), e.length);
    size_t bytes = attn_block_bytes(&p.shape);
    uint8_t *before = allocate(bytes), *after = p.bytes;
    after += p.blocks[0] * bytes;
    memcpy(before, after, bytes);
    for (uint32_t d = 0; d < 16; d++) /* K of head 1 of token 5 */
        p.k[5 * p.kv_row + 16 + d] *= 1000;
    fill_pool(&p, &attn_plain);
    unsigned changed = 0;
    for (size_t i = 0; i < bytes; i++) {
        size_t tile = i / TILE_BYTES, at = i % TILE_BYTES; /* K 0, V 0, K 1, V 1 */
        bool its_scale = tile == 2 && at >= 16 * DIM && (at - 16 * DIM) / 4 == 5;
        bool its_element = tile == 2 && at < 16 * DIM && at % 16 == 5;
        if (its_scale)
            changed += before[i] != after[i];
        else if (!its_element) /* which may change by one, as x * 1000 is rounded */
            assert_int_equal(before[i], after[i]);
    }
    assert_true(changed > 0);
    free(before);
    free_pool(&p);
}

/* Stored is near: by half a step of the token's own scale. */
static void int8_is_off_by_half_a_step(void **state)
{
    (void)state;
    lcg_state = 5;
    for (int n = 0; n < 1000; n++) {
        struct int8_block b;
        float x[DIM], top = 0;
        for (uint32_t d = 0; d < DIM; d++) {
            x[d] = uniform(ldexpf(1, (int)(lcg() % 40) - 20));
            top = fmaxf(top, fabsf(x[d]));
        }
        put(&attn_plain, &b, 0, x, x);
        for (uint32_t d = 0; d < DIM; d++) {
            float off = fabsf((float)b.v[0][d] * b.v_scale[0] - x[d]);
            assert_true(off <= top / 127 * 0.50002f);
            assert_int_equal(b.k[d][0], b.v[0][d]);
        }
    }
}

/* Tokens whose K or V are all zero have weights and results like others. */
static void int8_zero_vectors(void **state)
{
    (void)state;
    struct example e = {4, 2, 24, 90};
    struct pool p;
    make_pool(&p, shape_of(&e, GPU_KV_INT8), e.length);
    for (uint32_t i = 0; i < p.length; i++)
        for (uint32_t j = 0; j < p.kv_row; j++) {
            p.k[i * p.kv_row + j] *= i % 3 ? 1.0f : 0.0f;
            p.v[i * p.kv_row + j] *= i % 5 ? 1.0f : 0.0f;
        }
    fill_pool(&p, &attn_plain);
    float *out = allocate(p.length * p.q_row * sizeof *out);
    attend(&p, &attn_plain, 0, p.length, out);
    for (uint32_t pos = 0; pos < p.length; pos++)
        close_to_naive(&p, pos, out + pos * p.q_row);
    free(out);
    free_pool(&p);
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
        make_pool(&p, shape_of(&examples[i], type_by_turns(i)), examples[i].length);
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
        make_pool(&p, shape_of(&examples[i], type_by_turns(i)), examples[i].length);
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
        cmocka_unit_test(plain_is_right),
        cmocka_unit_test(avx2_same_bits),
        cmocka_unit_test(avx2_same_store),
        cmocka_unit_test(int8_values),
        cmocka_unit_test(int8_scale_of_one_token_and_head),
        cmocka_unit_test(int8_is_off_by_half_a_step),
        cmocka_unit_test(int8_zero_vectors),
        cmocka_unit_test(pure),
        cmocka_unit_test(masked_is_nothing),
        cmocka_unit_test(extreme_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
