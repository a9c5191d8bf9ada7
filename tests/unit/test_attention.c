/* test_attention.c - paged attention: right against a naive softmax in double, the same bits from
 * all bodies, and pure: a row's result depends on its position and history alone.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/math.h"
#include "../support/attn_pool.h"
#include "../support/support.h"

/* What the cache makes of a vector of the head's size. */
static void stored(const struct attn_pool *p, const float *x, double *out)
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
static void naive(const struct attn_pool *p, uint32_t pos, uint32_t head, double *out)
{
    uint32_t dim = p->shape.head_dim, kv = head / (p->shape.heads / p->shape.kv_heads);
    double *score = attn_allocate((pos + 1) * sizeof *score), top = -INFINITY, sum = 0, vector[256];
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

static void close_to_naive(const struct attn_pool *p, uint32_t pos, const float *row)
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
    return attn_shape_of(e->heads, e->kv_heads, e->head_dim, type);
}

/* A type for each example: int8 for SmolLM2's shape, and for every third. */
static enum gpu_kv_type type_by_turns(int example)
{
    return (enum gpu_kv_type)((example + GPU_KV_INT8) % GPU_KV_TYPES);
}

/* Whole prompts by the plain body: near the double result at chosen rows. */
static void plain_is_right(void **state)
{
    (void)state;
    for (int i = 0; i < GPU_KV_TYPES * N_EXAMPLES; i++) {
        const struct example *e = &examples[i / GPU_KV_TYPES];
        struct attn_pool p;
        attn_pool_make(&p, shape_of(e, (enum gpu_kv_type)(i % GPU_KV_TYPES)), e->length);
        float *row = attn_allocate(p.q_row * sizeof *row);
        uint32_t stride = p.length > 100 ? 37 : 5;
        for (uint32_t pos = 0; pos < p.length; pos += stride) {
            attn_pool_attend(&p, &attn_plain, pos, 1, row);
            close_to_naive(&p, pos, row);
        }
        attn_pool_attend(&p, &attn_plain, p.length - 1, 1, row);
        close_to_naive(&p, p.length - 1, row);
        free(row);
        attn_pool_free(&p);
    }
}

/* All bodies, a whole prompt in one call. */
static void fast_same_bits(void **state)
{
    (void)state;
    if (!attn_fast(0))
        skip();
    for (int i = 0; i < GPU_KV_TYPES * N_EXAMPLES; i++) {
        const struct example *e = &examples[i / GPU_KV_TYPES];
        struct attn_pool p;
        attn_pool_make(&p, shape_of(e, (enum gpu_kv_type)(i % GPU_KV_TYPES)), e->length);
        float *plain = attn_allocate(p.length * p.q_row * sizeof *plain);
        float *fast = attn_allocate(p.length * p.q_row * sizeof *fast);
        attn_pool_attend(&p, &attn_plain, 0, p.length, plain);
        for (size_t k = 0; attn_fast(k); k++) {
            attn_pool_attend(&p, attn_fast(k), 0, p.length, fast);
            attn_same(plain, fast, p.length * p.q_row);
        }
        free(plain);
        free(fast);
        attn_pool_free(&p);
    }
}

/* ---- any rows anywhere ---- */

/* Rows pos .. pos + n - 1, what lies around their results left alone. */
static void same_window(struct attn_pool *p, const struct attn_kernels *kernels, uint32_t pos,
                        uint32_t n, const float *plain, float *got)
{
    size_t bytes = p->length * p->q_row * sizeof *got;
    memset(got, 0x5a, bytes);
    attn_pool_attend(p, kernels, pos, n, got + pos * p->q_row);
    attn_same(plain + pos * p->q_row, got + pos * p->q_row, n * p->q_row);
    for (size_t i = 0; i < p->length * p->q_row; i++)
        if (i < pos * p->q_row || i >= (pos + n) * p->q_row)
            assert_int_equal(math_bits(got[i]), 0x5a5a5a5a);
}

/* Every number of rows that fills register blocks in another way, around the borders of tiles and
 * spans. */
static void check_windows(struct attn_pool *p)
{
    static const uint32_t at[] = {0, 1, 14, 15, 16, 17, 127, 240, 254, 255, 256, 257};
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33, 64, 97, 130};
    size_t bytes = p->length * p->q_row * sizeof(float);
    float *plain = attn_allocate(bytes), *got = attn_allocate(bytes);
    attn_pool_attend(p, &attn_plain, 0, p->length, plain);
    for (size_t k = 0; attn_fast(k); k++)
        for (size_t i = 0; i < sizeof at / sizeof *at; i++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                if (at[i] + rows[r] <= p->length)
                    same_window(p, attn_fast(k), at[i], rows[r], plain, got);
    free(plain);
    free(got);
}

static void any_rows_anywhere(void **state)
{
    (void)state;
    static const struct example shapes[] = {
        {3, 1, 64, 300}, {2, 1, 256, 264}, {2, 2, 80, 264},
        {2, 1, 96, 264}, {2, 1, 128, 264}, {7, 1, 40, 300},
    };
    if (!attn_fast(0))
        skip();
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++)
        for (int type = 0; type < GPU_KV_TYPES; type++) {
            if (!test_exhaustive() && (enum gpu_kv_type)type != type_by_turns(i))
                continue;
            struct attn_pool p;
            attn_pool_make(&p, shape_of(&shapes[i], (enum gpu_kv_type)type), shapes[i].length);
            check_windows(&p);
            attn_pool_free(&p);
        }
}

/* What store leaves in the pool is the same, too, also for values that f16 cannot hold. */
static void fast_same_store(void **state)
{
    (void)state;
    if (!attn_fast(0))
        skip();
    static const float special[] = {0.0f,     -0.0f,     65504.0f, 65519.9f,  65520.0f,
                                    -1e30f,   1e-8f,     2.98e-8f, -2.99e-8f, 6.1e-5f,
                                    INFINITY, -INFINITY, NAN};
    for (int i = 0; i < GPU_KV_TYPES * N_EXAMPLES; i++) {
        const struct example *e = &examples[i / GPU_KV_TYPES];
        struct attn_pool p;
        attn_pool_make(&p, shape_of(e, (enum gpu_kv_type)(i % GPU_KV_TYPES)), e->length);
        size_t bytes = p.n_blocks * attn_block_bytes(&p.shape);
        for (size_t j = 0; j < p.length * p.kv_row; j += 3)
            p.k[j] = special[attn_random(13)], p.v[j] = special[attn_random(13)];
        attn_pool_fill(&p, &attn_plain);
        void *plain = attn_allocate(bytes);
        memcpy(plain, p.bytes, bytes);
        for (size_t k = 0; attn_fast(k); k++) {
            attn_pool_fill(&p, attn_fast(k));
            assert_memory_equal(plain, p.bytes, bytes);
        }
        free(plain);
        attn_pool_free(&p);
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
    for (size_t k = 0; attn_fast(k); k++)
        int8_values_of(attn_fast(k));
}

/* One scale a token and head: what is stored of one is the same bytes whatever the others are. */
static void int8_scale_of_one_token_and_head(void **state)
{
    (void)state;
    struct example e = {2, 2, 16, 16};
    struct attn_pool p;
    attn_pool_make(&p, shape_of(&e, GPU_KV_INT8), e.length);
    size_t bytes = attn_block_bytes(&p.shape);
    uint8_t *before = attn_allocate(bytes), *after = p.bytes;
    after += p.blocks[0] * bytes;
    memcpy(before, after, bytes);
    for (uint32_t d = 0; d < 16; d++) /* K of head 1 of token 5 */
        p.k[5 * p.kv_row + 16 + d] *= 1000;
    attn_pool_fill(&p, &attn_plain);
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
    attn_pool_free(&p);
}

/* Stored is near: by half a step of the token's own scale. */
static void int8_is_off_by_half_a_step(void **state)
{
    (void)state;
    struct rnd rnd = {5};
    for (int n = 0; n < 1000; n++) {
        struct int8_block b;
        float x[DIM], top = 0;
        for (uint32_t d = 0; d < DIM; d++) {
            x[d] = ldexpf(rnd_float(&rnd), (int)rnd_below(&rnd, 40) - 20);
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
    struct attn_pool p;
    attn_pool_make(&p, shape_of(&e, GPU_KV_INT8), e.length);
    for (uint32_t i = 0; i < p.length; i++)
        for (uint32_t j = 0; j < p.kv_row; j++) {
            p.k[i * p.kv_row + j] *= i % 3 ? 1.0f : 0.0f;
            p.v[i * p.kv_row + j] *= i % 5 ? 1.0f : 0.0f;
        }
    attn_pool_fill(&p, &attn_plain);
    float *out = attn_allocate(p.length * p.q_row * sizeof *out);
    attn_pool_attend(&p, &attn_plain, 0, p.length, out);
    for (uint32_t pos = 0; pos < p.length; pos++)
        close_to_naive(&p, pos, out + pos * p.q_row);
    free(out);
    attn_pool_free(&p);
}

/* ---- purity ---- */

/* Rows in chunks of random sizes, later tokens not yet stored (NaN in their slots), in blocks at
 * other places: the same bits as all rows at once. */
static void chunks_change_nothing(const struct attn_kernels *kernels, struct attn_pool *p)
{
    size_t n = p->length * p->q_row;
    float *whole = attn_allocate(n * sizeof *whole), *cut = attn_allocate(n * sizeof *cut);
    attn_pool_attend(p, kernels, 0, p->length, whole);
    attn_pool_shuffle(p);
    memset(p->bytes, 0xff, p->n_blocks * attn_block_bytes(&p->shape));
    for (uint32_t pos = 0; pos < p->length;) {
        uint32_t rows = attn_random(3) ? 1 + attn_random(4) : 1 + attn_random(80);
        rows = rows < p->length - pos ? rows : p->length - pos;
        for (uint32_t i = pos; i < pos + rows; i++)
            kernels->store(&p->shape, p->bytes, p->blocks, i, p->k + i * p->kv_row,
                           p->v + i * p->kv_row);
        attn_pool_attend(p, kernels, pos, rows, cut + pos * p->q_row);
        pos += rows;
    }
    attn_same(whole, cut, n);
    for (size_t i = 0; i < n; i++)
        assert_true(isfinite(cut[i]));
    free(whole);
    free(cut);
}

static void pure(void **state)
{
    (void)state;
    for (int i = 0; i < N_EXAMPLES; i++) {
        struct attn_pool p;
        attn_pool_make(&p, shape_of(&examples[i], type_by_turns(i)), examples[i].length);
        chunks_change_nothing(&attn_plain, &p);
        for (size_t k = 0; attn_fast(k); k++)
            chunks_change_nothing(attn_fast(k), &p);
        attn_pool_free(&p);
    }
}

/* Later rows of the same chunk are stored, but a row does not see them: not even infinities. */
static void masked_is_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_EXAMPLES; i++) {
        struct attn_pool p;
        attn_pool_make(&p, shape_of(&examples[i], type_by_turns(i)), examples[i].length);
        uint32_t seen = p.length / 2 + 1;
        size_t n = seen * p.q_row;
        float *before = attn_allocate(n * sizeof *before);
        float *after = attn_allocate(p.length * p.q_row * sizeof *after);
        attn_pool_attend(&p, &attn_plain, 0, seen, before);
        for (size_t j = seen * p.kv_row; j < p.length * p.kv_row; j++)
            p.k[j] = p.v[j] = INFINITY;
        attn_pool_fill(&p, &attn_plain);
        attn_pool_attend(&p, &attn_plain, 0, p.length, after);
        attn_same(before, after, n);
        for (size_t k = 0; attn_fast(k); k++) {
            attn_pool_attend(&p, attn_fast(k), 0, p.length, after);
            attn_same(before, after, n);
        }
        free(before);
        free(after);
        attn_pool_free(&p);
    }
}

/* Scores a thousand apart: no overflow, the highest key wins alone. */
static void extreme_scores(void **state)
{
    (void)state;
    struct example e = {6, 2, 16, 600};
    struct attn_pool p;
    attn_pool_make(&p, shape_of(&e, GPU_KV_F32), e.length);
    for (size_t j = 0; j < p.length * p.q_row; j++)
        p.q[j] *= 100.0f;
    float *plain = attn_allocate(p.length * p.q_row * sizeof *plain);
    attn_pool_attend(&p, &attn_plain, 0, p.length, plain);
    for (uint32_t pos = 0; pos < p.length; pos += 41)
        close_to_naive(&p, pos, plain + pos * p.q_row);
    float *fast = attn_allocate(p.length * p.q_row * sizeof *fast);
    for (size_t k = 0; attn_fast(k); k++) {
        attn_pool_attend(&p, attn_fast(k), 0, p.length, fast);
        attn_same(plain, fast, p.length * p.q_row);
    }
    free(fast);
    free(plain);
    attn_pool_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_is_right),
        cmocka_unit_test(fast_same_bits),
        cmocka_unit_test(any_rows_anywhere),
        cmocka_unit_test(fast_same_store),
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
