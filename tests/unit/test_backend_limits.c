/* test_backend_limits.c - what the CPU backend refuses, with a code and a sentence, and that it can
 * be used again afterwards; the figures that it reports. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/load.h"
#include "../../gpu/cpu/memory.h"
#include "../support/tiny_model.h"
#include "../support/support.h"

static const struct gpu_config good = {
    .threads = 2, .max_rows = 8, .max_seqs = 4, .max_outputs = 8, .max_len = 64};

/* A sentence: not empty, ends without a stop or newline, and names what it is about. */
static void assert_says(const struct fail *f, int code, const char *word)
{
    assert_int_equal(f->code, code);
    if (!strstr(f->text, word))
        fail_msg("\"%s\" does not mention \"%s\"", f->text, word);
    assert_true(strlen(f->text) > 20);
}

static void silly_configs_are_refused(void **state)
{
    (void)state;
    const struct {
        struct gpu_config config;
        const char *word;
    } cases[] = {
        {{.threads = 100000, .max_rows = 1, .max_seqs = 1, .max_outputs = 1, .max_len = 1},
         "threads"},
        {{.max_rows = 0, .max_seqs = 1, .max_outputs = 1, .max_len = 1}, "rows"},
        {{.max_rows = 1 << 30, .max_seqs = 1, .max_outputs = 1, .max_len = 1}, "rows"},
        {{.max_rows = 1, .max_seqs = 0, .max_outputs = 1, .max_len = 1}, "sequences"},
        {{.max_rows = 1, .max_seqs = 1, .max_outputs = 0, .max_len = 1}, "outputs"},
        {{.max_rows = 1, .max_seqs = 1, .max_outputs = 1, .max_len = 0}, "longest"},
        {{.max_rows = 1, .max_seqs = 1, .max_outputs = 1, .max_len = UINT32_MAX}, "longest"},
        {{.max_rows = 1,
          .max_seqs = 1,
          .max_outputs = 1,
          .max_len = 1,
          .activations = (enum gpu_activations)9},
         "activation"},
        {{.max_rows = 1,
          .max_seqs = 1,
          .max_outputs = 1,
          .max_len = 1,
          .kv_type = (enum gpu_kv_type)9},
         "KV"},
        {{.max_rows = 1,
          .max_seqs = 1,
          .max_outputs = 1,
          .max_len = 1,
          .huge_pages = (enum gpu_huge_pages)9},
         "pages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fail f = {0};
        struct gpu *g;
        assert_int_equal(gpu_cpu_ops()->open(&g, &cases[i].config, &f), -EINVAL);
        assert_null(g);
        assert_says(&f, -EINVAL, cases[i].word);
    }
    gpu_cpu_ops()->close(NULL);
}

/* ---- models ---- */

static void break_missing(struct tiny_model *t)
{
    t->layers[1].up = NULL;
}
static void break_shape(struct tiny_model *t)
{
    ((struct gpu_tensor *)t->layers[0].down)->ne[0] += 32;
}
static void break_rank(struct tiny_model *t)
{
    ((struct gpu_tensor *)t->layers[0].down)->ne[2] = 2;
}
static void break_bytes(struct tiny_model *t)
{
    ((struct gpu_tensor *)t->layers[0].k)->bytes--;
}
static void break_type(struct tiny_model *t)
{
    ((struct gpu_tensor *)t->layers[0].k)->type = (enum gpu_type)15;
}
static void break_norm_type(struct tiny_model *t)
{
    ((struct gpu_tensor *)t->layers[0].attn_norm)->type = GPU_Q4_0;
}
static void break_head_dim(struct tiny_model *t)
{
    t->net.head_dim = 12;
}
static void break_big_head(struct tiny_model *t)
{
    t->net.head_dim = 264;
}
static void break_kv_heads(struct tiny_model *t)
{
    t->net.kv_heads = 3;
}
static void break_no_kv_heads(struct tiny_model *t)
{
    t->net.kv_heads = 0;
}
static void break_wide(struct tiny_model *t)
{
    t->net.heads = t->net.kv_heads = 1 << 18;
}
static void break_rope(struct tiny_model *t)
{
    t->net.rope_dim = 18;
}
static void break_odd_rope(struct tiny_model *t)
{
    t->net.rope_dim = 7;
}
static void break_rope_kind(struct tiny_model *t)
{
    t->net.rope = (enum gpu_rope)7;
}
static void break_layers(struct tiny_model *t)
{
    t->net.n_layers = 0;
}
static void break_vocab(struct tiny_model *t)
{
    t->net.vocab = UINT32_MAX;
}
static void break_fetch(struct tiny_model *t)
{
    t->fetch_error = -EIO;
    t->fetch_error_at = 5;
}

static void broken_models_are_refused(void **state)
{
    (void)state;
    const struct {
        void (*spoil)(struct tiny_model *t);
        int code;
        const char *word;
    } cases[] = {
        {break_missing, -EINVAL, "up weight"},
        {break_shape, -EINVAL, "128 x 64"},
        {break_rank, -EINVAL, "96 x 64 x 2"},
        {break_bytes, -EINVAL, "bytes"},
        {break_type, -ENOTSUP, "type"},
        {break_norm_type, -ENOTSUP, "Q4_0"},
        {break_head_dim, -ENOTSUP, "multiple of 8"},
        {break_big_head, -ENOTSUP, "head size"},
        {break_kv_heads, -ENOTSUP, "evenly"},
        {break_no_kv_heads, -ENOTSUP, "key/value"},
        {break_wide, -ENOTSUP, "wider"},
        {break_rope, -ENOTSUP, "RoPE"},
        {break_odd_rope, -ENOTSUP, "RoPE"},
        {break_rope_kind, -ENOTSUP, "RoPE"},
        {break_layers, -ENOTSUP, "layers"},
        {break_vocab, -ENOTSUP, "vocabulary"},
        {break_fetch, -EIO, "the tape tore"},
    };
    const struct gpu_ops *ops = gpu_cpu_ops();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tiny_config config = tiny_mixed();
        struct tiny_model broken, whole;
        struct fail f = {0};
        struct gpu *g;
        tiny_make(&broken, &config);
        tiny_make(&whole, &config);
        cases[i].spoil(&broken);
        assert_int_equal(ops->open(&g, &good, &f), 0);
        struct gpu_source source = tiny_source(&broken);
        assert_int_equal(ops->load(g, &broken.net, &source, &f), cases[i].code);
        assert_says(&f, cases[i].code, cases[i].word);
        source = tiny_source(&whole); /* nothing of the failure is left */
        assert_int_equal(ops->load(g, &whole.net, &source, NULL), 0);
        ops->close(g);
        tiny_free(&broken);
        tiny_free(&whole);
    }
}

/* ---- pool and figures ---- */

static void pools_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct tiny_config config = tiny_mixed();
    struct tiny_model model;
    struct fail none = {0}, huge = {0}, f = {0};
    struct gpu *g;
    const struct gpu_ops *ops = gpu_cpu_ops();
    tiny_make(&model, &config);
    struct gpu_source source = tiny_source(&model);
    assert_int_equal(ops->open(&g, &good, &f), 0);
    assert_int_equal(ops->load(g, &model.net, &source, &f), 0);
    assert_int_equal(ops->pool(g, 0, &none), -EINVAL);
    assert_says(&none, -EINVAL, "0 blocks");
    assert_int_equal(ops->pool(g, UINT32_MAX, &huge), -ENOMEM);
    assert_says(&huge, -ENOMEM, "smaller");
    assert_int_equal(ops->pool(g, 4, &f), 0);
    ops->close(g);
    tiny_free(&model);
}

static void memory_adds_up(void **state)
{
    (void)state;
    struct tiny_config config = tiny_mixed();
    struct tiny_model model;
    struct fail f = {0};
    struct gpu *g;
    struct gpu_memory before, after;
    const struct gpu_ops *ops = gpu_cpu_ops();
    tiny_make(&model, &config);
    struct gpu_source source = tiny_source(&model);
    assert_int_equal(ops->open(&g, &good, &f), 0);
    assert_int_equal(ops->load(g, &model.net, &source, &f), 0);
    ops->memory(g, &before);
    /* f16: 2 layers, K and V, 2 kv heads of 16, 16 tokens, 2 bytes */
    assert_int_equal(before.block_bytes, 2 * 2 * 2 * 16 * 16 * 2);
    assert_int_equal(before.pool_bytes, 0);
    assert_true(before.weights_bytes > 0 && before.workspace_bytes > 0);
    assert_true(before.available_bytes > 1 << 20);
    uint64_t raw = 0;
    for (uint32_t i = 0; i < model.n_tensors; i++)
        raw += model.tensors[i].bytes;
    assert_in_range(before.weights_bytes, raw, raw + raw / 4); /* padding only: no second copy */
    assert_int_equal(ops->pool(g, 5, &f), 0);
    ops->memory(g, &after);
    assert_int_equal(after.pool_bytes, 5 * before.block_bytes);
    assert_int_equal(after.workspace_bytes, before.workspace_bytes);
    assert_int_equal(after.weights_bytes, before.weights_bytes);
    ops->close(g);
    tiny_free(&model);
}

/* What a mapping takes beside itself counts, and so do its last page's bytes. */
static void what_fits_is_counted_whole(void **state)
{
    (void)state;
    struct gpu g = {.config.huge_pages = GPU_HUGE_PAGES_OFF};
    uint64_t free_now = memory_available(""), much = 2 * free_now;
    assert_true(cpu_fits(&g, 1, 0));
    assert_true(cpu_fits(&g, 1, 1));
    assert_false(cpu_fits(&g, much, 1));
    assert_false(cpu_fits(&g, 1, much));
    assert_false(cpu_fits(&g, free_now / 3 * 2, free_now / 3 * 2));
    assert_false(cpu_fits(&g, UINT64_MAX, 1));
    assert_false(cpu_fits(&g, 1ull << 63, 1ull << 63)); /* no sum that wraps */
}

/* In whole buffers: two for what cannot be packed in place, and each thread's own. */
static void reading_takes_what_it_says(void **state)
{
    (void)state;
    struct linear whole, broken; /* of whole blocks, or not */
    struct gpu_tensor t[2] = {{.type = GPU_F16, .bytes = 6400}, {.type = GPU_F16, .bytes = 7000}};
    struct gpu g = {.config.threads = 3};
    linear_shape(&whole, GPU_F16, 64, 50, false);
    linear_shape(&broken, GPU_F16, 70, 50, false);
    struct weight at[] = {{.tensor = &t[0], .matrix = &whole, .k = 64, .n = 50},
                          {.tensor = NULL, .matrix = &broken},
                          {.tensor = &t[1], .matrix = &broken, .k = 70, .n = 50}};
    struct weight_list list = {.at = at, .n = 2};
    uint64_t own = (whole.panel_bytes + 63) / 64 * 64;
    assert_true(cpu_staging_bytes(&g, &list) == 3 * own);
    list.n = 3;
    assert_true(cpu_staging_bytes(&g, &list) == 3 * own + 2 * 7040);
}

static void blocks_take_what_their_type_needs(void **state)
{
    (void)state;
    /* 2 layers, K and V, 2 kv heads of 16, 16 tokens; int8: and 4 bytes a token and head */
    static const uint64_t bytes[GPU_KV_TYPES] = {[GPU_KV_F16] = 2 * 2 * 2 * 16 * 16 * 2,
                                                 [GPU_KV_F32] = 2 * 2 * 2 * 16 * 16 * 4,
                                                 [GPU_KV_INT8] = 2 * 2 * 2 * 16 * (16 + 4)};
    for (int kv = 0; kv < GPU_KV_TYPES; kv++) {
        struct tiny_config config = tiny_mixed();
        struct tiny_model model;
        struct fail f = {0};
        struct gpu *g;
        struct gpu_memory m;
        struct gpu_config c = good;
        const struct gpu_ops *ops = gpu_cpu_ops();
        c.kv_type = (enum gpu_kv_type)kv;
        tiny_make(&model, &config);
        struct gpu_source source = tiny_source(&model);
        assert_int_equal(ops->open(&g, &c, &f), 0);
        assert_int_equal(ops->load(g, &model.net, &source, &f), 0);
        ops->memory(g, &m);
        assert_int_equal(m.block_bytes, bytes[kv]);
        ops->close(g);
        tiny_free(&model);
    }
}

/* Of a large pool only a reserve gets its pages ahead of use: an idle engine stays idle. */
static void large_pools_are_not_filled_ahead(void **state)
{
    (void)state;
    struct tiny_config config = tiny_mixed();
    struct tiny_model model;
    struct fail f = {0};
    struct gpu *g;
    const struct gpu_ops *ops = gpu_cpu_ops();
    tiny_make(&model, &config);
    struct gpu_source source = tiny_source(&model);
    assert_int_equal(ops->open(&g, &good, &f), 0);
    assert_int_equal(ops->load(g, &model.net, &source, &f), 0);
    assert_int_equal(ops->pool(g, 1 << 16, &f), 0);
    assert_int_equal(g->kv_bytes, 256 << 20);
    assert_in_range(g->touch.bytes, g->touch.first, g->touch.first + (64 << 20));
    ops->close(g);
    tiny_free(&model);
}

static void pages_are_what_was_asked_for(void **state)
{
    (void)state;
    static const enum gpu_huge_pages wishes[] = {GPU_HUGE_PAGES_OFF, GPU_HUGE_PAGES_THP,
                                                 GPU_HUGE_PAGES_HUGETLB, GPU_HUGE_PAGES_AUTO};
    for (int i = 0; i < 4; i++) {
        struct tiny_config config = tiny_mixed();
        struct tiny_model model;
        struct fail f = {0};
        struct gpu *g;
        struct gpu_memory m;
        struct gpu_figures figures;
        struct gpu_config c = good;
        const struct gpu_ops *ops = gpu_cpu_ops();
        c.huge_pages = wishes[i];
        tiny_make(&model, &config);
        struct gpu_source source = tiny_source(&model);
        assert_int_equal(ops->open(&g, &c, &f), 0);
        assert_int_equal(ops->load(g, &model.net, &source, &f), 0);
        assert_int_equal(ops->pool(g, 5, &f), 0);
        ops->memory(g, &m);
        if (i < 2) {
            assert_string_equal(m.weights_pages, i ? "thp" : "small");
            assert_int_equal(g->kv_pages.kind, i ? PAGES_THP : PAGES_SMALL);
            assert_int_equal(g->work_pages.kind, i ? PAGES_THP : PAGES_SMALL);
        }
        assert_true(m.weights_huge_bytes <= (i ? m.weights_bytes : 0));
        ops->figures(g, &figures);
        assert_int_equal(figures.threads_in_use, good.threads);
        ops->close(g);
        tiny_free(&model);
    }
}

static void numerics_name_the_modes(void **state)
{
    (void)state;
    const struct gpu_ops *ops = gpu_cpu_ops();
    struct tiny_config quantized = tiny_mixed(), floats = tiny_odd();
    const struct {
        const struct tiny_config *model;
        enum gpu_activations activations;
        enum gpu_kv_type kv;
        const char *end;
    } cases[] = {
        {&quantized, GPU_ACT_AUTO, GPU_KV_F16, "/int8/f16"},
        {&quantized, GPU_ACT_INT8, GPU_KV_F32, "/int8/f32"},
        {&quantized, GPU_ACT_F32, GPU_KV_F16, "/f32/f16"},
        {&floats, GPU_ACT_AUTO, GPU_KV_F16, "/f32/f16"},
        {&quantized, GPU_ACT_AUTO, GPU_KV_INT8, "/int8/int8"},
        {&floats, GPU_ACT_AUTO, GPU_KV_INT8, "/f32/int8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int plain = 0; plain < 2; plain++) {
            struct tiny_model model;
            struct fail f = {0};
            struct gpu *g;
            struct gpu_config c = good;
            c.activations = cases[i].activations;
            c.kv_type = cases[i].kv;
            c.plain = plain;
            tiny_make(&model, cases[i].model);
            struct gpu_source source = tiny_source(&model);
            assert_int_equal(ops->open(&g, &c, &f), 0);
            assert_int_equal(ops->load(g, &model.net, &source, &f), 0);
            const char *name = ops->numerics(g), *slash = strchr(name, '/');
            assert_non_null(slash);
            assert_string_equal(slash, cases[i].end);
            bool is_plain = !strncmp(name, "cpu-plain-", 10);
            assert_true(is_plain || !plain);
            const char *kernels = ops->kernels(g); /* where they are fast, of either kind */
            if (is_plain)
                assert_string_equal(kernels, "cpu-plain");
            else if (strcmp(kernels, "cpu-avx512"))
                assert_string_equal(kernels, "cpu-avx2");
            ops->close(g);
            tiny_free(&model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silly_configs_are_refused),
        cmocka_unit_test(broken_models_are_refused),
        cmocka_unit_test(pools_that_cannot_be_are_refused),
        cmocka_unit_test(memory_adds_up),
        cmocka_unit_test(what_fits_is_counted_whole),
        cmocka_unit_test(reading_takes_what_it_says),
        cmocka_unit_test(blocks_take_what_their_type_needs),
        cmocka_unit_test(large_pools_are_not_filled_ahead),
        cmocka_unit_test(pages_are_what_was_asked_for),
        cmocka_unit_test(numerics_name_the_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
