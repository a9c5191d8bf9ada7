/* Token ids equal those of independent tokenizers, on every golden case; unknown pre-tokenizers are
 * refused by name. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/support.h"
#include "../support/vocab_image.h"

/* ---- golden cases ---- */

static char *case_text(const json_t *c, size_t *bytes)
{
    const json_t *text = json_object_get(c, "text");
    if (text) {
        *bytes = json_string_length(text);
        char *copy = malloc(*bytes + 1);
        memcpy(copy, json_string_value(text), *bytes);
        return copy;
    }
    const char *hex = json_string_value(json_object_get(c, "text_hex"));
    *bytes = strlen(hex) / 2;
    char *copy = malloc(*bytes + 1);
    for (size_t i = 0; i < *bytes; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        copy[i] = (char)byte;
    }
    return copy;
}

/* What is expected: what the oracles agree on. Where they differ, the model's own tokenizer is
 * followed on text that is not NFC and on ill-formed UTF-8 of byte-level vocabularies;
 * SentencePiece gets ill-formed UTF-8 already replaced there, but turns neighbours into one token.
 */
static const json_t *expected_ids(const json_t *c)
{
    const json_t *ids = json_object_get(c, "ids");
    return json_is_array(ids) ? ids : json_object_get(c, "hf_ids");
}

static bool same_ids(const json_t *expected, const int32_t *ids, long n)
{
    if ((long)json_array_size(expected) != n)
        return false;
    for (long i = 0; i < n; i++)
        if (json_integer_value(json_array_get(expected, (size_t)i)) != ids[i])
            return false;
    return true;
}

static unsigned case_flags(const json_t *c)
{
    return (json_is_true(json_object_get(c, "add_special")) ? LLM_TOKENIZE_ADD_SPECIAL : 0u) |
           (json_is_true(json_object_get(c, "parse_special")) ? LLM_TOKENIZE_SPECIAL : 0u);
}

static void print_ids(const char *label, const int32_t *ids, long n)
{
    fprintf(stderr, "  %s:", label);
    for (long i = 0; i < n; i++)
        fprintf(stderr, " %d", ids[i]);
    fprintf(stderr, "\n");
}

static bool run_case(const struct llm_tokenizer *t, const json_t *c)
{
    size_t bytes;
    char *text = case_text(c, &bytes);
    long room = (long)bytes * 3 + 16;
    int32_t *ids = malloc((size_t)room * sizeof *ids);
    long n = llm_tokenize(t, text, bytes, case_flags(c), ids, (size_t)room);
    assert_true(n >= 0 && n <= room);
    bool same = same_ids(expected_ids(c), ids, n);
    if (!same) {
        char *shown = json_dumps(c, JSON_COMPACT);
        fprintf(stderr, "case %s\n", shown);
        print_ids("got", ids, n);
        free(shown);
    }
    free(ids);
    free(text);
    return same;
}

static json_t *next_case(char **at)
{
    json_error_t error;
    char *end = strchr(*at, '\n');
    if (**at == 0)
        return NULL;
    size_t bytes = end ? (size_t)(end - *at) : strlen(*at);
    json_t *c = json_loadb(*at, bytes, JSON_ALLOW_NUL, &error);
    if (!c)
        fail_msg("%s", error.text);
    *at += bytes + (end != NULL);
    return c;
}

static void run_cases(const struct llm_tokenizer *t, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tokenizer/%s.jsonl", name);
    char *lines = golden_read(path, NULL), *at = lines;
    unsigned cases = 0, wrong = 0;
    for (json_t *c; (c = next_case(&at)); json_decref(c), cases++)
        wrong += !run_case(t, c);
    free(lines);
    print_message("%s: %u cases, %u wrong\n", name, cases, wrong);
    assert_true(cases > 100);
    assert_int_equal(wrong, 0);
}

static void golden(void **state)
{
    const char *name = *state;
    struct llm_tokenizer *t = golden_tokenizer(name);
    run_cases(t, name);
    llm_tokenizer_close(t);
}

static void gemma3(void **state)
{
    (void)state;
    struct llm_tokenizer *t = gemma3_tokenizer();
    if (!t)
        skip();
    run_cases(t, "gemma3");
    llm_tokenizer_close(t);
}

/* ---- the rest of the interface ---- */

static void ids_beyond_max_are_counted(void **state)
{
    (void)state;
    struct llm_tokenizer *t = golden_tokenizer("smollm2");
    int32_t ids[3] = {-7, -7, -7};
    assert_int_equal(llm_tokenize(t, "a b c d", 7, 0, NULL, 0), 4);
    assert_int_equal(llm_tokenize(t, "a b c d", 7, 0, ids, 2), 4);
    assert_int_equal(ids[2], -7);
    assert_int_not_equal(ids[1], -7);
    assert_int_equal(llm_tokenize(t, NULL, 0, 3, ids, 3), 0);
    assert_int_equal(llm_tokenize(t, "", (size_t)1 << 31, 0, ids, 3), -E2BIG);
    llm_tokenizer_close(t);
}

static const char *const letters[] = {"a", "b", "ab", "<s>", "</s>"};
static const uint8_t letter_types[] = {1, 1, 1, 3, 4};
static const char *const letter_merges[] = {"a b"};

static struct vocab_recipe letters_recipe(const char *pre)
{
    return (struct vocab_recipe){.kind = LLM_VOCAB_BPE,
                                 .pre = pre,
                                 .n_tokens = 5,
                                 .texts = letters,
                                 .types = letter_types,
                                 .n_merges = 1,
                                 .merges = letter_merges,
                                 .bos = 3,
                                 .eos = 4,
                                 .unk = -1,
                                 .eog = 4};
}

static void unknown_pre_tokenizer_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const unknown[] = {"", "nonsense-7b", "gpt", "gpt-2 phi-2", "default", " "};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        struct vocab_recipe r = letters_recipe(unknown[i]);
        struct llm_vocab *image = vocab_image(&r);
        struct llm_tokenizer *t;
        char why[256], quoted[80];
        int rc = llm_tokenizer_open_image(&t, image, image->bytes, why, sizeof why);
        assert_int_equal(rc, LLM_ENOTEXT);
        assert_null(t);
        snprintf(quoted, sizeof quoted, "'%s'", unknown[i]);
        assert_non_null(strstr(why, quoted));
        assert_int_equal(llm_tokenizer_open_image(&t, image, image->bytes, NULL, 0), LLM_ENOTEXT);
        free(image);
    }
}

static void every_known_pre_tokenizer_opens(void **state)
{
    (void)state;
    static const char *const known[] = {
        "gpt-2",        "smollm",         "starcoder",  "codeshell",   "llama-bpe",
        "qwen2",        "qwen35",         "tekken",     "gpt-4o",      "llama4",
        "deepseek-llm", "deepseek-coder", "falcon",     "deepseek-v3", "bailingmoe",
        "chatglm-bpe",  "command-r",      "seed-coder", "viking",      "poro-chat",
        "youtu",        "laguna",         "olmo",       "dbrx",        "stablelm2"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct vocab_recipe r = letters_recipe(known[i]);
        struct llm_tokenizer *t = tokenizer_of(vocab_image(&r));
        int32_t ids[4];
        assert_int_equal(llm_tokenize(t, "aba", 3, 0, ids, 4), 2);
        assert_int_equal(ids[0], 2);
        assert_int_equal(ids[1], 0);
        llm_tokenizer_close(t);
    }
}

static void damaged_image_is_refused(void **state)
{
    (void)state;
    struct vocab_recipe r = letters_recipe("gpt-2");
    struct llm_vocab *image = vocab_image(&r);
    struct llm_tokenizer *t;
    char why[256] = "";
    image->strings_off = image->bytes + 8;
    assert_int_equal(llm_tokenizer_open_image(&t, image, image->bytes, why, sizeof why),
                     LLM_EPROTO);
    assert_true(strlen(why) > 10);
    free(image);
}

static long count(const struct llm_tokenizer *t, const char *text, unsigned flags, int32_t *ids)
{
    return llm_tokenize(t, text, strlen(text), flags, ids, 16);
}

static void special_tokens_need_the_flag_user_defined_ones_do_not(void **state)
{
    (void)state;
    struct vocab_recipe r = letters_recipe("gpt-2");
    r.eog = -1; /* else </s> were a control token */
    r.flags = LLM_VOCAB_ADD_BOS | LLM_VOCAB_ADD_EOS;
    struct llm_tokenizer *t = tokenizer_of(vocab_image(&r));
    int32_t ids[16];
    assert_int_equal(count(t, "a<s></s>", 0, ids), 2); /* no token for < s > */
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 4);
    assert_int_equal(count(t, "a<s></s>", LLM_TOKENIZE_SPECIAL, ids), 3);
    assert_int_equal(ids[1], 3);
    assert_int_equal(count(t, "a", LLM_TOKENIZE_ADD_SPECIAL, ids), 3);
    assert_int_equal(ids[0], 3);
    assert_int_equal(ids[2], 4);
    assert_true(llm_token_is_control(t, 3));
    assert_false(llm_token_is_control(t, 4));
    assert_false(llm_token_is_control(t, -1));
    assert_false(llm_token_is_control(t, 5));
    llm_tokenizer_close(t);
}

static void of_overlapping_specials_the_leftmost_longest_wins(void **state)
{
    (void)state;
    static const char *const texts[] = {"a", "<x>", "<x><y>", "y><", "<", "<x>"};
    static const uint8_t types[] = {1, 4, 4, 4, 3, 4};
    struct vocab_recipe r = letters_recipe("gpt-2");
    r.n_tokens = 6, r.texts = texts, r.types = types, r.n_merges = 0, r.eog = r.bos = r.eos = -1;
    struct llm_tokenizer *t = tokenizer_of(vocab_image(&r));
    int32_t ids[16];
    assert_int_equal(count(t, "<x><y><x>", 0, ids), 2);
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 1); /* of two spellings the lower id */
    assert_int_equal(count(t, "<x><a", LLM_TOKENIZE_SPECIAL, ids), 3);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 4);
    assert_int_equal(count(t, "<xy><", 0, ids), 1);
    assert_int_equal(ids[0], 3);
    llm_tokenizer_close(t);
}

static void some_families_take_a_word_that_is_a_token_as_it_is(void **state)
{
    (void)state;
    static const char *const texts[] = {"a", "b", "ab", "<s>", "</s>", "ba"};
    static const uint8_t types[] = {1, 1, 1, 3, 4, 1};
    int32_t ids[16];
    struct vocab_recipe r = letters_recipe("llama-bpe");
    r.n_tokens = 6, r.texts = texts, r.types = types;
    struct llm_tokenizer *t = tokenizer_of(vocab_image(&r));
    assert_int_equal(count(t, "ba", 0, ids), 1);
    assert_int_equal(ids[0], 5);
    llm_tokenizer_close(t);
    r.pre = "qwen2";
    t = tokenizer_of(vocab_image(&r));
    assert_int_equal(count(t, "ba", 0, ids), 2); /* no merge leads there */
    llm_tokenizer_close(t);
}

static void the_unknown_token_is_a_control_token(void **state)
{
    (void)state;
    struct llm_tokenizer *t = golden_tokenizer("llama-spm");
    int32_t ids[16];
    assert_true(llm_token_is_control(t, 0));
    assert_int_equal(count(t, "<unk>", LLM_TOKENIZE_SPECIAL, ids), 1);
    assert_int_equal(ids[0], 0);
    assert_true(count(t, "<unk>", 0, ids) > 1);
    llm_tokenizer_close(t);
}

/* SentencePiece text is merged stretch by stretch, but not where a token reaches over a space. */
static void a_token_may_hold_a_space_inside(void **state)
{
    (void)state;
    static const char *const texts[] = {"a", "b", "\u2581", "\u2581b", "a\u2581", "a\u2581b", "c"};
    static const uint8_t types[] = {1, 1, 1, 1, 1, 1, 1};
    static const float scores[] = {-9, -9, -9, -5, -4, -3, -9};
    struct vocab_recipe r = {.kind = LLM_VOCAB_SPM, .n_tokens = 7, .texts = texts, .types = types};
    r.scores = scores, r.bos = r.eos = r.unk = r.eog = -1;
    struct llm_tokenizer *t = tokenizer_of(vocab_image(&r));
    int32_t ids[16];
    assert_int_equal(count(t, "a b", 0, ids), 1);
    assert_int_equal(ids[0], 5);
    assert_int_equal(count(t, "c ba b", 0, ids), 3);
    assert_int_equal(ids[1], 3);
    assert_int_equal(ids[2], 5);
    llm_tokenizer_close(t);
}

static void token_bytes_are_what_stands_in_text(void **state)
{
    (void)state;
    struct llm_tokenizer *t = golden_tokenizer("llama-spm");
    const char *at;
    assert_int_equal(llm_token_bytes(t, 3 + 0x41, &at), 1); /* <0x41> */
    assert_int_equal(*at, 'A');
    assert_int_equal(llm_token_bytes(t, 29871, &at), 1); /* U+2581 */
    assert_int_equal(*at, ' ');
    assert_int_equal(llm_token_bytes(t, 1, &at), 3);
    assert_memory_equal(at, "<s>", 3);
    assert_int_equal(llm_token_bytes(t, -1, &at), LLM_ETOKEN);
    assert_int_equal(llm_token_bytes(t, 32000, &at), LLM_ETOKEN);
    assert_int_equal(llm_tokenizer_vocab(t), 32000);
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
        cmocka_unit_test(ids_beyond_max_are_counted),
        cmocka_unit_test(unknown_pre_tokenizer_is_refused_by_name),
        cmocka_unit_test(every_known_pre_tokenizer_opens),
        cmocka_unit_test(damaged_image_is_refused),
        cmocka_unit_test(special_tokens_need_the_flag_user_defined_ones_do_not),
        cmocka_unit_test(of_overlapping_specials_the_leftmost_longest_wins),
        cmocka_unit_test(some_families_take_a_word_that_is_a_token_as_it_is),
        cmocka_unit_test(the_unknown_token_is_a_control_token),
        cmocka_unit_test(a_token_may_hold_a_space_inside),
        cmocka_unit_test(token_bytes_are_what_stands_in_text),
    };
    int failed = cmocka_run_group_tests_name("golden", goldens, NULL, NULL);
    return failed + cmocka_run_group_tests_name("interface", tests, NULL, NULL);
}
