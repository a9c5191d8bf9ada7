/* test_cost.c - the cost model of a step: it finds the weights of a machine, follows when they
 * change, is not misled by single steps, and answers consistently. */
#include "../../appliance/cost.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <string.h>

/* ---- a machine with known weights ---- */

struct machine {
    double w[COST_WEIGHTS];
    double noise;         /* relative, uniform, to both sides */
    uint32_t slow_one_in; /* that steps takes ten times as long; 0: none */
};

static const struct machine steady = {{2e6, 3e5, 2e5, 40, 25}, 0.1, 0};
static uint64_t rng;

static uint64_t draw(uint64_t below)
{
    rng += 0x9E3779B97F4A7C15u; /* splitmix64 */
    uint64_t z = rng;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % below;
}

static double exactly(const struct machine *m, const struct cost_shape *s)
{
    return m->w[0] + m->w[1] * s->decode_rows + m->w[2] * s->prefill_rows +
           m->w[3] * (double)s->decode_context + m->w[4] * (double)s->prefill_context;
}

static uint64_t takes(const struct machine *m, const struct cost_shape *s)
{
    double ns = exactly(m, s) * (1 + m->noise * ((double)draw(2001) / 1000 - 1));
    return (uint64_t)(m->slow_one_in && !draw(m->slow_one_in) ? 10 * ns : ns);
}

/* Decodes of every number and length; two steps in three carry a chunk of a prompt too. */
static struct cost_shape some_step(bool prefill)
{
    struct cost_shape s = {.decode_rows = (uint32_t)draw(33)};
    for (uint32_t i = 0; i < s.decode_rows; i++)
        s.decode_context += 1 + draw(4000);
    if (prefill && draw(3)) {
        s.prefill_rows = 1 + (uint32_t)draw(256);
        s.prefill_context = s.prefill_rows * (1 + draw(6000));
    }
    return s;
}

static void run(struct cost *c, const struct machine *m, int steps, bool prefill)
{
    for (int i = 0; i < steps; i++) {
        struct cost_shape s = some_step(prefill);
        cost_observe(c, &s, takes(m, &s));
    }
}

static void start(struct cost *c, uint64_t seed)
{
    rng = seed;
    cost_init(c, 5e6, 1e6);
}

static bool near(double value, double wanted, double tolerance)
{
    return value >= wanted * (1 - tolerance) && value <= wanted * (1 + tolerance);
}

static void assert_weights(const struct cost *c, const struct machine *m, double tolerance)
{
    for (int i = 0; i < COST_WEIGHTS; i++)
        if (!near(c->w[i], m->w[i], tolerance))
            fail_msg("weight %d is %g, should be %g", i, c->w[i], m->w[i]);
}

/* The worst relative error over steps of every kind, against the machine without its noise. */
static double worst_error(const struct cost *c, const struct machine *m, bool prefill)
{
    double worst = 0;
    for (int i = 0; i < 300; i++) {
        struct cost_shape s = some_step(prefill);
        double want = exactly(m, &s), e = ((double)cost_predict(c, &s) - want) / want;
        worst = e > worst ? e : -e > worst ? -e : worst;
    }
    return worst;
}

static void assert_sane(const struct cost *c)
{
    for (int i = 0; i < COST_WEIGHTS; i++) {
        assert_true(c->w[i] >= 0 && __builtin_isfinite(c->w[i]) && __builtin_isfinite(c->b[i]));
        for (int j = 0; j < COST_WEIGHTS; j++)
            assert_true(__builtin_isfinite(c->a[i][j]) && c->a[i][j] == c->a[j][i]);
    }
    assert_true(c->error >= 0 && c->error <= 1 && c->bias >= -1 && c->bias <= 1);
}

/* ---- what it learns ---- */

static void starts_from_the_guess(void **state)
{
    (void)state;
    struct cost c;
    cost_init(&c, 5000, 700);
    struct cost_shape decode = {.decode_rows = 1}, prefill = {.prefill_rows = 11};
    assert_int_equal(cost_predict(&c, &decode), 5000);
    assert_int_equal(cost_predict(&c, &prefill), 12000);
    assert_true(c.error == 1 && !c.observed);
}

static void finds_the_weights_without_noise(void **state)
{
    (void)state;
    struct machine quiet = steady;
    quiet.noise = 0;
    struct cost c;
    start(&c, 1);
    run(&c, &quiet, 1500, true);
    assert_weights(&c, &quiet, 0.01);
    assert_true(worst_error(&c, &quiet, true) < 0.005);
    assert_true(c.error < 0.005);
}

static void finds_the_weights_through_noise(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct cost c;
        start(&c, seed);
        run(&c, &steady, 600, true);
        assert_true(worst_error(&c, &steady, true) < 0.1);
        assert_true(c.error > 0.02 && c.error < 0.1); /* the noise is 5% in the mean */
        assert_int_equal(c.observed, 600);
    }
}

static void a_bad_guess_does_not_last(void **state)
{
    (void)state;
    static const double guesses[][2] = {{1, 0}, {1e12, 1e12}, {1e12, 0}, {0, 0}, {100, 1e9}};
    for (size_t i = 0; i < sizeof guesses / sizeof *guesses; i++) {
        struct cost c;
        rng = i;
        cost_init(&c, guesses[i][0], guesses[i][1]);
        run(&c, &steady, 400, true);
        assert_true(worst_error(&c, &steady, true) < 0.15);
    }
}

static void useful_after_ten_steps(void **state)
{
    (void)state;
    struct cost c;
    start(&c, 3);
    run(&c, &steady, 10, true);
    struct cost_shape s = {.decode_rows = 8, .decode_context = 8000};
    assert_true(near((double)cost_predict(&c, &s), exactly(&steady, &s), 0.5));
}

static void weights_stay_non_negative(void **state)
{
    (void)state;
    /* a machine on which more decodes and longer contexts cost less: no such weights */
    struct cost c;
    start(&c, 5);
    for (int i = 0; i < 2000; i++) {
        struct cost_shape s = some_step(true);
        double ns =
            3e7 - 5e5 * s.decode_rows - 40 * (double)s.decode_context + 1e5 * s.prefill_rows;
        cost_observe(&c, &s, ns > 1000 ? (uint64_t)ns : 1000);
        assert_sane(&c);
    }
    assert_true(c.w[1] == 0 && c.w[3] == 0 && c.w[0] > 0 && c.w[2] > 0);
}

static void outliers_barely_move_it(void **state)
{
    (void)state;
    struct machine busy = steady;
    busy.slow_one_in = 50;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct cost c;
        start(&c, seed);
        run(&c, &busy, 1000, true);
        assert_true(worst_error(&c, &steady, true) < 0.12);
    }
}

static void one_step_of_an_hour_moves_nothing(void **state)
{
    (void)state;
    struct cost c;
    start(&c, 7);
    run(&c, &steady, 600, true);
    struct cost_shape s = {.decode_rows = 4, .decode_context = 4000};
    double before = (double)cost_predict(&c, &s);
    cost_observe(&c, &s, 3600ull * 1000000000);
    assert_true(near((double)cost_predict(&c, &s), before, 0.02));
    cost_observe(&c, &s, 0);
    assert_true(near((double)cost_predict(&c, &s), before, 0.04));
}

static void follows_when_the_weights_change(void **state)
{
    (void)state;
    static const double factors[] = {2, 0.5, 10, 0.1, 1.3};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        struct machine now = steady;
        for (int k = 0; k < COST_WEIGHTS; k++)
            now.w[k] *= factors[i];
        struct cost c;
        start(&c, 11 + i);
        run(&c, &steady, 3000, true);
        assert_true(worst_error(&c, &now, true) > 0.2);
        run(&c, &now, 300, true);
        double worst = worst_error(&c, &now, true);
        if (worst > 0.15)
            fail_msg("%g times as long: still wrong by %g after 300 steps", factors[i], worst);
    }
}

static void follows_when_one_weight_changes(void **state)
{
    (void)state;
    struct machine now = steady;
    now.w[3] = 400; /* contexts of decodes now cost ten times as much */
    struct cost c;
    start(&c, 13);
    run(&c, &steady, 3000, true);
    run(&c, &now, 600, true);
    assert_true(worst_error(&c, &now, true) < 0.15);
}

/* Hours of decodes leave what is known of prefill as it was; a first slow chunk then moves it
 * little. */
static void what_is_not_seen_is_not_forgotten(void **state)
{
    (void)state;
    struct cost c;
    start(&c, 17);
    run(&c, &steady, 1000, true);
    run(&c, &steady, 100000, false);
    assert_true(worst_error(&c, &steady, true) < 0.12);
    struct cost_shape s = {.prefill_rows = 128, .prefill_context = 128 * 500};
    cost_observe(&c, &s, (uint64_t)(10 * exactly(&steady, &s)));
    assert_true(worst_error(&c, &steady, true) < 0.12);
}

static void one_shape_for_ever(void **state)
{
    (void)state;
    struct cost c;
    start(&c, 19);
    struct cost_shape s = {.decode_rows = 1, .decode_context = 100};
    for (int i = 0; i < 200000; i++)
        cost_observe(&c, &s, takes(&steady, &s));
    assert_sane(&c);
    assert_true(near((double)cost_predict(&c, &s), exactly(&steady, &s), 0.05));
}

static void same_steps_same_model(void **state)
{
    (void)state;
    struct cost c[2];
    for (int i = 0; i < 2; i++) {
        start(&c[i], 23);
        run(&c[i], &steady, 500, true);
    }
    assert_memory_equal(&c[0], &c[1], sizeof *c);
}

static uint64_t extreme(void)
{
    static const uint64_t some[] = {0, 1, 2, 1000, UINT32_MAX, 1ull << 53, UINT64_MAX};
    return some[draw(sizeof some / sizeof *some)];
}

static void numbers_stay_finite_whatever_comes(void **state)
{
    (void)state;
    static const double odd[] = {0, -1, 1e300, __builtin_inf(), -__builtin_inf(), 5e-324};
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct cost c;
        rng = seed;
        if (seed % 7)
            cost_init(&c, odd[draw(6)], odd[draw(6)]);
        else
            cost_init(&c, __builtin_nan(""), __builtin_nan(""));
        assert_sane(&c);
        for (int i = 0; i < 500; i++) {
            struct cost_shape s = {(uint32_t)extreme(), (uint32_t)extreme(), extreme(), extreme()};
            cost_observe(&c, &s, extreme());
            assert_sane(&c);
            cost_predict(&c, &s);
            cost_prefill_ns(&c, extreme(), (uint32_t)extreme(), &s);
            uint32_t max = (uint32_t)extreme();
            assert_true(cost_rows_within(&c, &s, (uint32_t)extreme(), max, extreme()) <= max);
        }
    }
}

/* ---- what it answers ---- */

static struct cost with_weights(double w0, double w1, double w2, double w3, double w4)
{
    struct cost c;
    cost_init(&c, 1, 0);
    memcpy(c.w, (double[]){w0, w1, w2, w3, w4}, sizeof c.w);
    return c;
}

static uint64_t predict_with(const struct cost *c, struct cost_shape s, uint32_t pos, uint32_t rows)
{
    s.prefill_rows += rows;
    for (uint32_t i = 0; i < rows; i++)
        s.prefill_context += pos + i + 1;
    return cost_predict(c, &s);
}

static void predicts_the_sum(void **state)
{
    (void)state;
    struct cost c = with_weights(1000, 10, 20, 0.5, 0.25);
    struct cost_shape s = {3, 5, 100, 200};
    assert_int_equal(cost_predict(&c, &s), 1000 + 30 + 100 + 50 + 50);
    c = with_weights(0, 0, 0, 0, 1e19);
    assert_true(cost_predict(&c, &s) == UINT64_MAX);
}

static void rows_within_are_the_most_that_fit(void **state)
{
    (void)state;
    rng = 29;
    for (int i = 0; i < 2000; i++) {
        struct cost c = with_weights((double)draw(2000), (double)draw(100), (double)draw(100),
                                     (double)draw(10) / 8, (double)draw(10) / 8);
        struct cost_shape s = some_step(true);
        uint32_t pos = (uint32_t)draw(5000), max = (uint32_t)draw(600);
        uint64_t ns = cost_predict(&c, &s) + draw(200000);
        uint32_t rows = cost_rows_within(&c, &s, pos, max, ns);
        assert_true(rows <= max);
        assert_true(predict_with(&c, s, pos, rows) <= ns);
        if (rows < max)
            assert_true(predict_with(&c, s, pos, rows + 1) > ns);
    }
}

static void rows_within_grow_with_the_budget(void **state)
{
    (void)state;
    struct cost c = with_weights(1000, 10, 20, 0.5, 0.25);
    struct cost_shape s = {.decode_rows = 4, .decode_context = 4000};
    uint32_t last = 0;
    for (uint64_t ns = 0; ns < 200000; ns += 500) {
        uint32_t rows = cost_rows_within(&c, &s, 100, 512, ns);
        assert_true(rows >= last);
        last = rows;
    }
    assert_int_equal(last, 512);
    assert_true(cost_rows_within(&c, &s, 100, 512, 20000) >
                cost_rows_within(&c, &s, 9000, 512, 20000));
}

static void no_rows_in_an_exhausted_budget(void **state)
{
    (void)state;
    struct cost c = with_weights(1000, 10, 20, 0.5, 0.25);
    struct cost_shape s = {.decode_rows = 4, .decode_context = 4000};
    assert_int_equal(cost_rows_within(&c, &s, 0, 512, 0), 0);
    assert_int_equal(cost_rows_within(&c, &s, 0, 512, 3039), 0);
    assert_int_equal(cost_rows_within(&c, &s, 0, 512, 3040 + 20), 1); /* one key: a quarter ns */
    assert_int_equal(cost_rows_within(&c, &s, 0, 0, UINT64_MAX), 0);
}

static void rows_that_cost_nothing_all_fit(void **state)
{
    (void)state;
    struct cost c = with_weights(0, 0, 0, 0, 0);
    struct cost_shape s = {.decode_rows = 4, .decode_context = 4000};
    assert_int_equal(cost_rows_within(&c, &s, 100, 512, 0), 512);
    assert_int_equal(cost_rows_within(&c, &s, UINT32_MAX, UINT32_MAX, 0), UINT32_MAX);
    assert_int_equal(cost_predict(&c, &s), 0);
    c = with_weights(100, 10, 0, 0, 0);
    assert_int_equal(cost_rows_within(&c, &s, 100, 512, 139), 0);
    assert_int_equal(cost_rows_within(&c, &s, 100, 512, 140), 512);
}

static void prefill_time_is_the_sum_of_its_steps(void **state)
{
    (void)state;
    struct cost c = with_weights(1000, 10, 20, 0.5, 0.25);
    struct cost_shape beside = {.decode_rows = 4, .decode_context = 4000};
    for (uint32_t rows = 0; rows < 700; rows += 37)
        for (uint32_t chunk = 1; chunk < 300; chunk += 48) {
            double sum = 0;
            for (uint32_t at = 0; at < rows; at += chunk) {
                uint32_t n = rows - at < chunk ? rows - at : chunk;
                sum += (double)predict_with(&c, beside, at, n);
            }
            uint64_t steps = (rows + chunk - 1) / chunk;
            double got = (double)cost_prefill_ns(&c, rows, chunk, &beside);
            assert_true(got - sum <= (double)steps && sum - got <= (double)steps); /* rounding */
        }
    assert_int_equal(cost_prefill_ns(&c, 10, 10, NULL), 1000 + 200 + 14);
    assert_int_equal(cost_prefill_ns(&c, 0, 0, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_from_the_guess),
        cmocka_unit_test(finds_the_weights_without_noise),
        cmocka_unit_test(finds_the_weights_through_noise),
        cmocka_unit_test(a_bad_guess_does_not_last),
        cmocka_unit_test(useful_after_ten_steps),
        cmocka_unit_test(weights_stay_non_negative),
        cmocka_unit_test(outliers_barely_move_it),
        cmocka_unit_test(one_step_of_an_hour_moves_nothing),
        cmocka_unit_test(follows_when_the_weights_change),
        cmocka_unit_test(follows_when_one_weight_changes),
        cmocka_unit_test(what_is_not_seen_is_not_forgotten),
        cmocka_unit_test(one_shape_for_ever),
        cmocka_unit_test(same_steps_same_model),
        cmocka_unit_test(numbers_stay_finite_whatever_comes),
        cmocka_unit_test(predicts_the_sum),
        cmocka_unit_test(rows_within_are_the_most_that_fit),
        cmocka_unit_test(rows_within_grow_with_the_budget),
        cmocka_unit_test(no_rows_in_an_exhausted_budget),
        cmocka_unit_test(rows_that_cost_nothing_all_fit),
        cmocka_unit_test(prefill_time_is_the_sum_of_its_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
