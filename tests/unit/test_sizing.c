/* test_sizing.c - the KV pool's size: the default, the wishes, and the refusals with their numbers.
 */
#include "../../appliance/sizing.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <string.h>

static const uint64_t mib = 1 << 20, gib = 1 << 30;
static struct sizing s;
static struct fail f;

static int plan(struct sizing_wish wish, uint64_t block_bytes, uint64_t available)
{
    struct gpu_memory m = {.weights_bytes = 10 * mib,
                           .workspace_bytes = 2 * mib,
                           .block_bytes = block_bytes,
                           .available_bytes = available};
    s = (struct sizing){0};
    f = (struct fail){0};
    return sizing_plan(&s, &wish, &m, &f);
}

static void default_is_bounded_by_four_gib(void **state)
{
    (void)state;
    struct sizing_wish w = {.max_model_len = 8192, .max_num_seqs = 4096};
    assert_int_equal(plan(w, mib, 64 * gib), 0);
    assert_int_equal(s.n_blocks, 4096);
    assert_true(s.kv_bytes == 4 * gib);
    assert_int_equal(s.tokens, 65536);
}

static void default_is_a_quarter_of_what_is_there(void **state)
{
    (void)state;
    struct sizing_wish w = {.max_model_len = 8192, .max_num_seqs = 4096};
    assert_int_equal(plan(w, mib, 8 * gib), 0);
    assert_int_equal(s.n_blocks, 2048);
}

static void default_is_no_more_than_can_be_used(void **state)
{
    (void)state;
    struct sizing_wish w = {.max_model_len = 17, .max_num_seqs = 3};
    assert_int_equal(plan(w, mib, 64 * gib), 0);
    assert_int_equal(s.n_blocks, 6);
}

static void default_holds_one_request(void **state)
{
    (void)state;
    struct sizing_wish w = {.max_model_len = 8192, .max_num_seqs = 64}; /* 512 blocks */
    assert_int_equal(plan(w, mib, 600 * mib), 0);
    assert_int_equal(s.n_blocks, 512);
    assert_int_equal(plan(w, mib, 514 * mib), 0);
    assert_int_equal(plan(w, mib, 513 * mib), -ENOMEM); /* the workspace needs 2 */
    assert_non_null(strstr(f.text, "512.0 MiB (8192 tokens)"));
    assert_non_null(strstr(f.text, "513.0 MiB of memory that are free"));
    assert_non_null(strstr(f.text, "one request of 8192 tokens alone needs 512.0 MiB of KV"));
}

static void wishes_are_kept(void **state)
{
    (void)state;
    struct sizing_wish w = {.max_model_len = 100, .max_num_seqs = 1, .num_kv_blocks = 7};
    assert_int_equal(plan(w, mib, gib), 0);
    assert_int_equal(s.n_blocks, 7);
    w = (struct sizing_wish){
        .max_model_len = 100, .max_num_seqs = 1, .kv_cache_memory = 20 * mib + 1};
    assert_int_equal(plan(w, mib, gib), 0);
    assert_int_equal(s.n_blocks, 20);
    assert_true(s.kv_bytes == 20 * mib);
}

/* The weights are part of the share: of 10 + 90 MiB three quarters, less 10 and a workspace of 2. */
static void a_share_leaves_the_pool_the_rest(void **state)
{
    (void)state;
    struct sizing_wish w = {.max_model_len = 100, .max_num_seqs = 1, .utilization = 0.75};
    assert_int_equal(plan(w, mib, 90 * mib), 0);
    assert_int_equal(s.n_blocks, 63);
    w.utilization = 1;
    assert_int_equal(plan(w, mib, 90 * mib), 0);
    assert_int_equal(s.n_blocks, 88); /* all that is there */
    w.utilization = 0.1;
    assert_int_equal(plan(w, mib, 90 * mib), -ERANGE);
    assert_non_null(strstr(f.text, "a KV pool of 0 blocks"));
    assert_non_null(strstr(f.text, "raise --gpu-memory-utilization"));
}

static void too_small_is_refused_with_numbers(void **state)
{
    (void)state;
    struct sizing_wish w = {.max_model_len = 100, .max_num_seqs = 1, .num_kv_blocks = 6};
    assert_int_equal(plan(w, mib, gib), -ERANGE);
    assert_non_null(strstr(f.text, "6 blocks (6.0 MiB)"));
    assert_non_null(strstr(f.text, "100 tokens, which needs 7 blocks (7.0 MiB)"));
    assert_non_null(strstr(f.text, "--max-model-len 96 or less"));
}

static void too_large_is_refused(void **state)
{
    (void)state;
    struct sizing_wish w = {.max_model_len = 100, .max_num_seqs = 1, .kv_cache_memory = 2 * gib};
    assert_int_equal(plan(w, mib, gib), -ENOMEM);
    w = (struct sizing_wish){.max_model_len = 100, .max_num_seqs = 1, .num_kv_blocks = 1u << 30};
    assert_int_equal(plan(w, 1, 64 * gib), -ERANGE);
    assert_int_equal(plan(w, mib, 0), -ENOMEM); /* less there than the workspace: no underflow */
}

/* A pool that fits alone and not beside the engine would be a process that is killed later. */
static void the_engine_itself_needs_room(void **state)
{
    (void)state;
    struct sizing_wish w = {
        .max_model_len = 160, .max_num_seqs = 1, .own_bytes = 14 * mib, .num_kv_blocks = 84};
    assert_int_equal(plan(w, mib, 100 * mib), 0);
    w.num_kv_blocks = 85;
    assert_int_equal(plan(w, mib, 100 * mib), -ENOMEM);
    assert_non_null(strstr(f.text, "a workspace of 2.0 MiB and the engine's own 14.0 MiB do not"));
    assert_non_null(strstr(f.text, "pass --kv-cache-memory 84M or less"));
    w.num_kv_blocks = 0;
    w.utilization = 1;
    assert_int_equal(plan(w, mib, 100 * mib), 0);
    assert_int_equal(s.n_blocks, 84); /* all that can be had */
    assert_int_equal(plan(w, mib, 25 * mib), -ENOMEM);
    w.utilization = 0;
    assert_int_equal(plan(w, mib, 26 * mib), 0); /* one request, and nothing is left */
    assert_int_equal(s.n_blocks, 10);
    assert_int_equal(plan(w, mib, 25 * mib), -ENOMEM);
}

static void is_printed_as_people_plan_it(void **state)
{
    (void)state;
    struct sizing_wish w = {.max_model_len = 100, .max_num_seqs = 1, .num_kv_blocks = 21};
    assert_int_equal(plan(w, mib, gib), 0);
    struct gpu_memory m = {.weights_bytes = 10 * mib,
                           .block_bytes = mib,
                           .weights_pages = "thp",
                           .weights_huge_bytes = 8 * mib};
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    sizing_print(out, &s, &m, 100);
    fclose(out);
    assert_non_null(strstr(text, "weights 10.0 MiB, KV 21.0 MiB, 336 tokens, "
                                 "3.00 concurrent requests of 100 tokens"));
    assert_non_null(strstr(text, "llmd: pages: weights on thp pages, 8.0 MiB of them huge\n"));
    assert_null(strstr(text, "ready"));
    free(text);
    m.weights_pages = NULL; /* a device's own */
    out = open_memstream(&text, &bytes);
    sizing_print(out, &s, &m, 100);
    fclose(out);
    assert_null(strstr(text, "pages"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(default_is_bounded_by_four_gib),
                                       cmocka_unit_test(default_is_a_quarter_of_what_is_there),
                                       cmocka_unit_test(default_is_no_more_than_can_be_used),
                                       cmocka_unit_test(default_holds_one_request),
                                       cmocka_unit_test(wishes_are_kept),
                                       cmocka_unit_test(a_share_leaves_the_pool_the_rest),
                                       cmocka_unit_test(too_small_is_refused_with_numbers),
                                       cmocka_unit_test(too_large_is_refused),
                                       cmocka_unit_test(the_engine_itself_needs_room),
                                       cmocka_unit_test(is_printed_as_people_plan_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
