/* test_metrics.c - the board as Prometheus text: every sample has its name, its type and the board's
 * value; histograms lose and guess nothing; promtool has nothing to say beyond vLLM's colons.
 */
#include "../../shm/board.h"
#include "../../tools/gateway/metrics.h"
#include "../support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct llm_board board;
static struct metrics_instance one;

static int fresh(void **state)
{
    (void)state;
    memset(&board, 0, sizeof board);
    board.kv_blocks_total = 100;
    board.kv_block_size = 16;
    order_set64(&board.kv_blocks_free, 75);
    order_set64(&board.kv_blocks_cached, 25);
    order_set(&board.state, LLM_STATE_READY);
    one = (struct metrics_instance){.board = &board,
                                    .instance = "default",
                                    .model = "tiny",
                                    .lives = true,
                                    .now_ns = 5000000000u,
                                    .real_ns = 1700000000000000000u};
    return 0;
}

static char *written(const struct metrics_instance *instances, size_t n)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    assert_int_equal(metrics_write(out, instances, n), 0);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* The value of the line that begins so, where exactly one does. */
static const char *value_text(const char *text, const char *begins)
{
    const char *found = NULL;
    size_t n = strlen(begins);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        if (!strncmp(line, begins, n)) {
            assert_null(found);
            found = line + n;
        }
    if (!found)
        fail_msg("no sample %s in:\n%s", begins, text);
    return found;
}

static double sample(const char *text, const char *name_and_labels)
{
    char begins[512];
    snprintf(begins, sizeof begins, "%s} ", name_and_labels);
    return strtod(value_text(text, begins), NULL);
}

static double of_tiny(const char *text, const char *name, const char *labels)
{
    char full[512];
    snprintf(full, sizeof full, "%s{model_name=\"tiny\",engine=\"default\"%s", name, labels);
    return sample(text, full);
}

static void figures_are_the_boards(void **state)
{
    (void)state;
    order_set64(&board.running, 3);
    order_set64(&board.waiting, 4);
    order_set64(&board.output_tokens, UINT64_MAX);
    order_set64(&board.backlog_us, 1500000);
    order_set64(&board.last_step_ns, 4750000000u);
    order_set64(&board.threads_in_use, 3);
    order_set64(&board.refused_for[LLM_REFUSED_QUEUE], 7);
    order_set64(&board.spec_drafts, 20);
    order_set64(&board.spec_draft_tokens, 60);
    order_set64(&board.spec_accepted_tokens, 45);
    order_set64(&board.finished_for[LLM_FINISH_STOP], 11);
    order_set64(&board.finished_for[LLM_FINISH_CANCELLED], 1);
    order_set64(&board.finished_for[LLM_FINISH_TIMEOUT], 2);
    order_set64(&board.finished_for[LLM_FINISH_DEADLINE], 4);
    char *text = written(&one, 1);
    assert_true(of_tiny(text, "vllm:num_requests_running", "") == 3);
    assert_true(of_tiny(text, "vllm:num_requests_waiting", "") == 4);
    assert_true(of_tiny(text, "vllm:spec_decode_num_drafts_total", "") == 20);
    assert_true(of_tiny(text, "vllm:spec_decode_num_draft_tokens_total", "") == 60);
    assert_true(of_tiny(text, "vllm:spec_decode_num_accepted_tokens_total", "") == 45);
    assert_true(of_tiny(text, "llmd_prefill_backlog_seconds", "") == 1.5);
    assert_true(of_tiny(text, "llmd_compute_threads_in_use", "") == 3);
    assert_true(of_tiny(text, "llmd_last_step_age_seconds", "") == 0.25);
    assert_true(of_tiny(text, "vllm:kv_cache_usage_perc", "") == 0.25);
    assert_true(of_tiny(text, "llmd_kv_blocks", ",state=\"used\"") == 25);
    assert_true(of_tiny(text, "llmd_kv_blocks", ",state=\"cached\"") == 25);
    assert_true(of_tiny(text, "llmd_kv_blocks", ",state=\"free\"") == 50);
    assert_true(of_tiny(text, "llmd_requests_refused_total", ",reason=\"queue\"") == 7);
    assert_true(of_tiny(text, "vllm:request_success_total", ",finished_reason=\"stop\"") == 11);
    assert_true(of_tiny(text, "vllm:request_success_total", ",finished_reason=\"abort\"") == 7);
    assert_true(of_tiny(text, "llmd_ready", "") == 1);
    assert_non_null(strstr(text, "vllm:generation_tokens_total{model_name=\"tiny\",engine="
                                 "\"default\"} 18446744073709551615\n"));
    free(text);
}

/* Each bucket says how many durations were shorter than its edge. */
static void histograms_guess_nothing(void **state)
{
    (void)state;
    static const uint64_t ns[] = {0,         1000,       49151,       49152,        50000,
                                  250000000, 1999999999, 60000000000, 137438953471, UINT64_MAX};
    enum { N = sizeof ns / sizeof *ns };
    for (size_t i = 0; i < N; i++) {
        order_u64 *bucket = &board.ttft.bucket[llm_histogram_bucket(ns[i])];
        order_set64(bucket, order_read64(bucket) + 1);
    }
    order_set64(&board.ttft.sum_ns, 2500000000u);
    char *text = written(&one, 1);
    static const char begins[] =
        "vllm:time_to_first_token_seconds_bucket{model_name=\"tiny\",engine=\"default\",le=\"";
    unsigned edges = 0;
    for (const char *at = text; (at = strstr(at, begins)); edges++) {
        char *end;
        double le = strtod(at += sizeof begins - 1, &end);
        double count = strtod(strchr(end, ' '), NULL);
        unsigned below = 0;
        for (size_t i = 0; i < N; i++)
            below += isinf(le) || (double)ns[i] < le * 1e9 - 0.5;
        if (count != below)
            fail_msg("le %g: %g instead of %u", le, count, below);
        if (!edges)
            assert_true(le > 45e-6 && le < 50e-6);
    }
    assert_true(edges > 60);
    assert_true(of_tiny(text, "vllm:time_to_first_token_seconds_count", "") == N);
    assert_true(of_tiny(text, "vllm:time_to_first_token_seconds_sum", "") == 2.5);
    assert_true(of_tiny(text, "vllm:e2e_request_latency_seconds_count", "") == 0);
    free(text);
}

static void names_cannot_break_the_page(void **state)
{
    (void)state;
    one.model = "a\"b\\c\nd\xff\xc3\xa9";
    memset(board.quantization, 'q', sizeof board.quantization); /* no NUL at the end */
    char *text = written(&one, 1);
    assert_non_null(strstr(text, "{model_name=\"a\\\"b\\\\c\\nd\xef\xbf\xbd\xc3\xa9\",engine="));
    char want[80];
    snprintf(want, sizeof want, "quantization=\"%.*s\",", (int)sizeof board.quantization,
             board.quantization);
    assert_non_null(strstr(text, want));
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        assert_true(*line == '#' || !strncmp(line, "vllm:", 5) || !strncmp(line, "llmd_", 5));
    free(text);
}

static void the_dead_have_no_figures(void **state)
{
    (void)state;
    struct metrics_instance three[3] = {one, one, one};
    three[0].instance = "died";
    three[0].lives = false;
    three[1].instance = "never";
    three[1].board = NULL;
    char *text = written(three, 3);
    assert_true(sample(text, "llmd_up{model_name=\"tiny\",engine=\"died\"") == 0);
    assert_true(sample(text, "llmd_up{model_name=\"tiny\",engine=\"never\"") == 0);
    assert_true(of_tiny(text, "llmd_up", "") == 1);
    size_t died = 0;
    for (const char *at = text; (at = strstr(at, "engine=\"died\"")); at++)
        died++;
    assert_int_equal(died, 1);
    free(text);
}

/* A copy's figures are of different moments. */
static void figures_that_do_not_fit(void **state)
{
    (void)state;
    order_set64(&board.kv_blocks_free, 1000);
    order_set64(&board.kv_blocks_cached, 2000);
    order_set64(&board.last_step_ns, 6000000000u); /* after now_ns */
    char *text = written(&one, 1);
    assert_true(of_tiny(text, "vllm:kv_cache_usage_perc", "") == 0);
    assert_true(of_tiny(text, "llmd_kv_blocks", ",state=\"cached\"") == 100);
    assert_true(of_tiny(text, "llmd_last_step_age_seconds", "") == 0);
    free(text);
}

/* The family of a sample: the name without what a histogram adds. */
static size_t family_bytes(const char *line)
{
    size_t n = strcspn(line, "{");
    static const char *const ends[] = {"_bucket", "_sum", "_count"};
    for (size_t i = 0; i < 3; i++) {
        size_t e = strlen(ends[i]);
        if (n > e && !memcmp(line + n - e, ends[i], e))
            return n - e;
    }
    return n;
}

/* With several instances too, HELP and TYPE come once, and all samples of the name right behind. */
static void families_stand_together(void **state)
{
    (void)state;
    struct metrics_instance two[2] = {one, one};
    two[1].instance = "other";
    char *text = written(two, 2);
    char names[128][80], now[80] = "";
    unsigned n = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        if (!strncmp(line, "# HELP ", 7)) {
            snprintf(now, sizeof now, "%.*s", (int)strcspn(line + 7, " "), line + 7);
            for (unsigned i = 0; i < n; i++)
                assert_string_not_equal(names[i], now);
            assert_true(n < 128);
            memcpy(names[n++], now, sizeof now);
        } else if (!strncmp(line, "# TYPE ", 7)) {
            assert_int_equal(strncmp(line + 7, now, strlen(now)), 0);
        } else {
            assert_int_equal(family_bytes(line), strlen(now));
            assert_int_equal(strncmp(line, now, strlen(now)), 0);
        }
    }
    assert_true(n > 40);
    free(text);
}

/* What it finds wrong is only that vLLM's names have a colon: they are to be the same as there. */
static void promtool_accepts_it(void **state)
{
    (void)state;
    int status;
    char *out = run_command(&status, "command -v promtool");
    free(out);
    if (status) {
        print_message("promtool is not installed (Debian: prometheus): not checked\n");
        skip();
    }
    char *text = written(&one, 1), path[600];
    snprintf(path, sizeof path, "%s/metrics.txt", scratch_dir());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(text);
    out = run_command(&status, "promtool check metrics <'%s' 2>&1", path);
    unsigned colons = 0;
    for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, "vllm:", 5) || !strstr(line, "should not contain ':'"))
            fail_msg("promtool: %s", line);
        colons++;
    }
    assert_true(status == 0 || (status == 3 && colons));
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(figures_are_the_boards, fresh),
        cmocka_unit_test_setup(histograms_guess_nothing, fresh),
        cmocka_unit_test_setup(names_cannot_break_the_page, fresh),
        cmocka_unit_test_setup(the_dead_have_no_figures, fresh),
        cmocka_unit_test_setup(figures_that_do_not_fit, fresh),
        cmocka_unit_test_setup(families_stand_together, fresh),
        cmocka_unit_test_setup(promtool_accepts_it, fresh),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
