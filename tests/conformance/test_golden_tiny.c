/* test_golden_tiny.c - tiny random llama models of every tensor type and RoPE scaling against the
 * reference's logits (tests/golden/tiny_gguf: transformers in float32 on the dequantized weights).
 *
 * With f32 activations and an f32 cache: |dlogit| <= 1e-3 + 1e-3 |logit|, the reference's own
 * bound. As the engine runs by default (int8 activations for quantized types, f16 cache): not more
 * than twice what llama.cpp is off on the same file and prompt, whose activations are rounded
 * alike. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../appliance/model/model.h"
#include "../support/gpu_rig.h"
#include "../support/support.h"

enum { PROMPT_MAX = 256, BLOCKS = PROMPT_MAX / GPU_KV_BLOCK };

static const char *const names[] = {"llama.F32",
                                    "llama.F16",
                                    "llama.Q4_0",
                                    "llama.Q4_1",
                                    "llama.Q5_0",
                                    "llama.Q5_1",
                                    "llama.Q8_0",
                                    "llama256.Q4_K_M",
                                    "llama256.Q5_K_M",
                                    "llama_rope_llama3.BF16",
                                    "llama_rope_linear.F16",
                                    "llama_rope_yarn.F16"};

struct prompt {
    int32_t ids[PROMPT_MAX];
    uint32_t n;
    const float *logits; /* (n, vocab) */
    double llama_cpp;    /* how far llama.cpp is off */
};

static struct prompt get_prompt(json_t *meta, size_t i, const float *all, uint32_t vocab)
{
    json_t *p = json_array_get(json_object_get(meta, "prompts"), i);
    json_t *ids = json_object_get(p, "ids");
    struct prompt out = {.n = (uint32_t)json_array_size(ids)};
    assert_in_range(out.n, 1, PROMPT_MAX);
    assert_int_equal(json_integer_value(json_object_get(p, "cols")), vocab);
    for (uint32_t k = 0; k < out.n; k++)
        out.ids[k] = (int32_t)json_integer_value(json_array_get(ids, k));
    out.logits = all + json_integer_value(json_object_get(p, "offset_floats"));
    out.llama_cpp =
        json_number_value(json_array_get(json_object_get(meta, "llama_cpp_max_abs_diff"), i));
    return out;
}

static void check_prompt(const char *name, struct gpu_rig *r, const struct prompt *p, bool exact)
{
    uint32_t blocks[BLOCKS];
    float *got = malloc((size_t)p->n * r->vocab * sizeof *got);
    assert_non_null(got);
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = BLOCKS - 1 - i;
    gpu_rig_feed(r, blocks, 0, p->ids, p->n, 0, got);
    double worst = 0;
    for (size_t i = 0; i < (size_t)p->n * r->vocab; i++) {
        double off = fabs((double)got[i] - p->logits[i]);
        double bound = exact ? 1e-3 + 1e-3 * fabs((double)p->logits[i]) : 2 * p->llama_cpp;
        worst = off > worst ? off : worst;
        if (!(off <= bound))
            fail_msg("%s, %s, prompt of %u: logit %zu is %g, expected %g within %g", name,
                     r->ops->numerics(r->gpu), p->n, i, (double)got[i], (double)p->logits[i],
                     bound);
    }
    print_message("%-24s %-20s prompt of %2u: off by %.2g at most (llama.cpp: %.2g)\n", name,
                  r->ops->numerics(r->gpu), p->n, worst, p->llama_cpp);
    free(got);
}

static void check_model(const char *name, bool exact, bool plain)
{
    char file[128], bin[128], json[160];
    snprintf(file, sizeof file, "tiny_gguf/%s.gguf", name);
    snprintf(bin, sizeof bin, "tiny_gguf/%s.logits.bin", name);
    snprintf(json, sizeof json, "%s.json", bin);
    struct fail f = {0};
    struct model *m;
    if (model_open(&m, golden_path(file), &f))
        fail_msg("%s", f.text);
    struct gpu_source source = model_source(m);
    struct gpu_config config = {.threads = 2,
                                .max_rows = PROMPT_MAX,
                                .max_seqs = 1,
                                .max_outputs = PROMPT_MAX,
                                .max_len = PROMPT_MAX,
                                .activations = exact ? GPU_ACT_F32 : GPU_ACT_AUTO,
                                .kv_type = exact ? GPU_KV_F32 : GPU_KV_F16,
                                .plain = plain};
    struct gpu_rig rig;
    gpu_rig_open(&rig, &config, &m->net, &source, BLOCKS);
    json_t *meta = golden_json(json);
    float *logits = (float *)(void *)golden_read(bin, NULL);
    assert_int_equal(json_array_size(json_object_get(meta, "prompts")), 3);
    for (size_t i = 0; i < 3; i++) {
        struct prompt p = get_prompt(meta, i, logits, rig.vocab);
        check_prompt(name, &rig, &p, exact);
    }
    json_decref(meta);
    free(logits);
    gpu_rig_close(&rig);
    model_close(m);
}

static void f32_activations_meet_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_model(names[i], true, false);
}

static void int8_activations_stay_near(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], "llama.F32") != 0) /* llama.cpp's cache was f32 there */
            check_model(names[i], false, false);
}

static void plain_c_meets_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_model(names[i], true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_activations_meet_the_reference),
        cmocka_unit_test(int8_activations_stay_near),
        cmocka_unit_test(plain_c_meets_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
