/* test_golden_smollm2.c - a real model (SmolLM2-135M-Instruct, Q4_1 with a Q8_0 head) against the
 * reference (tests/golden/pretrained/smollm2: transformers in float32 on the dequantized weights).
 *
 *                                   f32 / f32           int8 / f16, the engine's default
 *   64 largest logits               within 2e-3         within 2 x llama.cpp's worst
 *   greedy, up to the first step    margin < 2e-3       margin < 0.5
 *     that may go either way
 *   2,048 tokens, teacher-forced:
 *     mean |dlogprob|               0.003 nat           0.06 nat (llama.cpp: 0.049)
 *     perplexity                    0.05 %              1 % (llama.cpp: 0.36 %)
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../appliance/model/model.h"
#include "../support/gpu_rig.h"
#include "../support/support.h"

enum { LEN_MAX = 2048, ROWS = 256, BLOCKS = LEN_MAX / GPU_KV_BLOCK, TEXT = 2048 };

/* One mode, opened once for all of its tests. */
struct mode {
    enum gpu_activations activations;
    enum gpu_kv_type kv_type;
    double logit, margin, logprob, perplexity; /* bounds */
    struct model *model;
    struct gpu_rig rig;
    uint32_t blocks[BLOCKS];
};

static struct mode f32_mode = {.activations = GPU_ACT_F32,
                               .kv_type = GPU_KV_F32,
                               .logit = 2e-3,
                               .margin = 2e-3,
                               .logprob = 0.003,
                               .perplexity = 0.0005};
static struct mode int8_mode = {.activations = GPU_ACT_INT8,
                                .kv_type = GPU_KV_F16,
                                .logit = 0, /* by llama.cpp, case by case */
                                .margin = 0.5,
                                .logprob = 0.06,
                                .perplexity = 0.01};

static int open_mode(struct mode *mode)
{
    struct fail f = {0};
    if (model_open(&mode->model, real_model_path(), &f))
        fail_msg("%s", f.text);
    struct gpu_source source = model_source(mode->model);
    struct gpu_config config = {.max_rows = ROWS,
                                .max_seqs = 1,
                                .max_outputs = ROWS,
                                .max_len = LEN_MAX,
                                .activations = mode->activations,
                                .kv_type = mode->kv_type};
    gpu_rig_open(&mode->rig, &config, &mode->model->net, &source, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        mode->blocks[i] = i * 37 % BLOCKS;
    return 0;
}

static void close_mode(struct mode *mode)
{
    gpu_rig_close(&mode->rig);
    model_close(mode->model);
}

static uint32_t get_ids(json_t *list, int32_t *ids)
{
    uint32_t n = (uint32_t)json_array_size(list);
    assert_in_range(n, 1, LEN_MAX);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

/* ---- logits at given positions ---- */

/* How far the case's 64 largest logits are off, over its positions. */
static double worst_top_logit(struct mode *mode, json_t *c)
{
    int32_t ids[LEN_MAX];
    uint32_t n = get_ids(json_object_get(c, "ids"), ids), vocab = mode->rig.vocab;
    float *logits = malloc((size_t)n * vocab * sizeof *logits);
    assert_non_null(logits);
    gpu_rig_feed(&mode->rig, mode->blocks, 0, ids, n, 0, logits);
    double worst = 0;
    size_t i;
    json_t *position;
    json_array_foreach(json_object_get(c, "positions"), i, position)
    {
        size_t pos = (size_t)json_integer_value(json_object_get(position, "pos"));
        json_t *top_ids = json_object_get(position, "top_ids");
        json_t *top = json_object_get(position, "top_logits");
        assert_true(pos < n && json_array_size(top_ids) == json_array_size(top));
        assert_int_equal(json_array_size(top), 64);
        for (size_t k = 0; k < json_array_size(top); k++) {
            size_t id = (size_t)json_integer_value(json_array_get(top_ids, k));
            double off =
                fabs((double)logits[pos * vocab + id] - json_number_value(json_array_get(top, k)));
            worst = off > worst || isnan(off) ? off : worst;
        }
    }
    free(logits);
    return worst;
}

static double llama_cpp_worst(json_t *cases, const char *name)
{
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i);
        if (strcmp(json_string_value(json_object_get(c, "name")), name) == 0)
            return json_number_value(json_object_get(c, "max_abs_top64"));
    }
    fail_msg("no case %s", name);
    return 0;
}

static void check_logits(struct mode *mode)
{
    json_t *golden = golden_json("pretrained/smollm2/logits.json");
    json_t *other = golden_json("pretrained/smollm2/llama_cpp.json");
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));
        double theirs = llama_cpp_worst(json_object_get(other, "cases"), name);
        double bound = mode->logit > 0 ? mode->logit : 2 * theirs;
        double worst = worst_top_logit(mode, c);
        print_message("%-10s off by %.2g at most (llama.cpp: %.2g)\n", name, worst, theirs);
        if (!(worst <= bound))
            fail_msg("%s: a logit is off by %g, allowed is %g", name, worst, bound);
    }
    assert_true(i >= 10);
    json_decref(golden);
    json_decref(other);
}

/* ---- greedy ---- */

/* Appends one token and returns the greedy next one. */
static int32_t next_token(struct mode *mode, const int32_t *ids, uint32_t pos, uint32_t n)
{
    struct gpu_result result;
    if (n > 1)
        gpu_rig_feed(&mode->rig, mode->blocks, pos, ids, n - 1, 0, NULL);
    struct gpu_seq seq = {.blocks = mode->blocks, .pos = pos + n - 1, .n_rows = 1};
    struct gpu_output output = {.target = -1, .position = pos + n};
    struct gpu_step step = {.n_rows = 1,
                            .n_seqs = 1,
                            .n_outputs = 1,
                            .tokens = ids + n - 1,
                            .seqs = &seq,
                            .outputs = &output,
                            .results = &result};
    gpu_rig_step(&mode->rig, &step);
    return result.token;
}

static void check_greedy(struct mode *mode)
{
    json_t *golden = golden_json("pretrained/smollm2/logits.json");
    size_t i, sure = 0;
    json_t *c;
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        int32_t ids[LEN_MAX];
        uint32_t n = get_ids(json_object_get(c, "ids"), ids);
        json_t *greedy = json_object_get(c, "greedy");
        int32_t token = next_token(mode, ids, 0, n);
        for (size_t k = 0; k < json_array_size(greedy); k++) {
            json_t *step = json_array_get(greedy, k);
            if (json_number_value(json_object_get(step, "margin")) < mode->margin)
                break;
            assert_int_equal(token, json_integer_value(json_object_get(step, "id")));
            token = next_token(mode, &token, n + (uint32_t)k, 1);
            sure++;
        }
    }
    print_message("%zu greedy steps compared\n", sure);
    assert_true(sure >= 30);
    json_decref(golden);
}

/* ---- a long text ---- */

static void score_text(struct mode *mode, const int32_t *ids, struct gpu_result *results)
{
    for (uint32_t pos = 0; pos < TEXT - 1; pos += ROWS) {
        uint32_t n = TEXT - 1 - pos < ROWS ? TEXT - 1 - pos : ROWS;
        struct gpu_output outputs[ROWS];
        for (uint32_t i = 0; i < n; i++)
            outputs[i] = (struct gpu_output){.row = i, .target = ids[pos + i + 1]};
        struct gpu_seq seq = {.blocks = mode->blocks, .pos = pos, .n_rows = n};
        struct gpu_step step = {.n_rows = n,
                                .n_seqs = 1,
                                .n_outputs = n,
                                .tokens = ids + pos,
                                .seqs = &seq,
                                .outputs = outputs,
                                .results = results + pos};
        gpu_rig_step(&mode->rig, &step);
    }
}

static void check_text(struct mode *mode)
{
    size_t ids_bytes, expected_bytes;
    int32_t *ids = (int32_t *)(void *)golden_read("pretrained/smollm2/ppl_ids.bin", &ids_bytes);
    float *expected =
        (float *)(void *)golden_read("pretrained/smollm2/ppl_logprobs.bin", &expected_bytes);
    assert_int_equal(ids_bytes, TEXT * sizeof *ids);
    assert_int_equal(expected_bytes, (TEXT - 1) * sizeof *expected);
    static struct gpu_result results[TEXT];
    score_text(mode, ids, results);
    double sum = 0, expected_sum = 0, off = 0;
    for (uint32_t i = 0; i < TEXT - 1; i++) {
        assert_int_equal(results[i].token, ids[i + 1]);
        sum -= (double)results[i].logprob;
        expected_sum -= (double)expected[i];
        off += fabs((double)results[i].logprob - (double)expected[i]);
    }
    off /= TEXT - 1;
    double perplexity = exp(sum / (TEXT - 1)), reference = exp(expected_sum / (TEXT - 1));
    print_message("mean |dlogprob| %.5f nat, perplexity %.5f (reference %.5f)\n", off, perplexity,
                  reference);
    assert_true(off <= mode->logprob);
    assert_true(fabs(perplexity / reference - 1) <= mode->perplexity);
    free(ids);
    free(expected);
}

/* ---- the tests ---- */

static int open_f32(void **state)
{
    (void)state;
    return open_mode(&f32_mode);
}
static int open_int8(void **state)
{
    (void)state;
    return open_mode(&int8_mode);
}
static int close_f32(void **state)
{
    (void)state;
    close_mode(&f32_mode);
    return 0;
}
static int close_int8(void **state)
{
    (void)state;
    close_mode(&int8_mode);
    return 0;
}

static void f32_logits(void **state)
{
    (void)state;
    check_logits(&f32_mode);
}
static void f32_greedy(void **state)
{
    (void)state;
    check_greedy(&f32_mode);
}
static void f32_text(void **state)
{
    (void)state;
    check_text(&f32_mode);
}
static void int8_logits(void **state)
{
    (void)state;
    check_logits(&int8_mode);
}
static void int8_greedy(void **state)
{
    (void)state;
    check_greedy(&int8_mode);
}
static void int8_text(void **state)
{
    (void)state;
    check_text(&int8_mode);
}

int main(void)
{
    const struct CMUnitTest f32_tests[] = {
        cmocka_unit_test(f32_logits), cmocka_unit_test(f32_greedy), cmocka_unit_test(f32_text)};
    const struct CMUnitTest int8_tests[] = {
        cmocka_unit_test(int8_logits), cmocka_unit_test(int8_greedy), cmocka_unit_test(int8_text)};
    int failed = cmocka_run_group_tests(f32_tests, open_f32, close_f32);
    return failed + cmocka_run_group_tests(int8_tests, open_int8, close_int8);
}
