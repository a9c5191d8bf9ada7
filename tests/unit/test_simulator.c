/* The scheduler under a virtual clock (tests/sim/): its invariants in every step of seeded workloads,
 * and what it promises beside first come, first served on the same arrivals. */
#include <string.h>

#include "../sim/sim.h"

#include "../support/support.h"

static struct sim_result result, other;

static uint32_t fewer_if_sanitized(uint32_t requests)
{
    return test_sanitized() ? requests / 10 : requests;
}

static void configure(struct sim_config *config, const char *workload, uint32_t requests)
{
    sim_defaults(config);
    assert_true(sim_workload(workload, requests, config));
    config->check_every = 32;
}

static void first_come(struct sim_config *config)
{
    config->engine.policy = ENGINE_FIRST_COME;
    config->engine.max_itl_us = 0;
}

static void run(const struct sim_config *config, struct sim_result *out)
{
    if (sim_run(config, out))
        fail_msg("workload %s, seed %llu: %s", config->workload, (unsigned long long)config->seed,
                 out->violation);
    for (uint32_t i = 0; i < config->n_kinds; i++)
        assert_int_equal(out->kinds[i].requests, config->kinds[i].count);
}

static const struct sim_kind_result *kind(const struct sim_config *config,
                                          const struct sim_result *r, const char *name)
{
    for (uint32_t i = 0; i < config->n_kinds; i++)
        if (!strcmp(config->kinds[i].name, name))
            return &r->kinds[i];
    fail_msg("no traffic of the kind %s", name);
    return NULL;
}

/* Those that got no first token count as waiting for ever. */
static uint64_t p95_first_token(const struct sim_config *config, const struct sim_result *r,
                                const char *name)
{
    return histogram_percentile(&kind(config, r, name)->ttft, 0.95);
}

/* ---- invariants ---- */

static void invariants_hold_under(const char *workload, uint32_t requests, uint64_t seeds)
{
    struct sim_config config;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        configure(&config, workload, fewer_if_sanitized(requests));
        config.seed = seed;
        run(&config, &result);
        first_come(&config);
        run(&config, &result);
    }
}

static void invariants_hold_when_calm(void **state)
{
    (void)state;
    invariants_hold_under("calm", 2000, 2);
}

static void invariants_hold_under_overload(void **state)
{
    (void)state;
    invariants_hold_under("overload", 3000, test_exhaustive() ? 50 : 4);
}

static void invariants_hold_in_bursts(void **state)
{
    (void)state;
    invariants_hold_under("bursts", 3000, test_exhaustive() ? 50 : 4);
}

static void invariants_hold_under_pressure(void **state)
{
    (void)state;
    invariants_hold_under("pressure", 1000, test_exhaustive() ? 50 : 4);
}

/* Steps of few rows: the decodes alone are more than fit. */
static void invariants_hold_in_small_steps(void **state)
{
    (void)state;
    struct sim_config config;
    configure(&config, "overload", fewer_if_sanitized(2000));
    config.engine.max_num_batched_tokens = 24;
    run(&config, &result);
}

static void the_same_seed_brings_the_same_result(void **state)
{
    (void)state;
    struct sim_config config;
    configure(&config, "bursts", 1000);
    run(&config, &result);
    run(&config, &other);
    assert_true(result.digest == other.digest && result.virtual_ns == other.virtual_ns);
    config.seed++;
    run(&config, &other);
    assert_true(result.digest != other.digest);
}

/* ---- promises ---- */

/* Under 1.2 times the load that the machine bears. */
static void deadlines_are_kept_where_first_come_keeps_none(void **state)
{
    (void)state;
    struct sim_config config;
    configure(&config, "overload", fewer_if_sanitized(20000));
    run(&config, &result);
    uint64_t fair_ns = p95_first_token(&config, &result, "deadline");
    first_come(&config);
    run(&config, &other);
    uint64_t first_ns = p95_first_token(&config, &other, "deadline");
    assert_true(fair_ns <= 1000000000 && 3 * fair_ns <= first_ns);
    assert_true(result.busy_tokens_per_s >= 0.97 * other.busy_tokens_per_s);
}

static void gaps_are_kept_once_the_cost_is_learned(void **state)
{
    (void)state;
    struct sim_config config;
    configure(&config, "overload", fewer_if_sanitized(5000));
    run(&config, &result);
    assert_true(result.promised_steps > result.steps / 2);
    assert_true(result.worst_excess <= config.cost.noise);
    assert_true(result.late_steps * 100 <= result.promised_steps);
}

static void a_long_prompt_leaves_streams_their_pace(void **state)
{
    (void)state;
    struct sim_config config;
    configure(&config, "long", 1);
    run(&config, &other);
    uint64_t alone_ns = p95_first_token(&config, &other, "long");
    configure(&config, "long", 4);
    run(&config, &result);
    uint64_t promise_ns = config.engine.max_itl_us * 1000ull;
    uint64_t gap_ns = histogram_percentile(&kind(&config, &result, "streams")->gap, 0.999);
    assert_true(gap_ns * 10 <= promise_ns * 13);
    assert_true(p95_first_token(&config, &result, "long") * 10 <= alone_ns * 25);
    config.engine.max_itl_us = 0;
    run(&config, &other);
    assert_true(kind(&config, &other, "streams")->gap.max > 10 * promise_ns);
}

static void a_flood_does_not_keep_others_waiting(void **state)
{
    (void)state;
    struct sim_config config;
    configure(&config, "flood", 0);
    config.engine.max_itl_us = 0;
    run(&config, &other);
    uint64_t idle_ns = p95_first_token(&config, &other, "modest");
    configure(&config, "flood", 500);
    config.engine.max_itl_us = 0;
    run(&config, &result);
    uint64_t step_ns = histogram_percentile(&result.step, 0.95);
    assert_true(p95_first_token(&config, &result, "modest") <= 2 * idle_ns + step_ns);
    assert_true(kind(&config, &result, "flood")->served == 500);
}

/* With steps of a stated length: nobody waits for a long one, and it costs little. */
static void a_stated_length_of_steps_shortens_the_wait(void **state)
{
    (void)state;
    struct sim_config config;
    configure(&config, "flood", 0);
    config.engine.max_itl_us = 0;
    config.engine.max_step_us = 100000;
    run(&config, &other);
    uint64_t idle_ns = p95_first_token(&config, &other, "modest");
    configure(&config, "flood", 500);
    config.engine.max_itl_us = 0;
    run(&config, &other);
    config.engine.max_step_us = 100000;
    run(&config, &result);
    uint64_t step_ns = histogram_percentile(&result.step, 0.95);
    assert_true(step_ns < 140000000);
    assert_true(p95_first_token(&config, &result, "modest") * 2 <= 3 * idle_ns + 2 * step_ns);
    assert_true(result.busy_tokens_per_s >= 0.98 * other.busy_tokens_per_s);
}

/* A pool of 64 blocks under ten times what it holds. */
static void a_pool_under_pressure_makes_progress(void **state)
{
    (void)state;
    struct sim_config config;
    configure(&config, "pressure", fewer_if_sanitized(3000));
    config.check_every = 1;
    run(&config, &result);
    assert_true(result.preemptions > 0 && result.longest_stall <= 8);
    for (uint32_t i = 0; i < config.n_kinds; i++)
        assert_int_equal(result.kinds[i].served, config.kinds[i].count);
    print_message("recomputed: %.1f %% of the rows\n",
                  100.0 * (double)result.recomputed / (double)result.rows);
    assert_true(result.recomputed * 2 < result.rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invariants_hold_when_calm),
        cmocka_unit_test(invariants_hold_under_overload),
        cmocka_unit_test(invariants_hold_in_bursts),
        cmocka_unit_test(invariants_hold_under_pressure),
        cmocka_unit_test(invariants_hold_in_small_steps),
        cmocka_unit_test(the_same_seed_brings_the_same_result),
        cmocka_unit_test(deadlines_are_kept_where_first_come_keeps_none),
        cmocka_unit_test(gaps_are_kept_once_the_cost_is_learned),
        cmocka_unit_test(a_long_prompt_leaves_streams_their_pace),
        cmocka_unit_test(a_flood_does_not_keep_others_waiting),
        cmocka_unit_test(a_stated_length_of_steps_shortens_the_wait),
        cmocka_unit_test(a_pool_under_pressure_makes_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
