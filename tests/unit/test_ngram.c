/* test_ngram.c - prompt lookup against a naive one that looks at the whole history each time: what is
 * expected after every token, how long the agreement is, what the draft says; in histories of few and
 * of many different tokens, read token by token and in pieces. */
#include "../../appliance/ngram.h"
#include "../support/support.h"

#include <stdlib.h>
#include <string.h>

enum {
    LENGTH = 600,
    DRAFT = 20,
    WIDE = 1 << 20 /* an index so large that no two of some hundred grams have one hash */
};

static uint64_t state_of_random;

static uint32_t below(uint32_t n)
{
    state_of_random ^= state_of_random << 13;
    state_of_random ^= state_of_random >> 7;
    state_of_random ^= state_of_random << 17;
    return (uint32_t)((state_of_random >> 20) % n);
}

struct index {
    struct ngram g;
    void *memory;
};

/* What was in the memory before does not matter. */
static void open_index(struct index *x, uint32_t max_len)
{
    x->memory = malloc(ngram_bytes(max_len));
    assert_non_null(x->memory);
    memset(x->memory, 0xa5, ngram_bytes(max_len));
    ngram_bind(&x->g, x->memory, max_len);
}

/* ---- the naive one ---- */

struct naive {
    uint32_t min, max, at, length;
    uint32_t seen[NGRAM_ODDS], held[NGRAM_ODDS];
};

static uint32_t agreement(const int32_t *tokens, uint32_t at, uint32_t n, uint32_t max)
{
    uint32_t length = 0;
    while (length < max && length < at && tokens[at - 1 - length] == tokens[n - 1 - length])
        length++;
    return length;
}

/* The latest of the longest, of the last NGRAM_WALK places that the last `min` tokens stood at. */
static void search(struct naive *v, const int32_t *tokens, uint32_t n)
{
    uint32_t walked = 0;
    v->at = v->length = 0;
    for (uint32_t at = n - 1; at >= v->min && n >= v->min && walked < NGRAM_WALK; at--) {
        uint32_t length = agreement(tokens, at, n, v->max);
        if (length < v->min)
            continue;
        walked++;
        if (length > v->length) {
            v->length = length;
            v->at = at;
        }
    }
}

static uint32_t class_of(uint32_t length)
{
    return length < 2 ? 0 : length < 4 ? 1 : length < 8 ? 2 : length < 16 ? 3 : 4;
}

/* tokens[n - 1] has come. */
static void come(struct naive *v, const int32_t *tokens, uint32_t n)
{
    uint32_t failed = 0;
    if (v->at) {
        bool held = tokens[v->at] == tokens[n - 1];
        v->seen[class_of(v->length)]++;
        v->held[class_of(v->length)] += held;
        if (held) {
            v->at++;
            v->length++;
            return;
        }
        failed = v->at;
    }
    search(v, tokens, n);
    if (!v->at && failed)
        v->at = failed + 1;
}

/* ---- histories ---- */

/* Of `kinds` different tokens, with pieces of itself copied in, some of them with a token changed. */
static void fill(int32_t *tokens, uint32_t n, uint32_t kinds)
{
    for (uint32_t i = 0; i < n;) {
        uint32_t length = 1 + below(25), from = i ? below(i) : 0;
        bool copies = i && below(2);
        for (; length && i < n; length--, i++, from++)
            tokens[i] = copies && below(12) ? tokens[from] : (int32_t)below(kinds);
    }
}

static void expect_draft(struct index *x, int32_t *tokens, uint32_t n)
{
    int32_t kept[DRAFT];
    memcpy(kept, tokens + n, sizeof kept);
    ngram_draft(&x->g, tokens, DRAFT);
    for (uint32_t i = 0; i < DRAFT; i++)
        assert_int_equal(tokens[n + i], tokens[x->g.at + i]);
    memcpy(tokens + n, kept, sizeof kept);
}

static void one_history(uint32_t kinds, uint32_t min, uint32_t max)
{
    static int32_t tokens[LENGTH + DRAFT];
    struct index x;
    struct naive v = {.min = min, .max = max};
    open_index(&x, WIDE);
    ngram_begin(&x.g, WIDE, min, max);
    fill(tokens, LENGTH + DRAFT, kinds);
    for (uint32_t n = 1; n <= LENGTH; n++) {
        assert_int_equal(ngram_follow(&x.g, tokens, n, UINT32_MAX), 1);
        come(&v, tokens, n);
        assert_int_equal(x.g.at, v.at);
        if (!v.at)
            continue;
        assert_int_equal(x.g.length, v.length);
        expect_draft(&x, tokens, n);
        for (uint32_t i = 0; i < DRAFT; i++)
            assert_true(ngram_chance(&x.g, i) >= 0 && ngram_chance(&x.g, i) <= 1);
    }
    free(x.memory);
}

/* With few kinds of tokens every gram has more places than are looked at. Grams of one hash have a test
 * of their own: places of others are walked over then. */
static void as_the_naive_one(void **state)
{
    (void)state;
    uint32_t rounds = test_exhaustive() ? 3000 : 60;
    static const uint32_t kinds[] = {1, 2, 3, 8};
    for (uint32_t i = 0; i < rounds; i++) {
        state_of_random = 77 + i;
        uint32_t min = 1 + below(3);
        one_history(kinds[i % 4], min, min + below(12));
    }
}

/* Whatever the hashes: what is found agrees, in at least `min` tokens. */
static void grams_of_one_hash(void **state)
{
    (void)state;
    static int32_t tokens[LENGTH + DRAFT];
    for (uint32_t round = 0; round < 40; round++) {
        struct index x;
        state_of_random = 1000 + round;
        open_index(&x, LENGTH);
        ngram_begin(&x.g, 70, 2, 8); /* 64 buckets for 600 tokens */
        fill(tokens, LENGTH, 40000);
        for (uint32_t n = 1; n <= LENGTH; n++) {
            uint32_t before = x.g.at;
            ngram_follow(&x.g, tokens, n, UINT32_MAX);
            bool goes_on = before && tokens[before] == tokens[n - 1];
            if (!x.g.at || goes_on || !x.g.length)
                continue;
            assert_in_range(x.g.length, 2, 8);
            assert_int_equal(agreement(tokens, x.g.at, n, 8), x.g.length);
        }
        free(x.memory);
    }
}

static void in_pieces(void **state)
{
    (void)state;
    static int32_t tokens[LENGTH + DRAFT];
    for (uint32_t round = 0; round < 40; round++) {
        struct index x;
        struct naive v = {.min = 2, .max = 8};
        state_of_random = 5 + round;
        open_index(&x, WIDE);
        ngram_begin(&x.g, WIDE, 2, 8);
        fill(tokens, LENGTH, 3);
        uint32_t n = 100 + below(400), most = 1 + below(50), taken = 0;
        while (taken < n) {
            uint32_t got = ngram_follow(&x.g, tokens, n, most);
            assert_int_equal(got, n - taken < most ? n - taken : most);
            taken += got;
            assert_true(taken == n || !x.g.at); /* nothing is expected of a part */
        }
        search(&v, tokens, n);
        assert_int_equal(x.g.at, v.at);
        assert_int_equal(ngram_follow(&x.g, tokens, n, most), 0);
        assert_int_equal(x.g.at, v.at);
        free(x.memory);
    }
}

/* What holds becomes likely, what fails unlikely, each length by itself. */
static void chances_follow(void **state)
{
    (void)state;
    static int32_t tokens[LENGTH + DRAFT];
    struct index x;
    open_index(&x, LENGTH);
    ngram_begin(&x.g, LENGTH, 2, 8);
    for (uint32_t i = 0; i < LENGTH; i++)
        tokens[i] = (int32_t)(i % 5);
    ngram_follow(&x.g, tokens, 8, UINT32_MAX);
    double first = ngram_chance(&x.g, 20);
    for (uint32_t n = 9; n <= 200; n++)
        ngram_follow(&x.g, tokens, n, UINT32_MAX);
    assert_true(x.g.at && x.g.length > 100);
    assert_true(ngram_chance(&x.g, 0) > 0.99 && ngram_chance(&x.g, 0) > first);

    /* the same two tokens, and each time another one behind them */
    ngram_begin(&x.g, LENGTH, 2, 8);
    for (uint32_t i = 0; i < LENGTH; i++)
        tokens[i] = i % 3 < 2 ? (int32_t)(i % 3) : (int32_t)(1000 + i);
    for (uint32_t n = 1; n <= 200; n++)
        ngram_follow(&x.g, tokens, n, UINT32_MAX);
    assert_true(x.g.at && x.g.length == 2);
    assert_true(ngram_chance(&x.g, 0) < 0.1);
    assert_true(ngram_chance(&x.g, 14) > 0.89); /* of a length that was never met */
    free(x.memory);
}

/* The index of a short history in the memory of a long one: nothing of the one before is found. */
static void used_again(void **state)
{
    (void)state;
    static int32_t tokens[LENGTH + DRAFT];
    struct index x;
    open_index(&x, LENGTH);
    for (uint32_t i = 0; i < LENGTH; i++)
        tokens[i] = (int32_t)(i % 5);
    ngram_begin(&x.g, LENGTH, 2, 8);
    ngram_follow(&x.g, tokens, LENGTH, UINT32_MAX);
    assert_true(x.g.at);
    ngram_begin(&x.g, 100, 2, 8);
    for (uint32_t i = 0; i < 100; i++)
        tokens[i] = (int32_t)i;
    for (uint32_t n = 1; n <= 100; n++) {
        ngram_follow(&x.g, tokens, n, UINT32_MAX);
        assert_int_equal(x.g.at, 0);
    }
    free(x.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_naive_one), cmocka_unit_test(grams_of_one_hash),
        cmocka_unit_test(in_pieces),        cmocka_unit_test(chances_follow),
        cmocka_unit_test(used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
