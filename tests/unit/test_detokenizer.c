/* Tokens become the text that they were made of, however the stream is cut; characters, words and
 * sentences come whole where that is asked for. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/support.h"
#include "../support/vocab_image.h"

/* ---- helpers ---- */

struct text {
    char *at;
    size_t bytes;
};

static void add(struct text *t, const char *at, long bytes)
{
    assert_true(bytes >= 0);
    t->at = realloc(t->at, t->bytes + (size_t)bytes + 1);
    memcpy(t->at + t->bytes, at, (size_t)bytes);
    t->bytes += (size_t)bytes;
    t->at[t->bytes] = 0;
}

static struct text decode(const struct llm_tokenizer *t, const int32_t *ids, size_t n,
                          unsigned flags)
{
    struct llm_detokenizer *d;
    struct text text = {0};
    char out[4096];
    assert_int_equal(llm_detokenizer_open(&d, t, flags), 0);
    for (size_t i = 0; i < n; i++)
        add(&text, out, llm_detokenize(d, ids[i], out, sizeof out));
    add(&text, out, llm_detokenize_flush(d, out, sizeof out));
    assert_int_equal(llm_detokenize_flush(d, out, sizeof out), 0);
    llm_detokenizer_close(d);
    return text;
}

/* 256 tokens, each the byte of its number. */
static struct llm_tokenizer *byte_tokenizer(uint32_t flags)
{
    static char texts[256][8];
    static const char *at[256];
    static uint8_t types[256];
    for (unsigned b = 0; b < 256; b++) {
        snprintf(texts[b], sizeof texts[b], "<0x%02X>", b);
        at[b] = texts[b];
        types[b] = 6;
    }
    struct vocab_recipe r = {.kind = LLM_VOCAB_SPM,
                             .flags = flags,
                             .n_tokens = 256,
                             .texts = at,
                             .types = types,
                             .bos = -1,
                             .eos = -1,
                             .unk = -1,
                             .eog = -1};
    return tokenizer_of(vocab_image(&r));
}

/* Pushes the text byte by byte; what comes out, a bar behind each piece. */
static char *pieces(unsigned flags, const char *text, size_t bytes)
{
    struct llm_tokenizer *t = byte_tokenizer(0);
    struct llm_detokenizer *d;
    struct text all = {0};
    char out[8192];
    assert_int_equal(llm_detokenizer_open(&d, t, flags), 0);
    for (size_t i = 0; i <= bytes; i++) {
        long n = i < bytes ? llm_detokenize(d, (unsigned char)text[i], out, sizeof out)
                           : llm_detokenize_flush(d, out, sizeof out);
        add(&all, out, n);
        if (n > 0)
            add(&all, "|", 1);
    }
    llm_detokenizer_close(d);
    llm_tokenizer_close(t);
    return all.at;
}

static void expect_pieces(unsigned flags, const char *text, const char *expected)
{
    char *got = pieces(flags, text, strlen(text));
    assert_string_equal(got, expected);
    free(got);
}

/* ---- golden data ---- */

/* llama.cpp cleans English spaces up in what these two decode ("a ." becomes "a."), which is not
 * copied: their text itself is expected, behind what the tokenizer adds. */
static const char *cleaned_up(const char *name)
{
    return strcmp(name, "gpt-2-small") == 0       ? ""
           : strcmp(name, "llama-bpe-small") == 0 ? "<|begin_of_text|>"
                                                  : NULL;
}

static struct text expected_text(const char *name, const json_t *c)
{
    struct text t = {0};
    const json_t *decoded = json_object_get(c, "decoded"), *text = json_object_get(c, "text");
    const char *hex = json_string_value(json_object_get(c, "decoded_hex"));
    if (json_is_true(json_object_get(c, "decoded_is_text"))) {
        decoded = text;
        hex = json_string_value(json_object_get(c, "text_hex"));
    } else if (cleaned_up(name) && text) {
        const char *first = cleaned_up(name);
        if (json_is_true(json_object_get(c, "add_special")))
            add(&t, first, (long)strlen(first));
        decoded = text;
    }
    if (decoded)
        add(&t, json_string_value(decoded), (long)json_string_length(decoded));
    for (size_t i = 0; hex && hex[i]; i += 2) {
        unsigned byte;
        sscanf(hex + i, "%2x", &byte);
        add(&t, &(char){(char)byte}, 1);
    }
    return t;
}

static size_t ids_of(const json_t *array, int32_t *ids, size_t room)
{
    size_t n = json_array_size(array);
    assert_true(n <= room);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return n;
}

/* The oracle's ids of a case, whoever gave them. */
static const json_t *oracle_ids(const json_t *c)
{
    const json_t *ids = json_object_get(c, "ids");
    return json_is_array(ids) ? ids : json_object_get(c, "llama_ids");
}

static void check_case(const struct llm_tokenizer *t, const char *name, const json_t *c,
                       unsigned *checked)
{
    int32_t ids[8192];
    const json_t *array = oracle_ids(c);
    if (!array)
        return;
    size_t n = ids_of(array, ids, 8192);
    struct text expected = expected_text(name, c);
    struct text got = decode(t, ids, n, LLM_DETOK_SHOW_SPECIAL);
    if (got.bytes != expected.bytes || memcmp(got.at, expected.at ? expected.at : "", got.bytes)) {
        char *shown = json_dumps(c, JSON_COMPACT);
        fail_msg("%s\n  got %s", shown, got.at);
    }
    ++*checked;
    free(expected.at);
    free(got.at);
}

static void golden_cases(const struct llm_tokenizer *t, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tokenizer/%s.jsonl", name);
    char *lines = golden_read(path, NULL), *rest = lines;
    unsigned checked = 0;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && *line;) {
        json_t *c = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(c);
        check_case(t, name, c, &checked);
        json_decref(c);
    }
    assert_true(checked > 400);
    free(lines);
}

static void golden(void **state)
{
    struct llm_tokenizer *t = golden_tokenizer(*state);
    golden_cases(t, *state);
    llm_tokenizer_close(t);
}

static void gemma3(void **state)
{
    (void)state;
    struct llm_tokenizer *t = gemma3_tokenizer();
    if (!t)
        skip();
    golden_cases(t, "gemma3");
    llm_tokenizer_close(t);
}

/* ---- characters ---- */

static void characters_come_whole(void **state)
{
    (void)state;
    expect_pieces(LLM_DETOK_UTF8, "a\u00e9\u4f60\U0001f642!", "a|\u00e9|\u4f60|\U0001f642|!|");
    expect_pieces(0, "\u00e9", "\xc3|\xa9|");
}

static void ill_formed_bytes_are_replaced_when_they_are_certain(void **state)
{
    (void)state;
#define BAD "\xef\xbf\xbd"
    expect_pieces(LLM_DETOK_UTF8, "\xff", BAD "|");
    expect_pieces(LLM_DETOK_UTF8, "\x80x", BAD "|x|");
    expect_pieces(LLM_DETOK_UTF8, "\xe2\x82x", BAD "x|");
    expect_pieces(LLM_DETOK_UTF8, "\xe2\x82\xe2\x82\xac", BAD "|\u20ac|");
    expect_pieces(LLM_DETOK_UTF8, "\xe2\x82", BAD "|");                 /* cut by the end: one */
    expect_pieces(LLM_DETOK_UTF8, "\xed\xa0\x80", BAD BAD "|" BAD "|"); /* a surrogate */
    expect_pieces(LLM_DETOK_UTF8, "\xf4\x90", BAD BAD "|");             /* above U+10FFFF */
    expect_pieces(LLM_DETOK_UTF8, "\xc0\xaf", BAD "|" BAD "|");
    expect_pieces(LLM_DETOK_UTF8, "\xf0\x9f\x99\xc3\xa9", BAD "|\u00e9|");
#undef BAD
}

/* ---- words ---- */

static void words_come_whole(void **state)
{
    (void)state;
    expect_pieces(LLM_DETOK_WORDS, "Hello, wor ld!", "Hello, |wor |ld!|");
    expect_pieces(LLM_DETOK_WORDS, " a\n\nb", " |a\n|\n|b|");
    expect_pieces(LLM_DETOK_WORDS, "\u4f60\u597d\u3002ok", "\u4f60|\u597d|\u3002|ok|");
    expect_pieces(LLM_DETOK_WORDS, "caf\u00e9\u00a0x", "caf\u00e9\u00a0|x|");
}

static void a_word_without_end_is_not_held_for_ever(void **state)
{
    (void)state;
    struct llm_tokenizer *t = byte_tokenizer(0);
    struct llm_detokenizer *d;
    char out[1024];
    long total = 0;
    assert_int_equal(llm_detokenizer_open(&d, t, LLM_DETOK_WORDS), 0);
    for (long i = 1; i <= 5000; i++) {
        total += llm_detokenize(d, 'x', out, sizeof out);
        assert_true(i - total <= 256);
    }
    total += llm_detokenize_flush(d, out, sizeof out);
    assert_int_equal(total, 5000);
    llm_detokenizer_close(d);
    llm_tokenizer_close(t);
}

/* ---- sentences ---- */

static void sentences_come_whole(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"Hi there. How are you? Fine!", "Hi there. |How are you? |Fine!|"},
        {"Wait... what?! Yes\u2026 no", "Wait... |what?! |Yes\u2026 |no|"},
        {"Pi is 3.14 or so. Ok", "Pi is 3.14 or so. |Ok|"},
        {"See e.g. this, i.e. that. Ok", "See e.g. this, i.e. that. |Ok|"},
        {"Dr. J. Smith and Mrs. Hu met at 5 p.m. today. Ok",
         "Dr. J. Smith and Mrs. Hu met at 5 p.m. today. |Ok|"},
        {"The U.S. Army. Then", "The U.S. Army. |Then|"},
        {"He said \"No.\" Then (he left.) Ok", "He said \"No.\" |Then (he left.) |Ok|"},
        {"It was **bold.** Then", "It was **bold.** |Then|"},
        {"So do I. Ok", "So do I. |Ok|"},
        {"1. First thing. 2. Second", "1. First thing. |2. Second|"},
        {"Born in 1990. Died", "Born in 1990. |Died|"},
        {"Title\nBody one. Two", "Title\n|Body one. |Two|"},
        {"see www.example.com. Then", "see www.example.com. |Then|"},
        {"v1.2.3 is out", "v1.2.3 is out|"},
        {"\u4f60\u597d\u3002\u518d\u89c1\uff01\u597d",
         "\u4f60\u597d\u3002|\u518d\u89c1\uff01|\u597d|"},
        {"\u300c\u597d\u3002\u300d\u4ed6\u8bf4", "\u300c\u597d\u3002\u300d|\u4ed6\u8bf4|"},
        {"\u0939\u093e\u0902\u0964 \u0928", "\u0939\u093e\u0902\u0964 |\u0928|"},
        {"no end", "no end|"},
        {"...", "...|"},
        {"", NULL},
    };
    for (size_t i = 0; cases[i][1]; i++)
        expect_pieces(LLM_DETOK_SENTENCES, cases[i][0], cases[i][1]);
}

/* White space that comes in the same token goes along. */
static void white_space_stays_with_its_sentence(void **state)
{
    (void)state;
    struct llm_tokenizer *t = golden_tokenizer("llama-spm");
    struct llm_detokenizer *d;
    int32_t ids[32];
    char out[256], joined[256] = "";
    long n = llm_tokenize(t, "Yes.     No.", 12, 0, ids, 32);
    assert_int_equal(llm_detokenizer_open(&d, t, LLM_DETOK_SENTENCES), 0);
    for (long i = 0; i < n; i++) {
        long bytes = llm_detokenize(d, ids[i], out, sizeof out);
        strncat(joined, out, (size_t)bytes);
        strcat(joined, bytes ? "|" : "");
    }
    assert_string_equal(joined, "Yes.    |");
    llm_detokenizer_close(d);
    llm_tokenizer_close(t);
}

static void a_sentence_without_end_comes_word_by_word(void **state)
{
    (void)state;
    struct llm_tokenizer *t = byte_tokenizer(0);
    struct llm_detokenizer *d;
    char out[2048];
    long total = 0, pushed = 0;
    assert_int_equal(llm_detokenizer_open(&d, t, LLM_DETOK_SENTENCES), 0);
    for (int i = 0; i < 900; i++)
        for (const char *c = "abcd "; *c; c++) {
            long n = llm_detokenize(d, *c, out, sizeof out);
            assert_true(n == 0 || out[n - 1] == ' ');
            total += n;
            assert_true(++pushed - total <= 1024);
        }
    assert_true(total > 0);
    total += llm_detokenize_flush(d, out, sizeof out);
    assert_int_equal(total, pushed);
    llm_detokenizer_close(d);
    llm_tokenizer_close(t);
}

/* ---- the first space, control tokens ---- */

static void first_space_is_the_tokenizers_own(void **state)
{
    (void)state;
    struct llm_tokenizer *t = golden_tokenizer("llama-spm");
    int32_t ids[32];
    size_t n = (size_t)llm_tokenize(t, "Hello world", 11, LLM_TOKENIZE_ADD_SPECIAL, ids, 32);
    struct text text = decode(t, ids, n, LLM_DETOK_UTF8);
    assert_string_equal(text.at, "Hello world"); /* a silent bos does not count as text */
    free(text.at);
    text = decode(t, ids, n, LLM_DETOK_UTF8 | LLM_DETOK_SHOW_SPECIAL);
    assert_string_equal(text.at, "<s> Hello world");
    free(text.at);
    text = decode(t, ids + 1, n - 1, LLM_DETOK_CONTINUE);
    assert_string_equal(text.at, " Hello world");
    free(text.at);
    llm_tokenizer_close(t);
}

static void reset_begins_anew(void **state)
{
    (void)state;
    struct llm_tokenizer *t = golden_tokenizer("llama-spm");
    struct llm_detokenizer *d;
    char out[64];
    int32_t hello;
    assert_int_equal(llm_tokenize(t, "Hello", 5, 0, &hello, 1), 1);
    assert_int_equal(llm_detokenizer_open(&d, t, LLM_DETOK_UTF8), 0);
    assert_int_equal(llm_detokenize(d, hello, out, sizeof out), 5);
    assert_int_equal(llm_detokenize(d, hello, out, sizeof out), 6);
    assert_int_equal(llm_detokenize(d, 3 + 0xe2, out, sizeof out), 0); /* half a character */
    llm_detokenizer_reset(d);
    assert_int_equal(llm_detokenize(d, hello, out, sizeof out), 5);
    assert_int_equal(llm_detokenize_flush(d, out, sizeof out), 0);
    llm_detokenizer_close(d);
    llm_tokenizer_close(t);
}

/* ---- too little room, wrong arguments ---- */

static void refused_text_comes_with_the_flush(void **state)
{
    (void)state;
    struct llm_tokenizer *t = golden_tokenizer("llama-spm");
    struct llm_detokenizer *d;
    char out[64];
    int32_t hello;
    assert_int_equal(llm_tokenize(t, "Hello", 5, 0, &hello, 1), 1);
    assert_int_equal(llm_detokenizer_open(&d, t, LLM_DETOK_UTF8), 0);
    assert_int_equal(llm_detokenize(d, hello, out, 4), -ENOBUFS);
    assert_int_equal(llm_detokenize_flush(d, out, 4), -ENOBUFS);
    assert_int_equal(llm_detokenize_flush(d, out, 5), 5);
    assert_memory_equal(out, "Hello", 5);
    /* pushed on instead: it comes with the next */
    assert_int_equal(llm_detokenize(d, hello, NULL, 0), -ENOBUFS);
    assert_int_equal(llm_detokenize(d, hello, out, sizeof out), 12);
    assert_memory_equal(out, " Hello Hello", 12);
    /* half a character is not given away with what was refused */
    assert_int_equal(llm_detokenize(d, hello, out, 2), -ENOBUFS);
    assert_int_equal(llm_detokenize(d, 3 + 0xc3, out, 2), -ENOBUFS);
    assert_int_equal(llm_detokenize_flush(d, out, sizeof out), 6);
    assert_int_equal(llm_detokenize(d, 3 + 0xa9, out, sizeof out), 2);
    assert_memory_equal(out, "\u00e9", 2);
    llm_detokenizer_close(d);
    llm_tokenizer_close(t);
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    struct llm_tokenizer *t = byte_tokenizer(0);
    struct llm_detokenizer *d;
    char out[8];
    assert_int_equal(llm_detokenizer_open(&d, t, 1u << 20), -EINVAL);
    assert_null(d);
    assert_int_equal(llm_detokenizer_open(&d, t, 0), 0);
    assert_int_equal(llm_detokenize(d, 256, out, 8), LLM_ETOKEN);
    assert_int_equal(llm_detokenize(d, -1, out, 8), LLM_ETOKEN);
    assert_int_equal(llm_detokenize(d, 'a', out, 8), 1);
    llm_detokenizer_close(d);
    llm_detokenizer_close(NULL);
    llm_tokenizer_close(t);
}

int main(void)
{
    static char *const names[] = {"smollm2",     "llama-bpe-small", "qwen2-small",
                                  "gpt-2-small", "deepseek-coder",  "llama-spm"};
    struct CMUnitTest goldens[6];
    for (int i = 0; i < 6; i++)
        goldens[i] = (struct CMUnitTest){names[i], golden, NULL, NULL, names[i]};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma3),
        cmocka_unit_test(characters_come_whole),
        cmocka_unit_test(ill_formed_bytes_are_replaced_when_they_are_certain),
        cmocka_unit_test(words_come_whole),
        cmocka_unit_test(a_word_without_end_is_not_held_for_ever),
        cmocka_unit_test(sentences_come_whole),
        cmocka_unit_test(white_space_stays_with_its_sentence),
        cmocka_unit_test(a_sentence_without_end_comes_word_by_word),
        cmocka_unit_test(first_space_is_the_tokenizers_own),
        cmocka_unit_test(reset_begins_anew),
        cmocka_unit_test(refused_text_comes_with_the_flush),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    int failed = cmocka_run_group_tests_name("golden", goldens, NULL, NULL);
    return failed + cmocka_run_group_tests_name("streaming", tests, NULL, NULL);
}
