/* test_llmctl_plan.c - `llmctl plan` against numbers computed by hand, and against what an engine
 * says of the same model.
 *
 * The tiny model: 2 layers, 2 KV heads of 16; 492,800 bytes of F32 weights; 256 tokens of context.
 * KV of a token: 2 * 2 * 2 * 16 elements = 128, as f16 256 bytes, as int8 with a scale of 4 bytes
 * for each of 8 vectors 160; a block has 16 tokens.
 */
#include "llmctl_rig.h"

#include <math.h>
#include <unistd.h>

static const char *model_f32(void)
{
    return golden_path("tiny_gguf/llama.F32.gguf");
}

static json_t *plan(const char *options)
{
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "plan %s --json %s", model_f32(), options);
    return ctl_json(arguments);
}

static void near(const json_t *o, const char *key, double want)
{
    double got = real(o, key);
    if (fabs(got - want) > 1e-6 * fabs(want))
        fail_msg("%s is %.9g, not %.9g", key, got, want);
}

static void memory(void **state)
{
    (void)state;
    json_t *o = plan("--memory 64M --workspace 1M");
    assert_int_equal(whole(o, "memory_bytes"), 67108864);
    assert_int_equal(whole(o, "weights_bytes"), 492800);
    assert_int_equal(whole(o, "workspace_bytes"), 1048576);
    assert_int_equal(whole(o, "kv_block_bytes"), 4096);
    near(o, "kv_bytes_per_token", 256);
    /* (67108864 - 492800 - 1048576) / 4096 = 16007.68 */
    assert_int_equal(whole(o, "kv_blocks"), 16007);
    assert_int_equal(whole(o, "kv_bytes"), 16007 * 4096);
    assert_int_equal(whole(o, "kv_tokens"), 16007 * 16);
    assert_int_equal(whole(o, "max_model_len"), 256);
    near(o, "users_full_length", 16007.0 / 16);
    assert_true(json_is_null(json_object_get(json_object_get(o, "speed"), "step_us")));
    json_decref(o);

    o = plan("--memory 64MiB --workspace 1MB --kv-cache-dtype int8 --max-model-len 100");
    assert_int_equal(whole(o, "kv_block_bytes"), 2560);
    assert_int_equal(whole(o, "kv_blocks"), 25612);
    near(o, "users_full_length", 25612.0 / 7);
    json_decref(o);
}

/* Steps take 9.9 ms + 0.1 ms a row. 2 requests/s of 100 + 50 tokens: rho = 2 * 0.0001 * 150 = 0.03;
 * T = 9.9 / 0.97; n = 2 * 50 * T = 1.0206186; two chunks of at most 64 rows:
 * S = 2 (9.9 + 0.10206186) + 10 = 30.004124 ms; r = 0.060008247;
 * W = r S / (2 (1 - r)) = 0.95774135 ms; p95 of the wait: W / r * ln(r / 0.05) = 2.91200566 ms. */
static const char load[] = "--memory 64M --workspace 1M --step-ms 10 --row-us 100 --prompt 100 "
                           "--output 50 --max-num-batched-tokens 64 ";

static json_t *plan_load(const char *more)
{
    char options[512];
    snprintf(options, sizeof options, "%s%s", load, more);
    return plan(options);
}

static void times(void **state)
{
    (void)state;
    json_t *o = plan_load("--requests/s 2");
    const json_t *l = json_object_get(o, "load"), *ttft = json_object_get(l, "ttft_us");
    double step = 9900 / 0.97, running = 2 * 50 * step * 1e-6;
    double reads = 2 * (9900 + 100 * running) + 10000, r = 2e-6 * reads;
    double wait = r * reads / (2 * (1 - r));
    near(o, "users_at_load", 64); /* 16007 / 10 blocks, but --max-num-seqs */
    assert_true(json_is_true(json_object_get(l, "holds")));
    near(l, "running", 1.0206185567);
    near(l, "running", running);
    near(l, "reading", 0.0600082474);
    near(l, "itl_us", step);
    near(l, "itl_beside_prompt_us", 9900 + 100 * (running + 64));
    near(ttft, "mean", wait + reads + step / 2);
    near(ttft, "p95", wait / r * log(r / 0.05) + reads + step);
    assert_true(fabs(real(ttft, "mean") - 36064.93) < 0.01);
    assert_true(fabs(real(ttft, "p95") - 43122.31) < 0.01);
    /* r = 1 where l = 1 / 34.8 ms: rho = 25 / 58, T = 17.4 ms, n = 25 */
    near(l, "max_requests_per_s", 1000 / 34.8);
    json_decref(o);
}

/* The machine is at its end: by the prompts that it reads, or by the users that fit. */
static void more_than_it_serves(void **state)
{
    (void)state;
    json_t *o = plan_load("--requests-per-s 29");
    assert_true(json_is_false(json_object_get(json_object_get(o, "load"), "holds")));
    json_decref(o);
    /* n = 50 l 9.9 ms / (1 - 0.015 l) = 4 */
    o = plan_load("--requests-per-s 1 --max-num-seqs 4");
    near(json_object_get(o, "load"), "max_requests_per_s", 4 / (50 * 0.0099 + 4 * 0.015));
    json_decref(o);
    o = plan_load("--requests-per-s 8 --max-num-seqs 4");
    assert_true(json_is_false(json_object_get(json_object_get(o, "load"), "holds")));
    json_decref(o);
}

/* 2 requests/s of 150 tokens are 1.08 million an hour; hosted, a request costs 200 millionths. */
static void money(void **state)
{
    (void)state;
    json_t *o = plan_load("--requests/s 2 --gpu-hour-price 3.6 --hosted-price 1,2");
    const json_t *c = json_object_get(o, "cost");
    near(c, "per_hour", 3.6);
    near(c, "per_million_tokens", 3.6 / 1.08);
    near(c, "hosted_per_million_tokens", 200.0 / 150);
    near(c, "break_even_requests_per_s", 5);
    json_decref(o);
    o = plan_load("--gpu-hour-price 3.6 --hosted-price 3");
    near(json_object_get(o, "cost"), "hosted_per_million_tokens", 3);
    near(json_object_get(o, "cost"), "break_even_requests_per_s", 3.6 / (3600 * 450e-6));
    assert_true(json_is_null(json_object_get(json_object_get(o, "cost"), "per_million_tokens")));
    json_decref(o);
}

/* Nobody has measured anything: whose speed was asked for, and what to do. */
static void without_an_engine(void **state)
{
    (void)state;
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "-i t%d-none plan %s", (int)getpid(), model_f32());
    char *out = ctl_text(0, arguments), said[200];
    snprintf(said, sizeof said,
             "not known: no engine \"t%d-none\" with this model: name one that has it with llmctl "
             "-i, or pass --step-ms and --row-us\n",
             (int)getpid());
    if (!strstr(out, said))
        fail_msg("%s", out);
    free(out);
}

static void for_people(void **state)
{
    (void)state;
    char arguments[1024];
    snprintf(arguments, sizeof arguments,
             "plan %s %s --requests/s 2 --gpu-hour-price 3.6 --hosted-price 1,2", model_f32(),
             load);
    char *out = ctl_text(0, arguments);
    static const char *const wanted[] = {
        "weights          0.5 MiB, the floor",
        "256112 tokens of 0.250 KiB (f16, 2 layers, 2 KV heads of 16)",
        "llmd takes so much with --num-kv-blocks 16007; by default at most 4 GiB",
        "1000.44 at once of 256 tokens; 64 of 100 + 50 tokens",
        "10.000 ms a step of one row, 100.0 us each further row",
        "from --step-ms and --row-us",
        "28.736 requests/s",
        "36.1 ms on average, 43.1 ms p95",
        "10.21 ms; 16.40 ms while a prompt is read",
        "3.3333 per million tokens",
        "1.3333 per million tokens",
        "5.0000 requests/s, which this machine serves"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!strstr(out, wanted[i]))
            fail_msg("no \"%s\" in\n%s", wanted[i], out);
    free(out);
}

static void what_does_not_fit(void **state)
{
    (void)state;
    char arguments[1024];
#define REFUSES(options, status, says)                                                             \
    snprintf(arguments, sizeof arguments, "plan %s %s", model_f32(), options);                     \
    refuses(arguments, status, says)
    REFUSES("--memory 1M --workspace 1M", 1, "that is the floor");
    REFUSES("--memory 1532K --workspace 1M", 1, "--max-model-len");
    REFUSES("--prompt 200 --output 100", 1, "--max-model-len 256");
    REFUSES("--requests/s 2", 2, "--prompt and --output");
    REFUSES("--requests/s 2 --prompt 5 --output 0", 2,
            "--requests/s needs --prompt and --output, tokens of a request, each at least 1");
    REFUSES("--hosted-price 1 --prompt 0", 2, "tokens of a request, each at least 1");
    REFUSES("--prompt 5", 2, "go together, each at least 1");
    REFUSES("--step-ms 5", 2, "go together");
    REFUSES("--hosted-price 1", 2, "--prompt and --output");
    REFUSES("--max-model-len 257", 2,
            "--max-model-len 257 is out of range: 2 to 256, the model's context");
    REFUSES("--max-model-len 1", 2, "out of range: 2 to 256, the model's context");
    REFUSES("--max-num-seqs 4097", 2, "1 to 4096");
    REFUSES("--max-num-batched-tokens 65537", 2, "1 to 65536");
    REFUSES("--memory lots", 2, "lots");
    REFUSES("--memory 5X", 2, "5X");
    REFUSES("--kv-cache-dtype f8", 2, "f8");
    REFUSES("more", 2, "unexpected");
    refuses("plan", 2, "which model");
    refuses("plan /nonexistent.gguf", 1, "/nonexistent.gguf");
}

/* The same block size as an engine has, and its speed, of its board. */
static void as_an_engine(void **state)
{
    (void)state;
    static const char *const types[] = {"f16", "f32", "int8"};
    char options[512];
    for (size_t i = 0; i < 3; i++) {
        engine = (struct engine_process){0};
        engine_start(&engine, model_f32(), "--threads", "1", "--kv-cache-dtype", types[i], NULL);
        snprintf(options, sizeof options, "--memory 64M --kv-cache-dtype %s", types[i]);
        json_t *status = engine_status(&engine), *before = plan(options);
        assert_int_equal(whole(before, "kv_block_bytes"),
                         whole(status, "kv_bytes") / whole(status, "kv_blocks_total"));
        assert_true(json_is_null(json_object_get(json_object_get(before, "speed"), "step_us")));
        json_decref(before);
        for (int k = 0; k < 4; k++)
            json_decref(
                ctl_json("complete --tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,"
                         "19,20,21,22,23,24,25,26 -n 20 --choices 4 --ignore-eos --no-cache "
                         "--json"));
        json_t *after = plan(options), *speed = json_object_get(after, "speed");
        assert_true(real(speed, "step_us") > 0 && real(speed, "row_us") >= 0);
        assert_non_null(strstr(word(speed, "source"), engine.instance));
        snprintf(options, sizeof options, "plan %s --json --memory 64M", tiny_model());
        json_t *other = ctl_json(options); /* another model's file */
        assert_true(json_is_null(json_object_get(json_object_get(other, "speed"), "step_us")));
        json_decref(other), json_decref(after), json_decref(status);
        assert_int_equal(engine_stop(&engine), 0);
    }
}

/* Without --memory, what an engine takes that is told nothing. Of the tiny model that is what its
 * sequences can use: 3 of 256 tokens, 16 blocks each. */
static void the_default_pool(void **state)
{
    (void)state;
    engine = (struct engine_process){0};
    engine_start(&engine, model_f32(), "--threads", "1", "--max-num-seqs", "3", NULL);
    json_t *status = engine_status(&engine), *o = plan("--max-num-seqs 3");
    assert_int_equal(whole(o, "kv_blocks"), 48);
    assert_int_equal(whole(o, "kv_blocks"), whole(status, "kv_blocks_total"));
    near(o, "users_full_length", 3);
    assert_string_equal(word(o, "kv_sized_by"), "llmd's default");
    json_decref(o), json_decref(status);
    assert_int_equal(engine_stop(&engine), 0);
    o = plan("--memory 64M --max-num-seqs 3");
    assert_string_equal(word(o, "kv_sized_by"), "--memory");
    json_decref(o);
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "plan %s", model_f32());
    char *out = ctl_text(0, arguments);
    assert_non_null(strstr(out, "(free on this machine)"));
    assert_non_null(
        strstr(out, "llmd's default here: the least of 4 GiB, a quarter of what is free"));
    free(out);
}

static int start(void **state)
{
    (void)state;
    scratch_dir();
    snprintf(engine.instance, sizeof engine.instance, "nobody");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory),
        cmocka_unit_test(times),
        cmocka_unit_test(more_than_it_serves),
        cmocka_unit_test(money),
        cmocka_unit_test(for_people),
        cmocka_unit_test(without_an_engine),
        cmocka_unit_test(what_does_not_fit),
        cmocka_unit_test(as_an_engine),
        cmocka_unit_test(the_default_pool),
    };
    return cmocka_run_group_tests_name("llmctl_plan", tests, start, NULL);
}
