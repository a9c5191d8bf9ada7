/* Whatever bytes come, a tokenizer answers, in time that grows like the text, and its tokens give
 * the text back. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "../../client/text/normal.h"
#include "../../client/text/utf8.h"
#include "../support/support.h"
#include "../support/vocab_image.h"

static const char *const names[] = {"smollm2",     "llama-bpe-small", "qwen2-small",
                                    "gpt-2-small", "deepseek-coder",  "llama-spm"};
enum { NAMES = sizeof names / sizeof *names };

static struct llm_tokenizer *tokenizers[NAMES];

static int open_all(void **state)
{
    (void)state;
    for (int i = 0; i < NAMES; i++)
        tokenizers[i] = golden_tokenizer(names[i]);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < NAMES; i++)
        llm_tokenizer_close(tokenizers[i]);
    return 0;
}

/* ---- helpers ---- */

static int32_t *tokenize(const struct llm_tokenizer *t, const char *text, size_t bytes,
                         unsigned flags, size_t *n)
{
    size_t room = 3 * bytes + 16;
    int32_t *ids = malloc(room * sizeof *ids);
    long count = llm_tokenize(t, text, bytes, flags, ids, room);
    assert_true(count >= 0 && (size_t)count <= room);
    for (long i = 0; i < count; i++)
        assert_true(ids[i] >= 0 && (uint32_t)ids[i] < llm_tokenizer_vocab(t));
    *n = (size_t)count;
    return ids;
}

/* Text of all tokens; malloc'ed. */
static char *detokenize(const struct llm_tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                        size_t *bytes)
{
    struct llm_detokenizer *d;
    size_t room = 1 << 16, used = 0;
    char *text = malloc(room);
    assert_int_equal(llm_detokenizer_open(&d, t, flags), 0);
    for (size_t i = 0; i <= n; i++) {
        if (room - used < 4096)
            text = realloc(text, room *= 2);
        long got = i < n ? llm_detokenize(d, ids[i], text + used, room - used)
                         : llm_detokenize_flush(d, text + used, room - used);
        assert_true(got >= 0);
        used += (size_t)got;
    }
    llm_detokenizer_close(d);
    *bytes = used;
    return text;
}

static bool well_formed(const char *text, size_t bytes)
{
    unsigned used;
    for (size_t i = 0; i < bytes; i += used)
        if (utf8_decode(text + i, bytes - i, &used) < 0)
            return false;
    return true;
}

/* For well-formed text that comes back as it is: qwen2 composes, SmolLM2 lacks bytes, U+2581
 * becomes a space in SentencePiece. */
static void expect_same_text(const struct llm_tokenizer *t, const char *text, size_t bytes)
{
    size_t n, length;
    int32_t *ids = tokenize(t, text, bytes, 0, &n);
    char *back = detokenize(t, ids, n, LLM_DETOK_SHOW_SPECIAL, &length);
    assert_int_equal(length, bytes);
    assert_memory_equal(back, text, bytes);
    free(back);
    free(ids);
}

static void expect_well_formed(const struct llm_tokenizer *t, const char *text, size_t bytes)
{
    size_t n, length;
    int32_t *ids = tokenize(t, text, bytes, LLM_TOKENIZE_SPECIAL | LLM_TOKENIZE_ADD_SPECIAL, &n);
    for (unsigned flags = 1; flags <= 8; flags *= 2) {
        char *back = detokenize(t, ids, n, flags | LLM_DETOK_UTF8, &length);
        assert_true(well_formed(back, length));
        free(back);
    }
    free(ids);
}

/* ---- small texts ---- */

static void every_byte_and_pair(void **state)
{
    (void)state;
    for (unsigned pair = 0; pair < 1 << 16; pair++) {
        const struct llm_tokenizer *t = tokenizers[pair / 3 % NAMES];
        char text[2] = {(char)pair, (char)(pair >> 8)};
        size_t n, length;
        int32_t *ids = tokenize(t, text, pair < 256 ? 1 : 2, 3, &n);
        char *back = detokenize(t, ids, n, LLM_DETOK_UTF8, &length);
        assert_true(well_formed(back, length));
        free(back);
        free(ids);
    }
}

static void truncated_characters_and_nuls(void **state)
{
    (void)state;
    static const char text[] = "a\0b \xf0\x9f\x99\x82\xe4\xbd\xa0\xc3\xa9\0\0";
    for (int k = 0; k < NAMES; k++)
        for (size_t bytes = 0; bytes < sizeof text; bytes++)
            for (size_t from = 0; from <= bytes; from++)
                expect_well_formed(tokenizers[k], text + from, bytes - from);
    for (int k = 1; k < NAMES; k++) /* SmolLM2 has no token for NUL */
        expect_same_text(tokenizers[k], text, sizeof text);
}

/* ---- random texts ---- */

static void random_bytes(void **state)
{
    (void)state;
    struct rnd r = {7};
    char text[400];
    int rounds = test_exhaustive() ? 5000 : 200;
    for (int i = 0; i < rounds; i++) {
        size_t bytes = rnd_below(&r, sizeof text);
        for (size_t j = 0; j < bytes; j++)
            text[j] = (char)rnd_u32(&r);
        expect_well_formed(tokenizers[i % NAMES], text, bytes);
    }
}

static uint32_t random_point(struct rnd *r)
{
    static const uint32_t ranges[][2] = {
        {0x20, 0x7f},     {0x20, 0x7f},     {0xa0, 0x250},      {0x300, 0x36f},
        {0x590, 0x5ff},   {0x900, 0x97f},   {0x1100, 0x11ff},   {0x1e00, 0x1fff},
        {0x2000, 0x206f}, {0x3040, 0x30ff}, {0x4e00, 0x9fff},   {0xac00, 0xd7a3},
        {0xf900, 0xfaff}, {0xfb1d, 0xfb4f}, {0x1d15e, 0x1d164}, {0x1f300, 0x1f6ff}};
    const uint32_t *range = ranges[rnd_below(r, sizeof ranges / sizeof *ranges)];
    uint32_t point = range[0] + rnd_below(r, range[1] - range[0] + 1);
    return point;
}

static size_t random_text(struct rnd *r, char *text, unsigned characters)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < characters; i++)
        bytes += utf8_encode(random_point(r), text + bytes);
    return bytes;
}

static void random_characters_come_back(void **state)
{
    (void)state;
    static const int exact[] = {1, 3, 4, 5};
    struct rnd r = {11};
    char text[400];
    for (int i = 0; i < 400; i++) {
        size_t bytes = random_text(&r, text, rnd_below(&r, 100));
        expect_same_text(tokenizers[exact[i % 4]], text, bytes);
    }
}

/* utf8proc's own NFC, which is quadratic in runs of marks, is the reference. */
static void expect_reference_composition(const char *text, size_t bytes)
{
    char *composed;
    size_t length;
    char *expected = (char *)utf8proc_NFC((const utf8proc_uint8_t *)text);
    assert_int_equal(normal_compose(text, bytes, &composed, &length), 0);
    if (!composed)
        composed = strdup(text), length = bytes;
    assert_int_equal(length, strlen(expected));
    assert_memory_equal(composed, expected, length);
    free(expected);
    free(composed);
}

static void random_texts_compose_as_the_reference(void **state)
{
    (void)state;
    struct rnd r = {13};
    char text[256];
    for (int i = 0; i < 3000; i++) {
        size_t bytes = random_text(&r, text, rnd_below(&r, 40));
        text[bytes] = 0;
        expect_reference_composition(text, bytes);
    }
}

/* Behind a letter, behind a Hangul syllable, before a mark. */
static void every_character_composes_as_the_reference(void **state)
{
    (void)state;
    static const char *const before[] = {"", "a", "\uac00"}, *const after[] = {"", "\u0301"};
    uint32_t step = test_sanitized() ? 37 : 1;
    for (uint32_t point = 1; point < 0x30000; point += step) {
        char character[5] = "", text[32];
        if (point >= 0xd800 && point < 0xe000)
            continue;
        utf8_encode(point, character);
        for (int i = 0; i < 6; i++) {
            snprintf(text, sizeof text, "%s%s%s", before[i % 3], character, after[i / 3]);
            expect_reference_composition(text, strlen(text));
        }
    }
}

/* ---- long texts ---- */

/* A megabyte of each is quick where time grows like the text, and takes hours where it grows like
 * its square. */
static void long_runs(void **state)
{
    (void)state;
    static const char *const runs[] = {"a",
                                       " ",
                                       "7",
                                       "!", /* a megabyte each, the others less */
                                       "abcdefghijklmnopqrstuvwxyz",
                                       "A",
                                       "aB",
                                       "\t \n",
                                       "\n",
                                       "\r",
                                       ".",
                                       "' ",
                                       "'s",
                                       "<",
                                       "<|",
                                       "<|im_end|>",
                                       "<s></s",
                                       "\u4f60",
                                       "\u00e9",
                                       "x ",
                                       " 1",
                                       "a\n",
                                       "         x",
                                       "$",
                                       "\U0001f642"};
    char *text = malloc(1 << 20);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        size_t bytes = i < 4 || test_exhaustive() ? 1 << 20 : 1 << 18;
        size_t length = strlen(runs[i]), total = bytes / length * length;
        for (size_t j = 0; j < total; j++)
            text[j] = runs[i][j % length];
        for (size_t k = 0; k < NAMES; k++) {
            size_t n;
            if (k % 3 != i % 3 && !test_exhaustive())
                continue;
            expect_same_text(tokenizers[k], text, total);
            free(tokenize(tokenizers[k], text, total, LLM_TOKENIZE_SPECIAL, &n));
        }
    }
    free(text);
}

static void long_runs_of_marks_and_ill_formed_bytes(void **state)
{
    (void)state;
    static const char *const runs[] = {"\u0300\u0323", "e\u0301\u0323",      "\xff",
                                       "\xe2\x82",     "\u1100\u1161\u11a8", "\u2581"};
    size_t bytes = test_exhaustive() ? 1 << 20 : 1 << 18;
    char *text = malloc(bytes);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        size_t length = strlen(runs[i]);
        for (size_t j = 0; j < bytes; j++)
            text[j] = runs[i][j % length];
        for (int k = 0; k < NAMES; k++) {
            size_t n;
            free(tokenize(tokenizers[k], text, bytes, 3, &n));
            assert_true(n > bytes / 64);
        }
    }
    free(text);
}

/* ---- threads ---- */

struct worker {
    pthread_t thread;
    uint64_t seed;
    uint64_t sum; /* over all ids of its texts */
};

static void *work(void *argument)
{
    struct worker *w = argument;
    struct rnd r = {w->seed};
    char text[800];
    int32_t ids[2400];
    for (int i = 0; i < 120; i++) {
        size_t bytes = random_text(&r, text, 150);
        long n = llm_tokenize(tokenizers[i % NAMES], text, bytes, 3, ids, 2400);
        for (long k = 0; k < n; k++)
            w->sum = w->sum * 31 + (uint32_t)ids[k];
    }
    return NULL;
}

static void many_threads_share_a_tokenizer(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    struct worker workers[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        workers[i].seed = 100 + (uint64_t)i;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        struct worker alone = {.seed = workers[i].seed};
        work(&alone);
        assert_true(alone.sum == workers[i].sum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_and_pair),
        cmocka_unit_test(truncated_characters_and_nuls),
        cmocka_unit_test(random_bytes),
        cmocka_unit_test(random_characters_come_back),
        cmocka_unit_test(random_texts_compose_as_the_reference),
        cmocka_unit_test(every_character_composes_as_the_reference),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(long_runs_of_marks_and_ill_formed_bytes),
        cmocka_unit_test(many_threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
