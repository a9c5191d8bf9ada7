/* test_llmctl_promises.c - deadlines, timeouts and priorities on the command line and in JSONL, and
 * what comes back where a promise cannot be kept.
 */
#include "../../shm/llm_abi.h"
#include "llmctl_rig.h"

static void all_of_them_kept(void **state)
{
    (void)state;
    json_t *o = ctl_json("complete --tokens 5,6 -n 4 --ignore-eos --json --deadline-ms 60000 "
                         "--timeout-ms 60000 --queue-timeout-ms 60000 --max-itl-ms 1000.5 "
                         "--priority high");
    assert_string_equal(word(o, "finish_reason"), "length");
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), 4);
    assert_int_equal(whole(o, "preemptions"), 0);
    json_t *timing = json_object_get(o, "timing"), *itl = json_object_get(timing, "itl_us");
    assert_true(real(timing, "queue_us") >= 0 && real(timing, "ttft_us") > 0);
    assert_true(real(itl, "p50") <= real(itl, "p95") && real(itl, "p95") <= real(itl, "p99") &&
                real(itl, "p99") <= real(itl, "max"));
    json_decref(o);
}

static void priorities(void **state)
{
    (void)state;
    static const char *const good[] = {"high", "normal", "low", "-100", "0", "7"};
    char arguments[128];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(arguments, sizeof arguments, "complete --tokens 5 -n 1 --json --priority=%s",
                 good[i]);
        json_decref(ctl_json(arguments));
    }
    refuses("complete --tokens 5 --priority urgent", 2, "high, normal, low");
    refuses("complete --tokens 5 --priority 1.5", 2, "high, normal, low");
}

static void numbers_out_of_range(void **state)
{
    (void)state;
    refuses("complete --tokens 5 --deadline-ms -1", 2, "--deadline-ms");
    refuses("complete --tokens 5 --deadline-ms soon", 2, "--deadline-ms");
    refuses("complete --tokens 5 --max-itl-ms 4294968", 2, "4294967");
    refuses("complete --tokens 5 --timeout-ms 1.5", 2, "--timeout-ms");
    refuses("complete --tokens 5 --queue-timeout-ms 4294967296", 2, "--queue-timeout-ms");
    refuses("score --tokens 5,6 --deadline-ms 5", 1, "of a generate");
}

/* Whoever has computed a while knows how long a prompt takes. */
static void deadline_that_cannot_be_met(void **state)
{
    (void)state;
    json_decref(ctl_json("complete --tokens 5,6 -n 100 --ignore-eos --json"));
    json_t *o =
        ctl_json_status(1, "complete --tokens 5,6,7 -n 4 --json --deadline-ms 0.001 2>/dev/null");
    const json_t *e = json_object_get(o, "error");
    assert_string_equal(word(o, "finish_reason"), "refused");
    assert_int_equal(whole(e, "code"), LLM_EDEADLINE);
    assert_non_null(strstr(word(e, "message"), "deadline"));
    double estimate = real(e, "estimate_ms");
    assert_true(estimate > 0.001);
    assert_true((double)whole(e, "fits") >= estimate && (double)whole(e, "fits") < estimate + 1);
    json_decref(o);
    refuses("complete --tokens 5,6,7 -n 4 --deadline-ms 0.001", 1, "it would take");
    assert_true(engine_figure(&engine, "refused") >= 2);
    json_t *status = engine_status(&engine);
    assert_true(whole(json_object_get(status, "refused_for"), "deadline") >= 2);
    json_decref(status);
}

/* 64 streams of 250 tokens take longer than that. */
static void timeout_ends_with_what_there_is(void **state)
{
    (void)state;
    json_t *o = ctl_json("complete --tokens 5,6 -n 250 --choices 64 --temperature 1 --ignore-eos "
                         "--json --timeout-ms 1");
    assert_string_equal(word(o, "finish_reason"), "timeout");
    assert_null(json_object_get(o, "error"));
    assert_true(json_array_size(json_object_get(o, "tokens")) < 250);
    json_decref(o);
    assert_true(engine_figure(&engine, "timeouts") >= 64);
}

/* One sequence at a time: the second request waits until all 32 choices of the first have ended. */
static void queue_timeout(void **state)
{
    (void)state;
    struct engine_process rig = engine;
    engine = (struct engine_process){0};
    engine_start(&engine, tiny_model(), "--threads", "1", "--max-num-seqs", "1", NULL);
    json_t *all =
        ctl_lines("{\"tokens\": [5, 6], \"n\": 250, \"ignore_eos\": true, \"choices\": 32}\n"
                  "{\"tokens\": [5, 6], \"queue_timeout_ms\": 1}\n",
                  "");
    const json_t *first = json_array_get(all, 0), *second = json_array_get(all, 1);
    assert_string_equal(word(first, "finish_reason"), "length");
    assert_string_equal(word(second, "finish_reason"), "timeout");
    assert_int_equal(whole(json_object_get(second, "error"), "code"), LLM_EQUEUETIME);
    json_decref(all);
    assert_int_equal(engine_figure(&engine, "queue_timeouts"), 1);
    assert_int_equal(engine_stop(&engine), 0);
    engine = rig;
}

static void too_long_says_what_fits(void **state)
{
    (void)state;
    json_t *o = ctl_json_status(1, "complete --tokens 1,2 -n 5000 --json 2>/dev/null");
    const json_t *e = json_object_get(o, "error");
    assert_int_equal(whole(e, "code"), LLM_ETOOLONG);
    assert_int_equal(whole(e, "fits"), 254);
    json_decref(o);
    refuses("complete --tokens 1,2 -n 5000", 1, "254 would fit");
}

/* A queue of one: the rest is refused, and says why. */
static void queue_limit(void **state)
{
    (void)state;
    struct engine_process rig = engine;
    engine = (struct engine_process){0};
    engine_start(&engine, tiny_model(), "--threads", "1", "--max-num-seqs", "1", "--max-waiting",
                 "2", NULL);
    char text[2048];
    size_t used = 0, i, refused = 0;
    for (i = 0; i < 20; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "{\"tokens\": [5, 6], \"n\": 200, \"ignore_eos\": true}\n");
    json_t *all = ctl_lines(text, ""), *o;
    json_array_foreach(all, i, o)
    {
        const json_t *e = json_object_get(o, "error");
        if (e)
            assert_int_equal(whole(e, "code"), LLM_EBUSY);
        refused += e != NULL;
    }
    assert_true(refused > 0 && refused < 20);
    json_t *status = engine_status(&engine);
    assert_int_equal(whole(json_object_get(status, "refused_for"), "queue"), refused);
    assert_int_equal(whole(status, "refused"), refused);
    json_decref(status), json_decref(all);
    assert_int_equal(engine_stop(&engine), 0);
    engine = rig;
}

static void keys_of_lines(void **state)
{
    (void)state;
    json_t *all = ctl_lines(
        "{\"tokens\": [5, 6], \"n\": 3, \"ignore_eos\": true, \"deadline_ms\": 60000, "
        "\"timeout_ms\": 60000, \"queue_timeout_ms\": 60000, \"max_itl_ms\": 20.5, \"priority\": "
        "\"low\", \"no_cache\": true}\n"
        "{\"tokens\": [5, 6, 7], \"deadline_ms\": 0.001, \"priority\": -3}\n",
        "");
    assert_string_equal(word(json_array_get(all, 0), "finish_reason"), "length");
    const json_t *e = json_object_get(json_array_get(all, 1), "error");
    assert_int_equal(whole(e, "code"), LLM_EDEADLINE);
    json_decref(all);
    static const struct {
        const char *line, *says;
    } bad[] = {{"{\"tokens\": [5], \"deadline_ms\": \"5\"}\n", "deadline_ms"},
               {"{\"tokens\": [5], \"max_itl_ms\": -1}\n", "max_itl_ms"},
               {"{\"tokens\": [5], \"timeout_ms\": 0.5}\n", "timeout_ms"},
               {"{\"tokens\": [5], \"queue_timeout_ms\": -1}\n", "queue_timeout_ms"},
               {"{\"tokens\": [5], \"priority\": \"urgent\"}\n", "priority"},
               {"{\"tokens\": [5], \"priority\": 1.5}\n", "priority"},
               {"{\"tokens\": [5], \"session\": 5}\n", "session"},
               {"{\"tokens\": [5], \"keep\": 5}\n", "keep"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char arguments[1024];
        snprintf(arguments, sizeof arguments, "complete --jsonl %s",
                 lines_file("bad.jsonl", bad[i].line));
        refuses(arguments, 1, bad[i].says);
    }
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, tiny_model(), "--threads", "1", NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return engine_stop(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_them_kept),
        cmocka_unit_test(priorities),
        cmocka_unit_test(numbers_out_of_range),
        cmocka_unit_test(deadline_that_cannot_be_met),
        cmocka_unit_test(timeout_ends_with_what_there_is),
        cmocka_unit_test(queue_timeout),
        cmocka_unit_test(too_long_says_what_fits),
        cmocka_unit_test(queue_limit),
        cmocka_unit_test(keys_of_lines),
    };
    return cmocka_run_group_tests_name("llmctl_promises", tests, start, stop);
}
