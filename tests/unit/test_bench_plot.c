/* test_bench_plot.c - the benchmark's plots: round ticks, labels that do not meet, and a file that
 * is well-formed whatever a model is called.
 */
#include "../bench/plot.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void ticks_are_round_and_reach(void **state)
{
    (void)state;
    static const double all[] = {0, 0.003, 0.9, 1, 4, 7.2, 10, 99, 100, 101, 612.5, 1300, 98765};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double t[PLOT_TICKS_MAX];
        int n = plot_ticks(all[i], t);
        assert_in_range(n, 2, 8);
        assert_float_equal(t[0], 0, 0);
        assert_true(t[n - 1] >= all[i] * (1 - 1e-9));
        assert_true(t[n - 2] < all[i] || all[i] == 0);
        double digits = t[1] / pow(10, floor(log10(t[1]) + 1e-9));
        assert_true(fabs(digits - 1) < 1e-6 || fabs(digits - 2) < 1e-6 ||
                    fabs(digits - 2.5) < 1e-6 || fabs(digits - 5) < 1e-6);
    }
}

static void log_ticks_enclose(void **state)
{
    (void)state;
    static const double all[][2] = {{3, 400}, {1, 1}, {0.02, 9}, {5, 5}, {5.1, 9.9}, {1, 1000}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double t[PLOT_TICKS_MAX];
        int n = plot_log_ticks(all[i][0], all[i][1], t);
        assert_in_range(n, 2, PLOT_TICKS_MAX);
        assert_true(t[0] <= all[i][0] && t[1] > all[i][0]);
        assert_true(t[n - 1] >= all[i][1]);
        for (int j = 1; j < n; j++)
            assert_true(t[j] > 1.9 * t[j - 1] && t[j] < 2.6 * t[j - 1]);
    }
}

/* Any places: apart, within, in their order; those that need not move do not. */
static void spread_places_are_apart(void **state)
{
    (void)state;
    struct rnd r = {7};
    for (int i = 0; i < 20000; i++) {
        double was[PLOT_LINES_MAX], at[PLOT_LINES_MAX];
        int n = 1 + (int)rnd_below(&r, PLOT_LINES_MAX);
        bool apart = true;
        for (int j = 0; j < n; j++)
            was[j] = at[j] = 100 + rnd_below(&r, i % 2 ? 40 : 301);
        plot_spread(at, n, 17, 100, 400);
        for (int j = 0; j < n; j++) {
            assert_true(at[j] >= 100 - 1e-6 && at[j] <= 400 + 1e-6);
            for (int k = 0; k < n; k++) {
                apart &= k == j || fabs(was[j] - was[k]) >= 17;
                assert_true(k == j || fabs(at[j] - at[k]) >= 17 - 1e-6);
                assert_true(was[j] >= was[k] || at[j] < at[k]);
            }
        }
        for (int j = 0; j < n && apart; j++)
            assert_float_equal(at[j], was[j], 1e-9);
    }
}

/* They share out what they have to move; at the ends there is nowhere to go. */
static void spread_places_move_little(void **state)
{
    (void)state;
    static const struct {
        int n;
        double from[3], to[3];
    } all[] = {{2, {200, 205}, {194, 211}},           {2, {205, 200}, {211, 194}},
               {3, {200, 200, 200}, {183, 200, 217}}, {3, {210, 220, 200}, {210, 227, 193}},
               {3, {300, 200, 201}, {300, 192, 209}}, {2, {100, 100}, {100, 117}},
               {3, {399, 400, 300}, {383, 400, 300}}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double at[3];
        memcpy(at, all[i].from, sizeof at);
        plot_spread(at, all[i].n, 17, 100, 400);
        for (int j = 0; j < all[i].n; j++)
            assert_float_equal(at[j], all[i].to[j], 1e-9);
    }
}

static char *write_text(const struct plot *p)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    assert_non_null(f);
    assert_true(plot_write(p, f));
    assert_int_equal(fclose(f), 0);
    return text;
}

/* Elements nest and end, attributes are quoted, and no bare & or < is left. */
static void check_well_formed(const char *text)
{
    char open[64][16];
    int depth = 0;
    while (*text) {
        if (*text == '&') {
            assert_true(!strncmp(text, "&amp;", 5) || !strncmp(text, "&lt;", 4) ||
                        !strncmp(text, "&gt;", 4));
        } else if (*text == '<') {
            const char *end = strchr(text, '>');
            assert_non_null(end);
            size_t name = strcspn(text + 1, " />");
            if (text[1] == '/') {
                name = strcspn(text + 2, ">");
                assert_true(depth > 0);
                depth--;
                assert_int_equal(strlen(open[depth]), name);
                assert_memory_equal(open[depth], text + 2, name);
            } else if (end[-1] != '/') {
                assert_true(name > 0 && name < 16 && depth < 64);
                snprintf(open[depth++], 16, "%.*s", (int)name, text + 1);
            }
            unsigned quotes = 0;
            for (const char *c = text; c < end; c++)
                quotes += *c == '"';
            assert_int_equal(quotes % 2, 0);
            text = end;
        }
        text++;
    }
    assert_int_equal(depth, 0);
}

static const double streams[] = {1, 2, 4};
static const double some[] = {10, 20, 30}, less[] = {9, 18, 29}, more[] = {11, 22, 31},
                    holes[] = {NAN, 5, NAN}, none[] = {NAN, NAN, NAN};

static struct plot sample(void)
{
    return (struct plot){.title = "a < b & c > d",
                         .subtitle = "model <&>",
                         .x_label = "streams",
                         .y_label = "tokens/s",
                         .x = streams,
                         .n = 3,
                         .lines = {{"<one>", "one", PLOT_OURS, some, less, more},
                                   {"two & three", "two", PLOT_PEER, holes},
                                   {"nothing", "nothing at all", PLOT_LIMIT, none}},
                         .n_lines = 3};
}

static unsigned count(const char *text, const char *what)
{
    unsigned n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

static void a_plot_is_well_formed(void **state)
{
    (void)state;
    for (int log = 0; log < 2; log++) {
        struct plot p = sample();
        p.y_log = log;
        char *text = write_text(&p);
        check_well_formed(text);
        assert_non_null(strstr(text, "a &lt; b &amp; c &gt; d"));
        assert_non_null(strstr(text, "prefers-color-scheme: dark"));
        assert_int_equal(count(text, "class=\"whisker"), 3);
        assert_int_equal(count(text, "<circle"), 3 + 1);         /* and in the legend */
        assert_int_equal(count(text, "class=\"f2\" x="), 1 + 1); /* one point is there */
        assert_non_null(strstr(text, "</tspan> one"));
        assert_null(strstr(text, "</tspan> two")); /* they do not come to the right side */
        assert_null(strstr(text, "nothing at all"));
        assert_null(strstr(text, "nan"));
        free(text);
    }
}

static void a_plot_without_points_has_axes(void **state)
{
    (void)state;
    struct plot p = sample();
    p.n_lines = 1;
    p.lines[0] = (struct plot_line){"nothing", "nothing", PLOT_OURS, none};
    char *text = write_text(&p);
    check_well_formed(text);
    assert_non_null(strstr(text, "tokens/s"));
    assert_null(strstr(text, "nan"));
    free(text);
    p.n = 1; /* and one place on the axis */
    p.lines[0].y = some;
    text = write_text(&p);
    check_well_formed(text);
    assert_null(strstr(text, "nan"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_are_round_and_reach),
        cmocka_unit_test(log_ticks_enclose),
        cmocka_unit_test(spread_places_are_apart),
        cmocka_unit_test(spread_places_move_little),
        cmocka_unit_test(a_plot_is_well_formed),
        cmocka_unit_test(a_plot_without_points_has_axes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
