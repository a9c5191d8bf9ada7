/* test_bench_peer_output.c - what llama-batched-bench says is found among its other lines, and
 * refused where it is not what is expected.
 */
#include "../bench/peer_output.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <string.h>

/* Two lines as the pinned version writes them, between what its libraries may say. */
static const char sample[] =
    "load: special_eos_id is not in special_eog_ids\n"
    "{not an object\n"
    "\n"
    "{\"n_kv_max\": 4096, \"n_batch\": 2048, \"n_ubatch\": 512, \"flash_attn\": -1, "
    "\"is_pp_shared\": 0, \"n_gpu_layers\": -1, \"n_threads\": 2, \"n_threads_batch\": 2, \"pp\": "
    "16, \"tg\": 4, \"pl\": 1, \"n_kv\": 20, \"t_pp\": 0.048809, \"speed_pp\": 327.808411, "
    "\"t_tg\": 0.029589, \"speed_tg\": 135.185379, \"t\": 0.078398, \"speed\": 255.108566}\n"
    "{\"n_kv_max\": 4096, \"n_batch\": 2048, \"n_ubatch\": 512, \"flash_attn\": -1, "
    "\"is_pp_shared\": 0, \"n_gpu_layers\": -1, \"n_threads\": 2, \"n_threads_batch\": 2, \"pp\": "
    "16, \"tg\": 4, \"pl\": 2, \"n_kv\": 40, \"t_pp\": 0.093772, \"speed_pp\": 341.253235, "
    "\"t_tg\": 0.053500, \"speed_tg\": 149.532715, \"t\": 0.147272, \"speed\": 271.606262}\n"
    "\n"
    "llama_perf_context_print: load time = 61.50 ms";

static int read_line(const char *text, struct peer_load load, struct peer_speed *out,
                     struct fail *f)
{
    *f = (struct fail){0};
    return peer_output_read(text, &load, out, f);
}

static void each_load_has_its_line(void **state)
{
    (void)state;
    struct peer_speed speed;
    struct fail f;
    assert_int_equal(read_line(sample, (struct peer_load){16, 4, 1}, &speed, &f), 0);
    assert_float_equal(speed.prefill, 327.808411, 1e-9);
    assert_float_equal(speed.decode, 135.185379, 1e-9);
    assert_int_equal(read_line(sample, (struct peer_load){16, 4, 2}, &speed, &f), 0);
    assert_float_equal(speed.prefill, 341.253235, 1e-9);
    assert_float_equal(speed.decode, 149.532715, 1e-9);
}

static void a_load_that_was_not_run_is_named(void **state)
{
    (void)state;
    static const struct peer_load others[] = {{16, 4, 3}, {16, 5, 1}, {17, 4, 1}};
    struct peer_speed speed;
    struct fail f;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(read_line(sample, others[i], &speed, &f), -EPROTO);
    assert_string_equal(f.text, "llama-batched-bench: no line for 17 prompt tokens, 4 tokens, 1 "
                                "streams");
    assert_int_equal(read_line("", others[0], &speed, &f), -EPROTO);
}

/* inf and nan are no JSON, so such a line is none; a zero or an absent rate is a fault. */
static void rates_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "{\"pp\": 16, \"tg\": 4, \"pl\": 1, \"speed_pp\": 3.5, \"speed_tg\": inf}",
        "{\"pp\": 16, \"tg\": 4, \"pl\": 1, \"speed_pp\": 3.5, \"speed_tg\": 0}",
        "{\"pp\": 16, \"tg\": 4, \"pl\": 1, \"speed_pp\": -1, \"speed_tg\": 2}",
        "{\"pp\": 16, \"tg\": 4, \"pl\": 1, \"speed_tg\": 2}",
        "{\"pp\": 16, \"tg\": 4, \"pl\": 1, \"speed_pp\": 1, \"speed_tg\": \"2\"}",
        "{\"pp\": 16, \"tg\": 4, \"pl\": 1, \"speed_pp\": 1, \"speed_tg\": 2",
    };
    struct peer_speed speed;
    struct fail f;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (read_line(lines[i], (struct peer_load){16, 4, 1}, &speed, &f) != -EPROTO ||
            !strstr(f.text, "llama-batched-bench"))
            fail_msg("line %zu: %s", i, f.text);
}

static void the_last_words_are_found(void **state)
{
    (void)state;
    char last[32];
    peer_output_last_line(sample, last, sizeof last);
    assert_string_equal(last, "llama_perf_context_print: load ");
    peer_output_last_line("first\nsecond\n  \t\r\n\n", last, sizeof last);
    assert_string_equal(last, "second");
    peer_output_last_line("\n\n", last, sizeof last);
    assert_string_equal(last, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_load_has_its_line),
        cmocka_unit_test(a_load_that_was_not_run_is_named),
        cmocka_unit_test(rates_that_cannot_be_are_refused),
        cmocka_unit_test(the_last_words_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
